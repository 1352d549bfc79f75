//! `LayerWriter`.

use std::sync::Mutex;

use dalsegno_store::{LayerWriter, Terms};
use pyo3::prelude::*;

use crate::buffers::{Access, blocks, timeout};
use crate::errors::{InvalidError, OrRaise};

/// Blocks that are put layer by layer.
#[pyclass(name = "LayerWriter", module = "dalsegno._native", frozen)]
pub(crate) struct PyLayerWriter {
    first: usize,
    count: usize,
    writer: Mutex<Option<LayerWriter>>,
}

impl PyLayerWriter {
    pub(crate) fn new(writer: LayerWriter) -> Self {
        let (first, count) = (writer.first(), writer.count());
        Self { first, count, writer: Mutex::new(Some(writer)) }
    }
}

fn committed() -> PyErr {
    InvalidError::new_err("the blocks were committed already")
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
        layer: u32,
        blocks: &Bound<'_, PyAny>,
        timeout_s: Option<f64>,
    ) -> PyResult<()> {
        let memory = self::blocks(blocks, Access::Read)?;
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        let stored = py.detach(|| {
            let mut writer = self.writer.lock().ok()?;
            writer.as_mut().map(|writer| writer.store_layer(layer, memory, &terms))
        });
        stored.ok_or_else(committed)?.or_raise()
    }

    fn commit(&self, py: Python<'_>) -> PyResult<usize> {
        let done = py.detach(|| {
            let writer = self.writer.lock().ok()?.take()?;
            Some(writer.commit(&Terms::default()))
        });
        done.ok_or_else(committed)?.or_raise()
    }
}
