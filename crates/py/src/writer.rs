//! `LayerWriter`.

use dalsegno_store::{LayerSlices, LayerWriter, Terms};
use pyo3::prelude::*;

use crate::access::Access;
use crate::arguments::{Number, keep, timeout};
use crate::buffers::blocks;
use crate::errors::OrRaise;
use crate::gpu::PyGpuPoint;
use crate::pages::PyPagedBlocks;
use crate::transfer::PyTransfer;

/// A put of blocks that come layer by layer; they are invisible until :meth:`commit`.
#[pyclass(name = "LayerWriter", module = "dalsegno._native", frozen)]
pub(crate) struct PyLayerWriter {
    writer: LayerWriter,
}

impl PyLayerWriter {
    pub(crate) fn new(writer: LayerWriter) -> Self {
        Self { writer }
    }

    /// The slices of a layer: buffers, or in pages.
    fn slices(
        &self,
        layer: u32,
        blocks: &Bound<'_, PyAny>,
        after: Option<&PyGpuPoint>,
    ) -> PyResult<LayerSlices> {
        let after = after.map(PyGpuPoint::point);
        match blocks.cast::<PyPagedBlocks>() {
            Ok(pages) => {
                pages.get().with(|pages| self.writer.slices_of(pages, layer, after))?.or_raise()
            }
            Err(_) => Ok(self::blocks(blocks, Access::Read)?.into_iter().collect()),
        }
    }
}

#[pymethods]
impl PyLayerWriter {
    /// Position in the chain of the first block to write; the blocks before it are present.
    #[getter]
    fn first(&self) -> usize {
        self.writer.first()
    }

    /// Number of blocks that each call of :meth:`store_layer` takes.
    ///
    /// Zero if nothing needs to be written.
    #[getter]
    fn count(&self) -> usize {
        self.writer.count()
    }

    /// Stores one layer of all blocks. Layers may come in any order, each once.
    ///
    /// The layer was copied when the call returns. A layer that failed may be stored again.
    ///
    /// Args:
    ///     layer: Index of the layer, from 0.
    ///     blocks: One slice per block, ``slice_bytes`` bytes each; or pages of an engine for all
    ///         blocks of the put, from :meth:`PagedMemory.blocks`. Keep them until the last layer
    ///         is stored.
    ///     after: The point in the GPU's work by which the layer is in its pages.
    ///     timeout_s: Seconds after which the layer fails; ``None`` waits.
    ///
    /// Raises:
    ///     InvalidError: The layer, the number of slices or a size is wrong.
    ///     UnavailableError: The time was up before the layer was copied.
    #[pyo3(signature = (layer, blocks, *, after=None, timeout_s=None))]
    fn store_layer(
        &self,
        py: Python<'_>,
        layer: Number<u32>,
        blocks: &Bound<'_, PyAny>,
        after: Option<&PyGpuPoint>,
        timeout_s: Option<f64>,
    ) -> PyResult<()> {
        let layer = layer.named("layer")?;
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        let memory = self.slices(layer, blocks, after)?;
        py.detach(|| self.writer.store_layer(layer, memory, &terms)).or_raise()
    }

    /// Starts :meth:`store_layer` in the background; never waits.
    ///
    /// The buffers stay in use until the transfer is done. The layers of one put are copied one at
    /// a time. A transfer that is cancelled may leave its layer missing; store it again.
    #[pyo3(signature = (layer, blocks, *, after=None, timeout_s=None))]
    fn submit_store_layer(
        &self,
        layer: Number<u32>,
        blocks: &Bound<'_, PyAny>,
        after: Option<&PyGpuPoint>,
        timeout_s: Option<f64>,
    ) -> PyResult<PyTransfer> {
        let layer = layer.named("layer")?;
        let timeout = timeout(timeout_s)?;
        let memory = self.slices(layer, blocks, after)?;
        Ok(PyTransfer::layer(self.writer.submit_store_layer(layer, memory, timeout)))
    }

    /// Starts to store all layers of all blocks, as they are in pages; never waits.
    ///
    /// Like :meth:`submit_store_layer`, once for all layers. No layer may be stored before.
    ///
    /// Args:
    ///     pages: Pages of an engine for all blocks of the put, from :meth:`PagedMemory.blocks`.
    ///     after: The point in the GPU's work by which all layers are in their pages.
    ///     timeout_s: Seconds after which the transfer fails; ``None`` waits.
    ///
    /// Raises:
    ///     InvalidError: The pages have another shape.
    #[pyo3(signature = (pages, *, after=None, timeout_s=None))]
    fn submit_store_blocks(
        &self,
        pages: &PyPagedBlocks,
        after: Option<&PyGpuPoint>,
        timeout_s: Option<f64>,
    ) -> PyResult<PyTransfer> {
        let (after, timeout) = (after.map(PyGpuPoint::point), timeout(timeout_s)?);
        let slices = pages.with(|pages| self.writer.blocks_of(pages, after))?.or_raise()?;
        Ok(PyTransfer::layer(self.writer.submit_store_blocks(slices, timeout)))
    }

    /// Starts :meth:`commit` in the background; never waits.
    ///
    /// Wait for the transfers of all layers first. The result of the transfer is ``None``. A
    /// transfer that is throttled leaves everything as it is: commit again.
    #[pyo3(signature = (*, timeout_s=None, pool_only=false))]
    fn submit_commit(&self, timeout_s: Option<f64>, pool_only: bool) -> PyResult<PyTransfer> {
        Ok(PyTransfer::layer(self.writer.submit_commit(keep(pool_only), timeout(timeout_s)?)))
    }

    /// Puts the blocks, as :meth:`Namespace.put_batch` does.
    ///
    /// Wait for the transfers of all layers first.
    ///
    /// Args:
    ///     timeout_s: Seconds after which the commit fails; ``None`` waits.
    ///     pool_only: Whether the blocks are kept in the DRAM pool only:
    ///         see :meth:`Namespace.put_batch`.
    ///
    /// Returns:
    ///     How many blocks are visible then: all but those that were removed since the writer was
    ///     made, that were declined, or that another put is writing.
    ///
    /// Raises:
    ///     InvalidError: A layer is missing.
    ///     UnavailableError: Some blocks could not be stored, or not within ``timeout_s``. What was
    ///         gathered is gone.
    #[pyo3(signature = (*, timeout_s=None, pool_only=false))]
    fn commit(&self, py: Python<'_>, timeout_s: Option<f64>, pool_only: bool) -> PyResult<usize> {
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        py.detach(|| self.writer.commit(keep(pool_only), &terms)).or_raise()
    }
}
