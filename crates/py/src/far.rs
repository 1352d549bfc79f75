//! Functions on a far location.

use pyo3::prelude::*;

use crate::arguments::{FarOptionsGiven, FarPath, Number};
use crate::errors::OrRaise;
use crate::json::to_python;
use crate::offline::{progress_callback, shown};

/// Returns whether a directory is a far location: it has folders of writers, and no store.
///
/// A URL always is one. Nothing is read there, and nothing is written.
///
/// Args:
///     path: A directory, where a leading ``~`` is the home directory, or a URL such as
///         ``s3://bucket/prefix``.
///
/// Raises:
///     UnavailableError: The directory cannot be read.
#[pyfunction]
pub(crate) fn is_far_location(py: Python<'_>, path: FarPath) -> PyResult<bool> {
    py.detach(move || dalsegno_store::is_far_location(&path.0)).or_raise()
}

/// Returns what a far location holds, while stores may use it. Reads catalogs and no packs.
///
/// Args:
///     path: The far location: a URL, or a directory, where a leading ``~`` is the home directory.
///     extents: Most extents to list; without it none.
///     progress: Called as ``progress(done_objects, total_objects)`` on any thread. Its exceptions
///         are ignored.
///     options: How what a URL names is reached: as `far_options` of a store.
///
/// Returns:
///     ``writers``, each with its folder and ``state``: ``live``, ``silent`` for more than ten
///     minutes, ``earlier`` if its store lived longer through a later open, ``dead`` for more than
///     a day, or ``unknown``; ``namespaces``; ``extents``; ``faults``: a list of
///     ``{"file", "offset", "what"}``.
///
/// Raises:
///     InvalidError: The directory is no far location.
///     UnavailableError: It cannot be read.
#[pyfunction]
#[pyo3(signature = (path, extents=None, progress=None, *, options=None))]
pub(crate) fn far_survey<'py>(
    py: Python<'py>,
    path: FarPath,
    extents: Option<Number<usize>>,
    progress: Option<Bound<'py, PyAny>>,
    options: Option<FarOptionsGiven>,
) -> PyResult<Bound<'py, PyAny>> {
    let place = path.with(options);
    let extents = extents.map(|extents| extents.named("extents")).transpose()?.unwrap_or(0);
    let progress = progress_callback(progress);
    let found = py.detach(move || dalsegno_store::far_survey(&place, extents, &progress));
    to_python(py, &serde_json::to_value(found.or_raise()?).expect("plain fields"))
}

/// Reads and checks every byte of a far location, while stores may use it.
///
/// Args:
///     path: The far location: a URL, or a directory, where a leading ``~`` is the home directory.
///     progress: Called as ``progress(done_bytes, total_bytes)``, at least after each object, on
///         any thread. Its exceptions are ignored.
///     options: How what a URL names is reached: as `far_options` of a store.
///
/// Returns:
///     Counts; ``unpublished``: packs without a catalog, a list of ``{"file", "bytes"}``, which are
///     no damage; and ``findings``: a list of ``{"file", "offset", "what"}``, empty without damage.
///     ``more_findings`` counts those beyond 10,000.
///
/// Raises:
///     InvalidError: The directory is no far location.
///     UnavailableError: It cannot be read.
#[pyfunction]
#[pyo3(signature = (path, progress=None, *, options=None))]
pub(crate) fn far_verify<'py>(
    py: Python<'py>,
    path: FarPath,
    progress: Option<Bound<'py, PyAny>>,
    options: Option<FarOptionsGiven>,
) -> PyResult<Bound<'py, PyAny>> {
    let (place, progress) = (path.with(options), progress_callback(progress));
    let report = py.detach(move || dalsegno_store::far_verify(&place, &progress));
    to_python(py, &serde_json::to_value(report.or_raise()?).expect("plain fields"))
}

/// Decodes an object of a far location, with the names of its format.
///
/// Args:
///     path: The far location: a URL, or a directory, where a leading ``~`` is the home directory.
///     file: Folder and name of a catalog, of a pack or of a namespace's description.
///     offset: In a pack, any byte of the record to decode. Without it its records are listed.
///     options: How what a URL names is reached: as `far_options` of a store.
///
/// Returns:
///     As `inspect`.
///
/// Raises:
///     InvalidError: There is no such object or record.
#[pyfunction]
#[pyo3(signature = (path, file, offset=None, *, options=None))]
pub(crate) fn far_inspect<'py>(
    py: Python<'py>,
    path: FarPath,
    file: &str,
    offset: Option<Number<u64>>,
    options: Option<FarOptionsGiven>,
) -> PyResult<Bound<'py, PyAny>> {
    let place = path.with(options);
    let at = offset.map(|offset| offset.named("offset")).transpose()?;
    let found = py.detach(move || dalsegno_store::far_inspect(&place, file, at));
    to_python(py, &shown(&found.or_raise()?))
}

/// Finds the writers of a far location that do not run any more, and removes their objects.
///
/// A writer is dead after a day without a sign of life, unless it has packs and its store gave one
/// through a later open. One that gave a sign of life within ten minutes is never removed.
///
/// Args:
///     path: The far location: a URL, or a directory, where a leading ``~`` is the home directory.
///     writers: First digits of the folders of further writers, which need not be dead.
///     remove: Whether to remove them. Otherwise nothing is removed.
///     progress: Called as ``progress(done_objects, total_objects)`` on any thread. Its exceptions
///         are ignored.
///     options: How what a URL names is reached: as `far_options` of a store.
///
/// Returns:
///     ``writers``: those that were removed, or would be; ``kept``: how many stay; ``is_removed``.
///
/// Raises:
///     InvalidError: The directory is no far location, a name fits no writer, or one that runs.
///     UnavailableError: It cannot be read, or an object cannot be removed.
#[pyfunction]
#[pyo3(signature = (path, writers, *, remove=false, progress=None, options=None))]
pub(crate) fn far_prune<'py>(
    py: Python<'py>,
    path: FarPath,
    writers: Vec<String>,
    remove: bool,
    progress: Option<Bound<'py, PyAny>>,
    options: Option<FarOptionsGiven>,
) -> PyResult<Bound<'py, PyAny>> {
    let (place, progress) = (path.with(options), progress_callback(progress));
    let report = py.detach(move || dalsegno_store::far_prune(&place, &writers, remove, &progress));
    to_python(py, &serde_json::to_value(report.or_raise()?).expect("plain fields"))
}

/// Measures a directory as a far location, and finds out whether stores may use it.
///
/// It writes to a folder of its own, at most 2 GiB and a twentieth of the free space, and removes
/// it.
///
/// Args:
///     path: A directory of a mounted file system; a leading ``~`` is the home directory.
///     other: The same directory through another mount.
///     seconds: How long it may take, about; 2 to 600.
///     progress: Called as ``progress(thousandths)`` on any thread, with the part of the time that
///         is over. If it returns true, the examination cleans up and ends.
///     options: How what a URL names is reached: as `far_options` of a store.
///
/// Returns:
///     ``direct``, ``two_mounts``, ``free_bytes``; ``latency`` in microseconds;
///     ``bandwidth`` in bytes per second by ``far_workers``; ``promises``: what stores need, each
///     with a ``verdict``, ``holds``, ``slow`` or ``fails``; ``advice``: a list of ``{"severity",
///     "what", "action"}``; ``is_safe``; ``written_bytes``, ``left_behind``. ``unreadable``:
///     ``{"objects", "more", "is_complete"}`` with objects and folders of stores that cannot be
///     read, each with ``file``, ``why`` and ``action``, at most 1,000; how many more there are;
///     and whether all were tried in a part of the time.
///
/// Raises:
///     InvalidError: The directory holds a store, or an argument is wrong.
///     UnavailableError: The directory cannot be written, is nearly full, or ``progress`` ended it.
#[pyfunction]
#[pyo3(signature = (path, *, other=None, seconds=20.0, progress=None, options=None))]
pub(crate) fn far_doctor<'py>(
    py: Python<'py>,
    path: FarPath,
    other: Option<FarPath>,
    seconds: f64,
    progress: Option<Bound<'py, PyAny>>,
    options: Option<FarOptionsGiven>,
) -> PyResult<Bound<'py, PyAny>> {
    let (place, progress) = (path.with(options), progress.map(Bound::unbind));
    let ask = move |thousandths: u64| {
        let Some(progress) = &progress else { return false };
        // Without an interpreter, the process is about to end.
        Python::try_attach(|py| {
            let answer = progress.call1(py, (thousandths,));
            answer.and_then(|answer| answer.is_truthy(py)).unwrap_or(false)
        })
        .unwrap_or(true)
    };
    let found = py.detach(move || {
        let other = other.as_ref().map(|FarPath(path)| path.as_path());
        dalsegno_store::far_doctor(&place, other, seconds, &ask)
    });
    to_python(py, &serde_json::to_value(found.or_raise()?).expect("plain fields"))
}
