//! What the store needs of any index.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Deadline, Extent, NamespaceId};
use dalsegno_policy::recency::Use;
use dalsegno_policy::reclaim::LiveExtent;

use crate::answers::{Placement, Removed, Run, Scope, Unread};

/// A place in the order of extents: by namespace, lineage and first block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanPlace {
    /// The namespace.
    pub namespace: NamespaceId,
    /// The lineage.
    pub lineage: ChainHash,
    /// The index of the first block in its lineage.
    pub first: u32,
}

impl ScanPlace {
    /// Before all extents of a namespace.
    #[must_use]
    pub fn of(namespace: NamespaceId) -> Self {
        Self { namespace, ..Self::default() }
    }

    /// Behind an extent; `None` if nothing can be behind it in its lineage.
    #[must_use]
    pub fn behind(extent: &Extent) -> Option<Self> {
        let first = extent.first_block_index.checked_add(1)?;
        Some(Self { namespace: extent.namespace, lineage: extent.lineage, first })
    }
}

/// Finds the extents that hold blocks.
///
/// 1. A block points to at most one extent, and the hash list of that extent contains the full hash of the block.
/// 2. An extent is in the index as long as at least one block points to it.
/// 3. All calls are atomic: a reader sees all of an insertion, removal or replacement, or nothing.
/// 4. Calls with a [`Deadline`] wait for files no longer than that. What they do not find in time counts as absent.
///    The other calls, and those with [`Deadline::Never`], wait as long as the device takes. No call can be cancelled.
pub trait Index: Send + Sync + std::fmt::Debug {
    /// Makes the blocks of an extent visible that `wanted` selects and that no other extent holds. Returns how many
    /// became visible. If none did, the extent is not kept.
    fn insert(
        &self,
        extent: Extent,
        used: Use,
        wanted: &dyn Fn(&ChainHash) -> bool,
        deadline: Deadline,
    ) -> u32;

    /// How many leading hashes of `chain` are present. `chain` may start at any block of a prompt.
    fn probe(&self, namespace: NamespaceId, chain: &[ChainHash], deadline: Deadline) -> usize {
        let runs = self.resolve(namespace, chain, Scope::Prefix, deadline);
        runs.iter().map(|run| run.count as usize).sum()
    }

    /// Finds blocks, as runs of neighbours in one extent, in the order of `hashes`.
    fn resolve(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        scope: Scope,
        deadline: Deadline,
    ) -> Vec<Run>;

    /// The place of a put that starts with `first`. That is after its parent in the parent's lineage if that place is
    /// free, else in a lineage of its own, named by `first` and numbered from `first_index`.
    fn place(
        &self,
        namespace: NamespaceId,
        parent: Option<ChainHash>,
        first: ChainHash,
        first_index: u32,
        deadline: Deadline,
    ) -> Placement;

    /// Moves the blocks that still point to one of `old` to `new`, in one step: several extents become one or a few.
    /// Other blocks of `new` stay invisible. The new extents inherit the recency and the number of uses of the old
    /// ones. Returns how many blocks moved.
    ///
    /// # Errors
    ///
    /// If the blocks of `old` cannot be read. Then nothing has changed.
    fn replace(&self, old: &[&Extent], new: Vec<Extent>) -> Result<u32, Unread>;

    /// Removes blocks.
    fn remove_blocks(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Removed;

    /// Removes all blocks of a namespace.
    fn remove_namespace(&self, namespace: NamespaceId) -> Removed;

    /// Removes an extent with all its blocks.
    fn remove_extent(&self, extent: &Extent, deadline: Deadline) -> Removed;

    /// Removes these blocks of an extent, as far as they point to it; `blocks` are positions in it. Does nothing if
    /// that would take beyond `deadline`: the next reader that finds them damaged removes them then.
    fn remove_from_extent(&self, extent: &Extent, blocks: &[u32], deadline: Deadline) -> Removed;

    /// Removes everything in a segment up to `epoch`, because the segment is recycled. Returns how many blocks were
    /// visible.
    fn drop_segment(&self, segment: u64, epoch: u64) -> u64;

    /// Which blocks of an extent point to it.
    ///
    /// # Errors
    ///
    /// If that cannot be read. Absence cannot be concluded from a failed read.
    fn live_blocks(&self, extent: &Extent) -> Result<Vec<bool>, Unread>;

    /// Counts a use of an extent in a round; `false` if it was used in this round before, or is not there.
    fn raise(&self, extent: &Extent, round: u64) -> bool;

    /// Makes an extent at least as recent as its dependents, without counting a use; `false` if it is already, or is
    /// not there.
    fn lift(&self, extent: &Extent, last: u64) -> bool;

    /// How an extent was used.
    fn use_of(&self, extent: &Extent) -> Use;

    /// Marks the extents that depend on this one, directly or through others, as orphans; at most `limit`. Skips
    /// extents that are marked already, because their dependents are marked too. Returns how many were marked.
    fn orphan_descendants(&self, extent: &Extent, limit: usize) -> usize;

    /// Bytes of extents in a segment that have visible blocks, headers included.
    fn live_bytes(&self, segment: u64) -> u64;

    /// The extents in a segment that have visible blocks. Those of which only sums are known appear as one extent of
    /// their mean age.
    fn live_extents(&self, segment: u64) -> Vec<LiveExtent>;

    /// Extents in the order (namespace, lineage, first block), from the given place on; at most `limit`.
    fn scan(&self, from: ScanPlace, limit: usize) -> Vec<Arc<Extent>>;

    /// How often blocks vanished that no call removed; it only grows. An on-disk index drops tables when it outgrows
    /// its disk space, and all of them when a removal cannot be read.
    fn losses(&self) -> u64 {
        0
    }

    /// Number of extents and of blocks.
    fn counts(&self) -> (u64, u64);
}
