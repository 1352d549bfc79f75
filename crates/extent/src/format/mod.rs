//! Encodes and decodes the bytes of docs/formats/log.md, without I/O.
//!
//! 1. Decoders never panic, and check every length against its bound before they use it.
//! 2. Bytes that decode encode to the same bytes again: reserved bytes must be zero.

mod bytes;
mod error;
pub mod fields;
mod list;
mod names;
mod new_extent;
mod place;
mod record;
mod sector;
mod units;

pub use bytes::{COMPRESSED_VERSION, MAX_RECORD_HEADER_BYTES, PLAIN_VERSION};
pub use bytes::{FieldReader, FieldWriter, SECTOR, all_zero, check_counts};
pub use error::FormatError;
pub use list::{LIST_FILE, ListedSegment, SegmentList};
pub use names::{STORE_FILE, namespace_file, namespace_of_file, segment_file, segment_number};
pub use new_extent::NewExtent;
pub use place::RecordPlace;
pub use record::{RecordHeader, RecordKind, compressed_header_bytes, record_header_bytes};
pub use sector::CRC_AT as SECTOR_CRC_AT;
pub use sector::{NamespaceSector, SegmentHeader, StoreHeader};
pub use sector::{begin, expect_zero, open, seal};
pub use units::row_bytes;
pub(crate) use units::unit_count;
pub use units::{StoredUnit, Units};

#[cfg(test)]
mod tests {
    use super::*;
    use dalsegno_core::{COUNT_LIMIT, StoreId};

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
