//! Functions on a store that is not open in any process.

use dalsegno_store::{Config, VerifyReport, to_hex};
use pyo3::prelude::*;
use serde_json::json;

use crate::arguments::{LocalPath, Number};
use crate::errors::OrRaise;
use crate::store::to_python;

#[pyfunction]
pub(crate) fn info(py: Python<'_>, path: LocalPath) -> PyResult<Bound<'_, PyAny>> {
    let info = py.detach(move || dalsegno_store::info(path.as_ref())).or_raise()?;
    to_python(py, &serde_json::to_value(info).expect("plain fields"))
}

#[pyfunction]
pub(crate) fn list_extents(py: Python<'_>, path: LocalPath) -> PyResult<Bound<'_, PyAny>> {
    let (namespaces, extents) =
        py.detach(move || dalsegno_store::list(path.as_ref())).or_raise()?;
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
#[pyo3(signature = (path, file, offset=None))]
pub(crate) fn inspect<'py>(
    py: Python<'py>,
    path: LocalPath,
    file: &str,
    offset: Option<Number<u64>>,
) -> PyResult<Bound<'py, PyAny>> {
    let at = offset.map(|offset| offset.named("offset")).transpose()?;
    let found = py.detach(move || dalsegno_store::inspect(path.as_ref(), file, at)).or_raise()?;
    let fields = found.fields.iter().map(|one| {
        json!({"offset": one.offset, "name": one.name, "hex": to_hex(&one.bytes), "says": one.says})
    });
    let records = found.records.iter().map(|one| {
        json!({
            "offset": one.offset,
            "bytes": one.bytes,
            "kind": one.kind,
            "blocks": one.blocks,
            "sequence": one.sequence,
            "problem": one.problem,
        })
    });
    let parts = found.parts.iter().map(|one| {
        json!({
            "offset": one.offset,
            "bytes": one.bytes,
            "name": one.name,
            "crc": format!("{:08x}", one.crc),
            "right": one.verdict == Ok(true),
            "problem": one.verdict.as_ref().err(),
            "first": to_hex(&one.first),
        })
    });
    to_python(
        py,
        &json!({
            "title": found.title,
            "problem": found.problem,
            "fields": fields.collect::<Vec<_>>(),
            "records": records.collect::<Vec<_>>(),
            "parts": parts.collect::<Vec<_>>(),
        }),
    )
}

#[pyfunction]
#[pyo3(signature = (path, progress=None))]
pub(crate) fn verify<'py>(
    py: Python<'py>,
    path: LocalPath,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let progress = teller(progress);
    let report = py.detach(move || dalsegno_store::verify(path.as_ref(), &progress)).or_raise()?;
    to_python(py, &plain(&report))
}

#[pyfunction]
#[pyo3(signature = (path, progress=None))]
pub(crate) fn repair<'py>(
    py: Python<'py>,
    path: LocalPath,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let progress = teller(progress);
    let report = py.detach(move || dalsegno_store::repair(path.as_ref(), &progress)).or_raise()?;
    to_python(
        py,
        &json!({
            "before": plain(&report.before),
            "segments": report.segments,
            "dropped_blocks": report.dropped_blocks,
            "after": plain(&report.after),
        }),
    )
}

/// Calls a progress display from any thread.
fn teller(progress: Option<Bound<'_, PyAny>>) -> impl Fn(u64, u64) + Sync {
    let progress = progress.map(Bound::unbind);
    move |done, total| {
        if let Some(progress) = &progress {
            // A failing display must not fail the verification.
            Python::attach(|py| drop(progress.call1(py, (done, total))));
        }
    }
}

fn plain(report: &VerifyReport) -> serde_json::Value {
    let findings = report.findings.iter();
    let findings: Vec<_> =
        findings.map(|f| json!({"file": f.file, "offset": f.offset, "what": f.what})).collect();
    json!({
        "segments": report.segments,
        "extents": report.extents,
        "blocks": report.blocks,
        "slices": report.slices,
        "tables": report.tables,
        "bytes": report.bytes,
        "findings": findings,
    })
}

#[pyfunction]
pub(crate) fn config_keys() -> Vec<String> {
    Config::keys()
}

#[pyfunction]
pub(crate) fn parse_bytes(text: &str) -> PyResult<u64> {
    dalsegno_store::parse_bytes(text).or_raise()
}
