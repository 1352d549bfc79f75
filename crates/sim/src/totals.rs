//! What stores did, added up.

use std::ops::AddAssign;

use dalsegno_store::Stats;

/// What stores did all together, to tell what a history has exercised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Openings.
    pub openings: u64,
    /// Blocks dropped to make room.
    pub evicted_blocks: u64,
    /// Bytes moved to make room.
    pub relocated_bytes: u64,
    /// Segments recycled.
    pub recycled_segments: u64,
    /// Extents made of several others.
    pub merges: u64,
    /// Memtables of an index in files that became tables.
    pub flushes: u64,
    /// Merges of such tables.
    pub index_merges: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.openings += other.openings;
        self.evicted_blocks += other.evicted_blocks;
        self.relocated_bytes += other.relocated_bytes;
        self.recycled_segments += other.recycled_segments;
        self.merges += other.merges;
        self.flushes += other.flushes;
        self.index_merges += other.index_merges;
    }
}

impl Totals {
    /// Adds what a store did that was closed.
    pub(crate) fn add(&mut self, stats: &Stats) {
        self.openings += 1;
        self.evicted_blocks += stats.evicted_blocks;
        self.relocated_bytes += stats.relocated_bytes;
        self.recycled_segments += stats.log.segments_recycled;
        self.merges += stats.merging.merges;
        if let Some(index) = &stats.index {
            self.flushes += index.lsm.flushes;
            self.index_merges += index.lsm.merges;
        }
    }
}
