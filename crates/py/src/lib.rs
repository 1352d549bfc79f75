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
mod tensors;
mod transfer;
mod writer;

use pyo3::prelude::*;

/// Shows the core's own events on standard error, if `DALSEGNO_LOG` asks for them.
fn listen() -> PyResult<()> {
    let Ok(wanted) = std::env::var("DALSEGNO_LOG") else { return Ok(()) };
    let level: tracing_subscriber::filter::LevelFilter = wanted.parse().map_err(|_| {
        let message = format!(
            "DALSEGNO_LOG is {wanted:?}; it must be error, warn, info, debug, trace or off"
        );
        errors::InvalidError::new_err(message)
    })?;
    // Somebody who embeds us may listen already.
    drop(tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).try_init());
    Ok(())
}

/// Native part of the `dalsegno` package.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::register(module)?;
    listen()?;
    module.add_class::<store::PyStore>()?;
    module.add_class::<namespace::PyNamespace>()?;
    module.add_class::<transfer::PyTransfer>()?;
    module.add_class::<transfer::PyPutReport>()?;
    module.add_class::<writer::PyLayerWriter>()?;
    module.add_function(wrap_pyfunction!(offline::info, module)?)?;
    module.add_function(wrap_pyfunction!(offline::list_extents, module)?)?;
    module.add_function(wrap_pyfunction!(offline::inspect, module)?)?;
    module.add_function(wrap_pyfunction!(offline::verify, module)?)?;
    module.add_function(wrap_pyfunction!(offline::repair, module)?)?;
    module.add_function(wrap_pyfunction!(offline::config_keys, module)?)?;
    Ok(())
}
