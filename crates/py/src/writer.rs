//! `LayerWriter`.

use dalsegno_store::{LayerWriter, Terms};
use pyo3::prelude::*;

use crate::access::Access;
use crate::arguments::{Number, timeout};
use crate::buffers::blocks;
use crate::errors::OrRaise;
use crate::transfer::PyTransfer;

/// Blocks that are put layer by layer.
#[pyclass(name = "LayerWriter", module = "dalsegno._native", frozen)]
pub(crate) struct PyLayerWriter {
    writer: LayerWriter,
}

impl PyLayerWriter {
    pub(crate) fn new(writer: LayerWriter) -> Self {
        Self { writer }
    }
}

#[pymethods]
impl PyLayerWriter {
    #[getter]
    fn first(&self) -> usize {
        self.writer.first()
    }

    #[getter]
    fn count(&self) -> usize {
        self.writer.count()
    }

    #[pyo3(signature = (layer, blocks, *, timeout_s=None))]
    fn store_layer(
        &self,
        py: Python<'_>,
        layer: Number<u32>,
        blocks: &Bound<'_, PyAny>,
        timeout_s: Option<f64>,
    ) -> PyResult<()> {
        let layer = layer.named("layer")?;
        let memory = self::blocks(blocks, Access::Read)?;
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        py.detach(|| self.writer.store_layer(layer, memory, &terms)).or_raise()
    }

    #[pyo3(signature = (layer, blocks, *, timeout_s=None))]
    fn submit_store_layer(
        &self,
        layer: Number<u32>,
        blocks: &Bound<'_, PyAny>,
        timeout_s: Option<f64>,
    ) -> PyResult<PyTransfer> {
        let layer = layer.named("layer")?;
        let memory = self::blocks(blocks, Access::Read)?;
        let timeout = timeout(timeout_s)?;
        Ok(PyTransfer::layer(self.writer.submit_store_layer(layer, memory, timeout)))
    }

    #[pyo3(signature = (*, timeout_s=None))]
    fn commit(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<usize> {
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        py.detach(|| self.writer.commit(&terms)).or_raise()
    }
}
