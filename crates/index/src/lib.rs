//! The index: from chain hashes to extents.
//!
//! [`Index`] is what the store needs of any index; [`MemoryIndex`] is the first one, rebuilt from the log's headers at
//! every open, and the model that later ones are tested against.

#![forbid(unsafe_code)]

mod entry;
mod memory;
mod table;

pub use entry::{Indexed, Placement, Removed, Run, Scope, SegmentUse};
pub use memory::MemoryIndex;

use std::sync::Arc;

use dalsegno_core::{ChainHash, Extent, ExtentId, NamespaceId};

/// Finds the extents that hold blocks.
///
/// 1. A block leads to at most one extent, and that extent's hash list contains the block's full hash.
/// 2. An extent is in the index as long as at least one block leads to it.
/// 3. All calls are atomic: a reader sees an insertion, removal or replacement whole or not at all.
pub trait Index: Send + Sync + std::fmt::Debug {
    /// Makes an extent's blocks visible, as far as `wanted` says so and no other extent holds them already. Returns how
    /// many became visible; with none, the extent is not kept.
    fn insert(&self, extent: Extent, wanted: &dyn Fn(&ChainHash) -> bool) -> u32;

    /// How many leading hashes of `chain` are present. `chain` may start at any block of a prompt.
    fn probe(&self, namespace: NamespaceId, chain: &[ChainHash]) -> usize;

    /// Finds blocks, as runs of neighbours in one extent, in the order of `hashes`.
    fn resolve(&self, namespace: NamespaceId, hashes: &[ChainHash], scope: Scope) -> Vec<Run>;

    /// Where a put that starts with `first` belongs: behind its parent in the parent's lineage if that place is free,
    /// else in a lineage of its own, named by `first` and numbered from `first_index`.
    fn place(
        &self,
        namespace: NamespaceId,
        parent: Option<ChainHash>,
        first: ChainHash,
        first_index: u32,
    ) -> Placement;

    /// Swings the blocks that still lead to `old` over to `new`; the rest of `new` stays invisible. Returns how many
    /// blocks moved.
    fn replace(&self, old: ExtentId, new: Vec<Extent>) -> u32;

    /// Removes blocks.
    fn remove_blocks(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Removed;

    /// Removes all blocks of a namespace.
    fn remove_namespace(&self, namespace: NamespaceId) -> Removed;

    /// Removes an extent with all its blocks.
    fn remove_extent(&self, id: ExtentId) -> Removed;

    /// The extents that lie in a segment.
    fn extents_in(&self, segment: u64) -> Vec<Arc<Indexed>>;

    /// Which blocks of an extent still lead to it.
    fn live_blocks(&self, extent: &Extent) -> Vec<bool>;

    /// The extents that continue this one, directly or through others; at most `limit`.
    fn descendants(&self, id: ExtentId, limit: usize) -> Vec<Arc<Indexed>>;

    /// What is alive in a segment.
    fn segment_use(&self, segment: u64) -> SegmentUse;

    /// Extents in the order (namespace, lineage, first block), from the given place on; at most `limit`.
    fn scan(&self, from: (NamespaceId, ChainHash, u32), limit: usize) -> Vec<Arc<Indexed>>;

    /// Number of extents and of blocks.
    fn counts(&self) -> (u64, u64);
}
