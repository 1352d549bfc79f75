//! `LayerWriter`.

use std::sync::{Mutex, MutexGuard};

use dalsegno_store::{LayerWriter, Store, Terms};
use pyo3::prelude::*;

use crate::buffers::{Access, Number, blocks, timeout};
use crate::errors::{InvalidError, OrRaise};

/// Blocks that are put layer by layer.
#[pyclass(name = "LayerWriter", module = "dalsegno._native", frozen)]
pub(crate) struct PyLayerWriter {
    first: usize,
    count: usize,
    writer: Mutex<LayerWriter>,
    store: Store,
}

impl PyLayerWriter {
    pub(crate) fn new(store: Store, writer: LayerWriter) -> Self {
        let (first, count) = (writer.first(), writer.count());
        Self { first, count, writer: Mutex::new(writer), store }
    }

    /// The writer, once no other thread uses it. A forked child is refused before it waits: for ever, if a thread used
    /// the writer at the fork.
    fn lock(&self) -> PyResult<MutexGuard<'_, LayerWriter>> {
        self.store.check_process().or_raise()?;
        self.writer.lock().map_err(broken)
    }
}

/// A thread that panicked in the middle left the writer in doubt.
fn broken<T>(_: T) -> PyErr {
    InvalidError::new_err("an earlier call broke off; start the put again")
}

#[pymethods]
impl PyLayerWriter {
    #[getter]
    fn first(&self) -> usize {
        self.first
    }

    #[getter]
    fn count(&self) -> usize {
        self.count
    }

    #[pyo3(signature = (layer, blocks, *, timeout_s=None))]
    fn store_layer(
        &self,
        py: Python<'_>,
        layer: Number<u32>,
        blocks: &Bound<'_, PyAny>,
        timeout_s: Option<f64>,
    ) -> PyResult<()> {
        let memory = self::blocks(blocks, Access::Read)?;
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        py.detach(|| self.lock()?.store_layer(layer.0, memory, &terms).or_raise())
    }

    #[pyo3(signature = (*, timeout_s=None))]
    fn commit(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<usize> {
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        py.detach(|| self.lock()?.commit(&terms).or_raise())
    }
}
