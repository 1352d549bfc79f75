//! The boundary between Python and the store: type conversion only.
//!
//! The doc comments of what Python sees are Python's docstrings. `python/dalsegno/_native.pyi` has the same ones for
//! editors; `tests/unit/api/test_docstrings.py` compares them.
//!
//! 1. The GIL is released before anything waits or copies.
//! 2. A Python buffer stays exported until nothing can touch its bytes.
//! 3. Every error kind has one exception class.

#![expect(clippy::doc_markdown, reason = "what Python sees is documented in Python's markup")]

mod access;
mod allocation;
mod arguments;
mod buffers;
mod errors;
mod far;
mod json;
mod lease;
mod namespace;
mod offline;
mod server;
mod store;
mod tensors;
mod transfer;
mod view;
mod watch;
mod writer;

use pyo3::prelude::*;
use tracing_subscriber::filter::LevelFilter;

/// Writes the core's events to standard error if `DALSEGNO_LOG` names a level.
///
/// An invalid level must not fail an engine's start: it is logged, and warnings are shown.
fn log_events() {
    if let Some(setting) = std::env::var_os("DALSEGNO_LOG") {
        log_events_from(&setting.to_string_lossy());
    }
}

/// Writes events of the store to standard error.
///
/// It does nothing if the environment variable ``DALSEGNO_LOG`` names a level, which then counts.
///
/// Args:
///     level: ``"error"``, ``"warn"``, ``"info"``, ``"debug"`` or ``"trace"``.
#[pyfunction]
fn show_events(level: &str) {
    if std::env::var_os("DALSEGNO_LOG").is_none() {
        log_events_from(level);
    }
}

fn log_events_from(setting: &str) {
    let level = setting.parse::<LevelFilter>();
    let shown = *level.as_ref().unwrap_or(&LevelFilter::WARN);
    // A program that embeds this module may have a subscriber already.
    drop(tracing_subscriber::fmt().with_max_level(shown).with_writer(std::io::stderr).try_init());
    if level.is_err() {
        tracing::warn!(
            "DALSEGNO_LOG is {setting:?}; expected error, warn, info, debug, trace or off; showing warnings"
        );
    }
}

/// The boundary between Python and the Rust core: type conversion only.
///
/// Every call that waits or copies releases the GIL. A buffer is a C-contiguous object with the buffer
/// protocol (a numpy array, memoryview or bytearray) or a ``torch.Tensor`` of any dtype in CPU memory.
/// Buffers are used in place, never copied in Python. A buffer that a call fills must be writable; a
/// tensor that requires grad is not. A block is one buffer, or a sequence of buffers whose lengths sum
/// to the block's size.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::register(module)?;
    log_events();
    module.add_class::<store::PyStore>()?;
    module.add_class::<server::PyServer>()?;
    module.add_class::<namespace::PyNamespace>()?;
    module.add_class::<lease::PyLease>()?;
    module.add_class::<allocation::PyAllocation>()?;
    module.add_class::<transfer::PyTransfer>()?;
    module.add_class::<transfer::PyPutReport>()?;
    module.add_class::<writer::PyLayerWriter>()?;
    module.add_class::<watch::PyRemovalWatch>()?;
    module.add_function(wrap_pyfunction!(show_events, module)?)?;
    module.add_function(wrap_pyfunction!(offline::info, module)?)?;
    module.add_function(wrap_pyfunction!(offline::list_extents, module)?)?;
    module.add_function(wrap_pyfunction!(offline::inspect, module)?)?;
    module.add_function(wrap_pyfunction!(offline::verify, module)?)?;
    module.add_function(wrap_pyfunction!(offline::repair, module)?)?;
    module.add_function(wrap_pyfunction!(far::is_far_location, module)?)?;
    module.add_function(wrap_pyfunction!(far::far_survey, module)?)?;
    module.add_function(wrap_pyfunction!(far::far_verify, module)?)?;
    module.add_function(wrap_pyfunction!(far::far_inspect, module)?)?;
    module.add_function(wrap_pyfunction!(far::far_prune, module)?)?;
    module.add_function(wrap_pyfunction!(far::far_doctor, module)?)?;
    module.add_function(wrap_pyfunction!(offline::config_keys, module)?)?;
    module.add_function(wrap_pyfunction!(offline::parse_bytes, module)?)?;
    Ok(())
}
