//! Errors of the log and of the system as the caller sees them: each says what the caller can do.

use std::path::{Path, PathBuf};

use dalsegno_core::{Error, ErrorKind, Result, Stopped};
use dalsegno_extent::format::FormatError;
use dalsegno_io::{IoError, Process};
use dalsegno_log::LogError;

/// Converts an error of the log.
pub(crate) fn to_error(error: LogError) -> Error {
    let (kind, message) = match &error {
        LogError::Full => (
            ErrorKind::Full,
            "the log has no free space and nothing could be evicted; raise the capacity or free space on the disk",
        ),
        LogError::TooLarge { .. } => (ErrorKind::Invalid, "the extent does not fit into a segment"),
        LogError::Poisoned => {
            (ErrorKind::Poisoned, "writing has stopped; close the store and open it again")
        }
        LogError::Io(IoError::Suspended) => (
            ErrorKind::Unavailable,
            "the disk does not respond, so the store does not use it; go on without the store",
        ),
        LogError::Io(IoError::Stopped(Stopped::Busy)) => (
            ErrorKind::Unavailable,
            "too many requests wait for the store's disk; go on without it, or raise \"staging\"",
        ),
        LogError::Io(IoError::Stopped(_)) => (ErrorKind::Unavailable, "the call ended early"),
        LogError::Io(error) if error.is_out_of_files() => (
            ErrorKind::Unavailable,
            "this process may not open more files, and a store has one open for each segment; raise its limit \
             (ulimit -n), or create the store with a larger \"segment\"",
        ),
        LogError::Io(_) => (ErrorKind::Unavailable, "the device failed"),
        LogError::Format { source: FormatError::Newer(_), .. } => (
            ErrorKind::Incompatible,
            "a newer Dalsegno wrote this store; upgrade, or use another directory",
        ),
        LogError::Format { .. } => (ErrorKind::Corrupt, "the store's files are damaged"),
    };
    Error::new(kind, message).with_source(error)
}

/// The error of a directory that cannot be used.
pub(crate) fn unavailable(path: &Path, error: IoError) -> Error {
    let message = format!("{} cannot be used{}", path.display(), dangling_link(path));
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

/// A path that a later change of the working directory does not change.
///
/// # Errors
///
/// `Invalid` if it is empty, or the working directory is gone.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| {
        Error::invalid(format!("{} is no path", path.display())).with_source(error)
    })
}

/// Which link on a path leads nowhere, as a part of a message; nothing if none does.
pub(crate) fn dangling_link(path: &Path) -> String {
    dalsegno_io::dangling_link(path).map_or_else(String::new, |(link, target)| {
        format!(
            "; {} is a symbolic link to {}, which does not exist: create that, or remove the link",
            link.display(),
            target.display()
        )
    })
}

/// The error of every call in a forked child, for a store that its parent opened.
#[must_use]
pub fn forked(process: Process) -> Error {
    let message = format!(
        "this store was opened by process {} and does not work in a forked child: fork before you open it, or start \
         the child as a new process (with multiprocessing, the start method \"spawn\")",
        process.id()
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// The error of an open when the system refuses threads.
#[must_use]
pub fn no_thread(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "the system refused to start a thread").with_source(error)
}
