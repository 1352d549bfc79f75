//! `Allocation`.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use dalsegno_serve::{Allocation, AllocationPut, Handle};
use dalsegno_store::{Memory, Namespace, Put, Terms};
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::access::Access;
use crate::arguments::{Number, keep, timeout};
use crate::buffers::hashes;
use crate::errors::OrRaise;
use crate::transfer::PyPutReport;
use crate::view::{position, view_of};

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
    ///     pool_only: Whether the blocks are kept in the DRAM pool only:
    ///         see :meth:`Namespace.put_batch`.
    ///
    /// Returns:
    ///     The outcome of each block, as of :meth:`Namespace.put_batch`.
    ///
    /// Raises:
    ///     InvalidError: There are more hashes than blocks.
    ///     PoisonedError: A sync failed, now or earlier.
    ///     ClosedError: The store is closed.
    #[pyo3(
        signature = (chain, *, first=Number::new(0), timeout_s=None, pool_only=false),
        text_signature = "($self, chain, *, first=0, timeout_s=None, pool_only=False)"
    )]
    fn commit(
        &self,
        py: Python<'_>,
        chain: &Bound<'_, PyAny>,
        first: Number<usize>,
        timeout_s: Option<f64>,
        pool_only: bool,
    ) -> PyResult<PyPutReport> {
        let (chain, first, keep) = (hashes(chain)?, first.named("first")?, keep(pool_only));
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        let count = self.memory.count_of(&chain, first).or_raise()?;
        let put = || match &self.store {
            Handle::Served(client) => {
                client.commit(&self.memory, AllocationPut { chain: &chain, first, keep }, &terms)
            }
            Handle::Here(store) => {
                let put = Put { chain: &chain, first, blocks: self.blocks(count), keep };
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
        let at = position(at, self.memory.len(), "an allocation")?;
        let (start, bytes) = self.memory.range(at).expect("one of its blocks");
        view_of(py, start, bytes, Access::Write, Arc::<Allocation>::clone(&self.memory))
    }

    fn __repr__(&self) -> String {
        format!("<Allocation of {} blocks>", self.memory.len())
    }
}
