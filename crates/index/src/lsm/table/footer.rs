//! What writers and readers of a table share: its name and its footer.
//!
//! 1. A table is written once and never changes.
//! 2. Damage to a table is an error, never a panic and never another value.

use dalsegno_core::StoreId;
use dalsegno_io::PageBuffer;

use crate::error::TableError;
use crate::lsm::files::table_files::SECTOR;
use crate::lsm::table::block::MAX_KEY_BYTES;

const MAGIC: [u8; 8] = *b"DSGNTABL";
const VERSION: u32 = 1;
const SMALLEST_AT: usize = 92;
const LARGEST_AT: usize = SMALLEST_AT + MAX_KEY_BYTES;
const RESERVED_AT: usize = LARGEST_AT + MAX_KEY_BYTES;
const CRC_AT: usize = SECTOR - 4;

/// Name of a table's file.
pub(crate) fn table_file(number: u64) -> String {
    format!("index-{number:016x}.table")
}

/// What the footer says about a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableFacts {
    pub(crate) number: u64,
    pub(crate) file_bytes: u64,
    /// Entries of all kinds.
    pub(crate) entries: u64,
    /// Entries of kind point.
    pub(crate) points: u64,
    pub(crate) blocks: u64,
    pub(crate) smallest: Box<[u8]>,
    pub(crate) largest: Box<[u8]>,
}

/// The last sector of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) facts: TableFacts,
    pub(crate) filter_offset: u64,
    pub(crate) index_offset: u64,
}

impl Footer {
    /// Appends the sector.
    pub(super) fn encode(&self, store: StoreId, out: &mut PageBuffer) {
        let (from, facts) = (out.len(), &self.facts);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&4096_u32.to_le_bytes());
        out.extend_from_slice(&store.0);
        for field in [
            facts.number,
            facts.file_bytes,
            facts.entries,
            facts.points,
            self.filter_offset,
            self.index_offset,
            facts.blocks,
        ] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        for key in [&facts.smallest, &facts.largest] {
            let length = u16::try_from(key.len()).expect("at most MAX_KEY_BYTES");
            out.extend_from_slice(&length.to_le_bytes());
        }
        for (key, end) in [(&facts.smallest, LARGEST_AT), (&facts.largest, RESERVED_AT)] {
            out.extend_from_slice(key);
            out.resize(from + end);
        }
        out.resize(from + CRC_AT);
        let crc = dalsegno_core::crc32c(&out[from..]);
        out.extend_from_slice(&crc.to_le_bytes());
    }

    /// Reads the last sector of a file of `file_bytes`, which should be this table of this store.
    pub(super) fn decode(
        sector: &[u8; SECTOR],
        store: StoreId,
        number: u64,
        file_bytes: u64,
    ) -> Result<Self, TableError> {
        let u32_at = |at: usize| u32::from_le_bytes(*sector[at..].first_chunk().expect("inside"));
        let u64_at = |at: usize| u64::from_le_bytes(*sector[at..].first_chunk().expect("inside"));
        if u32_at(CRC_AT) != dalsegno_core::crc32c(&sector[..CRC_AT]) {
            return Err(TableError::Checksum);
        }
        if sector[..8] != MAGIC || u32_at(8) != VERSION || u32_at(12) != 4096 {
            return Err(TableError::Malformed("the version of a table"));
        }
        if sector[16..32] != store.0 || u64_at(32) != number || u64_at(40) != file_bytes {
            return Err(TableError::Malformed("the footer: it belongs to another table"));
        }
        let key = |length_at: usize, at: usize| {
            let length = u16::from_le_bytes(*sector[length_at..].first_chunk().expect("inside"));
            let (key, zeros) =
                sector[at..at + MAX_KEY_BYTES].split_at_checked(usize::from(length))?;
            (!key.is_empty() && zeros.iter().all(|byte| *byte == 0)).then(|| Box::from(key))
        };
        let malformed = || TableError::Malformed("the footer");
        let footer = Self {
            facts: TableFacts {
                number,
                file_bytes,
                entries: u64_at(48),
                points: u64_at(56),
                blocks: u64_at(80),
                smallest: key(88, SMALLEST_AT).ok_or_else(malformed)?,
                largest: key(90, LARGEST_AT).ok_or_else(malformed)?,
            },
            filter_offset: u64_at(64),
            index_offset: u64_at(72),
        };
        let is_reserved_zero = sector[RESERVED_AT..CRC_AT].iter().all(|byte| *byte == 0);
        (footer.is_sound() && is_reserved_zero).then_some(footer).ok_or_else(malformed)
    }

    /// Whether its fields agree with one another.
    fn is_sound(&self) -> bool {
        let sector = SECTOR as u64;
        let Self { facts, filter_offset, index_offset } = self;
        let ends = [*filter_offset, *index_offset, facts.file_bytes];
        ends.iter().all(|end| end.is_multiple_of(sector))
            // One block at least, one sector of filter, one of index, and the footer.
            && *filter_offset >= sector
            && filter_offset.checked_add(sector).is_some_and(|end| end <= *index_offset)
            && index_offset.checked_add(2 * sector).is_some_and(|end| end <= facts.file_bytes)
            && (1..=filter_offset / sector).contains(&facts.blocks)
            // Each has at least one byte.
            && (facts.blocks..=*filter_offset).contains(&facts.entries)
            && facts.points <= facts.entries
            && facts.smallest <= facts.largest
    }
}
