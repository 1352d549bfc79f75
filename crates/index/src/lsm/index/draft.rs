//! Prepares a batch: which records lose blocks, and which extents are added.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dalsegno_core::{ChainHash, Deadline, Extent, NamespaceId};
use dalsegno_policy::recency::Use;

use crate::answers::Removed;
use crate::error::TableError;
use crate::lsm::format::keys::{ForkKey, LiveBlocks, OrderKey, Record, short};
use crate::lsm::index::lookup::{Hit, Holder, Lookup};
use crate::lsm::memtable::batch::{Batch, Change, PointChange};
use crate::lsm::writer::WriteGuard;

/// A batch under construction. The sums of segments change immediately.
pub(crate) struct Draft<'a> {
    lookup: &'a Lookup,
    batch: Batch,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(lookup: &'a Lookup) -> Self {
        Self { lookup, batch: Batch::default() }
    }

    pub(crate) fn into_batch(self) -> Batch {
        self.batch
    }

    /// Takes blocks out of the record of an extent. The points of the blocks in `unreferenced` are removed.
    pub(crate) fn take_out(
        &mut self,
        record: &Record,
        blocks: &[u32],
        unreferenced: Vec<u32>,
    ) -> Removed {
        let mut live = record.live.clone();
        for block in blocks {
            live.set(*block, false);
        }
        let gone = record.live.count() - live.count();
        let is_empty = live.count() == 0;
        self.lookup.usage.write().remove(&record.extent, gone, is_empty);
        let extents = if is_empty { vec![record.extent.id] } else { Vec::new() };
        let record = Record { extent: Arc::clone(&record.extent), live };
        self.batch.changes.push(Change {
            record,
            blocks: unreferenced,
            points: PointChange::Remove,
        });
        Removed { blocks: u64::from(gone), extents }
    }

    /// Adds an extent of which these blocks are visible. Returns how many they are.
    pub(crate) fn adopt(
        &mut self,
        extent: Extent,
        used: Use,
        visible: &[u32],
        deadline: Deadline,
    ) -> u32 {
        // If a hash occurs twice in one extent, its last position counts.
        let position_of = |block: &u32| (&extent.hashes[*block as usize].0, *block);
        let last_positions: HashMap<_, _> = visible.iter().map(position_of).collect();
        let mut live = LiveBlocks::none(extent.block_count());
        for block in last_positions.values() {
            live.set(*block, true);
        }
        let count = live.count();
        if count == 0 {
            return 0;
        }
        let extent = Arc::new(extent);
        if extent.hashes[0] == extent.lineage && extent.parent != ChainHash::default() {
            self.batch.forks.extend(fork_of(self.lookup, &extent, deadline));
        }
        self.lookup.usage.write().add(&extent, count, used);
        let blocks = (0..extent.block_count()).filter(|block| live.get(*block)).collect();
        let record = Record { extent, live };
        self.batch.changes.push(Change { record, blocks, points: PointChange::Set });
        count
    }
}

/// Where the lineage that starts with this extent forks off another one.
fn fork_of(lookup: &Lookup, extent: &Extent, deadline: Deadline) -> Option<ForkKey> {
    let (Hit { record, block }, _) = lookup.find(extent.namespace, &extent.parent, deadline)?;
    let parent = &record.extent;
    let block = parent.first_block_index.checked_add(block)?;
    let (lineage, child) = (short(&parent.lineage), short(&extent.lineage));
    Some(ForkKey { namespace: extent.namespace, lineage, block, child })
}

/// Removes these blocks of an extent, as far as its record shows them.
pub(crate) fn remove_from(
    lookup: &Lookup,
    writer: &WriteGuard<'_>,
    extent: &Extent,
    blocks: impl Iterator<Item = u32>,
    deadline: Deadline,
) -> Result<Removed, TableError> {
    let Some(record) = lookup.record(&OrderKey::of(extent), deadline)? else {
        return Ok(Removed::default());
    };
    let shown: Vec<u32> = blocks.filter(|block| record.live.get(*block)).collect();
    let confirmed = lookup.confirmed(extent, shown.clone(), deadline)?;
    let mut draft = Draft::new(lookup);
    let removed = draft.take_out(&record, &shown, confirmed);
    writer.apply(draft.into_batch());
    Ok(removed)
}

/// The extents that hold these blocks.
pub(crate) fn holders_of(
    lookup: &Lookup,
    namespace: NamespaceId,
    hashes: &[ChainHash],
) -> Result<Vec<Holder>, TableError> {
    let mut holders: BTreeMap<OrderKey, Holder> = BTreeMap::new();
    for hash in hashes {
        let found = lookup.try_find(namespace, hash, Deadline::Never)?;
        if let Some((Hit { record, block }, _)) = found {
            let key = OrderKey::of(&record.extent);
            let holder = holders.entry(key);
            holder.or_insert_with(|| Holder { record, blocks: Vec::new() }).blocks.push(block);
        }
    }
    Ok(holders.into_values().collect())
}
