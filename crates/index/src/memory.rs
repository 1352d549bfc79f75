//! The index in memory: one lock around [`Table`].

use std::sync::Arc;

use dalsegno_core::{ChainHash, Extent, NamespaceId};
use parking_lot::RwLock;

use crate::table::Table;
use crate::{Heat, Index, Placement, Removed, Run, Scope, SegmentUse, Unread};

/// An index that lives in memory and is rebuilt at open.
#[derive(Debug, Default)]
pub struct MemoryIndex {
    table: RwLock<Table>,
}

impl Index for MemoryIndex {
    fn insert(&self, extent: Extent, wanted: &dyn Fn(&ChainHash) -> bool) -> u32 {
        self.table.write().insert(extent, wanted)
    }

    fn resolve(&self, namespace: NamespaceId, hashes: &[ChainHash], scope: Scope) -> Vec<Run> {
        self.table.read().resolve(namespace, hashes, scope)
    }

    fn place(
        &self,
        namespace: NamespaceId,
        parent: Option<ChainHash>,
        first: ChainHash,
        first_index: u32,
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

    fn remove_extent(&self, extent: &Extent) -> Removed {
        self.table.write().remove_extent(extent.id)
    }

    fn remove_from_extent(&self, extent: &Extent, blocks: &[u32]) -> Removed {
        self.table.write().remove_from_extent(extent.id, blocks)
    }

    fn drop_segment(&self, segment: u64, epoch: u64) -> u64 {
        self.table.write().drop_segment(segment, epoch)
    }

    fn live_blocks(&self, extent: &Extent) -> Result<Vec<bool>, Unread> {
        Ok(self.table.read().live_blocks(extent))
    }

    fn descendants(&self, extent: &Extent, limit: usize) -> Vec<Arc<Extent>> {
        self.table.read().descendants(extent, limit)
    }

    fn touch(&self, extent: &Extent, sequence: u64) {
        self.table.write().touch(extent, sequence);
    }

    fn heat(&self, extent: &Extent) -> Heat {
        self.table.read().heat(extent)
    }

    fn segment_use(&self, segment: u64) -> SegmentUse {
        self.table.read().segment_use(segment)
    }

    fn scan(&self, from: (NamespaceId, ChainHash, u32), limit: usize) -> Vec<Arc<Extent>> {
        self.table.read().scan(from, limit)
    }

    fn counts(&self) -> (u64, u64) {
        self.table.read().counts()
    }
}
