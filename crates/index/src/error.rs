//! What can be wrong with a table, and what can be missing to write one.

use dalsegno_io::IoError;
use thiserror::Error;

/// Why a table did not give what was requested.
#[derive(Debug, Error)]
pub(crate) enum TableError {
    /// The bytes are not the ones that were written.
    #[error("a checksum does not match")]
    Checksum,
    /// The bytes do not follow the format.
    #[error("{0} is not in the index's format")]
    Malformed(&'static str),
    /// The device failed. That says nothing about the table.
    #[error(transparent)]
    Io(#[from] IoError),
}

impl TableError {
    /// Whether the device failed rather than the table.
    pub(crate) fn is_io(&self) -> bool {
        matches!(self, Self::Io(_))
    }

    /// Whether there was no space, or no descriptor, for a write.
    pub(crate) fn is_no_space(&self) -> bool {
        matches!(self, Self::Io(error) if error.is_no_space() || error.is_out_of_files())
    }

    /// Which space ran out on disk, if that is the error.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        match self {
            Self::Io(error) if error.is_quota() => Some(Shortage::Hidden),
            Self::Io(error) if error.is_no_space() && !error.is_too_large() => Some(Shortage::Disk),
            _ => None,
        }
    }
}

/// What was missing for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Free space of the file system.
    Disk,
    /// Something that the file system does not report: the rest of a quota, files that may be created.
    Hidden,
}
