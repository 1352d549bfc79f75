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
mod costs;
mod errors;
mod far;
mod gpu;
mod json;
mod lease;
mod load;
mod log;
mod mooncake;
mod namespace;
mod offline;
mod pages;
mod server;
mod store;
mod tensors;
mod transfer;
mod view;
mod watch;
mod writer;

use pyo3::prelude::*;

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
    log::log_events();
    mooncake::install();
    module.add_class::<store::PyStore>()?;
    module.add_class::<server::PyServer>()?;
    module.add_class::<namespace::PyNamespace>()?;
    module.add_class::<lease::PyLease>()?;
    module.add_class::<allocation::PyAllocation>()?;
    module.add_class::<costs::PyCostModel>()?;
    module.add_class::<costs::PyLoadChoice>()?;
    module.add_class::<costs::PyLoadTerms>()?;
    module.add_class::<gpu::PyGpu>()?;
    module.add_class::<gpu::PyGpuPoint>()?;
    module.add_class::<pages::PyPagedMemory>()?;
    module.add_class::<pages::PyPagedBlocks>()?;
    module.add_class::<load::PyLoad>()?;
    module.add_class::<transfer::PyTransfer>()?;
    module.add_class::<transfer::PyPutReport>()?;
    module.add_class::<writer::PyLayerWriter>()?;
    module.add_class::<watch::PyRemovalWatch>()?;
    module.add_function(wrap_pyfunction!(costs::merge_located, module)?)?;
    module.add_function(wrap_pyfunction!(log::show_events, module)?)?;
    module.add_function(wrap_pyfunction!(log::write_queued, module)?)?;
    module.add_function(wrap_pyfunction!(server::server_socket, module)?)?;
    module.add_function(wrap_pyfunction!(server::server_trouble, module)?)?;
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
