//! The block index of a table in memory: which block may hold a key.
//!
//! 1. Blocks follow each other without a gap, from the start of the file to the filter.
//! 2. `keys` ascend strictly. Block i holds keys that are at most `key(i)` and larger than `key(i - 1)`.
//! 3. Heads ascend with their keys, so a search among numbers leaves few keys to compare.

use std::ops::Range;

use dalsegno_core::SECTOR_BYTES;
use dalsegno_io::PageBuffer;

use crate::error::TableError;
use crate::lsm::format::varint;
use crate::lsm::table::block::{Block, BlockPlace, Cursor};
use crate::lsm::table::footer::Footer;

/// Bytes of kind and namespace; most keys differ only after them.
const GROUP_BYTES: usize = 17;

/// The first bytes of a key as numbers. The smaller of two keys never has the larger head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Head {
    group: [u64; 3],
    rest: u64,
}

impl Head {
    /// A short key is padded with zeros.
    #[inline]
    pub(crate) fn of(key: &[u8]) -> Self {
        let mut bytes = [0; GROUP_BYTES + 8];
        let length = key.len().min(bytes.len());
        bytes[..length].copy_from_slice(&key[..length]);
        let word = |at: usize| u64::from_be_bytes(*bytes[at..].first_chunk().expect("8 bytes"));
        Self { group: [u64::from(bytes[0]), word(1), word(9)], rest: word(GROUP_BYTES) }
    }
}

/// The heads of keys that ascend.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    /// Kinds and namespaces, and the position of the first key of each.
    groups: Vec<([u64; 3], u32)>,
    /// The bytes of each key after its group.
    rests: Vec<u64>,
}

impl Heads {
    /// Adds the head of a key that is larger than those before; `None` if there are too many keys.
    pub(crate) fn push(&mut self, key: &[u8]) -> Option<()> {
        let head = Head::of(key);
        if self.groups.last().is_none_or(|(group, _)| *group != head.group) {
            self.groups.push((head.group, u32::try_from(self.rests.len()).ok()?));
        }
        self.rests.push(head.rest);
        Some(())
    }

    /// The positions of the keys with this head. Keys before them have smaller heads, keys after them larger ones.
    #[inline]
    pub(crate) fn range(&self, head: Head) -> Range<usize> {
        let at = self.groups.partition_point(|(group, _)| *group < head.group);
        let first_of =
            |at: usize| self.groups.get(at).map_or(self.rests.len(), |(_, at)| *at as usize);
        let first = first_of(at);
        if self.groups.get(at).is_none_or(|(group, _)| *group != head.group) {
            return first..first;
        }
        let rests = &self.rests[first..first_of(at + 1)];
        let low = rests.partition_point(|rest| *rest < head.rest);
        if rests.get(low) != Some(&head.rest) {
            return first + low..first + low;
        }
        let same = rests[low..].partition_point(|rest| *rest == head.rest);
        first + low..first + low + same
    }

    fn shrink_to_fit(&mut self) {
        self.groups.shrink_to_fit();
        self.rests.shrink_to_fit();
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(&*self.groups) + size_of_val(&*self.rests)
    }
}

/// All keys share one allocation: a table has thousands of blocks, and an allocation for each costs more than its key.
#[derive(Debug)]
pub(crate) struct BlockIndex {
    keys: Box<[u8]>,
    /// The end of each key in `keys`.
    key_ends: Box<[u32]>,
    /// The sector after each block.
    block_ends: Box<[u32]>,
    heads: Heads,
}

impl BlockIndex {
    /// Reads the index that is stored at `place`.
    pub(crate) fn decode(
        bytes: PageBuffer,
        place: BlockPlace,
        footer: &Footer,
    ) -> Result<Self, TableError> {
        const WRONG: TableError = TableError::Malformed("the index of a table");
        let block = Block::parse(bytes, place)?;
        let (mut keys, mut key_ends, mut block_ends) = (Vec::new(), Vec::new(), Vec::new());
        let mut heads = Heads::default();
        let mut cursor = Cursor::default();
        let mut end = 0_u32;
        while cursor.next(&block)? {
            heads.push(cursor.key()).ok_or(WRONG)?;
            keys.extend_from_slice(cursor.key());
            key_ends.push(u32::try_from(keys.len()).map_err(|_| WRONG)?);
            let sectors = sectors_of(block.slice(cursor.value()), end).ok_or(WRONG)?;
            end = end.checked_add(sectors).ok_or(WRONG)?;
            block_ends.push(end);
        }
        heads.shrink_to_fit();
        let index = Self {
            keys: keys.into(),
            key_ends: key_ends.into(),
            block_ends: block_ends.into(),
            heads,
        };
        let facts = &footer.facts;
        let is_whole = u64::from(end) * SECTOR_BYTES == footer.filter_offset
            && index.len() as u64 == facts.blocks
            && index.key(0) >= &facts.smallest
            && index.key(index.len() - 1) == &*facts.largest;
        is_whole.then_some(index).ok_or(WRONG)
    }

    /// Number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.key_ends.len()
    }

    fn key(&self, block: usize) -> &[u8] {
        let from = block.checked_sub(1).map_or(0, |before| self.key_ends[before]);
        &self.keys[from as usize..self.key_ends[block] as usize]
    }

    /// The block that may hold a key; the number of blocks if the key is larger than all others.
    pub(crate) fn find(&self, key: &[u8]) -> usize {
        let Range { start, end } = self.heads.range(Head::of(key));
        let (mut low, mut high) = (start, end);
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
    pub(crate) fn sectors(&self, block: usize) -> Range<u64> {
        let from = block.checked_sub(1).map_or(0, |before| self.block_ends[before]);
        u64::from(from)..u64::from(self.block_ends[block])
    }

    /// The sector after all blocks.
    pub(crate) fn end(&self) -> u64 {
        self.block_ends.last().map_or(0, |end| u64::from(*end))
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let ends = size_of_val(&*self.key_ends) + size_of_val(&*self.block_ends);
        self.keys.len() + ends + self.heads.memory_bytes()
    }
}

/// How many sectors the block that starts at `from` has.
fn sectors_of(mut value: &[u8], from: u32) -> Option<u32> {
    let first = varint::take(&mut value)?;
    let sectors = u32::try_from(varint::take(&mut value)?).ok()?;
    (first == u64::from(from) && sectors > 0 && value.is_empty()).then_some(sectors)
}
