//! The segment list: the segments of a store, and how much the log had written to each.
//!
//! 1. The log never needs the list to be read. A damaged list only reduces what `verify` can find.
//! 2. The header sector is written last, and only over zeros. So a list that a crash interrupted is recognized.

use dalsegno_core::{SECTOR_BYTES, StoreId, sector_up};

use super::bytes::{FieldReader, PLAIN_VERSION, SECTOR, all_zero, check_counts};
use super::error::FormatError;
use super::sector::{CRC_AT, begin, expect_zero, open, seal};

/// Name of the segment list's file.
pub const LIST_FILE: &str = "segments.meta";

const MAGIC: [u8; 8] = *b"DSGNLIST";
const ENTRY_BYTES: usize = 40;

/// The contents of `segments.meta`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentList {
    /// The store's random name.
    pub store: StoreId,
    /// Its segments, by number.
    pub segments: Vec<ListedSegment>,
}

/// What the list says about one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListedSegment {
    /// The segment's number.
    pub segment: u64,
    /// The epoch that the counts are for; 0 if the log did not know it.
    pub epoch: u64,
    /// The counted records begin before this offset; 0 if none is counted.
    pub end: u64,
    /// Extents and tombstones that the log wrote there in this epoch; there may be more.
    pub records: u64,
    /// Blocks of these extents.
    pub blocks: u64,
}

impl SegmentList {
    /// The whole file: the header sector, then the entries.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; SECTOR];
        for listed in &self.segments {
            let ListedSegment { segment, epoch, end, records, blocks } = *listed;
            for field in [segment, epoch, end, records, blocks] {
                bytes.extend_from_slice(&field.to_le_bytes());
            }
        }
        bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
        let body_crc = dalsegno_core::crc32c(&bytes[SECTOR..]);
        let header = &mut bytes[..SECTOR];
        let mut writer = begin(header, MAGIC, PLAIN_VERSION, 4096);
        writer.put(&self.store.0);
        writer.put(&(self.segments.len() as u64).to_le_bytes());
        writer.put(&body_crc.to_le_bytes());
        seal(header);
        bytes
    }

    /// Reads the whole file.
    ///
    /// # Errors
    ///
    /// Why it is not valid; [`FormatError::Unfinished`] if a crash interrupted its writing.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if Self::is_unfinished(bytes) {
            return Err(FormatError::Unfinished);
        }
        let (mut reader, _, _) = open(bytes, MAGIC, PLAIN_VERSION, true)?;
        let (store, count) = (StoreId(reader.array()?), reader.u64()?);
        let body_crc = reader.u32()?;
        expect_zero(&reader)?;
        let body = &bytes[SECTOR..];
        let entries = usize::try_from(count).ok().and_then(|count| count.checked_mul(ENTRY_BYTES));
        let entries = entries.filter(|entries| *entries <= body.len());
        let entries = entries.ok_or(FormatError::Truncated)?;
        if sector_up(entries as u64) != body.len() as u64 {
            return Err(FormatError::Field("segment_count"));
        }
        if dalsegno_core::crc32c(body) != body_crc {
            return Err(FormatError::Checksum);
        }
        let (entries, rest) = body.split_at(entries);
        if !all_zero(rest) {
            return Err(FormatError::Field("padding"));
        }
        let segments = entries.chunks_exact(ENTRY_BYTES).map(ListedSegment::decode);
        let segments = segments.collect::<Result<Vec<_>, _>>()?;
        if !segments.is_sorted_by(|one, next| one.segment < next.segment) {
            return Err(FormatError::Field("segment"));
        }
        Ok(Self { store, segments })
    }

    /// Whether a crash interrupted the writing of the header.
    fn is_unfinished(bytes: &[u8]) -> bool {
        let Some(header) = bytes.get(..SECTOR) else { return bytes.is_empty() };
        all_zero(&header[..MAGIC.len()]) || all_zero(&header[CRC_AT..])
    }

    /// Whether it names the same segments.
    #[must_use]
    pub fn names_same(&self, other: &Self) -> bool {
        self.segments.iter().map(|it| it.segment).eq(other.segments.iter().map(|it| it.segment))
    }

    /// The entry of a segment.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<&ListedSegment> {
        let at = self.segments.binary_search_by_key(&number, |listed| listed.segment).ok()?;
        self.segments.get(at)
    }
}

impl ListedSegment {
    fn decode(entry: &[u8]) -> Result<Self, FormatError> {
        let mut reader = FieldReader(entry);
        let mut field = || reader.u64();
        let [segment, epoch, end, records, blocks] =
            [field()?, field()?, field()?, field()?, field()?];
        check_counts(&[("segment", segment), ("epoch", epoch)])?;
        check_counts(&[("end", end), ("records", records), ("blocks", blocks)])?;
        if !end.is_multiple_of(SECTOR_BYTES) {
            return Err(FormatError::Field("end"));
        }
        Ok(Self { segment, epoch, end, records, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(count: u64) -> SegmentList {
        let entry = |segment| ListedSegment {
            segment,
            epoch: 2,
            end: 1 << 20,
            records: 3 * segment,
            blocks: 60 * segment,
        };
        SegmentList { store: StoreId([7; 16]), segments: (1..=count).map(entry).collect() }
    }

    #[test]
    fn a_list_round_trips_and_a_flipped_bit_or_a_truncation_is_noticed() {
        for count in [0, 1, 102, 103, 300] {
            let bytes = list(count).encode();
            assert_eq!(SegmentList::decode(&bytes), Ok(list(count)));
            for at in (0..bytes.len()).step_by(37).chain([0, 4092]) {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1;
                let refused = SegmentList::decode(&flipped).unwrap_err();
                assert!(refused != FormatError::Unfinished, "{count} segments, byte {at}");
                let is_cut = at == 0 || SegmentList::decode(&bytes[..at]).is_err();
                assert!(is_cut, "{count} segments, {at} bytes");
            }
        }
    }

    #[test]
    fn a_list_that_a_crash_interrupted_is_unfinished_and_not_damaged() {
        let whole = list(3).encode();
        let mut without_header = whole.clone();
        without_header[..SECTOR].fill(0);
        let mut torn_behind = whole.clone();
        torn_behind[512..SECTOR].fill(0);
        let mut torn_before = whole;
        torn_before[..512].fill(0);
        for bytes in [Vec::new(), vec![0; 8192], without_header, torn_behind, torn_before] {
            assert_eq!(SegmentList::decode(&bytes), Err(FormatError::Unfinished));
        }
    }
}
