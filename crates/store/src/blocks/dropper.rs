//! Dropping blocks: damaged, evicted and removed ones.
//!
//! 1. Blocks leave the index first, then DRAM, so that a get in progress does not bring them back. What is left of an
//!    evicted segment leaves DRAM by and by: no lookup finds it. Only a removal takes pool-only blocks from DRAM.
//! 2. A watch is notified of a block after the index or, for a pool-only block, DRAM dropped it.
//! 3. The log forgets the header of an extent that has no blocks left.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Deadline, Extent, NamespaceId};
use dalsegno_extent::Cause;
use dalsegno_index::Run;

use crate::blocks::indexed_log::IndexedLog;
use crate::blocks::recent::RecentBlocks;
use crate::counters::{Counters, add};
use crate::state::removal_feed::RemovalFeed;

/// Drops blocks.
#[derive(Debug)]
pub(crate) struct Dropper {
    pub(crate) stored: Arc<IndexedLog>,
    pub(crate) recent: Arc<RecentBlocks>,
    pub(crate) feed: Arc<RemovalFeed>,
    pub(crate) counters: Arc<Counters>,
}

impl Dropper {
    /// Drops the damaged blocks of an extent, or all of its blocks if its header is bad, so that they can be put again.
    /// `damaged` holds positions in the extent, and why.
    pub(crate) fn quarantine(&self, extent: &Extent, damaged: &[(u32, Cause)], deadline: Deadline) {
        let of_header = damaged.iter().find(|(_, cause)| cause.is_of_header());
        let Some((_, cause)) = of_header.or(damaged.first()) else { return };
        let blocks: Vec<u32> = if cause.is_of_header() {
            (0..extent.block_count()).collect()
        } else {
            damaged.iter().map(|(block, _)| *block).collect()
        };
        let removed = self.stored.index.remove_from_extent(extent, &blocks, deadline);
        self.stored.log.forget(extent.id);
        let hashes: Vec<ChainHash> =
            blocks.iter().map(|block| extent.hashes[*block as usize]).collect();
        self.recent.dram.remove_copies(extent.namespace, &hashes);
        if removed.blocks > 0 {
            self.feed.note(extent.namespace, &hashes);
            add(&self.counters.quarantined_blocks, removed.blocks);
            tracing::warn!(
                segment = extent.location.segment,
                offset = extent.location.offset,
                blocks = removed.blocks,
                cause = cause.name(),
                "damaged blocks quarantined; they are misses until they are stored again"
            );
        }
    }

    /// Drops an extent that is evicted.
    pub(crate) fn evict(&self, extent: &Extent) {
        let index = &self.stored.index;
        let live = index.live_blocks(extent).unwrap_or_default();
        let removed = index.remove_extent(extent, Deadline::Never);
        if removed.blocks > 0 {
            self.feed.note(extent.namespace, &extent.hashes);
        }
        self.stored.log.forget(extent.id);
        add(&self.counters.evicted_blocks, removed.blocks);
        let gone = extent.hashes.iter().zip(live).filter(|(_, live)| *live);
        let gone: Vec<ChainHash> = gone.map(|(hash, _)| *hash).collect();
        self.recent.dram.remove_copies(extent.namespace, &gone);
    }

    /// Drops what the index still has of a segment: extents whose headers cannot be read any more.
    pub(crate) fn evict_segment(&self, segment: u64, epoch: u64) {
        let blocks = self.stored.index.drop_segment(segment, epoch);
        if blocks > 0 {
            self.feed.note_gap();
        }
        add(&self.counters.evicted_blocks, blocks);
    }

    /// Removes blocks, or a whole namespace if there are none. Returns how many were there.
    pub(crate) fn remove(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> u64 {
        let (index, dram) = (&self.stored.index, &self.recent.dram);
        let removed = if hashes.is_empty() {
            index.remove_namespace(namespace)
        } else {
            index.remove_blocks(namespace, hashes)
        };
        self.recent.removals.note(namespace, hashes);
        let pool_only = if hashes.is_empty() {
            dram.remove_namespace(namespace)
        } else {
            dram.remove(namespace, hashes)
        };
        let count = removed.blocks + pool_only;
        if count > 0 && hashes.is_empty() {
            self.feed.note_gap();
        } else if count > 0 {
            self.feed.note(namespace, hashes);
        }
        for id in &removed.extents {
            self.stored.log.forget(*id);
        }
        add(&self.counters.removed_blocks, count);
        count
    }

    /// Drops blocks of a run that a new extent is about to hold. DRAM keeps them. `hashes` are those of the run.
    pub(crate) fn hand_over(&self, run: &Run, hashes: &[ChainHash], deadline: Deadline) {
        let blocks: Vec<u32> = (run.first_block..run.first_block + run.count).collect();
        let removed = self.stored.index.remove_from_extent(&run.extent, &blocks, deadline);
        for id in &removed.extents {
            self.stored.log.forget(*id);
        }
        if removed.blocks > 0 {
            self.feed.note(run.extent.namespace, hashes);
        }
    }

    /// Handles removed blocks that the index has dropped: they leave DRAM, and watches are notified.
    pub(crate) fn note_dropped(&self, namespace: NamespaceId, hashes: &[ChainHash]) {
        self.recent.dram.remove(namespace, hashes);
        self.feed.note(namespace, hashes);
    }
}
