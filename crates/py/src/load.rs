//! `Load`.

use std::sync::Arc;

use dalsegno_cuda::GpuCopier;
use dalsegno_store::{GetReport, LayerOrder, LayerOutcome, Load, LoadLayers, TransferState};
use pyo3::prelude::*;

use crate::arguments::{Number, timeout};
use crate::errors::{InvalidError, OrRaise};
use crate::gpu::order;
use crate::transfer::{Pending, add_callback};

/// A load in the background, from :meth:`Namespace.load` or :meth:`Lease.load`.
///
/// Its layers become ready while it runs, and may be read then. Do not touch its memory otherwise
/// before the load has ended. Dropping the object does not stop it.
#[pyclass(name = "Load", module = "dalsegno._native", frozen)]
pub(crate) struct PyLoad {
    pending: Pending<GetReport>,
    layers: LoadLayers,
    /// The GPU to whose memory it loads.
    gpu: Option<Arc<GpuCopier>>,
}

impl PyLoad {
    pub(crate) fn new(load: Load, gpu: Option<Arc<GpuCopier>>) -> Self {
        Self { pending: Pending::new(load.transfer), layers: load.layers, gpu }
    }
}

#[pymethods]
impl PyLoad {
    /// Returns whether a layer of all blocks is at its destination. Never waits.
    ///
    /// Args:
    ///     layer: Index of the layer, from 0.
    ///
    /// Raises:
    ///     InvalidError: There is no such layer.
    fn layer_ready(&self, layer: Number<u32>) -> PyResult<bool> {
        let outcome = self.layers.outcome(layer.named("layer")?).or_raise()?;
        Ok(outcome == Some(LayerOutcome::Ready))
    }

    /// Waits until a layer of all blocks is at its destination, or cannot come any more.
    ///
    /// Args:
    ///     layer: Index of the layer, from 0.
    ///     timeout_s: Most seconds to wait; ``None`` waits until the load has ended.
    ///
    /// Returns:
    ///     ``True`` if the layer is ready, ``False`` if the load has ended and at least one block
    ///     lacks it, ``None`` if it is still loading.
    ///
    /// Raises:
    ///     InvalidError: There is no such layer, or ``timeout_s`` is negative or not finite.
    #[pyo3(signature = (layer, *, timeout_s=None))]
    fn wait_layer(
        &self,
        py: Python<'_>,
        layer: Number<u32>,
        timeout_s: Option<f64>,
    ) -> PyResult<Option<bool>> {
        let (layer, timeout) = (layer.named("layer")?, timeout(timeout_s)?);
        let outcome = py.detach(|| self.layers.wait(layer, timeout)).or_raise()?;
        Ok(outcome.map(|outcome| outcome == LayerOutcome::Ready))
    }

    /// Lets later work of a stream of the GPU wait for a layer, once its copies are queued.
    ///
    /// Only for loads to pages of a GPU. The GPU waits, not this thread. Whether the blocks were
    /// right is known when the load has ended.
    ///
    /// Args:
    ///     layer: Index of the layer, from 0.
    ///     stream: Number of the stream, as ``torch.cuda.Stream.cuda_stream``; it must exist.
    ///     timeout_s: Most seconds to wait until the copies are queued; ``None`` waits until the
    ///         load has ended.
    ///
    /// Returns:
    ///     ``True`` if the stream waits or the layer is ready, ``False`` if the load has ended and
    ///     at least one block lacks it, ``None`` if its copies are not queued yet.
    ///
    /// Raises:
    ///     InvalidError: There is no such layer, the load is not to a GPU, or ``timeout_s`` is
    ///         negative or not finite.
    ///     UnavailableError: The driver refused.
    #[pyo3(signature = (layer, stream, *, timeout_s=None))]
    fn order_layer(
        &self,
        py: Python<'_>,
        layer: Number<u32>,
        stream: Number<usize>,
        timeout_s: Option<f64>,
    ) -> PyResult<Option<bool>> {
        let (layer, timeout) = (layer.named("layer")?, timeout(timeout_s)?);
        let stream = stream.named("stream")?;
        let gpu = self.gpu.as_ref().ok_or_else(|| {
            InvalidError::new_err("the load is to memory of this machine; call wait_layer")
        })?;
        let layers = &self.layers;
        Ok(match py.detach(|| layers.wait_order(layer, timeout)).or_raise()? {
            None => None,
            Some(LayerOrder::Never) => Some(false),
            Some(LayerOrder::Any) => Some(true),
            Some(LayerOrder::After(mark)) => {
                order(gpu, stream, mark)?;
                Some(true)
            }
        })
    }

    /// Returns whether the load has ended, in whatever way. Never waits.
    fn done(&self) -> bool {
        self.pending.transfer.state() == TransferState::Done
    }

    /// Waits until the load has ended.
    ///
    /// Args:
    ///     timeout_s: Most seconds to wait; ``None`` waits indefinitely.
    ///
    /// Returns:
    ///     Whether it has ended.
    ///
    /// Raises:
    ///     InvalidError: ``timeout_s`` is negative or not finite.
    #[pyo3(signature = (timeout_s=None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<bool> {
        let timeout = timeout(timeout_s)?;
        Ok(py.detach(|| self.pending.transfer.wait(timeout)))
    }

    /// Cancels the load.
    ///
    /// It still ends by itself, soon: wait for :meth:`done` before you reuse the memory.
    fn cancel(&self) {
        self.pending.transfer.cancel();
    }

    /// Cancels the load.
    ///
    /// Returns:
    ///     Whether its memory may be reused now: it has ended, or it was queued and does not begin
    ///     any more. Otherwise it ends soon, as after :meth:`cancel`.
    fn withdraw(&self) -> bool {
        self.pending.transfer.withdraw()
    }

    /// Whether it was refused because too many transfers were queued.
    #[getter]
    fn throttled(&self) -> bool {
        self.pending.transfer.is_throttled()
    }

    /// Returns how many leading blocks are at their destination; may be called repeatedly.
    ///
    /// The contents of the memory of all other blocks are undefined. If all layers have ended, this
    /// waits for the little that is left of the load.
    ///
    /// Raises:
    ///     InvalidError: The load is still loading layers.
    ///     ClosedError: The store was closed before the load began.
    fn result(&self, py: Python<'_>) -> PyResult<usize> {
        if self.layers.have_ended() {
            py.detach(|| self.pending.transfer.wait(None));
        }
        Ok(self.pending.result(py)?.leading_blocks())
    }

    /// Calls ``callback`` exactly once when the load ends; see :meth:`Transfer.on_end`.
    ///
    /// Args:
    ///     callback: Function without arguments.
    ///
    /// Raises:
    ///     InvalidError: Eight callbacks wait for this load already.
    #[pyo3(signature = (callback, /))]
    fn on_end(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        add_callback(py, &self.pending.transfer, callback)
    }
}
