//! Blocks that were read lately.
//!
//! 1. At most so many bytes: entries are weighed with what they take of memory.
//! 2. A place has the same block for ever, so what is here is never stale. The blocks of a table that is gone are asked
//!    for no more and are the next to be dropped.
//! 3. A block is kept when it is read for the second time: look-ups of random blocks neither pay for keeping what
//!    nobody asks for again, nor push out what somebody does.

use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dalsegno_core::SECTOR_BYTES;
use quick_cache::Weighter;
use quick_cache::sync::{Cache, DefaultLifecycle};

use super::block::{Block, Place};
use super::counts::Counts;
use super::scratch::Scratch;
use super::table::TableError;

/// What an entry takes besides its block: its place twice, a counter, links, two counts of references. Rounded up.
const ENTRY_BYTES: u64 = 96;

#[derive(Clone, Copy, Debug)]
struct BlockWeight;

impl Weighter<Place, Arc<Block>> for BlockWeight {
    fn weight(&self, _: &Place, block: &Arc<Block>) -> u64 {
        block.memory_bytes() as u64 + ENTRY_BYTES
    }
}

/// Places are small numbers that nobody chooses, so a multiplication spreads them well enough; and the same blocks stay
/// in every run of a simulation.
#[derive(Default)]
struct PlaceHasher(u64);

impl Hasher for PlaceHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

type Blocks = Cache<Place, Arc<Block>, BlockWeight, BuildHasherDefault<PlaceHasher>>;

/// Places that were read and not kept, as far as few bytes can remember them.
struct Seen(Box<[AtomicU32]>);

impl Seen {
    /// Remembers about twice as many as the cache holds.
    fn new(blocks: usize) -> Self {
        let slots = (2 * blocks).max(64).next_power_of_two();
        Self((0..slots).map(|_| AtomicU32::new(0)).collect())
    }

    /// Whether a place was here before; it is from now on.
    fn again(&self, place: Place) -> bool {
        let mut hasher = PlaceHasher::default();
        hasher.write_u64(place.table);
        hasher.write_u64(place.sector);
        let hash = hasher.finish();
        let low = usize::try_from(hash & u64::from(u32::MAX)).expect("32 bits");
        let mark = u32::try_from(hash >> 32).expect("32 bits") | 1;
        self.0[low % self.0.len()].swap(mark, Ordering::Relaxed) == mark
    }
}

/// The cache of all tables of an index, and what was asked of them; clones are the same cache.
#[derive(Clone)]
pub(crate) struct BlockCache {
    blocks: Arc<Blocks>,
    seen: Arc<Seen>,
    asked: Arc<Counts>,
}

/// A block for somebody who looks at it: one of the cache, or one that it does not keep.
#[derive(Debug)]
pub(super) enum Held {
    Kept(Arc<Block>),
    Lent(Block<Scratch>),
}

impl Held {
    pub(super) fn view(&self) -> Block<&[u8]> {
        match self {
            Self::Kept(block) => block.view(),
            Self::Lent(block) => block.view(),
        }
    }

    pub(super) fn slice(&self, range: Range<usize>) -> &[u8] {
        match self {
            Self::Kept(block) => block.slice(range),
            Self::Lent(block) => block.slice(range),
        }
    }
}

/// What the cache did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheCounts {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Bytes of memory it takes now.
    pub(crate) bytes: u64,
}

impl BlockCache {
    /// A cache of at most `bytes`; zero for none.
    pub(crate) fn new(bytes: u64) -> Self {
        let blocks = usize::try_from(bytes / SECTOR_BYTES).expect("64-bit addresses");
        let (hasher, lifecycle) = (BuildHasherDefault::default(), DefaultLifecycle::default());
        let seen = Arc::new(Seen::new(blocks));
        let blocks = Arc::new(Cache::with(blocks, bytes, BlockWeight, hasher, lifecycle));
        Self { blocks, seen, asked: Arc::default() }
    }

    /// The same blocks, with counts of its own: for upkeep, which nobody asked for.
    pub(super) fn counted_apart(&self, counts: &Arc<Counts>) -> Self {
        Self { asked: Arc::clone(counts), ..self.clone() }
    }

    pub(super) fn asked(&self) -> &Arc<Counts> {
        &self.asked
    }

    /// The block of so many bytes at a place, which `read` fills. Two who miss it at once read it twice: rare, and
    /// cheaper than to wait for one another.
    pub(super) fn get_or(
        &self,
        place: Place,
        bytes: usize,
        read: impl FnOnce(&mut [u8]) -> Result<(), TableError>,
    ) -> Result<Held, TableError> {
        if let Some(block) = self.blocks.get(&place) {
            return Ok(Held::Kept(block));
        }
        if !self.seen.again(place) {
            let mut scratch = Scratch::of(bytes);
            read(&mut scratch)?;
            return Ok(Held::Lent(Block::parse(scratch, place)?));
        }
        let mut memory = vec![0; bytes];
        read(&mut memory)?;
        let block = Arc::new(Block::parse(memory.into_boxed_slice(), place)?);
        self.blocks.insert(place, Arc::clone(&block));
        Ok(Held::Kept(block))
    }

    pub(crate) fn counts(&self) -> CacheCounts {
        let blocks = &self.blocks;
        CacheCounts { hits: blocks.hits(), misses: blocks.misses(), bytes: blocks.weight() }
    }
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BlockCache").field(&self.counts()).finish()
    }
}
