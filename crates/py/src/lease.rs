//! `Lease`.

use std::sync::Arc;

use dalsegno_serve::{Handle, HandleLease};
use parking_lot::Mutex;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList, PyMemoryView};

use crate::access::Access;
use crate::arguments::timeout;
use crate::errors::{InvalidError, OrRaise};
use crate::load::PyLoad;
use crate::pages::PyPagedBlocks;
use crate::view::{position, view_of};

/// Leading blocks of a chain in the store's memory, from :meth:`Namespace.lease`.
///
/// ``len(lease)`` is the number of blocks, and ``lease[i]`` a read-only :class:`memoryview` of
/// block ``i``, layer after layer. Every byte was verified. numpy and torch take it as it is::
///
///     with namespace.lease(chain) as lease:
///         for block in lease:
///             consume(np.frombuffer(block, np.float16))
///
/// The bytes stay as they are, whatever is evicted or removed meanwhile. A lease is a context
/// manager. At the end of a ``with`` block it ends when the last buffer of it is gone.
#[pyclass(name = "Lease", module = "dalsegno._native", frozen)]
pub(crate) struct PyLease {
    store: Handle,
    /// Shared with the buffers; `None` once it was released.
    lease: Mutex<Option<Arc<HandleLease>>>,
}

impl PyLease {
    pub(crate) fn new(store: Handle, lease: HandleLease) -> Self {
        Self { store, lease: Mutex::new(Some(Arc::new(lease))) }
    }

    /// The lease, unless it was released.
    fn held(&self) -> PyResult<Arc<HandleLease>> {
        self.store.check_process().or_raise()?;
        let held = self.lease.lock().as_ref().map(Arc::clone);
        held.ok_or_else(|| InvalidError::new_err("the lease was released; take another one"))
    }
}

#[pymethods]
impl PyLease {
    /// Whether the store had further leading blocks, but no memory to lease them.
    ///
    /// All leases together hold at most half of the DRAM tier (the setting ``dram``).
    #[getter]
    fn truncated(&self) -> PyResult<bool> {
        Ok(self.held()?.is_truncated())
    }

    /// Returns how many leading blocks were not overwritten so far.
    ///
    /// With a store in this process these are all of them. A server may reuse the memory of a
    /// process that it lost sight of: ask after the last use of a buffer, and count the others as
    /// misses.
    fn valid_blocks(&self) -> PyResult<usize> {
        Ok(self.held()?.valid_blocks())
    }

    /// Starts to copy the first blocks into pages of an engine; never waits.
    ///
    /// Layers become ready in their order. Nothing is read from a disk. The blocks stay leased
    /// until the load has ended, also if the lease is released before.
    ///
    /// Args:
    ///     pages: From :meth:`PagedMemory.blocks`; for at most as many blocks as the lease has.
    ///     timeout_s: Seconds from now after which the remaining blocks count as misses; ``None``
    ///         waits.
    ///
    /// Raises:
    ///     InvalidError: There are pages for more blocks, or a size disagrees with the shape.
    ///     ClosedError: The store is closed.
    #[pyo3(signature = (pages, *, timeout_s=None))]
    fn load(&self, pages: &PyPagedBlocks, timeout_s: Option<f64>) -> PyResult<PyLoad> {
        let (lease, timeout) = (self.held()?, timeout(timeout_s)?);
        let load = self.store.load_lease(&lease, pages.take()?, timeout);
        Ok(PyLoad::new(load.or_raise()?, pages.gpu()))
    }

    /// Ends the lease.
    ///
    /// Raises:
    ///     BufferError: A buffer of it is still in use; delete it first.
    fn release(&self) -> PyResult<()> {
        self.store.check_process().or_raise()?;
        let mut held = self.lease.lock();
        let buffers = held.as_ref().map_or(0, |lease| Arc::strong_count(lease) - 1);
        if buffers > 0 {
            return Err(PyBufferError::new_err(format!(
                "{buffers} buffers of this lease are still in use; delete them first"
            )));
        }
        *held = None;
        Ok(())
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.held()?.len())
    }

    fn __getitem__<'py>(&self, py: Python<'py>, at: isize) -> PyResult<Bound<'py, PyMemoryView>> {
        let lease = self.held()?;
        let at = position(at, lease.len(), "a lease")?;
        block_of(py, &lease, at)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let lease = self.held()?;
        let views: Vec<_> =
            (0..lease.len()).map(|at| block_of(py, &lease, at)).collect::<PyResult<_>>()?;
        PyList::new(py, views)?.try_iter()
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (exc_type, exc, traceback))]
    fn __exit__(
        &self,
        exc_type: &Bound<'_, PyAny>,
        exc: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) {
        let _ = (exc_type, exc, traceback);
        if self.store.check_process().is_ok() {
            *self.lease.lock() = None;
        }
    }

    fn __repr__(&self) -> String {
        match self.held() {
            Ok(lease) => format!("<Lease of {} blocks>", lease.len()),
            Err(_) => "<Lease, released>".to_owned(),
        }
    }
}

/// A memoryview of a block of the lease.
fn block_of<'py>(
    py: Python<'py>,
    lease: &Arc<HandleLease>,
    at: usize,
) -> PyResult<Bound<'py, PyMemoryView>> {
    let (start, bytes) = lease.range(at).expect("a block of the lease");
    // The keeper counts the buffers of the lease.
    view_of(py, start, bytes, Access::Read, Arc::<HandleLease>::clone(lease))
}
