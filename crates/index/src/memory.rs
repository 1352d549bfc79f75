//! The index in memory: one lock around [`Table`].

use std::sync::Arc;

use dalsegno_core::{ChainHash, Extent, NamespaceId};
use dalsegno_io::WaitLimit;
use dalsegno_policy::recency::Use;
use dalsegno_policy::reclaim::LiveExtent;
use parking_lot::RwLock;

use crate::table::Table;
use crate::{Index, Placement, Removed, Run, Scope, Unread};

/// An index that lives in memory and is rebuilt at open.
#[derive(Debug, Default)]
pub struct MemoryIndex {
    table: RwLock<Table>,
}

impl Index for MemoryIndex {
    fn insert(
        &self,
        extent: Extent,
        used: Use,
        wanted: &dyn Fn(&ChainHash) -> bool,
        _wait: WaitLimit,
    ) -> u32 {
        self.table.write().insert(extent, used, wanted)
    }

    fn resolve(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        scope: Scope,
        _wait: WaitLimit,
    ) -> Vec<Run> {
        self.table.read().resolve(namespace, hashes, scope)
    }

    fn place(
        &self,
        namespace: NamespaceId,
        parent: Option<ChainHash>,
        first: ChainHash,
        first_index: u32,
        _wait: WaitLimit,
    ) -> Placement {
        self.table.read().place(namespace, parent, first, first_index)
    }

    fn replace(&self, old: &[&Extent], new: Vec<Extent>) -> Result<u32, Unread> {
        Ok(self.table.write().replace(&old.iter().map(|extent| extent.id).collect(), new))
    }

    fn remove_blocks(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Removed {
        self.table.write().remove_blocks(namespace, hashes)
    }

    fn remove_namespace(&self, namespace: NamespaceId) -> Removed {
        self.table.write().remove_namespace(namespace)
    }

    fn remove_extent(&self, extent: &Extent, _wait: WaitLimit) -> Removed {
        self.table.write().remove_extent(extent.id)
    }

    fn remove_from_extent(&self, extent: &Extent, blocks: &[u32], _wait: WaitLimit) -> Removed {
        self.table.write().remove_from_extent(extent.id, blocks)
    }

    fn drop_segment(&self, segment: u64, epoch: u64) -> u64 {
        self.table.write().drop_segment(segment, epoch)
    }

    fn live_blocks(&self, extent: &Extent) -> Result<Vec<bool>, Unread> {
        Ok(self.table.read().live_blocks(extent))
    }

    fn raise(&self, extent: &Extent, round: u64) -> bool {
        // Most uses are not the first of their round, and need not keep look-ups out.
        !self.table.read().is_raised(extent, round) && self.table.write().raise(extent, round)
    }

    fn lift(&self, extent: &Extent, last: u64) -> bool {
        self.table.write().lift(extent, last)
    }

    fn use_of(&self, extent: &Extent) -> Use {
        self.table.read().use_of(extent)
    }

    fn orphan_descendants(&self, extent: &Extent, limit: usize) -> usize {
        self.table.write().orphan_descendants(extent, limit)
    }

    fn live_bytes(&self, segment: u64) -> u64 {
        self.table.read().live_bytes(segment)
    }

    fn live_extents(&self, segment: u64) -> Vec<LiveExtent> {
        self.table.read().live_extents(segment)
    }

    fn scan(&self, from: (NamespaceId, ChainHash, u32), limit: usize) -> Vec<Arc<Extent>> {
        self.table.read().scan(from, limit)
    }

    fn counts(&self) -> (u64, u64) {
        self.table.read().counts()
    }
}
