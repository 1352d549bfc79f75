//! Blocks that were read lately.
//!
//! 1. At most so many bytes: entries are weighed with what they take of memory.
//! 2. A place has the same block for ever, so what is here is never stale. The blocks of a table that is gone are asked
//!    for no more and are the next to be dropped.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use dalsegno_core::SECTOR_BYTES;
use quick_cache::Weighter;
use quick_cache::sync::{Cache, DefaultLifecycle};

use super::block::{Block, Place};
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

/// The cache of all tables of an index; clones are the same cache.
#[derive(Clone)]
pub(crate) struct BlockCache(Arc<Blocks>);

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
        Self(Arc::new(Cache::with(blocks, bytes, BlockWeight, hasher, lifecycle)))
    }

    /// The block of a place, `read` if it is not here. Two who miss it at once read it twice: rare, and cheaper than
    /// to wait for one another.
    pub(super) fn get_or(
        &self,
        place: Place,
        read: impl FnOnce() -> Result<Arc<Block>, TableError>,
    ) -> Result<Arc<Block>, TableError> {
        if let Some(block) = self.0.get(&place) {
            return Ok(block);
        }
        let block = read()?;
        self.0.insert(place, Arc::clone(&block));
        Ok(block)
    }

    pub(crate) fn counts(&self) -> CacheCounts {
        CacheCounts { hits: self.0.hits(), misses: self.0.misses(), bytes: self.0.weight() }
    }
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BlockCache").field(&self.counts()).finish()
    }
}
