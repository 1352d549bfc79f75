//! `Transfer` and `PutReport`.

use dalsegno_store::{GetReport, PutOutcome, PutReport, Result, Transfer, TransferState};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::IntoPyDict;

use crate::arguments::timeout;
use crate::errors::{InvalidError, OrRaise, raise};

/// The outcome of each block of a put, in order.
#[pyclass(name = "PutReport", module = "dalsegno._native", frozen)]
#[derive(Clone)]
pub(crate) struct PyPutReport {
    report: PutReport,
}

impl PyPutReport {
    pub(crate) fn new(report: PutReport) -> Self {
        Self { report }
    }
}

#[pymethods]
impl PyPutReport {
    /// For each block whether the store has it now: kept by this put, or already present.
    #[getter]
    fn kept(&self) -> Vec<bool> {
        self.report.kept()
    }

    /// Blocks that this put wrote; with durability ``batch`` they are durable.
    #[getter]
    fn stored(&self) -> u64 {
        self.report.count(PutOutcome::Stored)
    }

    /// Blocks that this put keeps in the DRAM pool only.
    #[getter]
    fn pool_only(&self) -> u64 {
        self.report.count(PutOutcome::PoolOnly)
    }

    /// Blocks that the store already had.
    #[getter]
    fn present(&self) -> u64 {
        self.report.count(PutOutcome::Present)
    }

    /// Blocks that another put was writing at the same time.
    #[getter]
    fn pending(&self) -> u64 {
        self.report.count(PutOutcome::Pending)
    }

    /// Blocks that the admission policy declined, or for which the pool has no place.
    #[getter]
    fn declined(&self) -> u64 {
        self.report.count(PutOutcome::Declined)
    }

    /// Blocks that could not be written: no space, timeout, cancelled, device failure.
    #[getter]
    fn failed(&self) -> u64 {
        self.report.count(PutOutcome::Failed)
    }

    fn __repr__(&self) -> String {
        format!(
            "PutReport(stored={}, pool_only={}, present={}, pending={}, declined={}, failed={})",
            self.stored(),
            self.pool_only(),
            self.present(),
            self.pending(),
            self.declined(),
            self.failed()
        )
    }
}

/// Whether each block is in its buffer.
pub(crate) fn hits(report: &GetReport) -> Vec<bool> {
    report.outcomes.iter().map(|outcome| outcome.is_hit()).collect()
}

/// A transfer, and its result once it was taken.
pub(crate) struct Pending<T> {
    pub(crate) transfer: Transfer<T>,
    result: PyOnceLock<Result<T>>,
}

enum Kind {
    Put(Pending<PutReport>),
    Get(Pending<GetReport>),
    Layer(Pending<()>),
}

/// Evaluates an expression for a transfer of any kind.
macro_rules! on {
    ($kind:expr, $transfer:ident => $value:expr) => {
        match $kind {
            Kind::Put(Pending { transfer: $transfer, .. }) => $value,
            Kind::Get(Pending { transfer: $transfer, .. }) => $value,
            Kind::Layer(Pending { transfer: $transfer, .. }) => $value,
        }
    };
}

/// A put, a get or the write of one layer, in the background.
///
/// Do not touch its buffers before :meth:`done` returns true. Dropping the object does not stop it.
#[pyclass(name = "Transfer", module = "dalsegno._native", frozen, generic)]
pub(crate) struct PyTransfer {
    kind: Kind,
}

impl PyTransfer {
    pub(crate) fn put(transfer: Transfer<PutReport>) -> Self {
        Self { kind: Kind::Put(Pending::new(transfer)) }
    }

    pub(crate) fn get(transfer: Transfer<GetReport>) -> Self {
        Self { kind: Kind::Get(Pending::new(transfer)) }
    }

    pub(crate) fn layer(transfer: Transfer<()>) -> Self {
        Self { kind: Kind::Layer(Pending::new(transfer)) }
    }
}

impl<T: Send + Sync> Pending<T> {
    pub(crate) fn new(transfer: Transfer<T>) -> Self {
        Self { transfer, result: PyOnceLock::new() }
    }

    /// The result of a transfer that has ended; the same at every call.
    pub(crate) fn result(&self, py: Python<'_>) -> PyResult<&T> {
        if self.result.get(py).is_none() {
            let Some(taken) = self.transfer.take() else {
                return Err(InvalidError::new_err(
                    "the transfer has not ended; call wait() before result()",
                ));
            };
            // Only one thread can have taken it, so the cell is empty.
            drop(self.result.set(py, taken));
        }
        match self.result.get(py) {
            Some(Ok(report)) => Ok(report),
            Some(Err(error)) => Err(raise(error)),
            None => Err(InvalidError::new_err("another thread takes the result; call again")),
        }
    }
}

/// Calls a function of Python's. Nobody could handle its exception, so that is logged.
fn call_back(py: Python<'_>, callback: &Py<PyAny>) {
    let Err(error) = callback.call0(py) else { return };
    let log = || -> PyResult<()> {
        let logger = py.import("logging")?.call_method1("getLogger", ("dalsegno",))?;
        let text = "A callback of Transfer.on_end raised an exception; it is ignored.";
        let info = [("exc_info", error.value(py))].into_py_dict(py)?;
        logger.call_method("error", (text,), Some(&info)).map(drop)
    };
    if let Err(unlogged) = log() {
        unlogged.write_unraisable(py, None);
    }
}

/// See [`PyTransfer::on_end`].
pub(crate) fn add_callback<T>(
    py: Python<'_>,
    transfer: &Transfer<T>,
    callback: Py<PyAny>,
) -> PyResult<()> {
    if !callback.bind(py).is_callable() {
        return Err(PyTypeError::new_err("callback must be a function without arguments"));
    }
    // If the interpreter is ending, nothing can be called any more.
    let call = move || {
        let _exiting = Python::try_attach(|py| call_back(py, &callback));
    };
    transfer.on_end(call).or_raise()
}

#[pymethods]
impl PyTransfer {
    /// Returns whether the transfer has ended, in whatever way. Never waits.
    fn done(&self) -> bool {
        on!(&self.kind, transfer => transfer.state()) == TransferState::Done
    }

    /// Waits until the transfer has ended.
    ///
    /// Args:
    ///     timeout_s: Most seconds to wait; ``None`` waits indefinitely.
    ///
    /// Returns:
    ///     Whether it has ended.
    ///
    /// Raises:
    ///     InvalidError: ``timeout_s`` is negative or not finite.
    #[pyo3(signature = (timeout_s=None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<bool> {
        let timeout = timeout(timeout_s)?;
        Ok(py.detach(|| on!(&self.kind, transfer => transfer.wait(timeout))))
    }

    /// Cancels the transfer.
    ///
    /// It still ends by itself, soon: wait for :meth:`done` before you reuse the buffers.
    fn cancel(&self) {
        on!(&self.kind, transfer => transfer.cancel());
    }

    /// Whether it was refused because too many transfers were queued.
    ///
    /// A throttled transfer is done and moved nothing.
    #[getter]
    fn throttled(&self) -> bool {
        on!(&self.kind, transfer => transfer.is_throttled())
    }

    /// Returns what the blocking call would have returned; may be called repeatedly.
    ///
    /// Returns:
    ///     For :meth:`Namespace.submit_put` a :class:`PutReport`; for the transfers of a get one
    ///     ``bool`` per buffer, whether it holds its block; for
    ///     :meth:`LayerWriter.submit_store_layer` ``None``.
    ///
    /// Raises:
    ///     InvalidError: The transfer has not ended.
    ///     UnavailableError: The write of a layer was throttled; you may submit the layer again.
    ///     DalsegnoError: The error that the blocking call would have raised.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.kind {
            Kind::Put(put) => PyPutReport::new(put.result(py)?.clone()).into_bound_py_any(py),
            Kind::Get(get) => hits(get.result(py)?).into_bound_py_any(py),
            Kind::Layer(layer) => layer.result(py).map(|()| py.None().into_bound(py)),
        }
    }

    /// Calls ``callback`` exactly once when the transfer ends, however it ends.
    ///
    /// If it has ended, the call happens before this method returns. Otherwise a thread of the
    /// store makes it, with the GIL and no lock of the store held. That thread starts no other
    /// transfer until the callback returns, so keep it short: set an event, for example. The
    /// callback must not close the store or wait for another transfer. It finds :meth:`done` true.
    ///
    /// An exception of the callback is logged to the logger ``dalsegno`` and ignored. Callbacks are
    /// not called in a forked child, nor while the interpreter exits.
    ///
    /// Args:
    ///     callback: Function without arguments.
    ///
    /// Raises:
    ///     InvalidError: Eight callbacks wait for this transfer already.
    #[pyo3(signature = (callback, /))]
    fn on_end(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        on!(&self.kind, transfer => add_callback(py, transfer, callback))
    }
}
