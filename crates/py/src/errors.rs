//! One exception class per error kind.

use dalsegno_store::{Error, ErrorKind};
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    dalsegno,
    DalsegnoError,
    PyException,
    "Base class of all errors of this package."
);
create_exception!(
    dalsegno,
    InvalidError,
    DalsegnoError,
    "The call or a setting is wrong: fix it. Nothing was changed."
);
create_exception!(
    dalsegno,
    IncompatibleError,
    DalsegnoError,
    "The store has a format or layout that this version cannot read."
);
create_exception!(
    dalsegno,
    UnavailableError,
    DalsegnoError,
    "The store cannot be used now: skip it or retry.\n\n\
     It is locked, read-only or owned by the parent process, or its device fails."
);
create_exception!(
    dalsegno,
    FullError,
    DalsegnoError,
    "There is no space left: raise the capacity or free disk space."
);
create_exception!(
    dalsegno,
    CorruptError,
    DalsegnoError,
    "The store's files are damaged beyond use."
);
create_exception!(
    dalsegno,
    PoisonedError,
    DalsegnoError,
    "A sync failed; nothing more is written until the store is reopened."
);
create_exception!(dalsegno, ClosedError, DalsegnoError, "The store is closed.");

/// The Python exception for an error.
pub(crate) fn raise(error: &Error) -> PyErr {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Invalid => InvalidError::new_err(text),
        ErrorKind::Incompatible => IncompatibleError::new_err(text),
        ErrorKind::Unavailable => UnavailableError::new_err(text),
        ErrorKind::Full => FullError::new_err(text),
        ErrorKind::Corrupt => CorruptError::new_err(text),
        ErrorKind::Poisoned => PoisonedError::new_err(text),
        ErrorKind::Closed => ClosedError::new_err(text),
    }
}

/// Converts the store's results to Python's.
pub(crate) trait OrRaise<T> {
    /// The value, or the exception.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for dalsegno_store::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(|error| raise(&error))
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("DalsegnoError", py.get_type::<DalsegnoError>())?;
    module.add("InvalidError", py.get_type::<InvalidError>())?;
    module.add("IncompatibleError", py.get_type::<IncompatibleError>())?;
    module.add("UnavailableError", py.get_type::<UnavailableError>())?;
    module.add("FullError", py.get_type::<FullError>())?;
    module.add("CorruptError", py.get_type::<CorruptError>())?;
    module.add("PoisonedError", py.get_type::<PoisonedError>())?;
    module.add("ClosedError", py.get_type::<ClosedError>())
}
