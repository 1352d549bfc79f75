//! Why a block is a miss.

use dalsegno_core::Stopped;
use dalsegno_io::IoError;

use crate::format::FormatError;

/// Why stored bytes are a miss. Each cause has a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// A slice's checksum does not match.
    SliceChecksum,
    /// A unit of a compressed extent is damaged: its checksum does not match, or it cannot be decompressed.
    Codec,
    /// The extent's header is damaged.
    Header,
    /// The bytes belong to another place or another extent.
    WrongPlace,
    /// The file ends before the bytes.
    Truncated,
    /// The device cannot read these bytes, not even alone in a second request, while it reads others.
    BadSector,
    /// The device failed.
    Device,
    /// The device hangs or fails, so no request was sent.
    Suspended,
    /// The deadline passed first.
    Deadline,
    /// The call was cancelled.
    Cancelled,
    /// The queue or the staging pool was exhausted.
    Throttled,
    /// The segment was recycled meanwhile, or the pack was removed.
    Recycled,
}

impl Cause {
    /// All causes, in the order of their counters.
    pub const ALL: [Self; 12] = [
        Self::SliceChecksum,
        Self::Codec,
        Self::Header,
        Self::WrongPlace,
        Self::Truncated,
        Self::BadSector,
        Self::Device,
        Self::Suspended,
        Self::Deadline,
        Self::Cancelled,
        Self::Throttled,
        Self::Recycled,
    ];

    /// The counter's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SliceChecksum => "slice_checksum",
            Self::Codec => "codec",
            Self::Header => "header",
            Self::WrongPlace => "wrong_place",
            Self::Truncated => "truncated",
            Self::BadSector => "bad_sector",
            Self::Device => "device",
            Self::Suspended => "suspended",
            Self::Deadline => "deadline",
            Self::Cancelled => "cancelled",
            Self::Throttled => "throttled",
            Self::Recycled => "recycled",
        }
    }

    /// Whether the stored bytes are damaged, so that reading them again is useless.
    #[must_use]
    pub fn is_damage(self) -> bool {
        let of_slices = [Self::SliceChecksum, Self::Codec, Self::Truncated, Self::BadSector];
        self.is_of_header() || of_slices.contains(&self)
    }

    /// Whether the header is damaged, and with it every block of the extent.
    #[must_use]
    pub fn is_of_header(self) -> bool {
        matches!(self, Self::Header | Self::WrongPlace)
    }

    pub(crate) fn of_io(error: &IoError) -> Self {
        match error {
            IoError::Short { .. } => Self::Truncated,
            IoError::Stopped(stopped) => (*stopped).into(),
            IoError::Suspended => Self::Suspended,
            error if error.is_not_found() => Self::Recycled,
            IoError::Os { .. } | IoError::Closed => Self::Device,
        }
    }

    pub(crate) fn of_format(error: FormatError) -> Self {
        match error {
            FormatError::Place(_) => Self::WrongPlace,
            _ => Self::Header,
        }
    }
}

impl From<Stopped> for Cause {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Deadline => Self::Deadline,
            Stopped::Cancelled => Self::Cancelled,
            Stopped::Busy => Self::Throttled,
        }
    }
}
