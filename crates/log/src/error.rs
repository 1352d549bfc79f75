//! Why a call failed.

use dalsegno_core::Stopped;
use dalsegno_extent::format::FormatError;
use dalsegno_io::IoError;
use thiserror::Error;

/// Why a call failed as a whole.
#[derive(Debug, Error)]
pub enum LogError {
    /// No segment has space: reclaim one first.
    #[error("the log has no free segment")]
    Full,
    /// The extent is larger than a segment can hold.
    #[error("an extent of {bytes} bytes does not fit into a segment of {segment_bytes} bytes")]
    TooLarge {
        /// Header and payload of the extent.
        bytes: u64,
        /// Size of a segment.
        segment_bytes: u64,
    },
    /// An earlier sync failed.
    #[error("an earlier sync failed, so nothing more is written until the store is opened again")]
    Poisoned,
    /// The device failed, or the call ended early.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A header on disk is not valid.
    #[error("{file}: {source}")]
    Format {
        /// The file.
        file: String,
        /// What is wrong with it.
        source: FormatError,
    },
}

impl From<Stopped> for LogError {
    fn from(stopped: Stopped) -> Self {
        Self::Io(stopped.into())
    }
}
