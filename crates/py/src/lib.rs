//! The border between Python and the store: conversion only. `python/dalsegno/_native.pyi` is its contract.
//!
//! 1. The GIL is released before anything waits or copies.
//! 2. A Python buffer stays exported until nothing can touch its bytes any more.
//! 3. Every error kind has one exception class.

mod buffers;
mod errors;
mod namespace;
mod offline;
mod store;
mod transfer;
mod writer;

use pyo3::prelude::*;

/// Native part of the `dalsegno` package.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::register(module)?;
    module.add_class::<store::PyStore>()?;
    module.add_class::<namespace::PyNamespace>()?;
    module.add_class::<transfer::PyTransfer>()?;
    module.add_class::<transfer::PyPutReport>()?;
    module.add_class::<writer::PyLayerWriter>()?;
    module.add_function(wrap_pyfunction!(offline::info, module)?)?;
    module.add_function(wrap_pyfunction!(offline::list_extents, module)?)?;
    module.add_function(wrap_pyfunction!(offline::verify, module)?)?;
    module.add_function(wrap_pyfunction!(offline::config_keys, module)?)?;
    Ok(())
}
