//! Encodes and decodes the bytes of docs/formats/log.md, without I/O.
//!
//! 1. Decoders never panic, and check every length against its bound before they use it.
//! 2. Bytes that decode encode to the same bytes again: reserved bytes must be zero.

pub mod fields;
mod list;
mod new_extent;
mod place;
mod record;
mod sector;
mod units;

pub use list::{LIST_FILE, ListedSegment, SegmentList};
pub use new_extent::NewExtent;
pub use place::RecordPlace;
pub use record::{RecordHeader, RecordKind, compressed_header_bytes, record_header_bytes};
pub(crate) use sector::CRC_AT as SECTOR_CRC_AT;
pub use sector::{NamespaceSector, SegmentHeader, StoreHeader};
pub use units::{StoredUnit, Units};
pub(crate) use units::{row_bytes, unit_count};

use dalsegno_core::COUNT_LIMIT;
use thiserror::Error;

/// The version of everything that is not about compressed extents.
pub const PLAIN_VERSION: u32 = 1;
/// The newest version that this build reads: of compressed extents, and of a store that may hold them.
pub const COMPRESSED_VERSION: u32 = 2;

/// Name of the store's header file.
pub const STORE_FILE: &str = "store.meta";

/// Largest record header, in bytes.
pub const MAX_RECORD_HEADER_BYTES: u32 = 262_144;

pub(crate) const SECTOR: usize = 4096;

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

/// Name of a segment's file.
#[must_use]
pub fn segment_file(number: u64) -> String {
    format!("segment-{number:016x}.log")
}

/// The number in a segment file's name.
#[must_use]
pub fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("segment-")?.strip_suffix(".log")?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (segment_file(number) == name && number < COUNT_LIMIT).then_some(number)
}

/// Refuses counts so large that an addition could overflow.
fn check_counts(counts: &[(&'static str, u64)]) -> Result<(), FormatError> {
    match counts.iter().find(|(_, count)| *count >= COUNT_LIMIT) {
        Some((field, _)) => Err(FormatError::Field(field)),
        None => Ok(()),
    }
}

/// Name of a namespace descriptor's file.
#[must_use]
pub fn namespace_file(id: dalsegno_core::NamespaceId) -> String {
    format!("namespace-{id}.meta")
}

/// The id in a namespace descriptor's name.
#[must_use]
pub fn namespace_of_file(name: &str) -> Option<dalsegno_core::NamespaceId> {
    let digits = name.strip_prefix("namespace-")?.strip_suffix(".meta")?;
    dalsegno_core::NamespaceId::from_hex(digits).ok().filter(|id| namespace_file(*id) == name)
}

/// Reads fields one after the other. Running out of bytes is an error, never a panic.
pub(crate) struct FieldReader<'a>(pub(crate) &'a [u8]);

impl FieldReader<'_> {
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(FormatError::Truncated)?;
        self.0 = tail;
        Ok(*head)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Writes fields one after the other into a buffer that is large enough.
pub(crate) struct FieldWriter<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> FieldWriter<'a> {
    /// Zeroes the buffer, so that reserved bytes and padding are zero.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        bytes.fill(0);
        Self { bytes, at: 0 }
    }

    pub(crate) fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    pub(crate) fn skip_to(&mut self, offset: usize) {
        assert!(self.at <= offset, "fields overlap at {offset}");
        self.at = offset;
    }
}

pub(crate) fn all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dalsegno_core::StoreId;

    fn segment(
        segment: u64,
        epoch: u64,
        first_sequence: u64,
    ) -> Result<SegmentHeader, FormatError> {
        let (store, segment_bytes, carrying) = (StoreId([7; 16]), 1 << 20, false);
        let header =
            SegmentHeader { store, segment, epoch, segment_bytes, first_sequence, carrying };
        let mut sector = [0; SECTOR];
        header.encode(&mut sector);
        SegmentHeader::decode(&sector)
    }

    fn record(sequence: u64, born: u64) -> Result<RecordHeader, FormatError> {
        let header = RecordHeader {
            store: StoreId([7; 16]),
            segment: 1,
            epoch: 1,
            offset: 4096,
            sequence,
            born,
            namespace: dalsegno_core::NamespaceId::default(),
            lineage: dalsegno_core::ChainHash::default(),
            parent: dalsegno_core::ChainHash::default(),
            first_block_index: 0,
            hashes: Vec::new(),
            kind: RecordKind::Seal,
        };
        let mut bytes = vec![0; header.header_bytes() as usize];
        header.encode(&mut bytes);
        RecordHeader::decode(&bytes)
    }

    #[test]
    fn a_number_beyond_the_count_limit_is_refused() {
        let (last, over) = (COUNT_LIMIT - 1, COUNT_LIMIT);
        assert!(segment(last, last, last).is_ok() && record(last, last).is_ok());
        assert_eq!(segment(over, 1, 1), Err(FormatError::Field("segment")));
        assert_eq!(segment(1, over, 1), Err(FormatError::Field("epoch")));
        assert_eq!(segment(1, 1, over), Err(FormatError::Field("first_sequence")));
        assert_eq!(record(over, 1), Err(FormatError::Field("sequence")));
        assert_eq!(record(1, u64::MAX), Err(FormatError::Field("born")));
        assert_eq!(segment_number(&segment_file(last)), Some(last));
        assert_eq!(segment_number(&segment_file(over)), None);
    }
}
