//! `Allocation`.

use std::any::Any;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use dalsegno_serve::{Allocation, Handle};
use dalsegno_store::{Memory, Namespace, Put, Terms};
use pyo3::exceptions::PyIndexError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::arguments::{Number, timeout};
use crate::buffers::hashes;
use crate::errors::OrRaise;
use crate::transfer::PyPutReport;

/// Memory for blocks that a program writes and then puts, from :meth:`Namespace.allocate`.
///
/// ``len(allocation)`` is the number of blocks, and ``allocation[i]`` a writable
/// :class:`memoryview` of block ``i``, layer after layer. A server reads the blocks from this
/// memory, so that the client copies nothing::
///
///     blocks = namespace.allocate(len(chain))
///     for i in range(len(chain)):
///         compute_into(np.frombuffer(blocks[i], np.float16))
///     blocks.commit(chain)
///
/// It can be filled and committed again and again.
#[pyclass(name = "Allocation", module = "dalsegno._native", frozen)]
pub(crate) struct PyAllocation {
    store: Handle,
    namespace: Namespace,
    memory: Arc<Allocation>,
}

impl PyAllocation {
    pub(crate) fn new(store: Handle, namespace: Namespace, memory: Allocation) -> Self {
        Self { store, namespace, memory: Arc::new(memory) }
    }

    /// The first blocks as memory that the store of this process reads.
    fn blocks(&self, count: usize) -> Vec<Vec<Memory>> {
        let block = |at: usize| {
            let (start, bytes) = self.memory.range(at).expect("as many as were allocated");
            let owner: Arc<dyn Any + Send + Sync> = Arc::<Allocation>::clone(&self.memory) as _;
            let start = NonNull::new(start as *mut u8).expect("a mapping");
            // SAFETY: the owner keeps the memory mapped. The caller guarantees that nobody writes it during a commit,
            // as with any buffer that a put reads.
            vec![unsafe { Memory::from_raw(start, bytes, false, owner) }]
        };
        (0..count).map(block).collect()
    }
}

#[pymethods]
impl PyAllocation {
    /// Puts the blocks ``chain[first:]``, which are the first ones of this memory.
    ///
    /// Nobody may write them until the call returns.
    ///
    /// Args:
    ///     chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.
    ///     first: Position in ``chain`` of the first block.
    ///     timeout_s: Seconds from now after which the remaining blocks fail; ``None`` waits.
    ///
    /// Returns:
    ///     The outcome of each block, as of :meth:`Namespace.put_batch`.
    ///
    /// Raises:
    ///     InvalidError: There are more hashes than blocks.
    ///     PoisonedError: A sync failed, now or earlier.
    ///     ClosedError: The store is closed.
    #[pyo3(
        signature = (chain, *, first=Number::new(0), timeout_s=None),
        text_signature = "($self, chain, *, first=0, timeout_s=None)"
    )]
    fn commit(
        &self,
        py: Python<'_>,
        chain: &Bound<'_, PyAny>,
        first: Number<usize>,
        timeout_s: Option<f64>,
    ) -> PyResult<PyPutReport> {
        let (chain, first) = (hashes(chain)?, first.named("first")?);
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        let count = self.memory.count_of(&chain, first).or_raise()?;
        let put = || match &self.store {
            Handle::Served(client) => client.commit(&self.memory, (&chain, first), &terms),
            Handle::Here(store) => {
                let put = Put { chain: &chain, first, blocks: self.blocks(count) };
                store.put_batch(self.namespace.id(), put, &terms)
            }
        };
        Ok(PyPutReport::new(py.detach(put).or_raise()?))
    }

    fn __len__(&self) -> usize {
        self.memory.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, at: isize) -> PyResult<Bound<'py, PyMemoryView>> {
        self.store.check_process().or_raise()?;
        let count = self.memory.len();
        let position = if at < 0 { count.checked_add_signed(at) } else { usize::try_from(at).ok() };
        let range = position.and_then(|position| self.memory.range(position));
        let Some((start, bytes)) = range else {
            let text = format!("block {at} of an allocation of {count} blocks");
            return Err(PyIndexError::new_err(text));
        };
        let block = PyAllocatedBlock { start, bytes, _memory: Arc::clone(&self.memory) };
        PyMemoryView::from(Bound::new(py, block)?.as_any())
    }

    fn __repr__(&self) -> String {
        format!("<Allocation of {} blocks>", self.memory.len())
    }
}

/// What a memoryview of an allocated block exports. Python sees only the view.
#[pyclass(name = "AllocatedBlock", module = "dalsegno._native", frozen)]
struct PyAllocatedBlock {
    start: usize,
    bytes: usize,
    /// Keeps the bytes where they are.
    _memory: Arc<Allocation>,
}

#[pymethods]
impl PyAllocatedBlock {
    /// # Safety
    ///
    /// Called by the interpreter, with a view that it owns.
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 passes it so")]
    unsafe fn __getbuffer__(
        this: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let block = this.get();
        let start = block.start as *mut std::ffi::c_void;
        let length = isize::try_from(block.bytes).expect("a block is at most isize::MAX bytes");
        // SAFETY: `view` is the interpreter's. The bytes stay mapped while the view lives, which holds a reference to
        // this object. Only Python writes them; a store reads them only during a commit, and a server through the
        // system.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, this.as_ptr(), start, length, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(this.py())) }
    }
}
