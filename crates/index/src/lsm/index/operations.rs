//! The operations of [`Index`] on the on-disk index.
//!
//! 1. A removal never skips what cannot be read now and could be read later. If it fails twice, the tables are dropped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dalsegno_core::{ChainHash, Deadline, Extent, NamespaceId};
use dalsegno_policy::recency::Use;
use dalsegno_policy::reclaim::LiveExtent;

use crate::answers::{Placement, Removed, Run, Scope, Unread};
use crate::error::TableError;
use crate::index::{Index, ScanPlace};
use crate::lsm::format::keys::OrderKey;
use crate::lsm::index::draft::{Draft, holders_of, remove_from};
use crate::lsm::index::lookup::Holder;
use crate::lsm::index::on_disk::LsmIndex;
use crate::lsm::index::orphans::orphan_descendants;

/// Extents that a removal of a namespace removes at a time.
const REMOVAL_BATCH: usize = 1024;

impl Index for LsmIndex {
    fn insert(
        &self,
        extent: Extent,
        used: Use,
        wanted: &dyn Fn(&ChainHash) -> bool,
        deadline: Deadline,
    ) -> u32 {
        let Some(writer) = self.writer.lock_within(deadline) else { return 0 };
        let location = extent.location;
        let is_past = self.lookup.usage.read().epoch(location.segment) > Some(location.epoch);
        if is_past || self.is_stalled() {
            return 0;
        }
        // An open may index an extent again; blocks that it lost meanwhile stay lost. Blocks that cannot be read may be
        // here: a block that two extents hold would outlive its removal in one of them.
        let present = self.lookup.present_blocks(&extent, deadline);
        let Some(present) = self.lookup.or_missing(present) else { return 0 };
        let blocks = (0..).zip(extent.hashes.iter().zip(present));
        let visible: Vec<u32> = blocks
            .filter_map(|(block, (hash, is_here))| (!is_here && wanted(hash)).then_some(block))
            .collect();
        let mut draft = Draft::new(&self.lookup);
        let count = draft.adopt(extent, used, &visible, deadline);
        writer.apply(draft.into_batch());
        count
    }

    fn probe(&self, namespace: NamespaceId, chain: &[ChainHash], deadline: Deadline) -> usize {
        if let [hash] = chain {
            return usize::from(self.lookup.has(namespace, hash, deadline));
        }
        let runs = self.resolve(namespace, chain, Scope::Prefix, deadline);
        runs.iter().map(|run| run.count as usize).sum()
    }

    fn resolve(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        scope: Scope,
        deadline: Deadline,
    ) -> Vec<Run> {
        self.lookup.resolve(namespace, hashes, scope, deadline)
    }

    fn place(
        &self,
        namespace: NamespaceId,
        parent: Option<ChainHash>,
        first: ChainHash,
        first_index: u32,
        deadline: Deadline,
    ) -> Placement {
        self.lookup.place(namespace, parent, first, first_index, deadline)
    }

    fn replace(&self, old: &[&Extent], new: Vec<Extent>) -> Result<u32, Unread> {
        let writer = self.writer.lock();
        let mut losing: BTreeMap<OrderKey, Holder> = BTreeMap::new();
        let mut holders: BTreeMap<ChainHash, (OrderKey, u32)> = BTreeMap::new();
        let before = old.iter().map(|extent| self.use_of(extent));
        let Some(used) = before.reduce(Use::joined) else { return Ok(0) };
        for extent in old {
            let Some(Holder { record, blocks }) = self.lookup.known(extent)? else { continue };
            let key = OrderKey::of(extent);
            let hash = |block: u32| record.extent.hashes[block as usize];
            holders.extend(blocks.into_iter().map(|block| (hash(block), (key, block))));
            losing.insert(key, Holder { record, blocks: Vec::new() });
        }
        let mut draft = Draft::new(&self.lookup);
        let mut moved = 0;
        for extent in new {
            let mut visible = Vec::new();
            for (block, hash) in (0_u32..).zip(&extent.hashes) {
                if let Some((key, old_block)) = holders.remove(hash) {
                    losing.entry(key).and_modify(|holder| holder.blocks.push(old_block));
                    visible.push(block);
                }
            }
            moved += draft.adopt(extent, used, &visible, Deadline::Never);
        }
        for Holder { record, blocks } in losing.into_values().filter(|h| !h.blocks.is_empty()) {
            draft.take_out(&record, &blocks, Vec::new());
        }
        self.lookup.replacing(|| writer.apply(draft.into_batch()));
        Ok(moved)
    }

    fn remove_blocks(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Removed {
        // The right to write is released before the tables are dropped: dropping waits for a compaction, and that may
        // wait for the right.
        in_full(self, || {
            let writer = self.writer.lock();
            let (mut draft, mut removed) = (Draft::new(&self.lookup), Removed::default());
            for Holder { record, blocks } in holders_of(&self.lookup, namespace, hashes)? {
                removed.join(draft.take_out(&record, &blocks, blocks.clone()));
            }
            writer.apply(draft.into_batch());
            Ok(removed)
        })
    }

    fn remove_namespace(&self, namespace: NamespaceId) -> Removed {
        let mut removed = Removed::default();
        while in_full(self, || remove_some_of(self, namespace, &mut removed)) {}
        removed
    }

    fn remove_extent(&self, extent: &Extent, deadline: Deadline) -> Removed {
        let blocks = 0..extent.block_count();
        let remove =
            || remove_from(&self.lookup, &self.writer.lock(), extent, blocks.clone(), deadline);
        let removed = twice(self, remove);
        self.lookup.or_missing(removed.map(Some)).unwrap_or_default()
    }

    fn remove_from_extent(&self, extent: &Extent, blocks: &[u32], deadline: Deadline) -> Removed {
        let Some(writer) = self.writer.lock_within(deadline) else { return Removed::default() };
        let blocks = blocks.iter().copied();
        let removed = remove_from(&self.lookup, &writer, extent, blocks, deadline);
        self.lookup.or_missing(removed.map(Some)).unwrap_or_default()
    }

    fn drop_segment(&self, segment: u64, epoch: u64) -> u64 {
        self.lookup.usage.write().drop_segment(segment, epoch).blocks
    }

    fn losses(&self) -> u64 {
        let forgotten = &self.maintenance.counters().forgotten_tables;
        forgotten.load(Ordering::Relaxed) + u64::from(self.is_emptied())
    }

    fn live_blocks(&self, extent: &Extent) -> Result<Vec<bool>, Unread> {
        let mut live = vec![false; extent.hashes.len()];
        if let Some(holder) = self.lookup.known(extent)? {
            for block in holder.blocks {
                live[block as usize] = true;
            }
        }
        Ok(live)
    }

    fn raise(&self, extent: &Extent, round: u64) -> bool {
        !self.use_of(extent).is_raised(round) && self.lookup.usage.write().raise(extent, round)
    }

    fn lift(&self, extent: &Extent, last: u64) -> bool {
        self.lookup.usage.write().lift(extent, last)
    }

    fn use_of(&self, extent: &Extent) -> Use {
        self.lookup.usage.read().use_of(extent)
    }

    fn orphan_descendants(&self, extent: &Extent, limit: usize) -> usize {
        let marked = orphan_descendants(&self.lookup, extent, limit);
        self.lookup.or_missing(marked.map(Some)).unwrap_or_default()
    }

    fn live_bytes(&self, segment: u64) -> u64 {
        self.lookup.usage.read().live_bytes(segment)
    }

    fn live_extents(&self, segment: u64) -> Vec<LiveExtent> {
        self.lookup.usage.read().live_extents(segment)
    }

    fn scan(&self, from: ScanPlace, limit: usize) -> Vec<Arc<Extent>> {
        let found = self.lookup.scan_from(from, limit);
        self.lookup.or_missing(found.map(Some)).unwrap_or_default()
    }

    fn counts(&self) -> (u64, u64) {
        self.lookup.usage.read().counts()
    }
}

/// Removes the next extents of a namespace. Returns whether there may be more.
fn remove_some_of(
    index: &LsmIndex,
    namespace: NamespaceId,
    removed: &mut Removed,
) -> Result<bool, TableError> {
    let from = ScanPlace::of(namespace);
    let extents = index.lookup.scan_from(from, REMOVAL_BATCH)?;
    let mine = extents.iter().take_while(|extent| extent.namespace == namespace);
    for extent in mine.clone() {
        let blocks = 0..extent.block_count();
        let (lookup, writer) = (&index.lookup, index.writer.lock());
        removed.join(remove_from(lookup, &writer, extent, blocks, Deadline::Never)?);
    }
    Ok(mine.count() == REMOVAL_BATCH)
}

/// Repeats an action that failed, because a device may fail for a moment.
fn twice<R>(
    index: &LsmIndex,
    mut act: impl FnMut() -> Result<R, TableError>,
) -> Result<R, TableError> {
    act().or_else(|error| {
        index.lookup.health.record(&error);
        act()
    })
}

/// Runs a removal. If it cannot read the tables, they are dropped, and the next open rebuilds the index.
fn in_full<R: Default>(index: &LsmIndex, mut remove: impl FnMut() -> Result<R, TableError>) -> R {
    let removed = twice(index, &mut remove).or_else(|error| {
        index.lookup.health.record(&error);
        index.empty();
        remove()
    });
    index.lookup.or_missing(removed.map(Some)).unwrap_or_default()
}
