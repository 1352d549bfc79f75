//! Functions over a store that nobody has open.

use std::path::Path;

use dalsegno_store::Config;
use pyo3::prelude::*;
use serde_json::json;

use crate::errors::OrRaise;
use crate::store::to_python;

#[pyfunction]
pub(crate) fn info<'py>(py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyAny>> {
    let info = py.detach(|| dalsegno_store::info(Path::new(path))).or_raise()?;
    to_python(py, &serde_json::to_value(info).expect("plain fields"))
}

#[pyfunction]
pub(crate) fn list_extents<'py>(py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyAny>> {
    let (namespaces, extents) = py.detach(|| dalsegno_store::list(Path::new(path))).or_raise()?;
    let mut rows = Vec::with_capacity(namespaces.len());
    let mut extents = extents.into_iter().peekable();
    for namespace in namespaces {
        let mut own = Vec::new();
        while let Some(extent) = extents.next_if(|extent| extent.namespace == namespace.id) {
            own.push(extent);
        }
        let mut row = serde_json::to_value(namespace).expect("plain fields");
        row["extent_rows"] = json!(own);
        rows.push(row);
    }
    to_python(py, &json!(rows))
}

#[pyfunction]
#[pyo3(signature = (path, progress=None))]
pub(crate) fn verify<'py>(
    py: Python<'py>,
    path: &str,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let progress = progress.map(Bound::unbind);
    let tell = |done: u64, total: u64| {
        if let Some(progress) = &progress {
            // A progress display that fails must not spoil the check.
            Python::attach(|py| drop(progress.call1(py, (done, total))));
        }
    };
    let report = py.detach(|| dalsegno_store::verify(Path::new(path), &tell)).or_raise()?;
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|f| json!({"file": f.file, "offset": f.offset, "what": f.what}))
        .collect();
    to_python(
        py,
        &json!({
            "segments": report.segments,
            "extents": report.extents,
            "blocks": report.blocks,
            "slices": report.slices,
            "tables": report.tables,
            "bytes": report.bytes,
            "findings": findings,
        }),
    )
}

#[pyfunction]
pub(crate) fn config_keys() -> Vec<String> {
    Config::keys()
}
