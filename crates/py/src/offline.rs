//! Functions on a store that no process has open.

use dalsegno_serve::explained;
use dalsegno_store::{Config, Inspection, VerifyReport, to_hex};
use pyo3::prelude::*;
use serde_json::json;

use crate::arguments::{LocalPath, Number};
use crate::errors::OrRaise;
use crate::json::to_python;

/// Returns facts about a store that no process has open, without reading payload.
///
/// ``index`` is ``None`` unless the index is on disk. Then it has the ``shape``, the ``runs`` of
/// each level, and in ``decisions`` the last changes of shape, each with its ``reason``.
///
/// Args:
///     path: The store's directory; a leading ``~`` is the home directory.
///
/// Raises:
///     InvalidError: There is no store in the directory.
///     UnavailableError: A process has the store open, or it cannot be read.
#[pyfunction]
pub(crate) fn info(py: Python<'_>, path: LocalPath) -> PyResult<Bound<'_, PyAny>> {
    let path = path.directory()?;
    let info = py.detach(|| explained(&path, dalsegno_store::info(&path))).or_raise()?;
    to_python(py, &serde_json::to_value(info).expect("plain fields"))
}

/// Lists the namespaces of a store that no process has open, with their extents.
///
/// Args:
///     path: The store's directory; a leading ``~`` is the home directory.
///
/// Returns:
///     One entry per namespace; its ``extent_rows`` are in index order.
///
/// Raises:
///     InvalidError: There is no store in the directory.
///     UnavailableError: A process has the store open, or it cannot be read.
#[pyfunction]
pub(crate) fn list_extents(py: Python<'_>, path: LocalPath) -> PyResult<Bound<'_, PyAny>> {
    let path = path.directory()?;
    let (namespaces, extents) =
        py.detach(|| explained(&path, dalsegno_store::list(&path))).or_raise()?;
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

/// Decodes a file of a store that no process has open, with the names of its format.
///
/// Args:
///     path: The store's directory; a leading ``~`` is the home directory.
///     file: Name of a segment, of ``store.meta`` or of a namespace's descriptor.
///     offset: In a segment, any byte of the record to decode. Without it the segment's header is
///         decoded, and its records are listed.
///
/// Returns:
///     ``title``; ``problem``: what is wrong with the header, or an empty text; ``fields``: a list
///     of ``{"offset", "name", "hex", "says"}``; ``records`` of a segment: a list of ``{"offset",
///     "bytes", "kind", "blocks", "sequence", "problem"}``; ``parts`` of an extent, its slices or
///     its compressed units: ``{"offset", "bytes", "name", "crc", "right", "problem", "first"}``.
///
/// Raises:
///     InvalidError: There is no such file or record.
#[pyfunction]
#[pyo3(signature = (path, file, offset=None))]
pub(crate) fn inspect<'py>(
    py: Python<'py>,
    path: LocalPath,
    file: &str,
    offset: Option<Number<u64>>,
) -> PyResult<Bound<'py, PyAny>> {
    let at = offset.map(|offset| offset.named("offset")).transpose()?;
    let path = path.directory()?;
    let inspect = || explained(&path, dalsegno_store::inspect(&path, file, at));
    let found = py.detach(inspect).or_raise()?;
    to_python(py, &shown(&found))
}

/// What `inspect` returns.
pub(crate) fn shown(found: &Inspection) -> serde_json::Value {
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
    json!({
        "title": found.title,
        "problem": found.problem,
        "fields": fields.collect::<Vec<_>>(),
        "records": records.collect::<Vec<_>>(),
        "parts": parts.collect::<Vec<_>>(),
    })
}

/// Reads and checks every byte of a store that no process has open.
///
/// Args:
///     path: The store's directory; a leading ``~`` is the home directory.
///     progress: Called as ``progress(done_bytes, total_bytes)``, at least after each file, on any
///         thread. Its exceptions are ignored.
///
/// Returns:
///     Counts, among them the ``tables`` of an on-disk index, and ``findings``: a list of
///     ``{"file", "offset", "what"}``, empty for a healthy store.
#[pyfunction]
#[pyo3(signature = (path, progress=None))]
pub(crate) fn verify<'py>(
    py: Python<'py>,
    path: LocalPath,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let report_progress = progress_callback(progress);
    let path = path.directory()?;
    let verify = || explained(&path, dalsegno_store::verify(&path, &report_progress));
    let report = py.detach(verify).or_raise()?;
    to_python(py, &plain(&report))
}

/// Verifies a store that no process has open, drops damaged blocks, and verifies it again.
///
/// A segment with a finding is rewritten: its good blocks are first copied to another segment. If
/// there is no space for that, the segment stays as it is. The next open rebuilds a damaged index.
///
/// Args:
///     path: The store's directory; a leading ``~`` is the home directory.
///     progress: Called during both checks, as in `verify`.
///
/// Returns:
///     ``before`` and ``after``: the results of `verify`; ``segments``: how many were rewritten or
///     removed; ``dropped_blocks``: blocks that the index found before the repair and not after.
///
/// Raises:
///     UnavailableError: The store cannot be written, or a process has it open.
#[pyfunction]
#[pyo3(signature = (path, progress=None))]
pub(crate) fn repair<'py>(
    py: Python<'py>,
    path: LocalPath,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let report_progress = progress_callback(progress);
    let path = path.directory()?;
    let repair = || explained(&path, dalsegno_store::repair(&path, &report_progress));
    let report = py.detach(repair).or_raise()?;
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

/// A function that calls Python's `progress` on any thread.
pub(crate) fn progress_callback(progress: Option<Bound<'_, PyAny>>) -> impl Fn(u64, u64) + Sync {
    let progress = progress.map(Bound::unbind);
    move |done, total| {
        if let Some(progress) = &progress {
            // A failing progress display must not fail the check.
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

/// Returns the names of all settings.
#[pyfunction]
pub(crate) fn config_keys() -> Vec<String> {
    Config::keys()
}

/// Parses a byte count such as ``"200GiB"``, ``"1.5 TB"``, ``"32Gi"`` or ``"4096"``.
///
/// Raises:
///     InvalidError: The text is not a byte count.
#[pyfunction]
pub(crate) fn parse_bytes(text: &str) -> PyResult<u64> {
    dalsegno_store::parse_bytes(text).or_raise()
}
