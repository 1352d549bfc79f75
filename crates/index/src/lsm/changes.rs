//! What writers change: which records lose blocks, and which come.
//!
//! 1. A removal never passes over what cannot be read now and could be read later: it is told, and the tables go.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dalsegno_core::{ChainHash, Extent, NamespaceId};
use dalsegno_io::WaitLimit;
use dalsegno_policy::recency::Use;

use super::index::{Hit, LsmIndex};
use super::keys::{ForkKey, LiveBlocks, OrderKey, Record, short};
use super::memtable::{Batch, Change};
use super::table::TableError;
use super::tree::Writer;
use crate::Removed;

/// Extents that are removed at a time when a namespace goes.
const REMOVAL_BATCH: usize = 1024;

/// The record of an extent that holds blocks that are asked for, and which of its blocks these are.
pub(super) type Holder = (Arc<Record>, Vec<u32>);

impl LsmIndex {
    /// A change to the record of an extent that loses blocks; those in `nowhere` lead to no other one then. Returns
    /// what that removes.
    pub(super) fn without(
        &self,
        record: &Record,
        blocks: &[u32],
        nowhere: Vec<u32>,
        batch: &mut Batch,
    ) -> Removed {
        let mut live = record.live.clone();
        for block in blocks {
            live.set(*block, false);
        }
        let gone = record.live.count() - live.count();
        let is_empty = live.count() == 0;
        self.usage.write().remove(&record.extent, gone, is_empty);
        let extents = if is_empty { vec![record.extent.id] } else { Vec::new() };
        let record = Record { extent: Arc::clone(&record.extent), live };
        batch.changes.push(Change { record, blocks: nowhere, lead_here: false });
        Removed { blocks: u64::from(gone), extents }
    }

    /// Removes these blocks of an extent, as far as they lead to it.
    pub(super) fn remove_of(
        &self,
        writer: &Writer<'_>,
        extent: &Extent,
        blocks: impl Iterator<Item = u32>,
        wait: WaitLimit,
    ) -> Result<Removed, TableError> {
        let Some(record) = self.record(&OrderKey::of(extent), wait)? else {
            return Ok(Removed::default());
        };
        let shown: Vec<u32> = blocks.filter(|block| record.live.get(*block)).collect();
        let leading = self.leading(extent, shown.clone(), wait)?;
        let mut batch = Batch::default();
        let removed = self.without(&record, &shown, leading, &mut batch);
        writer.apply(batch);
        Ok(removed)
    }

    /// Removes the next extents of a namespace, and tells whether there are more.
    pub(super) fn remove_some_of(
        &self,
        namespace: NamespaceId,
        removed: &mut Removed,
    ) -> Result<bool, TableError> {
        let extents = self.scan_from((namespace, ChainHash::default(), 0), REMOVAL_BATCH)?;
        let mine = extents.iter().take_while(|extent| extent.namespace == namespace);
        for extent in mine.clone() {
            let blocks = 0..extent.block_count();
            let writer = self.tree.writer();
            removed.join(self.remove_of(&writer, extent, blocks, WaitLimit::Unlimited)?);
        }
        Ok(mine.count() == REMOVAL_BATCH)
    }

    /// The extents that hold these blocks.
    pub(super) fn holders_of(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
    ) -> Result<Vec<Holder>, TableError> {
        let mut holders: BTreeMap<OrderKey, Holder> = BTreeMap::new();
        for hash in hashes {
            if let Some((Hit { record, block }, _)) =
                self.try_find(namespace, hash, WaitLimit::Unlimited)?
            {
                let key = OrderKey::of(&record.extent);
                holders.entry(key).or_insert_with(|| (record, Vec::new())).1.push(block);
            }
        }
        Ok(holders.into_values().collect())
    }

    /// Adds an extent to a batch, with these of its blocks visible; and what leads to it.
    pub(super) fn adopt(
        &self,
        extent: Extent,
        used: Use,
        taken: &[u32],
        batch: &mut Batch,
        wait: WaitLimit,
    ) -> u32 {
        // A hash that comes twice in one extent leads to its last place.
        let place_of = |block: &u32| (&extent.hashes[*block as usize].0, *block);
        let last_places: HashMap<_, _> = taken.iter().map(place_of).collect();
        let mut live = LiveBlocks::none(extent.block_count());
        for block in last_places.values() {
            live.set(*block, true);
        }
        let count = live.count();
        if count == 0 {
            return 0;
        }
        let extent = Arc::new(extent);
        if extent.hashes[0] == extent.lineage && extent.parent != ChainHash::default() {
            batch.forks.extend(self.fork_of(&extent, wait));
        }
        self.usage.write().add(&extent, count, used);
        let blocks = (0..extent.block_count()).filter(|block| live.get(*block)).collect();
        batch.changes.push(Change { record: Record { extent, live }, blocks, lead_here: true });
        count
    }

    /// Where the lineage that begins with this extent leaves another one.
    fn fork_of(&self, extent: &Extent, wait: WaitLimit) -> Option<ForkKey> {
        let (Hit { record, block }, _) = self.find(extent.namespace, &extent.parent, wait)?;
        let parent = &record.extent;
        let block = parent.first_block_index.checked_add(block)?;
        let (lineage, child) = (short(&parent.lineage), short(&extent.lineage));
        Some(ForkKey { namespace: extent.namespace, lineage, block, child })
    }

    /// Does what a device that fails for a moment fails once.
    pub(super) fn twice<R>(
        &self,
        mut act: impl FnMut() -> Result<R, TableError>,
    ) -> Result<R, TableError> {
        act().or_else(|error| {
            self.tree.note(&error);
            act()
        })
    }

    /// A removal must not pass over what cannot be read now and could be read later: the tables are not there any more
    /// then, and the next open builds the index anew.
    pub(super) fn in_full<R: Default>(
        &self,
        mut remove: impl FnMut() -> Result<R, TableError>,
    ) -> R {
        let removed = self.twice(&mut remove).or_else(|error| {
            self.tree.note(&error);
            self.give_up();
            remove()
        });
        removed.map_err(|error| self.tree.note(&error)).unwrap_or_default()
    }
}
