//! `Store`.

use std::path::PathBuf;

use dalsegno_serve::Handle;
use dalsegno_store::{Compression, Config, KvLayout, Namespace, Phase, RegisterOptions};
use pyo3::prelude::*;
use pyo3::types::PyMapping;

use crate::arguments::{LocalPath, Number, seconds};
use crate::errors::{InvalidError, OrRaise};
use crate::json::to_python;
use crate::log;
use crate::namespace::PyNamespace;
use crate::watch::PyRemovalWatch;

/// A store: open in this process and in no other, or shared by a server. Threads may share it.
///
/// In a forked child it is closed: every call of it and of its namespaces, writers and transfers
/// raises :class:`UnavailableError`, except :meth:`close` and :meth:`limits`.
#[pyclass(name = "Store", module = "dalsegno._native", frozen)]
pub(crate) struct PyStore {
    store: Handle,
    path: PathBuf,
}

#[pymethods]
impl PyStore {
    #[new]
    fn new(py: Python<'_>, path: LocalPath, config_json: &str) -> PyResult<Self> {
        let LocalPath(path) = path;
        let opened = py.detach(|| Handle::open(&path, &Config::from_json(config_json)?));
        Ok(Self { store: opened.or_raise()?, path })
    }

    /// The store's random id.
    #[getter]
    fn id(&self) -> String {
        self.store.id().to_hex()
    }

    /// The store's directory, or the socket of its server as it was given.
    #[getter]
    fn path(&self) -> String {
        self.path.display().to_string()
    }

    /// Whether a server has the store and responds, and this process is one of its clients.
    #[getter]
    fn served(&self) -> bool {
        matches!(&self.store, Handle::Served(client) if client.is_served())
    }

    /// Whether the store is closed. In a forked child it always is.
    #[getter]
    fn closed(&self) -> bool {
        self.store.is_closed()
    }

    /// Returns the bounds derived from the configuration; byte counts end in ``_bytes``.
    fn limits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.store.limits())
    }

    /// Returns all counters and gauges; :class:`dalsegno.stats.Stats` describes each of them.
    ///
    /// Raises:
    ///     UnavailableError: This is a forked child.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.store.check_process().or_raise()?;
        to_python(py, &py.detach(|| self.store.stats()))
    }

    /// An engine of this process says what it does from now on.
    ///
    /// Reads that engines wait for go first. Saves and upkeep start when they delay none of them:
    /// in ``"prefill"`` if they take no longer than the slack, in ``"decode"`` at a pace that steps
    /// allow, otherwise at once. What an engine says holds for five seconds. Never waits: while a
    /// server is away or busy, nothing is said.
    ///
    /// Args:
    ///     engine: Number of the engine in this process.
    ///     phase: ``"prefill"``, ``"decode"`` or ``"idle"``.
    ///     slack_s: Seconds that the next reads can be late without delaying a step of prefill; 0
    ///         if they are late already.
    ///     steps: How long the steps since the last call took, each over the same step beside no
    ///         write. They set the pace of ``"decode"``; a server takes the last 64.
    ///
    /// Raises:
    ///     InvalidError: The phase is unknown, or the slack is negative or not a number.
    ///     ClosedError: The store is closed.
    #[expect(clippy::needless_pass_by_value, reason = "Python's arguments are extracted by value")]
    #[pyo3(signature = (engine, phase, *, slack_s=0.0, steps=Vec::new()),
        text_signature = "($self, engine, phase, *, slack_s=0.0, steps=[])")]
    fn set_phase(
        &self,
        engine: Number<u64>,
        phase: &str,
        slack_s: f64,
        steps: Vec<f64>,
    ) -> PyResult<()> {
        let phase = match phase {
            "prefill" => Phase::Prefill { slack: seconds("slack_s", slack_s)? },
            "decode" => Phase::Decode,
            "idle" => Phase::Idle,
            other => {
                return Err(InvalidError::new_err(format!(
                    "phase must be \"prefill\", \"decode\" or \"idle\"; it is {other:?}"
                )));
            }
        };
        self.store.set_phase(engine.named("engine")?, phase, &steps).or_raise()
    }

    /// Opens the namespace of an identity and a shape.
    ///
    /// Args:
    ///     fields: Everything that must agree before two programs may share bytes: model, weights
    ///         fingerprint, dtype, layout, ranks, LoRA, tenant salt. Any difference makes another
    ///         namespace.
    ///     layers: Layers per block; 1 if blocks are opaque rows.
    ///     slice_bytes: Bytes of one layer of one block.
    ///     codec: Codec of blocks stored from now on: ``"none"`` or ``"zstd"``, which is lossless.
    ///         ``None`` keeps the namespace's codec, ``"none"`` for a new namespace. The codec is
    ///         not part of the identity, and stored blocks stay readable whatever it is. It is
    ///         remembered as long as the namespace has blocks.
    ///     element_bytes: With ``"zstd"``, the bytes of a number: 2 for bf16 and fp16, 4 for fp32,
    ///         1 for fp8.
    ///
    /// Raises:
    ///     UnavailableError: The store could not be marked as one with compressed blocks.
    ///     InvalidError: The codec or ``element_bytes`` is unknown, a field is duplicated or too
    ///         long, a block does not fit into a segment, or there are too many namespaces;
    ///         namespaces without blocks are forgotten when the store is opened.
    #[pyo3(
        signature = (fields, *, layers, slice_bytes, codec=None, element_bytes=Number::new(2)),
        text_signature = "($self, fields, *, layers, slice_bytes, codec=None, element_bytes=2)"
    )]
    fn namespace(
        &self,
        fields: &Bound<'_, PyMapping>,
        layers: Number<u32>,
        slice_bytes: Number<u32>,
        codec: Option<&str>,
        element_bytes: Number<u32>,
    ) -> PyResult<PyNamespace> {
        let (layers, slice_bytes) = (layers.named("layers")?, slice_bytes.named("slice_bytes")?);
        let element_bytes = element_bytes.named("element_bytes")?;
        let compression = codec.map(|codec| Compression::parse(codec, element_bytes));
        let compression = compression.transpose().or_raise()?;
        let mut builder = Namespace::builder(KvLayout::new(layers, slice_bytes).or_raise()?);
        for item in fields.items()?.iter() {
            let (tag, value): (String, String) = item.extract()?;
            builder = builder.field(tag, value);
        }
        let namespace = builder.build().or_raise()?;
        let register = || self.store.register(&namespace, RegisterOptions { compression });
        fields.py().detach(register).or_raise()?;
        Ok(PyNamespace::new(self.store.clone(), namespace))
    }

    /// Returns the namespaces that had blocks when the store was opened, and those opened since.
    ///
    /// They come in the order of their ids.
    fn namespaces(&self, py: Python<'_>) -> PyResult<Vec<PyNamespace>> {
        let known = py.detach(|| self.store.namespaces()).or_raise()?;
        Ok(known.into_iter().map(|one| PyNamespace::new(self.store.clone(), one)).collect())
    }

    /// Subscribes to the blocks of all namespaces that leave the store.
    ///
    /// Blocks leave when they are evicted, quarantined or removed. A program that publishes the
    /// contents of the store, such as KV events for a router, takes them periodically.
    ///
    /// Args:
    ///     capacity: Most blocks that may wait to be taken, 48 bytes each; more blocks leave a gap.
    ///
    /// Raises:
    ///     InvalidError: ``capacity`` is 0 or above 16777216.
    ///     ClosedError: The store is closed.
    #[pyo3(
        signature = (capacity=Number::new(65_536)),
        text_signature = "($self, capacity=65536)"
    )]
    fn watch_removals(&self, py: Python<'_>, capacity: Number<usize>) -> PyResult<PyRemovalWatch> {
        let capacity = capacity.named("capacity")?;
        let watch = py.detach(|| self.store.watch_removals(capacity)).or_raise()?;
        Ok(PyRemovalWatch::new(watch))
    }

    /// Waits for transfers in flight and releases the directory.
    ///
    /// It waits at most 10 s, with an on-disk index 20 s. If the disk hangs, the directory stays
    /// locked until the disk has completed every write. Closing a closed store does nothing.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            self.store.close();
            log::flush();
        });
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (exc_type, exc, traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) {
        let _ = (exc_type, exc, traceback);
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<Store {} in {}>", self.store.id(), self.path.display())
    }
}
