//! `PagedMemory` and `PagedBlocks`.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use dalsegno_cuda::GpuCopier;
use dalsegno_store::{PagePart, PageShape, PagedBlocks, PagedMemory};
use parking_lot::Mutex;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;

use crate::arguments::Number;
use crate::buffers::{Lent, writable_buffers};
use crate::errors::{InvalidError, OrRaise};
use crate::gpu::{PyGpu, PyGpuPoint};

/// The KV cache of an engine: for each layer a buffer of pages. The engine keeps using it.
///
/// Args:
///     layers: One writable buffer per layer, all of the same size.
///     pages: Number of pages in each buffer.
///     stride: Bytes from the start of a page to the start of the next one.
///     parts: Offset in the buffer and size, in bytes, of each contiguous part of page 0, in the
///         order in which a slice has them: one part, or keys and values apart.
///     pages_per_block: Pages that hold one block of a chain.
///
/// Raises:
///     InvalidError: A page is not inside its buffer, or pages overlap.
#[pyclass(name = "PagedMemory", module = "dalsegno._native", frozen)]
pub(crate) struct PyPagedMemory {
    memory: Arc<PagedMemory>,
    gpu: Option<Arc<GpuCopier>>,
}

/// Number of pages, stride, parts and pages per block, as Python gives them.
struct GivenShape(usize, PageShape);

impl GivenShape {
    fn of(
        pages: Number<usize>,
        stride: Number<usize>,
        parts: Vec<(Number<usize>, Number<usize>)>,
        pages_per_block: Number<usize>,
    ) -> PyResult<Self> {
        let (pages, stride) = (pages.named("pages")?, stride.named("stride")?);
        let pages_per_block = pages_per_block.named("pages_per_block")?;
        let part = |(offset, bytes): (Number<usize>, Number<usize>)| -> PyResult<PagePart> {
            Ok(PagePart { offset: offset.named("an offset")?, bytes: bytes.named("a size")? })
        };
        let parts = parts.into_iter().map(part).collect::<PyResult<_>>()?;
        Ok(Self(pages, PageShape { stride, parts, pages_per_block }))
    }
}

#[pymethods]
impl PyPagedMemory {
    #[new]
    #[pyo3(
        signature = (layers, *, pages, stride, parts, pages_per_block=Number::new(1)),
        text_signature = "(layers, *, pages, stride, parts, pages_per_block=1)"
    )]
    fn new(
        layers: &Bound<'_, PyAny>,
        pages: Number<usize>,
        stride: Number<usize>,
        parts: Vec<(Number<usize>, Number<usize>)>,
        pages_per_block: Number<usize>,
    ) -> PyResult<Self> {
        let GivenShape(pages, shape) = GivenShape::of(pages, stride, parts, pages_per_block)?;
        let buffers = writable_buffers(layers)?;
        let bytes = buffers.first().map_or(0, PyUntypedBuffer::len_bytes);
        if buffers.iter().any(|buffer| buffer.len_bytes() != bytes) {
            return Err(InvalidError::new_err("the buffers of the layers differ in size"));
        }
        let starts: Vec<NonNull<u8>> = buffers
            .iter()
            .map(|buffer| NonNull::new(buffer.buf_ptr().cast()).unwrap_or(NonNull::dangling()))
            .collect();
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(Lent::new(buffers));
        // SAFETY: the exported buffers keep their bytes allocated and in place until the owner is dropped, and they do
        // not overlap. The caller guarantees that nobody else touches the pages of a load while it runs, as with
        // `readinto`.
        let memory = unsafe { PagedMemory::new(starts, bytes, pages, shape, owner) };
        Ok(Self { memory: Arc::new(memory.or_raise()?), gpu: None })
    }

    /// Describes a KV cache in the memory of a GPU.
    ///
    /// The cache must exist as long as this object, and as loads and stores of its pages.
    ///
    /// Args:
    ///     gpu: The GPU.
    ///     layers: The address of the buffer of each layer, as ``torch.Tensor.data_ptr``.
    ///     buffer_bytes: Bytes of each buffer.
    ///     pages: Number of pages in each buffer.
    ///     stride: Bytes from the start of a page to the start of the next one.
    ///     parts: As for the class.
    ///     pages_per_block: Pages that hold one block of a chain.
    ///
    /// Raises:
    ///     InvalidError: A page is not inside its buffer, or pages overlap.
    #[staticmethod]
    #[pyo3(
        signature = (
            gpu, layers, buffer_bytes, *, pages, stride, parts, pages_per_block=Number::new(1)
        ),
        text_signature = "(gpu, layers, buffer_bytes, *, pages, stride, parts, pages_per_block=1)"
    )]
    fn on_gpu(
        gpu: &PyGpu,
        layers: Vec<u64>,
        buffer_bytes: Number<usize>,
        pages: Number<usize>,
        stride: Number<usize>,
        parts: Vec<(Number<usize>, Number<usize>)>,
        pages_per_block: Number<usize>,
    ) -> PyResult<Self> {
        let GivenShape(pages, shape) = GivenShape::of(pages, stride, parts, pages_per_block)?;
        let (bytes, copier) = (buffer_bytes.named("buffer_bytes")?, Arc::clone(gpu.copier()));
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(());
        // SAFETY: the caller keeps the buffers, and guarantees what holds for buffers in memory: see `new`.
        let memory = unsafe { PagedMemory::on_device(layers, bytes, pages, shape, copier, owner) };
        let gpu = Some(Arc::clone(gpu.copier()));
        Ok(Self { memory: Arc::new(memory.or_raise()?), gpu })
    }

    /// Bytes of one layer of one block.
    #[getter]
    fn slice_bytes(&self) -> usize {
        self.memory.shape().slice_bytes()
    }

    /// Returns the pages of some blocks, for one load or one :class:`LayerWriter`.
    ///
    /// They are in use until the load has ended, or until this object is gone. Do not write them
    /// before.
    ///
    /// Args:
    ///     table: Pages of each block, one block after the other: ``pages_per_block`` numbers each.
    ///     after: The point in the GPU's work up to which it still uses the pages: a load fills
    ///         them after that.
    ///
    /// Raises:
    ///     InvalidError: A page does not exist, is listed twice, or another load uses it.
    #[pyo3(signature = (table, *, after=None))]
    fn blocks(&self, table: Vec<i64>, after: Option<&PyGpuPoint>) -> PyResult<PyPagedBlocks> {
        let page = |page: i64| {
            u32::try_from(page)
                .map_err(|_| InvalidError::new_err(format!("page {page} does not exist")))
        };
        let table = table.into_iter().map(page).collect::<PyResult<_>>()?;
        let mut pages = self.memory.blocks(table).or_raise()?;
        if let Some(after) = after {
            pages = pages.used_until(after.point());
        }
        let (count, gpu) = (pages.len(), self.gpu.clone());
        Ok(PyPagedBlocks { count, pages: Mutex::new(Some(pages)), gpu })
    }

    fn __repr__(&self) -> String {
        let layers = self.memory.layers();
        format!("<PagedMemory of {layers} layers, {} bytes per block>", self.slice_bytes())
    }
}

/// Pages of some blocks, from :meth:`PagedMemory.blocks`. ``len()`` is the number of blocks.
#[pyclass(name = "PagedBlocks", module = "dalsegno._native", frozen)]
pub(crate) struct PyPagedBlocks {
    count: usize,
    /// `None` once a load took them.
    pages: Mutex<Option<PagedBlocks>>,
    gpu: Option<Arc<GpuCopier>>,
}

impl PyPagedBlocks {
    /// Uses the pages, and leaves them here.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&PagedBlocks) -> T) -> PyResult<T> {
        self.pages.lock().as_ref().map(work).ok_or_else(used)
    }

    /// The GPU in whose memory they are.
    pub(crate) fn gpu(&self) -> Option<Arc<GpuCopier>> {
        self.gpu.clone()
    }

    /// Takes the pages, for one load.
    pub(crate) fn take(&self) -> PyResult<PagedBlocks> {
        self.pages.lock().take().ok_or_else(used)
    }
}

fn used() -> PyErr {
    InvalidError::new_err("a load took these pages; when it has ended, call blocks() again")
}

#[pymethods]
impl PyPagedBlocks {
    fn __len__(&self) -> usize {
        self.count
    }

    fn __repr__(&self) -> String {
        format!("<PagedBlocks of {} blocks>", self.count)
    }
}
