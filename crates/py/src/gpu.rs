//! `Gpu` and `GpuPoint`.

use std::path::PathBuf;
use std::sync::Arc;

use dalsegno_cuda::{CudaError, GpuCopier, GpuOptions, StreamHandle};
use dalsegno_store::{CopyMark, StreamPoint};
use pyo3::prelude::*;
use serde_json::json;

use crate::arguments::Number;
use crate::errors::UnavailableError;
use crate::json::to_python;

/// An NVIDIA GPU, for copies between its memory and that of a store.
///
/// The driver is loaded now; a machine without it raises an error. Copies run on streams of their
/// own, in the context that PyTorch uses.
///
/// Args:
///     index: Number of the GPU among those that this process sees.
///     library: Path of a library to use instead of the driver's.
///     piece_bytes: Bytes of the pieces in which memory is registered; ``None`` for 1 GiB.
///
/// Raises:
///     UnavailableError: There is no driver, or it does not work; the message says why.
#[pyclass(name = "Gpu", module = "dalsegno._native", frozen)]
pub(crate) struct PyGpu {
    copier: Arc<GpuCopier>,
}

/// A point in a stream of a GPU, from :meth:`Gpu.point`.
#[pyclass(name = "GpuPoint", module = "dalsegno._native", frozen)]
pub(crate) struct PyGpuPoint {
    point: StreamPoint,
}

impl PyGpu {
    pub(crate) fn copier(&self) -> &Arc<GpuCopier> {
        &self.copier
    }
}

impl PyGpuPoint {
    pub(crate) fn point(&self) -> StreamPoint {
        self.point.clone()
    }
}

/// The stream with this number, which a caller of this extension vouches for.
fn stream_of(number: usize) -> StreamHandle {
    // SAFETY: what Python sees says that the stream must exist.
    unsafe { StreamHandle::new(number) }
}

/// Lets later work of a stream wait for copies.
pub(crate) fn order(copier: &GpuCopier, stream: usize, mark: CopyMark) -> PyResult<()> {
    copier.order(stream_of(stream), mark).map_err(|error| raise(&error))
}

fn raise(error: &CudaError) -> PyErr {
    UnavailableError::new_err(error.to_string())
}

#[pymethods]
impl PyGpu {
    #[new]
    #[pyo3(
        signature = (*, index=Number::new(0), library=None, piece_bytes=None),
        text_signature = "(*, index=0, library=None, piece_bytes=None)"
    )]
    fn new(
        py: Python<'_>,
        index: Number<u32>,
        library: Option<PathBuf>,
        piece_bytes: Option<usize>,
    ) -> PyResult<Self> {
        let options = GpuOptions { library, index: index.named("index")?, piece_bytes };
        let opened = py.detach(|| GpuCopier::open(&options));
        let copier = opened.map_err(|error| UnavailableError::new_err(error.to_string()))?;
        Ok(Self { copier: Arc::new(copier) })
    }

    /// Returns the point behind all work that a stream has now.
    ///
    /// Args:
    ///     stream: Number of the stream, as ``torch.cuda.Stream.cuda_stream``; 0 is the default
    ///         one. It must exist.
    ///
    /// Raises:
    ///     UnavailableError: The driver refused.
    fn point(&self, stream: Number<usize>) -> PyResult<PyGpuPoint> {
        let stream = stream_of(stream.named("stream")?);
        let point = self.copier.point(stream).map_err(|error| raise(&error))?;
        Ok(PyGpuPoint { point })
    }

    /// Measures the fastest way to copy pieces of one size, and takes it. Takes about 100 ms.
    ///
    /// Args:
    ///     piece_bytes: Bytes of a contiguous part of a page.
    fn tune(&self, py: Python<'_>, piece_bytes: Number<usize>) -> PyResult<()> {
        let piece_bytes = piece_bytes.named("piece_bytes")?;
        py.detach(|| self.copier.tune(piece_bytes));
        Ok(())
    }

    /// Returns what is known about the GPU, and how copies are made.
    ///
    /// Returns:
    ///     ``name``, ``driver_version`` (12080 is CUDA 12.8), ``multiprocessors``,
    ///     ``kernel_below_bytes`` (smaller pieces are copied by a kernel), ``batched_copies``,
    ///     ``registers`` and ``registers_read_only`` (whether the GPU can register memory),
    ///     ``registered_bytes``, ``registering`` (regions that are being registered),
    ///     ``buffered_bytes`` (copied by the processor, as their memory was not registered),
    ///     ``refusals`` (what this GPU cannot do).
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let facts = self.copier.facts();
        let refusals = [&facts.kernel_refusal, &facts.registration.refusal];
        let facts = json!({
            "name": facts.device.name,
            "driver_version": facts.device.driver_version,
            "multiprocessors": facts.device.multiprocessors,
            "kernel_below_bytes": facts.ways.kernel_below,
            "batched_copies": facts.ways.in_batches,
            "registers": facts.device.registers,
            "registers_read_only": facts.device.registers_read_only,
            "registered_bytes": facts.registration.registered_bytes,
            "registering": facts.registration.pending,
            "buffered_bytes": facts.buffered_bytes,
            "refusals": refusals.into_iter().flatten().collect::<Vec<_>>(),
        });
        to_python(py, &facts)
    }

    fn __repr__(&self) -> String {
        format!("<Gpu {}>", self.copier.facts().device.name)
    }
}
