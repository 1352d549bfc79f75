//! One block of a table: sorted entries that store only the part of a key that differs from the key before.
//!
//! 1. A block holds at least one entry; its keys ascend strictly and have 1 to [`MAX_KEY_BYTES`] bytes.
//! 2. `shared` is as large as it can be, but zero at a restart: [`Block::find`] compares keys without building them.
//! 3. The checksum covers the place of the block: a block that is read from another place is damaged.
//! 4. Decoders never panic and never trust a length before it was checked against what is there.

use std::ops::{Deref, Range};

use dalsegno_core::SECTOR_BYTES;
use dalsegno_io::PageBuffer;

use crate::error::TableError;
use crate::lsm::files::table_files::SECTOR;
use crate::lsm::format::varint;

/// Bytes of the longest key.
pub(crate) const MAX_KEY_BYTES: usize = 64;
const RESTART_EVERY: u32 = 16;
/// Length of the entries, number of restarts, checksum.
const TRAILER_BYTES: usize = 12;

/// Where a block is stored. Numbers of tables are never used twice, so neither are places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockPlace {
    pub(crate) table: u64,
    pub(crate) sector: u64,
}

impl BlockPlace {
    /// The checksum of bytes at this place.
    pub(crate) fn crc(self, parts: &[&[u8]]) -> u32 {
        let own = dalsegno_core::crc32c(&self.table.to_le_bytes());
        let own = dalsegno_core::crc32c_append(own, &self.sector.to_le_bytes());
        parts.iter().fold(own, |crc, part| dalsegno_core::crc32c_append(crc, part))
    }
}

/// Writes one block after the other.
#[derive(Debug, Default)]
pub(crate) struct BlockBuilder {
    entries: Vec<u8>,
    restarts: Vec<u32>,
    count: u32,
    last_key: Vec<u8>,
}

impl BlockBuilder {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The last key that was added, to this block or to the one before.
    pub(crate) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Bytes of the block so far, without the padding to a sector.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.len() + 4 * self.restarts.len() + TRAILER_BYTES
    }

    /// Whether one more entry keeps the block within `aim_bytes`.
    pub(crate) fn fits(&self, key: &[u8], value: &[u8], aim_bytes: usize) -> bool {
        let (shared, restart) = self.shared(key).map_or((0, 4), |shared| (shared, 0));
        let lengths = [shared, key.len() - shared, value.len()];
        let lengths: usize = lengths.iter().map(|length| varint::bytes_of(*length as u64)).sum();
        self.bytes() + restart + lengths + key.len() - shared + value.len() <= aim_bytes
    }

    /// How many bytes the next key shares with the last one; `None` at a restart.
    fn shared(&self, key: &[u8]) -> Option<usize> {
        (!self.count.is_multiple_of(RESTART_EVERY)).then(|| common_bytes(&self.last_key, key))
    }

    /// Adds an entry whose key is larger than those before.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) {
        assert!((1..=MAX_KEY_BYTES).contains(&key.len()), "a key of {} bytes", key.len());
        let shared = self.shared(key).unwrap_or_else(|| {
            let at = u32::try_from(self.entries.len()).expect("a block is far below 4 GiB");
            self.restarts.push(at);
            0
        });
        for length in [shared, key.len() - shared, value.len()] {
            varint::put(&mut self.entries, length as u64);
        }
        self.entries.extend_from_slice(&key[shared..]);
        self.entries.extend_from_slice(value);
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(&key[shared..]);
        self.count += 1;
    }

    /// Appends the block to `out` as whole sectors, and starts the next one. Returns its sectors.
    pub(crate) fn finish(&mut self, place: BlockPlace, out: &mut PageBuffer) -> u64 {
        assert!(!self.is_empty(), "a block has an entry");
        let from = out.len();
        let bytes = self.bytes().next_multiple_of(SECTOR);
        out.extend_from_slice(&self.entries);
        out.resize(from + bytes - TRAILER_BYTES - 4 * self.restarts.len());
        self.restarts.iter().for_each(|at| out.extend_from_slice(&at.to_le_bytes()));
        for length in [self.entries.len(), self.restarts.len()] {
            let length = u32::try_from(length).expect("a block is far below 4 GiB");
            out.extend_from_slice(&length.to_le_bytes());
        }
        let crc = place.crc(&[&out[from..]]);
        out.extend_from_slice(&crc.to_le_bytes());
        self.entries.clear();
        self.restarts.clear();
        self.count = 0;
        bytes as u64 / SECTOR_BYTES
    }
}

/// A block in memory whose checksum was right. It owns its bytes or borrows them.
#[derive(Debug)]
pub(crate) struct Block<B = Box<[u8]>> {
    bytes: B,
    entries_end: usize,
    restarts_at: usize,
    restart_count: usize,
}

/// Where the parts of an entry are in its block.
struct EntryParts {
    shared: usize,
    key: Range<usize>,
    value: Range<usize>,
}

impl<B: Deref<Target = [u8]>> Block<B> {
    /// Checks a block that was read from `place`.
    pub(crate) fn parse(bytes: B, place: BlockPlace) -> Result<Self, TableError> {
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or(TableError::Malformed("a block"))?;
        if place.crc(&[body]) != u32::from_le_bytes(*crc) {
            return Err(TableError::Checksum);
        }
        let (restarts_at, entries_end, restart_count) =
            Self::parts(body).ok_or(TableError::Malformed("a block"))?;
        Ok(Self { bytes, entries_end, restarts_at, restart_count })
    }

    /// Where the restarts begin, where the entries end, and how many restarts there are.
    fn parts(body: &[u8]) -> Option<(usize, usize, usize)> {
        let (body, restart_count) = body.split_last_chunk::<4>()?;
        let (body, entries_bytes) = body.split_last_chunk::<4>()?;
        let restart_count = usize::try_from(u32::from_le_bytes(*restart_count)).ok()?;
        let entries_end = usize::try_from(u32::from_le_bytes(*entries_bytes)).ok()?;
        let restarts_at = body.len().checked_sub(restart_count.checked_mul(4)?)?;
        let is_sound = restart_count > 0 && entries_end > 0 && entries_end <= restarts_at;
        is_sound.then_some((restarts_at, entries_end, restart_count))
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len() + size_of::<Self>()
    }

    /// The same block, borrowed.
    pub(crate) fn view(&self) -> Block<&[u8]> {
        let Self { entries_end, restarts_at, restart_count, .. } = *self;
        Block { bytes: &self.bytes, entries_end, restarts_at, restart_count }
    }

    /// The bytes of a range from [`Self::find`] or [`Cursor::value`].
    pub(crate) fn slice(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// The value of a key.
    #[cfg(test)]
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<&[u8]>, TableError> {
        Ok(self.find(key)?.map(|range| self.slice(range)))
    }

    /// Where the value of a key is.
    ///
    /// Keys are not built. `matched` counts the bytes that the last smaller key shares with the wanted one. An entry
    /// that shares more with that key is smaller as well; one that shares less is larger (invariant 2).
    pub(crate) fn find(&self, wanted: &[u8]) -> Result<Option<Range<usize>>, TableError> {
        let Some(restart) = self.restart_before(wanted)? else { return Ok(None) };
        let end = if restart + 1 < self.restart_count {
            self.restart(restart + 1).min(self.entries_end)
        } else {
            self.entries_end
        };
        let (mut at, mut matched) = (self.restart(restart), 0);
        while at < end {
            let entry = self.entry(at)?;
            at = entry.value.end;
            if entry.shared > matched {
                continue;
            }
            if entry.shared < matched {
                return Ok(None);
            }
            let (key, rest) = (&self.bytes[entry.key], &wanted[matched..]);
            let common = common_bytes(key, rest);
            match (key.get(common), rest.get(common)) {
                (None, None) => return Ok(Some(entry.value)),
                (Some(_), None) => return Ok(None),
                (Some(key), Some(wanted)) if key > wanted => return Ok(None),
                (None | Some(_), Some(_)) => matched += common,
            }
        }
        Ok(None)
    }

    /// Offset of a restart's entry. [`Self::entry`] detects one that points past the entries.
    fn restart(&self, restart: usize) -> usize {
        let bytes = self.bytes[self.restarts_at + 4 * restart..].first_chunk();
        u32::from_le_bytes(*bytes.expect("the restarts are inside the block")) as usize
    }

    /// The last restart whose key is at most `wanted`.
    fn restart_before(&self, wanted: &[u8]) -> Result<Option<usize>, TableError> {
        let (mut low, mut high) = (0, self.restart_count);
        while low < high {
            let middle = low.midpoint(high);
            let entry = self.entry(self.restart(middle))?;
            if entry.shared != 0 {
                return Err(TableError::Malformed("a restart"));
            }
            if self.bytes[entry.key] <= *wanted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low.checked_sub(1))
    }

    #[inline]
    fn entry(&self, at: usize) -> Result<EntryParts, TableError> {
        self.try_entry(at).ok_or(TableError::Malformed("an entry"))
    }

    #[inline]
    fn try_entry(&self, at: usize) -> Option<EntryParts> {
        let mut rest = self.bytes.get(at..self.entries_end)?;
        let shared = usize::try_from(varint::take(&mut rest)?).ok()?;
        let unshared = usize::try_from(varint::take(&mut rest)?).ok()?;
        let value_bytes = usize::try_from(varint::take(&mut rest)?).ok()?;
        let key_at = self.entries_end - rest.len();
        let is_sound = shared <= MAX_KEY_BYTES
            && (1..=MAX_KEY_BYTES - shared).contains(&unshared)
            && value_bytes <= rest.len().checked_sub(unshared)?;
        is_sound.then(|| {
            let value_at = key_at + unshared;
            EntryParts { shared, key: key_at..value_at, value: value_at..value_at + value_bytes }
        })
    }
}

/// A position between the entries of a block. It does not borrow the block, so one owner can move both.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    key: [u8; MAX_KEY_BYTES],
    key_bytes: usize,
    value: Range<usize>,
    next: usize,
}

impl Default for Cursor {
    /// Before the first entry.
    fn default() -> Self {
        Self { key: [0; MAX_KEY_BYTES], key_bytes: 0, value: 0..0, next: 0 }
    }
}

impl Cursor {
    /// The key of the current entry.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key[..self.key_bytes]
    }

    /// Where the value of the current entry is in the block.
    pub(crate) fn value(&self) -> Range<usize> {
        self.value.clone()
    }

    /// Whether the current entry is the last of the block.
    pub(crate) fn is_last<B: Deref<Target = [u8]>>(&self, block: &Block<B>) -> bool {
        self.next == block.entries_end
    }

    /// Moves to the next entry; `false` if there is none.
    #[inline]
    pub(crate) fn next<B: Deref<Target = [u8]>>(
        &mut self,
        block: &Block<B>,
    ) -> Result<bool, TableError> {
        if self.is_last(block) {
            return Ok(false);
        }
        let entry = block.entry(self.next)?;
        let suffix = &block.bytes[entry.key];
        if entry.shared > self.key_bytes || self.key[entry.shared..self.key_bytes] >= *suffix {
            return Err(TableError::Malformed("the order of keys"));
        }
        self.key_bytes = entry.shared + suffix.len();
        self.key[entry.shared..self.key_bytes].copy_from_slice(suffix);
        self.next = entry.value.end;
        self.value = entry.value;
        Ok(true)
    }

    /// Moves to the first entry whose key is at least `wanted`; `false` if there is none.
    pub(crate) fn seek<B: Deref<Target = [u8]>>(
        &mut self,
        block: &Block<B>,
        wanted: &[u8],
    ) -> Result<bool, TableError> {
        *self = Self::default();
        if let Some(restart) = block.restart_before(wanted)? {
            self.next = block.restart(restart);
        }
        while self.next(block)? {
            if self.key() >= wanted {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// How many leading bytes two keys share.
#[inline]
pub(crate) fn common_bytes(one: &[u8], two: &[u8]) -> usize {
    let both = one.len().min(two.len());
    let (ones, _) = one[..both].as_chunks::<8>();
    let (twos, _) = two[..both].as_chunks::<8>();
    for (words, (one, two)) in ones.iter().zip(twos).enumerate() {
        let differing = u64::from_le_bytes(*one) ^ u64::from_le_bytes(*two);
        if differing != 0 {
            return 8 * words + differing.trailing_zeros() as usize / 8;
        }
    }
    let whole = 8 * ones.len();
    let tail = one[whole..both].iter().zip(&two[whole..both]);
    whole + tail.take_while(|(one, two)| one == two).count()
}
