//! Caches recently read blocks.
//!
//! 1. The cache has a limit in bytes. The weight of an entry is the memory that it takes.
//! 2. A place holds the same block forever, so a cached block is never stale. Blocks of removed tables are not read
//!    again and leave the cache first.
//! 3. A block enters the cache when it is read for the second time. Lookups of random blocks neither pay for caching
//!    blocks that are not read again nor evict blocks that are read often.

use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dalsegno_core::SECTOR_BYTES;
use quick_cache::Weighter;
use quick_cache::sync::{Cache, DefaultLifecycle};

use crate::error::TableError;
use crate::lsm::table::block::{Block, BlockPlace};
use crate::lsm::table::read_buffer::ReadBuffer;
use crate::lsm::table::read_counts::ReadCounts;

/// Memory of an entry in addition to its block: its place twice, a counter, links, two reference counts. Rounded up.
const ENTRY_BYTES: u64 = 96;

#[derive(Clone, Copy, Debug)]
struct BlockWeight;

impl Weighter<BlockPlace, Arc<Block>> for BlockWeight {
    fn weight(&self, _: &BlockPlace, block: &Arc<Block>) -> u64 {
        block.memory_bytes() as u64 + ENTRY_BYTES
    }
}

/// Places are small numbers that no caller chooses, so a multiplication spreads them well enough. The same blocks stay
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

type Blocks = Cache<BlockPlace, Arc<Block>, BlockWeight, BuildHasherDefault<PlaceHasher>>;

/// Places that were read and not cached; approximate, since it takes few bytes.
struct ReadOnce(Box<[AtomicU32]>);

impl ReadOnce {
    /// Remembers about twice as many places as the cache holds.
    fn new(blocks: usize) -> Self {
        let slots = (2 * blocks).max(64).next_power_of_two();
        Self((0..slots).map(|_| AtomicU32::new(0)).collect())
    }

    /// Remembers a place, and returns whether it was known before.
    fn is_known(&self, place: BlockPlace) -> bool {
        let mut hasher = PlaceHasher::default();
        hasher.write_u64(place.table);
        hasher.write_u64(place.sector);
        let hash = hasher.finish();
        let low = usize::try_from(hash & u64::from(u32::MAX)).expect("32 bits");
        let mark = u32::try_from(hash >> 32).expect("32 bits") | 1;
        self.0[low % self.0.len()].swap(mark, Ordering::Relaxed) == mark
    }
}

/// The cache of all tables of an index, and the counts of their reads. Clones share the cache.
#[derive(Clone)]
pub(crate) struct BlockCache {
    blocks: Arc<Blocks>,
    read_once: Arc<ReadOnce>,
    counts: Arc<ReadCounts>,
}

/// A block for a reader.
#[derive(Debug)]
pub(crate) enum HeldBlock {
    /// The reader shares it with the cache, or owns it alone.
    Shared(Arc<Block>),
    /// The cache does not keep it.
    Uncached(Block<ReadBuffer>),
}

impl HeldBlock {
    pub(crate) fn view(&self) -> Block<&[u8]> {
        match self {
            Self::Shared(block) => block.view(),
            Self::Uncached(block) => block.view(),
        }
    }

    pub(crate) fn slice(&self, range: Range<usize>) -> &[u8] {
        match self {
            Self::Shared(block) => block.slice(range),
            Self::Uncached(block) => block.slice(range),
        }
    }
}

/// What the cache did so far, and its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheUsage {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Bytes of memory that it takes.
    pub(crate) bytes: u64,
}

impl BlockCache {
    /// A cache of at most `bytes`; zero for none.
    pub(crate) fn new(bytes: u64) -> Self {
        let blocks = usize::try_from(bytes / SECTOR_BYTES).expect("64-bit addresses");
        let (hasher, lifecycle) = (BuildHasherDefault::default(), DefaultLifecycle::default());
        let read_once = Arc::new(ReadOnce::new(blocks));
        let blocks = Arc::new(Cache::with(blocks, bytes, BlockWeight, hasher, lifecycle));
        Self { blocks, read_once, counts: Arc::default() }
    }

    /// The same cache with other counts: for maintenance, whose reads no caller requested.
    pub(crate) fn counted_in(&self, counts: &Arc<ReadCounts>) -> Self {
        Self { counts: Arc::clone(counts), ..self.clone() }
    }

    /// The counts of reads through this handle.
    pub(crate) fn counts(&self) -> &Arc<ReadCounts> {
        &self.counts
    }

    /// The block of `bytes` bytes at a place, which `read` fills. Two readers that miss it at the same time both read
    /// it: that is rare, and cheaper than waiting for each other.
    pub(crate) fn get_or(
        &self,
        place: BlockPlace,
        bytes: usize,
        read: impl FnOnce(&mut [u8]) -> Result<(), TableError>,
    ) -> Result<HeldBlock, TableError> {
        if let Some(block) = self.blocks.get(&place) {
            return Ok(HeldBlock::Shared(block));
        }
        if !self.read_once.is_known(place) {
            let mut buffer = ReadBuffer::new(bytes);
            read(&mut buffer)?;
            return Ok(HeldBlock::Uncached(Block::parse(buffer, place)?));
        }
        let mut memory = vec![0; bytes];
        read(&mut memory)?;
        let block = Arc::new(Block::parse(memory.into_boxed_slice(), place)?);
        self.blocks.insert(place, Arc::clone(&block));
        Ok(HeldBlock::Shared(block))
    }

    /// Hits, misses and size.
    pub(crate) fn usage(&self) -> CacheUsage {
        let blocks = &self.blocks;
        CacheUsage { hits: blocks.hits(), misses: blocks.misses(), bytes: blocks.weight() }
    }
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BlockCache").field(&self.usage()).finish()
    }
}
