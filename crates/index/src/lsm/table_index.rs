//! The index of a table in memory: which block a key would be in.
//!
//! 1. Blocks lie one behind the other without a gap, from the file's beginning to the filter.
//! 2. `keys` ascend strictly; block i holds keys that are at most `key(i)` and larger than `key(i - 1)`.

use std::ops::Range;

use super::block::{Block, Cursor, Place};
use super::table::{Footer, TableError};
use super::varint;
use dalsegno_core::SECTOR_BYTES;

/// Keys in one piece of memory: a table has thousands of blocks, and an allocation for each costs more than its key.
#[derive(Debug)]
pub(super) struct TableIndex {
    keys: Box<[u8]>,
    /// Where each key ends in `keys`.
    key_ends: Box<[u32]>,
    /// The sector behind each block.
    block_ends: Box<[u32]>,
}

impl TableIndex {
    /// Reads the index that lies at `place`.
    pub(super) fn decode(
        bytes: Box<[u8]>,
        place: Place,
        footer: &Footer,
    ) -> Result<Self, TableError> {
        const WRONG: TableError = TableError::Malformed("the index of a table");
        let block = Block::parse(bytes, place)?;
        let (mut keys, mut key_ends, mut block_ends) = (Vec::new(), Vec::new(), Vec::new());
        let mut cursor = Cursor::default();
        let mut end = 0_u32;
        while cursor.next(&block)? {
            keys.extend_from_slice(cursor.key());
            key_ends.push(u32::try_from(keys.len()).map_err(|_| WRONG)?);
            let sectors = sectors_of(block.slice(cursor.value()), end).ok_or(WRONG)?;
            end = end.checked_add(sectors).ok_or(WRONG)?;
            block_ends.push(end);
        }
        let index =
            Self { keys: keys.into(), key_ends: key_ends.into(), block_ends: block_ends.into() };
        let facts = &footer.facts;
        let is_whole = u64::from(end) * SECTOR_BYTES == footer.filter_offset
            && index.len() as u64 == facts.blocks
            && index.key(0) >= &facts.smallest
            && index.key(index.len() - 1) == &*facts.largest;
        is_whole.then_some(index).ok_or(WRONG)
    }

    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.key_ends.len()
    }

    fn key(&self, block: usize) -> &[u8] {
        let from = block.checked_sub(1).map_or(0, |before| self.key_ends[before]);
        &self.keys[from as usize..self.key_ends[block] as usize]
    }

    /// The block that a key would be in; the number of blocks if it is larger than all keys.
    pub(super) fn find(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle) < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The sectors of a block.
    pub(super) fn sectors(&self, block: usize) -> Range<u64> {
        let from = block.checked_sub(1).map_or(0, |before| self.block_ends[before]);
        u64::from(from)..u64::from(self.block_ends[block])
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.keys.len() + 4 * (self.key_ends.len() + self.block_ends.len())
    }
}

/// How many sectors a block has that begins at `from`.
fn sectors_of(mut value: &[u8], from: u32) -> Option<u32> {
    let first = varint::take(&mut value)?;
    let sectors = u32::try_from(varint::take(&mut value)?).ok()?;
    (first == u64::from(from) && sectors > 0 && value.is_empty()).then_some(sectors)
}
