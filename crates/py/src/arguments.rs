//! Numbers and paths from Python. A wrong one is refused with the name of its argument.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::errors::InvalidError;

/// Seconds from Python as a duration; `None` for no limit.
pub(crate) fn timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let convert = |seconds: f64| {
        Duration::try_from_secs_f64(seconds).map_err(|_| {
            InvalidError::new_err(format!(
                "timeout_s must be a finite number >= 0, or None for no limit, got {seconds:?}"
            ))
        })
    };
    seconds.map(convert).transpose()
}

/// A type of number that a position or a count may have.
pub(crate) trait Unsigned {
    /// The largest value.
    const MOST: u64;
}

impl Unsigned for u32 {
    const MOST: u64 = u32::MAX as u64;
}

impl Unsigned for u64 {
    const MOST: u64 = u64::MAX;
}

impl Unsigned for usize {
    const MOST: u64 = usize::MAX as u64;
}

/// A position or a count from Python. A value that does not fit is an invalid argument, not an overflow.
#[derive(Clone)]
pub(crate) struct Number<T>(Result<T, String>);

impl<T> Number<T> {
    /// A value from this crate, such as a default.
    pub(crate) const fn new(value: T) -> Self {
        Self(Ok(value))
    }

    /// The value of the argument `name`, which only the caller knows.
    pub(crate) fn named(self, name: &str) -> PyResult<T> {
        self.0.map_err(|problem| InvalidError::new_err(format!("{name} {problem}")))
    }
}

impl<'a, 'py, T> FromPyObject<'a, 'py> for Number<T>
where
    T: FromPyObject<'a, 'py> + Unsigned,
    T::Error: Into<PyErr>,
{
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let error: PyErr = match object.extract::<T>() {
            Ok(value) => return Ok(Self(Ok(value))),
            Err(error) => error.into(),
        };
        if !error.is_instance_of::<PyOverflowError>(object.py()) {
            return Err(error);
        }
        let expected =
            if object.lt(0)? { ">= 0".to_owned() } else { format!("at most {}", T::MOST) };
        Ok(Self(Err(format!("must be {expected}, got {}", object.as_any()))))
    }
}

/// A path from Python: text or an object that `os.fspath` accepts. A leading `~` is the home directory.
pub(crate) struct LocalPath(pub(crate) PathBuf);

impl AsRef<Path> for LocalPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for LocalPath {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let expanded = object.py().import("os.path")?.call_method1("expanduser", (object,))?;
        Ok(Self(expanded.extract()?))
    }
}
