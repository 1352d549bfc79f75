//! `RemovalWatch`.

use std::collections::BTreeMap;

use dalsegno_serve::HandleWatch;
use dalsegno_store::NamespaceId;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments::Number;

/// A subscription to the blocks that leave a store, from :meth:`Store.watch_removals`.
///
/// It ends when it is deleted, and does not keep the store open.
#[pyclass(name = "RemovalWatch", module = "dalsegno._native", frozen)]
pub(crate) struct PyRemovalWatch {
    watch: HandleWatch,
}

impl PyRemovalWatch {
    pub(crate) fn new(watch: HandleWatch) -> Self {
        Self { watch }
    }
}

type Blocks<'py> = BTreeMap<String, Vec<Bound<'py, PyBytes>>>;

#[pymethods]
impl PyRemovalWatch {
    /// Number of blocks that wait to be taken; a gap counts as one.
    #[getter]
    fn waiting(&self, py: Python<'_>) -> usize {
        py.detach(|| self.watch.waiting())
    }

    /// Takes the blocks that left first.
    ///
    /// Args:
    ///     limit: Most blocks to take.
    ///
    /// Returns:
    ///     The hashes by namespace id, and whether the list is complete. None of these blocks is in
    ///     the store at that moment: a block that was stored again is left out. The list is
    ///     incomplete if the queue was full, a whole namespace was removed, the index lost blocks
    ///     or the store was closed. Other blocks left too then: compare what you know with
    ///     :meth:`Namespace.peek`.
    fn take<'py>(&self, py: Python<'py>, limit: Number<usize>) -> PyResult<(Blocks<'py>, bool)> {
        let limit = limit.named("limit")?;
        let taken = py.detach(|| self.watch.take(limit));
        let mut blocks = BTreeMap::<NamespaceId, Vec<_>>::new();
        for (namespace, hash) in &taken.blocks {
            blocks.entry(*namespace).or_default().push(PyBytes::new(py, &hash.0));
        }
        let blocks = blocks.into_iter().map(|(id, hashes)| (id.to_hex(), hashes)).collect();
        Ok((blocks, taken.is_complete))
    }
}
