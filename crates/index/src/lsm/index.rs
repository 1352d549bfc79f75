//! The index over the tree: from chain hashes to extents, within bounded memory.
//!
//! 1. A block is present if its newest point leads to the present epoch of a segment. The extent's order entry then
//!    shows it: both change in one batch, which readers see whole.
//! 2. Bytes are handed out only for a full hash that stands in an order entry which shows the block. A point is found
//!    by half of the hash: who shares it with another block is not put, a miss.
//! 3. What cannot be read is not there: a damaged index costs misses until it is built anew.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{ChainHash, Extent, NamespaceId};
use parking_lot::RwLock;

use super::keys::{ForkKey, LiveBlocks, OrderKey, Point, PointKey, Record, short};
use super::memtable::{Batch, Change};
use super::places::Places;
use super::table::TableError;
use super::tree::{Tree, Writer};
use crate::usage::Usage;
use crate::{Heat, Index, Placement, Removed, Run, Scope, SegmentUse};

/// How often a look-up is done again because the block was moved meanwhile.
const RETRIES: u32 = 8;
/// Extents that are removed at a time when a namespace goes.
const REMOVAL_BATCH: usize = 1024;

/// An index whose memory does not grow with its blocks.
#[derive(Debug)]
pub struct LsmIndex {
    pub(super) tree: Tree,
    pub(super) usage: RwLock<Usage>,
    /// Counts replacements, so that a look-up that lost track of a block knows to begin anew.
    replacements: AtomicU64,
}

/// A block that was found: its extent's record, and which block of it.
struct Hit {
    record: Arc<Record>,
    block: u32,
}

impl LsmIndex {
    pub(super) fn over(tree: Tree, usage: Usage) -> Self {
        Self { tree, usage: RwLock::new(usage), replacements: AtomicU64::new(0) }
    }

    pub(super) fn is_present(&self, segment: u64, epoch: u64) -> bool {
        self.usage.read().epoch(segment) == Some(epoch)
    }

    /// The record under a key, unless it is gone.
    fn record(&self, key: &OrderKey) -> Result<Option<Arc<Record>>, TableError> {
        self.record_in(&mut self.tree.places(), key)
    }

    /// As [`Self::record`], for who goes on from there.
    fn record_in(
        &self,
        places: &mut Places,
        key: &OrderKey,
    ) -> Result<Option<Arc<Record>>, TableError> {
        let is_here = |record: &Record| {
            let location = record.extent.location;
            self.is_present(location.segment, location.epoch)
        };
        Ok(places.get(key)?.filter(is_here).map(Arc::new))
    }

    /// Whether a block is here.
    fn has(&self, namespace: NamespaceId, hash: &ChainHash) -> bool {
        let point = self.or_missing(self.tree.point(&PointKey::of(namespace, hash)));
        point.is_some_and(|point| self.is_present(point.segment, point.epoch))
    }

    /// Which blocks are here. What cannot be read is not.
    fn are_here(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Vec<bool> {
        let points = self.tree.points(namespace, hashes);
        let usage = self.usage.read();
        let is_here = |point: Point| usage.epoch(point.segment) == Some(point.epoch);
        points.into_iter().map(|point| self.or_missing(point).is_some_and(is_here)).collect()
    }

    pub(super) fn decode(
        &self,
        key: &OrderKey,
        value: &[u8],
    ) -> Result<Option<Record>, TableError> {
        let (segment, epoch) =
            Record::place(value).ok_or(TableError::Malformed("an extent record"))?;
        if !self.is_present(segment, epoch) {
            return Ok(None);
        }
        let record = Record::decode(key, value);
        record.map(Some).ok_or(TableError::Malformed("an extent record"))
    }

    /// Finds a block, and where its order entry stands, for what goes on behind it. A block that moves while it is
    /// looked for is looked for again: `replacements` is odd as long as one is under way.
    fn find(&self, namespace: NamespaceId, hash: &ChainHash) -> Option<(Hit, Places)> {
        for _ in 0..RETRIES {
            let before = self.replacements.load(Ordering::Acquire);
            let found = self.try_find(namespace, hash);
            let settled =
                before.is_multiple_of(2) && self.replacements.load(Ordering::Acquire) == before;
            match found {
                Ok(None) if !settled => std::thread::yield_now(),
                found => return self.or_missing(found),
            }
        }
        None
    }

    /// What cannot be read is not there.
    fn or_missing<T>(&self, found: Result<Option<T>, TableError>) -> Option<T> {
        found.unwrap_or_else(|error| {
            self.tree.note(&error);
            None
        })
    }

    fn try_find(
        &self,
        namespace: NamespaceId,
        hash: &ChainHash,
    ) -> Result<Option<(Hit, Places)>, TableError> {
        let Some(point) = self.tree.point(&PointKey::of(namespace, hash))? else { return Ok(None) };
        if !self.is_present(point.segment, point.epoch) {
            return Ok(None);
        }
        let mut places = self.tree.places();
        let record = self.record_in(&mut places, &point.order_key(namespace))?;
        let shows = |record: &Arc<Record>| {
            record.extent.hashes.get(point.block as usize) == Some(hash)
                && record.live.get(point.block)
        };
        let hit = record.filter(shows);
        Ok(hit.map(|record| (Hit { record, block: point.block }, places)))
    }

    /// The extent that goes on behind `record` with `hash`, if it is the next of its lineage; `places` is where
    /// `record` was found.
    fn next_of(
        &self,
        places: &mut Places,
        record: &Record,
        hash: &ChainHash,
    ) -> Result<Option<Hit>, TableError> {
        let extent = &record.extent;
        let Some(first) = extent.first_block_index.checked_add(extent.block_count()) else {
            return Ok(None);
        };
        let wanted = OrderKey { first, sequence: 0, ..OrderKey::of(extent) };
        let next = places.find(&wanted, |key, value| {
            let next = self.decode(key, value)?;
            Ok(next.filter(|next| next.extent.hashes[0] == *hash && next.live.get(0)))
        })?;
        Ok(next.map(|record| Hit { record: Arc::new(record), block: 0 }))
    }

    /// A change to the record of an extent that loses blocks; with `nowhere` they do not lead to another one. Returns
    /// what that removes.
    fn without(
        &self,
        record: &Record,
        blocks: Vec<u32>,
        nowhere: bool,
        batch: &mut Batch,
    ) -> Removed {
        let mut live = record.live.clone();
        for block in &blocks {
            live.set(*block, false);
        }
        let gone = record.live.count() - live.count();
        let is_empty = live.count() == 0;
        self.usage.write().remove(&record.extent, gone, is_empty);
        let extents = if is_empty { vec![record.extent.id] } else { Vec::new() };
        let record = Record { extent: Arc::clone(&record.extent), live };
        let blocks = if nowhere { blocks } else { Vec::new() };
        batch.changes.push(Change { record, blocks, lead_here: false });
        Removed { blocks: u64::from(gone), extents }
    }

    /// Removes these blocks of an extent, as far as they lead to it.
    fn remove_of(
        &self,
        writer: &Writer<'_>,
        extent: &Extent,
        blocks: impl Iterator<Item = u32>,
    ) -> Removed {
        let key = OrderKey::of(extent);
        let Some(record) = self.or_missing(self.record(&key)) else { return Removed::default() };
        let live = blocks.filter(|block| record.live.get(*block)).collect();
        let mut batch = Batch::default();
        let removed = self.without(&record, live, true, &mut batch);
        writer.apply(batch);
        removed
    }

    /// Adds an extent to a batch, with these of its blocks visible; and what leads to it.
    fn adopt(&self, extent: Extent, taken: &[u32], batch: &mut Batch) -> u32 {
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
            batch.forks.extend(self.fork_of(&extent));
        }
        self.usage.write().add(&extent, count);
        let blocks = (0..extent.block_count()).filter(|block| live.get(*block)).collect();
        batch.changes.push(Change { record: Record { extent, live }, blocks, lead_here: true });
        count
    }

    /// Where the lineage that begins with this extent leaves another one.
    fn fork_of(&self, extent: &Extent) -> Option<ForkKey> {
        let (Hit { record, block }, _) = self.find(extent.namespace, &extent.parent)?;
        let parent = &record.extent;
        let block = parent.first_block_index.checked_add(block)?;
        let (lineage, child) = (short(&parent.lineage), short(&extent.lineage));
        Some(ForkKey { namespace: extent.namespace, lineage, block, child })
    }

    /// A removal must not pass over what cannot be read now and could be read later: the tables are not there any more,
    /// and the next open builds the index anew.
    fn give_tables_up(&self, error: &TableError) {
        self.tree.note(error);
        self.give_up();
    }
}

impl Index for LsmIndex {
    fn insert(&self, extent: Extent, wanted: &dyn Fn(&ChainHash) -> bool) -> u32 {
        let Some(writer) = self.tree.writer_in_time() else { return 0 };
        let location = extent.location;
        let is_past = self.usage.read().epoch(location.segment) > Some(location.epoch);
        if is_past || self.tree.is_stalled() {
            return 0;
        }
        // An extent may be put again when the index is opened. What it lost meanwhile stays lost.
        if self.or_missing(self.record(&OrderKey::of(&extent))).is_some() {
            return 0;
        }
        let here = self.are_here(extent.namespace, &extent.hashes);
        let blocks = (0..).zip(extent.hashes.iter().zip(here));
        let taken: Vec<u32> = blocks
            .filter_map(|(block, (hash, is_here))| (!is_here && wanted(hash)).then_some(block))
            .collect();
        let mut batch = Batch::default();
        let count = self.adopt(extent, &taken, &mut batch);
        writer.apply(batch);
        count
    }

    fn probe(&self, namespace: NamespaceId, chain: &[ChainHash]) -> usize {
        if let [hash] = chain {
            return usize::from(self.has(namespace, hash));
        }
        let runs = self.resolve(namespace, chain, Scope::Prefix);
        runs.iter().map(|run| run.count as usize).sum()
    }

    fn resolve(&self, namespace: NamespaceId, hashes: &[ChainHash], scope: Scope) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut before: Option<(Places, Arc<Record>)> = None;
        let mut at = 0;
        while at < hashes.len() {
            let next = before.take().and_then(|(mut places, record)| {
                let next = self.next_of(&mut places, &record, &hashes[at]);
                Some((self.or_missing(next)?, places))
            });
            let found = next.or_else(|| self.find(namespace, &hashes[at]));
            let Some((Hit { record, block }, places)) = found else {
                match scope {
                    Scope::Prefix => break,
                    Scope::Each => at += 1,
                }
                continue;
            };
            let rest = record.extent.hashes[block as usize..].iter();
            let same = (block..)
                .zip(hashes[at..].iter().zip(rest))
                .take_while(|(block, (wanted, found))| wanted == found && record.live.get(*block));
            let count = u32::try_from(same.count()).expect("bounded by the extent").max(1);
            if block + count == record.extent.block_count() {
                before = Some((places, Arc::clone(&record)));
            }
            let extent = Arc::clone(&record.extent);
            runs.push(Run { at, extent, first_block: block, count });
            at += count as usize;
        }
        runs
    }

    fn place(
        &self,
        namespace: NamespaceId,
        parent: Option<ChainHash>,
        first: ChainHash,
        first_index: u32,
    ) -> Placement {
        let own = Placement { lineage: first, first_block_index: first_index };
        let found = parent.and_then(|hash| self.find(namespace, &hash));
        let Some((Hit { record, block }, mut places)) = found else { return own };
        let extent = &record.extent;
        let Some(index) = extent.first_block_index.checked_add(block + 1) else { return own };
        let fork = Placement { lineage: first, first_block_index: index };
        if block + 1 != extent.block_count() {
            return fork;
        }
        let wanted = OrderKey { first: index, sequence: 0, ..OrderKey::of(extent) };
        let taken = places.find(&wanted, |key, value| self.decode(key, value));
        match taken {
            Ok(None) => Placement { lineage: extent.lineage, first_block_index: index },
            Ok(Some(_)) => fork,
            Err(error) => {
                self.tree.note(&error);
                fork
            }
        }
    }

    fn replace(&self, old: &[&Extent], new: Vec<Extent>) -> u32 {
        let writer = self.tree.writer();
        let mut losing: BTreeMap<OrderKey, (Arc<Record>, Vec<u32>)> = BTreeMap::new();
        let mut leading: BTreeMap<ChainHash, (OrderKey, u32)> = BTreeMap::new();
        for key in old.iter().map(|extent| OrderKey::of(extent)) {
            let Some(record) = self.or_missing(self.record(&key)) else { continue };
            let blocks = (0..).zip(&record.extent.hashes);
            let live = blocks.filter(|(block, _)| record.live.get(*block));
            leading.extend(live.map(|(block, hash)| (*hash, (key, block))));
            losing.insert(key, (record, Vec::new()));
        }
        let mut batch = Batch::default();
        let mut moved = 0;
        for extent in new {
            let mut taken = Vec::new();
            for (block, hash) in (0_u32..).zip(&extent.hashes) {
                if let Some((key, old_block)) = leading.remove(hash) {
                    losing.entry(key).and_modify(|(_, lost)| lost.push(old_block));
                    taken.push(block);
                }
            }
            moved += self.adopt(extent, &taken, &mut batch);
        }
        for (record, blocks) in losing.into_values().filter(|(_, blocks)| !blocks.is_empty()) {
            self.without(&record, blocks, false, &mut batch);
        }
        self.replacements.fetch_add(1, Ordering::AcqRel);
        writer.apply(batch);
        self.replacements.fetch_add(1, Ordering::AcqRel);
        moved
    }

    fn remove_blocks(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Removed {
        let writer = self.tree.writer();
        let mut lost: BTreeMap<OrderKey, (Arc<Record>, Vec<u32>)> = BTreeMap::new();
        for hash in hashes {
            let found = self.try_find(namespace, hash).or_else(|error| {
                self.give_tables_up(&error);
                self.try_find(namespace, hash)
            });
            if let Some((Hit { record, block }, _)) = self.or_missing(found) {
                let key = OrderKey::of(&record.extent);
                lost.entry(key).or_insert_with(|| (record, Vec::new())).1.push(block);
            }
        }
        let (mut batch, mut removed) = (Batch::default(), Removed::default());
        for (record, blocks) in lost.into_values() {
            let part = self.without(&record, blocks, true, &mut batch);
            removed.blocks += part.blocks;
            removed.extents.extend(part.extents);
        }
        writer.apply(batch);
        removed
    }

    fn remove_namespace(&self, namespace: NamespaceId) -> Removed {
        let mut removed = Removed::default();
        loop {
            let from = (namespace, ChainHash::default(), 0);
            let scanned = self.scan_from(from, REMOVAL_BATCH).or_else(|error| {
                self.give_tables_up(&error);
                self.scan_from(from, REMOVAL_BATCH)
            });
            let extents = self.or_missing(scanned.map(Some)).unwrap_or_default();
            let mine: Vec<_> = extents.iter().filter(|e| e.namespace == namespace).collect();
            for extent in &mine {
                let part = self.remove_extent(extent);
                removed.blocks += part.blocks;
                removed.extents.extend(part.extents);
            }
            if mine.len() < REMOVAL_BATCH {
                return removed;
            }
        }
    }

    fn remove_extent(&self, extent: &Extent) -> Removed {
        self.remove_of(&self.tree.writer(), extent, 0..extent.block_count())
    }

    fn remove_from_extent(&self, extent: &Extent, blocks: &[u32]) -> Removed {
        let Some(writer) = self.tree.writer_in_time() else { return Removed::default() };
        self.remove_of(&writer, extent, blocks.iter().copied())
    }

    fn drop_segment(&self, segment: u64, epoch: u64) -> u64 {
        self.usage.write().drop_segment(segment, epoch).blocks
    }

    fn live_blocks(&self, extent: &Extent) -> Vec<bool> {
        let record = self.or_missing(self.record(&OrderKey::of(extent)));
        let live = |block| record.as_ref().is_some_and(|record| record.live.get(block));
        (0..extent.block_count()).map(live).collect()
    }

    fn descendants(&self, extent: &Extent, limit: usize) -> Vec<Arc<Extent>> {
        self.or_missing(self.subtree(extent, limit).map(Some)).unwrap_or_default()
    }

    fn touch(&self, extent: &Extent, sequence: u64) {
        self.usage.write().touch(extent, sequence);
    }

    fn heat(&self, extent: &Extent) -> Heat {
        self.usage.read().heat(extent.id)
    }

    fn segment_use(&self, segment: u64) -> SegmentUse {
        self.usage.read().of_segment(segment)
    }

    fn scan(&self, from: (NamespaceId, ChainHash, u32), limit: usize) -> Vec<Arc<Extent>> {
        self.or_missing(self.scan_from(from, limit).map(Some)).unwrap_or_default()
    }

    fn counts(&self) -> (u64, u64) {
        self.usage.read().counts()
    }
}
