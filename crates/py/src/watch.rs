//! `RemovalWatch`.

use std::collections::BTreeMap;

use dalsegno_store::{NamespaceId, RemovalWatch};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments::Number;

/// A subscription to the blocks that are removed from a store.
#[pyclass(name = "RemovalWatch", module = "dalsegno._native", frozen)]
pub(crate) struct PyRemovalWatch {
    watch: RemovalWatch,
}

impl PyRemovalWatch {
    pub(crate) fn new(watch: RemovalWatch) -> Self {
        Self { watch }
    }
}

type Blocks<'py> = BTreeMap<String, Vec<Bound<'py, PyBytes>>>;

#[pymethods]
impl PyRemovalWatch {
    #[getter]
    fn waiting(&self) -> usize {
        self.watch.waiting()
    }

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
