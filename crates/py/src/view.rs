//! Memory of the store or of a client, as a memoryview.

use std::any::Any;
use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::access::Access;

/// Keeps memory mapped as long as a view of it lives.
pub(crate) type Keeper = Arc<dyn Any + Send + Sync>;

/// What a memoryview of a block exports. Python sees only the view.
#[pyclass(name = "BlockBytes", module = "dalsegno._native", frozen)]
struct PyBlockBytes {
    start: usize,
    bytes: usize,
    access: Access,
    _keeper: Keeper,
}

/// A memoryview of the bytes at an address, which stay mapped as long as `keeper`. A store that fills buffers (`Write`)
/// gets one that Python may write.
pub(crate) fn view_of(
    py: Python<'_>,
    start: usize,
    bytes: usize,
    access: Access,
    keeper: Keeper,
) -> PyResult<Bound<'_, PyMemoryView>> {
    let block = Bound::new(py, PyBlockBytes { start, bytes, access, _keeper: keeper })?;
    PyMemoryView::from(block.as_any())
}

/// The position that a Python index means among `count` blocks of `what`.
pub(crate) fn position(at: isize, count: usize, what: &str) -> PyResult<usize> {
    let position = if at < 0 { count.checked_add_signed(at) } else { usize::try_from(at).ok() };
    position
        .filter(|position| *position < count)
        .ok_or_else(|| PyIndexError::new_err(format!("block {at} of {what} of {count} blocks")))
}

#[pymethods]
impl PyBlockBytes {
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
        let readonly = c_int::from(block.access == Access::Read);
        // SAFETY: `view` is the interpreter's. The bytes stay mapped while the keeper lives; the view holds a reference
        // to this object, which holds the keeper. In this process only Python writes them, and only those that are not
        // read-only. A server that lost sight of this process may write leased ones: then they are arbitrary bytes,
        // which Python bears.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, this.as_ptr(), start, length, readonly, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(this.py())) }
    }
}
