//! `PagedMemory` and `PagedBlocks`.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use dalsegno_store::{PagePart, PageShape, PagedBlocks, PagedMemory};
use parking_lot::Mutex;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;

use crate::arguments::Number;
use crate::buffers::{Lent, writable_buffers};
use crate::errors::{InvalidError, OrRaise};

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
        let (pages, stride) = (pages.named("pages")?, stride.named("stride")?);
        let pages_per_block = pages_per_block.named("pages_per_block")?;
        let part = |(offset, bytes): (Number<usize>, Number<usize>)| -> PyResult<PagePart> {
            Ok(PagePart { offset: offset.named("an offset")?, bytes: bytes.named("a size")? })
        };
        let parts = parts.into_iter().map(part).collect::<PyResult<_>>()?;
        let shape = PageShape { stride, parts, pages_per_block };
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
        Ok(Self { memory: Arc::new(memory.or_raise()?) })
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
    ///
    /// Raises:
    ///     InvalidError: A page does not exist, is listed twice, or another load uses it.
    fn blocks(&self, table: Vec<i64>) -> PyResult<PyPagedBlocks> {
        let page = |page: i64| {
            u32::try_from(page)
                .map_err(|_| InvalidError::new_err(format!("page {page} does not exist")))
        };
        let table = table.into_iter().map(page).collect::<PyResult<_>>()?;
        let pages = self.memory.blocks(table).or_raise()?;
        Ok(PyPagedBlocks { count: pages.len(), pages: Mutex::new(Some(pages)) })
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
}

impl PyPagedBlocks {
    /// Uses the pages, and leaves them here.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&PagedBlocks) -> T) -> PyResult<T> {
        self.pages.lock().as_ref().map(work).ok_or_else(used)
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
