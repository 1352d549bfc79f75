//! The index: from chain hashes to extents.
//!
//! [`Index`] is what the store needs of any index. [`LsmIndex`] keeps its blocks in files and little in memory;
//! [`MemoryIndex`] is rebuilt from the log's headers at every open, and the model that the other one is tested against.

#![forbid(unsafe_code)]

mod entry;
mod lsm;
mod memory;
mod table;
mod usage;
mod uses;

pub use entry::{Placement, Removed, Run, Scope, Unread};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use lsm::fuzzing;
pub use lsm::{
    IndexCheck, IndexFault, LsmCounts, LsmIndex, LsmOptions, LsmStats, NOTES_FILE, Pace, Shortage,
    index_number, read_notes, verify_index,
};
pub use memory::MemoryIndex;
pub use uses::{lift_ancestors, note_use, raise_parent};

use std::sync::Arc;

use dalsegno_core::{ChainHash, Extent, NamespaceId};
use dalsegno_io::WaitLimit;
use dalsegno_policy::recency::Use;
use dalsegno_policy::reclaim::LiveExtent;

/// Finds the extents that hold blocks.
///
/// 1. A block leads to at most one extent, and that extent's hash list contains the block's full hash.
/// 2. An extent is in the index as long as at least one block leads to it.
/// 3. All calls are atomic: a reader sees an insertion, removal or replacement whole or not at all.
pub trait Index: Send + Sync + std::fmt::Debug {
    /// Makes an extent's blocks visible, as far as `wanted` says so and no other extent holds them already. Returns how
    /// many became visible; with none, the extent is not kept.
    fn insert(
        &self,
        extent: Extent,
        used: Use,
        wanted: &dyn Fn(&ChainHash) -> bool,
        wait: WaitLimit,
    ) -> u32;

    /// How many leading hashes of `chain` are present. `chain` may start at any block of a prompt.
    fn probe(&self, namespace: NamespaceId, chain: &[ChainHash], wait: WaitLimit) -> usize {
        let runs = self.resolve(namespace, chain, Scope::Prefix, wait);
        runs.iter().map(|run| run.count as usize).sum()
    }

    /// Finds blocks, as runs of neighbours in one extent, in the order of `hashes`.
    fn resolve(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        scope: Scope,
        wait: WaitLimit,
    ) -> Vec<Run>;

    /// Where a put that starts with `first` belongs: behind its parent in the parent's lineage if that place is free,
    /// else in a lineage of its own, named by `first` and numbered from `first_index`.
    fn place(
        &self,
        namespace: NamespaceId,
        parent: Option<ChainHash>,
        first: ChainHash,
        first_index: u32,
        wait: WaitLimit,
    ) -> Placement;

    /// Swings the blocks that still lead to one of `old` over to `new`, all at once: several extents become one, or
    /// few. The rest of `new` stays invisible. The new ones count as used when and as often as the old ones were.
    /// Returns how many blocks moved.
    ///
    /// # Errors
    ///
    /// If it cannot be read what leads to `old`; nothing has changed then.
    fn replace(&self, old: &[&Extent], new: Vec<Extent>) -> Result<u32, Unread>;

    /// Removes blocks.
    fn remove_blocks(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Removed;

    /// Removes all blocks of a namespace.
    fn remove_namespace(&self, namespace: NamespaceId) -> Removed;

    /// Removes an extent with all its blocks.
    fn remove_extent(&self, extent: &Extent, wait: WaitLimit) -> Removed;

    /// Removes these blocks of an extent, as far as they lead to it; `blocks` are positions in it. Does nothing if that
    /// would take longer than `wait`: the next reader that finds them bad removes them then.
    fn remove_from_extent(&self, extent: &Extent, blocks: &[u32], wait: WaitLimit) -> Removed;

    /// Removes everything that lies in a segment's life `epoch` or an earlier one: it is recycled. Returns how many
    /// blocks were visible.
    fn drop_segment(&self, segment: u64, epoch: u64) -> u64;

    /// Which blocks of an extent lead to it.
    ///
    /// # Errors
    ///
    /// If that cannot be read: not to know of any is not to know that there are none.
    fn live_blocks(&self, extent: &Extent) -> Result<Vec<bool>, Unread>;

    /// A use of an extent in a round; `false` if it was used in this round before, or is not there.
    fn raise(&self, extent: &Extent, round: u64) -> bool;

    /// Makes an extent at least as recently used as what depends on it, without a use; `false` if it is already, or is
    /// not there.
    fn lift(&self, extent: &Extent, last: u64) -> bool;

    /// How an extent was used.
    fn use_of(&self, extent: &Extent) -> Use;

    /// Marks the extents that depend on this one, directly or through others, as orphans; at most `limit`. Passes over
    /// what is marked already: all that depends on it is, too. Returns how many were marked.
    fn orphan_descendants(&self, extent: &Extent, limit: usize) -> usize;

    /// Bytes of extents in a segment that have visible blocks, headers included.
    fn live_bytes(&self, segment: u64) -> u64;

    /// The extents in a segment that have visible blocks. Those of which only sums are known are one of their mean age.
    fn live_extents(&self, segment: u64) -> Vec<LiveExtent>;

    /// Extents in the order (namespace, lineage, first block), from the given place on; at most `limit`.
    fn scan(&self, from: (NamespaceId, ChainHash, u32), limit: usize) -> Vec<Arc<Extent>>;

    /// How often blocks vanished that no call removed; it only grows. An on-disk index forgets tables when it outgrows
    /// its share of the disk, and everything when a removal cannot be read.
    fn losses(&self) -> u64 {
        0
    }

    /// Number of extents and of blocks.
    fn counts(&self) -> (u64, u64);
}
