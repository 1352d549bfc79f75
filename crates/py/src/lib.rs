//! The boundary between Python and the store: conversion only. `python/dalsegno/_native.pyi` is its contract.
//!
//! 1. The GIL is released before anything waits or copies.
//! 2. A Python buffer stays exported until nothing can touch its bytes any more.
//! 3. Every error kind has one exception class.

mod access;
mod arguments;
mod buffers;
mod errors;
mod namespace;
mod offline;
mod store;
mod tensors;
mod transfer;
mod watch;
mod writer;

use pyo3::prelude::*;
use tracing_subscriber::filter::LevelFilter;

/// Prints log events of the core to standard error if `DALSEGNO_LOG` is set.
///
/// An invalid level does not fail an engine's start: it is logged, and warnings are shown.
fn listen() {
    let Some(wanted) = std::env::var_os("DALSEGNO_LOG") else { return };
    let wanted = wanted.to_string_lossy();
    let level = wanted.parse::<LevelFilter>();
    let shown = *level.as_ref().unwrap_or(&LevelFilter::WARN);
    // A program that embeds this module may have a subscriber already.
    drop(tracing_subscriber::fmt().with_max_level(shown).with_writer(std::io::stderr).try_init());
    if level.is_err() {
        tracing::warn!(
            "DALSEGNO_LOG is {wanted:?}; it must be error, warn, info, debug, trace or off; showing warnings"
        );
    }
}

/// Native part of the `dalsegno` package.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::register(module)?;
    listen();
    module.add_class::<store::PyStore>()?;
    module.add_class::<namespace::PyNamespace>()?;
    module.add_class::<transfer::PyTransfer>()?;
    module.add_class::<transfer::PyPutReport>()?;
    module.add_class::<writer::PyLayerWriter>()?;
    module.add_class::<watch::PyRemovalWatch>()?;
    module.add_function(wrap_pyfunction!(offline::info, module)?)?;
    module.add_function(wrap_pyfunction!(offline::list_extents, module)?)?;
    module.add_function(wrap_pyfunction!(offline::inspect, module)?)?;
    module.add_function(wrap_pyfunction!(offline::verify, module)?)?;
    module.add_function(wrap_pyfunction!(offline::repair, module)?)?;
    module.add_function(wrap_pyfunction!(offline::config_keys, module)?)?;
    module.add_function(wrap_pyfunction!(offline::parse_bytes, module)?)?;
    Ok(())
}
