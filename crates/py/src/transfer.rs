//! `Transfer` and `PutReport`.

use dalsegno_store::{GetReport, PutOutcome, PutReport, Result, Transfer, TransferState};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::arguments::timeout;
use crate::errors::{InvalidError, raise};

/// The outcome of each block of a put.
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
    #[getter]
    fn kept(&self) -> Vec<bool> {
        self.report.kept()
    }

    #[getter]
    fn stored(&self) -> u64 {
        self.report.count(PutOutcome::Stored)
    }

    #[getter]
    fn present(&self) -> u64 {
        self.report.count(PutOutcome::Present)
    }

    #[getter]
    fn pending(&self) -> u64 {
        self.report.count(PutOutcome::Pending)
    }

    #[getter]
    fn declined(&self) -> u64 {
        self.report.count(PutOutcome::Declined)
    }

    #[getter]
    fn failed(&self) -> u64 {
        self.report.count(PutOutcome::Failed)
    }

    fn __repr__(&self) -> String {
        format!(
            "PutReport(stored={}, present={}, pending={}, declined={}, failed={})",
            self.stored(),
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

enum Kind {
    Put(Transfer<PutReport>, PyOnceLock<Result<PutReport>>),
    Get(Transfer<GetReport>, PyOnceLock<Result<GetReport>>),
    Layer(Transfer<()>, PyOnceLock<Result<()>>),
}

/// Calls the same method of any kind of transfer.
macro_rules! ask {
    ($kind:expr, $transfer:ident => $answer:expr) => {
        match $kind {
            Kind::Put($transfer, _) => $answer,
            Kind::Get($transfer, _) => $answer,
            Kind::Layer($transfer, _) => $answer,
        }
    };
}

/// A put or get in progress, or one layer of a put.
#[pyclass(name = "Transfer", module = "dalsegno._native", frozen)]
pub(crate) struct PyTransfer {
    kind: Kind,
}

impl PyTransfer {
    pub(crate) fn put(transfer: Transfer<PutReport>) -> Self {
        Self { kind: Kind::Put(transfer, PyOnceLock::new()) }
    }

    pub(crate) fn get(transfer: Transfer<GetReport>) -> Self {
        Self { kind: Kind::Get(transfer, PyOnceLock::new()) }
    }

    pub(crate) fn layer(transfer: Transfer<()>) -> Self {
        Self { kind: Kind::Layer(transfer, PyOnceLock::new()) }
    }

    fn wrong_report(&self) -> PyErr {
        let (kind, report) = match &self.kind {
            Kind::Put(..) => ("put", "put_report"),
            Kind::Get(..) => ("get", "get_report"),
            Kind::Layer(..) => ("layer of a put", "layer_report"),
        };
        InvalidError::new_err(format!("this transfer is a {kind}; call {report}()"))
    }
}

/// The result of a finished transfer. Every call returns the same.
fn result<'a, T: Send + Sync>(
    py: Python<'_>,
    transfer: &Transfer<T>,
    cell: &'a PyOnceLock<Result<T>>,
) -> PyResult<&'a T> {
    if cell.get(py).is_none() {
        let Some(taken) = transfer.take() else {
            return Err(InvalidError::new_err("the transfer is not done; wait for it first"));
        };
        // The cell is empty, because only one thread can have taken the result.
        drop(cell.set(py, taken));
    }
    match cell.get(py) {
        Some(Ok(report)) => Ok(report),
        Some(Err(error)) => Err(raise(error)),
        None => Err(InvalidError::new_err("another thread is taking the result; call again")),
    }
}

#[pymethods]
impl PyTransfer {
    fn done(&self) -> bool {
        ask!(&self.kind, transfer => transfer.state()) == TransferState::Done
    }

    #[pyo3(signature = (timeout_s=None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<bool> {
        let timeout = timeout(timeout_s)?;
        Ok(py.detach(|| ask!(&self.kind, transfer => transfer.wait(timeout))))
    }

    fn cancel(&self) {
        ask!(&self.kind, transfer => transfer.cancel());
    }

    #[getter]
    fn throttled(&self) -> bool {
        ask!(&self.kind, transfer => transfer.is_throttled())
    }

    fn put_report(&self, py: Python<'_>) -> PyResult<PyPutReport> {
        match &self.kind {
            Kind::Put(transfer, cell) => Ok(PyPutReport::new(result(py, transfer, cell)?.clone())),
            _ => Err(self.wrong_report()),
        }
    }

    fn get_report(&self, py: Python<'_>) -> PyResult<Vec<bool>> {
        match &self.kind {
            Kind::Get(transfer, cell) => Ok(hits(result(py, transfer, cell)?)),
            _ => Err(self.wrong_report()),
        }
    }

    fn layer_report(&self, py: Python<'_>) -> PyResult<()> {
        match &self.kind {
            Kind::Layer(transfer, cell) => result(py, transfer, cell).copied(),
            _ => Err(self.wrong_report()),
        }
    }
}
