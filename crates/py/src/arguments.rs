//! Numbers and paths from Python. A wrong one is refused with the name of its argument.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dalsegno_serve::SOCKET_PREFIX;
use dalsegno_store::{FarOptions, FarPlace, Keep};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::errors::{InvalidError, OrRaise};

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

/// Seconds from Python as a duration.
pub(crate) fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        InvalidError::new_err(format!(
            "{name} must be a finite number of seconds >= 0, got {seconds:?}"
        ))
    })
}

/// Where a put from Python keeps its blocks.
pub(crate) fn keep(pool_only: bool) -> Keep {
    if pool_only { Keep::PoolOnly } else { Keep::Stored }
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

/// A path from Python: text or an object that `os.fspath` accepts. A leading `~` is the home directory. It is made
/// absolute, so that a later change of the working directory changes nothing. `unix:` may precede it.
pub(crate) struct LocalPath(pub(crate) PathBuf);

impl AsRef<Path> for LocalPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for LocalPath {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let text = object.py().import("os")?.call_method1("fspath", (object,))?;
        let socket: Option<String> = text.extract::<String>().ok();
        let socket = socket.as_deref().and_then(|text| text.strip_prefix(SOCKET_PREFIX));
        if let Some(socket) = socket.filter(|socket| !socket.is_empty()) {
            let mut path = OsString::from(SOCKET_PREFIX);
            path.push(absolute(&PathBuf::from(socket))?);
            return Ok(Self(path.into()));
        }
        let expanded = object.py().import("os.path")?.call_method1("expanduser", (text,))?;
        let path: PathBuf = expanded.extract()?;
        // The store refuses an empty one.
        Ok(Self(if path.as_os_str().is_empty() { path } else { absolute(&path)? }))
    }
}

/// A far location: a directory as [`LocalPath`], or a URL as it is.
pub(crate) struct FarPath(pub(crate) PathBuf);

impl FarPath {
    /// The location, with the options that were given for a URL.
    pub(crate) fn with(self, options: Option<FarOptionsGiven>) -> FarPlace {
        FarPlace { path: self.0, options: options.map(|FarOptionsGiven(options)| options) }
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for FarPath {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.extract::<String>()
            && dalsegno_store::is_far_url(&text)
        {
            return Ok(Self(text.into()));
        }
        LocalPath::extract(object).map(|LocalPath(path)| Self(path))
    }
}

/// Options of a far location, as a mapping.
pub(crate) struct FarOptionsGiven(FarOptions);

impl<'a, 'py> FromPyObject<'a, 'py> for FarOptionsGiven {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let dumped = object.py().import("json")?.call_method1("dumps", (object,));
        // What was taken for an option may be secret.
        let wrong = || InvalidError::new_err("options must be a mapping of names to plain values");
        let text: String = dumped.map_err(|_| wrong())?.extract()?;
        let given = serde_json::from_str(&text).map_err(|_| wrong())?;
        FarOptions::parse(given).or_raise().map(Self)
    }
}

impl LocalPath {
    /// Refuses the socket of a server where a directory is needed.
    pub(crate) fn directory(self) -> PyResult<PathBuf> {
        match self.0.to_str().filter(|text| text.starts_with(SOCKET_PREFIX)) {
            None => Ok(self.0),
            Some(text) => Err(InvalidError::new_err(format!(
                "the path is {text:?}, the socket of a server; give the directory that the server owns"
            ))),
        }
    }
}

fn absolute(path: &Path) -> PyResult<PathBuf> {
    std::path::absolute(path).map_err(|error| {
        let path = path.display();
        InvalidError::new_err(format!("{path} is relative to a directory that is gone: {error}"))
    })
}
