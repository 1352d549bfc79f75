//! Why stored bytes are not valid.

use thiserror::Error;

/// Why bytes are not valid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FormatError {
    /// The magic number is a different one.
    #[error("the magic number is not Dalsegno's")]
    Magic,
    /// All bytes are zero, because the file was created but never finished.
    #[error("the file was created but never finished")]
    Unfinished,
    /// A newer Dalsegno wrote it.
    #[error("format version {0} is newer than this build reads")]
    Newer(u32),
    /// An older Dalsegno wrote it, in a format that this build does not read.
    #[error("format version {0} is older than this build reads")]
    Older(u32),
    /// The checksum does not match.
    #[error("the header's checksum does not match")]
    Checksum,
    /// A field has a value that is not allowed.
    #[error("field {0} has a value that is not allowed")]
    Field(&'static str),
    /// The bytes name another place: copied, swapped or left over from an earlier epoch.
    #[error("the header belongs to another place ({0} differs)")]
    Place(&'static str),
    /// There are fewer bytes than the header says.
    #[error("the bytes end too early")]
    Truncated,
    /// The device cannot read them.
    #[error("the disk cannot read these bytes")]
    Unreadable,
}
