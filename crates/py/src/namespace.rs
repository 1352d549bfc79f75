//! `Namespace`.

use std::collections::BTreeMap;

use dalsegno_store::{GetReport, Namespace, Put, Scope, Store, Terms};
use pyo3::prelude::*;

use crate::access::Access;
use crate::arguments::{Number, timeout};
use crate::buffers::{blocks, hashes};
use crate::errors::OrRaise;
use crate::transfer::{PyPutReport, PyTransfer, hits};
use crate::writer::PyLayerWriter;

/// Blocks of one identity and shape in a store.
#[pyclass(name = "Namespace", module = "dalsegno._native", frozen)]
pub(crate) struct PyNamespace {
    store: Store,
    namespace: Namespace,
}

impl PyNamespace {
    pub(crate) fn new(store: Store, namespace: Namespace) -> Self {
        Self { store, namespace }
    }

    fn get(
        &self,
        py: Python<'_>,
        chain: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        scope: Scope,
        timeout_s: Option<f64>,
    ) -> PyResult<GetReport> {
        let (chain, out) = (hashes(chain)?, blocks(out, Access::Write)?);
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        let id = self.namespace.id();
        py.detach(|| self.store.get_batch(id, &chain, out, scope, &terms)).or_raise()
    }
}

#[pymethods]
impl PyNamespace {
    #[getter]
    fn id(&self) -> String {
        self.namespace.id().to_hex()
    }

    #[getter]
    fn layers(&self) -> u32 {
        self.namespace.layout().layers()
    }

    #[getter]
    fn slice_bytes(&self) -> u32 {
        self.namespace.layout().slice_bytes()
    }

    #[getter]
    fn block_bytes(&self) -> u64 {
        self.namespace.layout().block_bytes()
    }

    #[getter]
    fn fields(&self) -> BTreeMap<String, String> {
        self.namespace.fields().clone()
    }

    #[pyo3(
        signature = (chain, blocks, *, first=Number::new(0), timeout_s=None),
        text_signature = "($self, chain, blocks, *, first=0, timeout_s=None)"
    )]
    fn put_batch(
        &self,
        py: Python<'_>,
        chain: &Bound<'_, PyAny>,
        blocks: &Bound<'_, PyAny>,
        first: Number<usize>,
        timeout_s: Option<f64>,
    ) -> PyResult<PyPutReport> {
        let first = first.named("first")?;
        let (chain, blocks) = (hashes(chain)?, self::blocks(blocks, Access::Read)?);
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        let id = self.namespace.id();
        let put = Put { chain: &chain, first, blocks };
        let report = py.detach(|| self.store.put_batch(id, put, &terms)).or_raise()?;
        Ok(PyPutReport::new(report))
    }

    fn probe(&self, py: Python<'_>, chain: &Bound<'_, PyAny>) -> PyResult<usize> {
        let chain = hashes(chain)?;
        py.detach(|| self.store.probe(self.namespace.id(), &chain)).or_raise()
    }

    fn contains(&self, py: Python<'_>, hashes: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
        let hashes = self::hashes(hashes)?;
        py.detach(|| self.store.contains(self.namespace.id(), &hashes)).or_raise()
    }

    fn peek(&self, py: Python<'_>, hashes: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
        let hashes = self::hashes(hashes)?;
        py.detach(|| self.store.peek(self.namespace.id(), &hashes)).or_raise()
    }

    fn touch(&self, py: Python<'_>, chain: &Bound<'_, PyAny>) -> PyResult<usize> {
        let chain = hashes(chain)?;
        py.detach(|| self.store.touch(self.namespace.id(), &chain)).or_raise()
    }

    #[pyo3(signature = (chain, out, *, timeout_s=None))]
    fn get_batch(
        &self,
        py: Python<'_>,
        chain: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        timeout_s: Option<f64>,
    ) -> PyResult<usize> {
        Ok(self.get(py, chain, out, Scope::Prefix, timeout_s)?.leading_blocks())
    }

    #[pyo3(signature = (hashes, out, *, timeout_s=None))]
    fn get_each(
        &self,
        py: Python<'_>,
        hashes: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        timeout_s: Option<f64>,
    ) -> PyResult<Vec<bool>> {
        Ok(hits(&self.get(py, hashes, out, Scope::Each, timeout_s)?))
    }

    #[pyo3(signature = (chain, layer, out, *, timeout_s=None))]
    fn retrieve_layer(
        &self,
        py: Python<'_>,
        chain: &Bound<'_, PyAny>,
        layer: Number<u32>,
        out: &Bound<'_, PyAny>,
        timeout_s: Option<f64>,
    ) -> PyResult<usize> {
        let layer = layer.named("layer")?;
        let (chain, out) = (hashes(chain)?, blocks(out, Access::Write)?);
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        let id = self.namespace.id();
        let report = py.detach(|| self.store.retrieve_layer(id, &chain, layer, out, &terms));
        Ok(report.or_raise()?.leading_blocks())
    }

    #[pyo3(
        signature = (chain, *, first=Number::new(0), count=None, timeout_s=None),
        text_signature = "($self, chain, *, first=0, count=None, timeout_s=None)"
    )]
    fn layer_writer(
        &self,
        py: Python<'_>,
        chain: &Bound<'_, PyAny>,
        first: Number<usize>,
        count: Option<Number<usize>>,
        timeout_s: Option<f64>,
    ) -> PyResult<PyLayerWriter> {
        let chain = hashes(chain)?;
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        let first = first.named("first")?;
        let count = count.map(|count| count.named("count")).transpose()?;
        let count = count.unwrap_or_else(|| chain.len().saturating_sub(first));
        let id = self.namespace.id();
        let writer = py.detach(|| self.store.layer_writer(id, &chain, first, count, &terms));
        Ok(PyLayerWriter::new(writer.or_raise()?))
    }

    #[pyo3(
        signature = (chain, blocks, *, first=Number::new(0), timeout_s=None),
        text_signature = "($self, chain, blocks, *, first=0, timeout_s=None)"
    )]
    fn submit_put(
        &self,
        chain: &Bound<'_, PyAny>,
        blocks: &Bound<'_, PyAny>,
        first: Number<usize>,
        timeout_s: Option<f64>,
    ) -> PyResult<PyTransfer> {
        let first = first.named("first")?;
        let (chain, blocks) = (hashes(chain)?, self::blocks(blocks, Access::Read)?);
        let timeout = timeout(timeout_s)?;
        Ok(PyTransfer::put(self.store.submit_put(
            self.namespace.id(),
            chain,
            first,
            blocks,
            timeout,
        )))
    }

    #[pyo3(signature = (hashes, out, *, each=false, timeout_s=None))]
    fn submit_get(
        &self,
        hashes: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        each: bool,
        timeout_s: Option<f64>,
    ) -> PyResult<PyTransfer> {
        let (chain, out) = (self::hashes(hashes)?, blocks(out, Access::Write)?);
        let timeout = timeout(timeout_s)?;
        let scope = if each { Scope::Each } else { Scope::Prefix };
        Ok(PyTransfer::get(self.store.submit_get(self.namespace.id(), chain, out, scope, timeout)))
    }

    #[pyo3(signature = (chain, layer, out, *, timeout_s=None))]
    fn submit_retrieve_layer(
        &self,
        chain: &Bound<'_, PyAny>,
        layer: Number<u32>,
        out: &Bound<'_, PyAny>,
        timeout_s: Option<f64>,
    ) -> PyResult<PyTransfer> {
        let layer = layer.named("layer")?;
        let (chain, out) = (hashes(chain)?, blocks(out, Access::Write)?);
        let (id, timeout) = (self.namespace.id(), timeout(timeout_s)?);
        let transfer = self.store.submit_retrieve_layer(id, chain, layer, out, timeout);
        Ok(PyTransfer::get(transfer))
    }

    #[pyo3(signature = (hashes=None, *, timeout_s=None))]
    fn remove(
        &self,
        py: Python<'_>,
        hashes: Option<&Bound<'_, PyAny>>,
        timeout_s: Option<f64>,
    ) -> PyResult<u64> {
        let hashes = hashes.map(self::hashes).transpose()?;
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        py.detach(|| self.store.remove(self.namespace.id(), hashes.as_deref(), &terms)).or_raise()
    }

    fn __repr__(&self) -> String {
        let layout = self.namespace.layout();
        format!(
            "<Namespace {} of {} x {} bytes>",
            self.namespace.id(),
            layout.layers(),
            layout.slice_bytes()
        )
    }
}
