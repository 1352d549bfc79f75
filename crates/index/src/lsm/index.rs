//! The index over the tree: from chain hashes to extents, within bounded memory.
//!
//! 1. A block is present if its newest point leads to the present epoch of a segment. The extent's order entry then
//!    shows it: both change in one batch, which readers see whole.
//! 2. Bytes are handed out only for a full hash that stands in an order entry which shows the block. A point is found
//!    by half of the hash: who shares it with another block is not put, a miss.
//! 3. Where points were dropped for want of room (a partial index), a record's word is not enough: nothing is handed
//!    out without the point. Else what a removal, which finds by points, leaves behind would be served in a run.
//! 4. What cannot be read is not there: a damaged index costs misses until it is built anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{ChainHash, Extent, NamespaceId};
use dalsegno_io::{IoError, WaitLimit};
use dalsegno_policy::recency::Use;
use dalsegno_policy::reclaim::LiveExtent;
use parking_lot::RwLock;

use super::changes::Holder;
use super::keys::{OrderKey, Point, PointKey, Record};
use super::memtable::Batch;
use super::places::Places;
use super::table::TableError;
use super::tree::Tree;
use crate::usage::Usage;
use crate::{Index, Placement, Removed, Run, Scope, Unread};

/// How often a look-up is done again because the block was moved meanwhile.
const RETRIES: u32 = 8;

/// An index whose memory does not grow with its blocks.
#[derive(Debug)]
pub struct LsmIndex {
    pub(super) tree: Tree,
    pub(super) usage: RwLock<Usage>,
    /// Counts replacements, so that a look-up that lost track of a block knows to begin anew.
    replacements: AtomicU64,
}

/// A block that was found: its extent's record, and which block of it.
pub(super) struct Hit {
    pub(super) record: Arc<Record>,
    pub(super) block: u32,
}

impl LsmIndex {
    pub(super) fn over(tree: Tree, usage: Usage) -> Self {
        Self { tree, usage: RwLock::new(usage), replacements: AtomicU64::new(0) }
    }

    pub(super) fn is_present(&self, segment: u64, epoch: u64) -> bool {
        self.usage.read().epoch(segment) == Some(epoch)
    }

    /// The record under a key, unless it is gone.
    pub(super) fn record(
        &self,
        key: &OrderKey,
        wait: WaitLimit,
    ) -> Result<Option<Arc<Record>>, TableError> {
        self.record_in(&mut self.tree.places(wait), key)
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
    fn has(&self, namespace: NamespaceId, hash: &ChainHash, wait: WaitLimit) -> bool {
        let point = self.or_missing(self.tree.point(&PointKey::of(namespace, hash), wait));
        point.is_some_and(|point| self.is_present(point.segment, point.epoch))
    }

    /// Which blocks of an extent are here; `None` if it is here itself.
    fn are_here(&self, extent: &Extent, wait: WaitLimit) -> Result<Option<Vec<bool>>, TableError> {
        if self.record(&OrderKey::of(extent), wait)?.is_some() {
            return Ok(None);
        }
        let points = self.tree.points(extent.namespace, &extent.hashes, wait);
        let usage = self.usage.read();
        let is_here = |point: Point| usage.epoch(point.segment) == Some(point.epoch);
        let here = points.into_iter().map(|point| Ok(point?.is_some_and(is_here)));
        here.collect::<Result<_, TableError>>().map(Some)
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
    pub(super) fn find(
        &self,
        namespace: NamespaceId,
        hash: &ChainHash,
        wait: WaitLimit,
    ) -> Option<(Hit, Places)> {
        for _ in 0..RETRIES {
            let before = self.replacements.load(Ordering::Acquire);
            let found = self.try_find(namespace, hash, wait);
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

    /// The record of an extent, and its blocks that lead there; for who must not take what is not known for gone.
    fn known(&self, extent: &Extent) -> Result<Option<Holder>, Unread> {
        if self.is_emptied() {
            return Err(Unread(IoError::Closed.into()));
        }
        let find = || {
            let Some(record) = self.record(&OrderKey::of(extent), WaitLimit::Unlimited)? else {
                return Ok(None);
            };
            let blocks = 0..extent.block_count();
            let shown = blocks.filter(|block| record.live.get(*block)).collect();
            Ok(Some((record, self.leading(extent, shown, WaitLimit::Unlimited)?)))
        };
        find().map_err(|error| {
            self.tree.note(&error);
            Unread(error)
        })
    }

    pub(super) fn try_find(
        &self,
        namespace: NamespaceId,
        hash: &ChainHash,
        wait: WaitLimit,
    ) -> Result<Option<(Hit, Places)>, TableError> {
        let Some(point) = self.tree.point(&PointKey::of(namespace, hash), wait)? else {
            return Ok(None);
        };
        if !self.is_present(point.segment, point.epoch) {
            return Ok(None);
        }
        let mut places = self.tree.places(wait);
        let record = self.record_in(&mut places, &point.order_key(namespace))?;
        let shows = |record: &Arc<Record>| {
            record.extent.hashes.get(point.block as usize) == Some(hash)
                && record.live.get(point.block)
        };
        let hit = record.filter(shows);
        Ok(hit.map(|record| (Hit { record, block: point.block }, places)))
    }

    /// Of these blocks of an extent, which its record shows, those that lead to it: in a partial index not all do.
    pub(super) fn leading(
        &self,
        extent: &Extent,
        shown: Vec<u32>,
        wait: WaitLimit,
    ) -> Result<Vec<u32>, TableError> {
        if !self.tree.is_partial() {
            return Ok(shown);
        }
        let key = OrderKey::of(extent);
        let hashes: Vec<_> = shown.iter().map(|block| extent.hashes[*block as usize]).collect();
        let points = self.tree.points(extent.namespace, &hashes, wait);
        let mut leading = Vec::new();
        for (block, point) in shown.into_iter().zip(points) {
            let leads =
                |point: Point| point.block == block && point.order_key(key.namespace) == key;
            leading.extend(point?.is_some_and(leads).then_some(block));
        }
        Ok(leading)
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
}

impl Index for LsmIndex {
    fn insert(
        &self,
        extent: Extent,
        used: Use,
        wanted: &dyn Fn(&ChainHash) -> bool,
        wait: WaitLimit,
    ) -> u32 {
        let Some(writer) = self.tree.writer_within(wait) else { return 0 };
        let location = extent.location;
        let is_past = self.usage.read().epoch(location.segment) > Some(location.epoch);
        if is_past || self.tree.is_stalled() {
            return 0;
        }
        // An extent may be put again when the index is opened. What it lost meanwhile stays lost. And what cannot be
        // read may be here: a block that two extents hold would outlive its removal in one of them.
        let Some(here) = self.or_missing(self.are_here(&extent, wait)) else { return 0 };
        let blocks = (0..).zip(extent.hashes.iter().zip(here));
        let taken: Vec<u32> = blocks
            .filter_map(|(block, (hash, is_here))| (!is_here && wanted(hash)).then_some(block))
            .collect();
        let mut batch = Batch::default();
        let count = self.adopt(extent, used, &taken, &mut batch, wait);
        writer.apply(batch);
        count
    }

    fn probe(&self, namespace: NamespaceId, chain: &[ChainHash], wait: WaitLimit) -> usize {
        if let [hash] = chain {
            return usize::from(self.has(namespace, hash, wait));
        }
        let runs = self.resolve(namespace, chain, Scope::Prefix, wait);
        runs.iter().map(|run| run.count as usize).sum()
    }

    fn resolve(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        scope: Scope,
        wait: WaitLimit,
    ) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut before: Option<(Places, Arc<Record>)> = None;
        let is_partial = self.tree.is_partial();
        let mut at = 0;
        while at < hashes.len() {
            let next = before.take().filter(|_| !is_partial).and_then(|(mut places, record)| {
                let next = self.next_of(&mut places, &record, &hashes[at]);
                Some((self.or_missing(next)?, places))
            });
            let found = next.or_else(|| self.find(namespace, &hashes[at], wait));
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
            let mut count = u32::try_from(same.count()).expect("bounded by the extent").max(1);
            if is_partial {
                let led = self.leading(&record.extent, (block..block + count).collect(), wait);
                let led = self.or_missing(led.map(Some)).unwrap_or_default();
                let led = (block..).zip(&led).take_while(|(block, led)| block == *led);
                count = u32::try_from(led.count()).expect("as before").max(1);
            }
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
        wait: WaitLimit,
    ) -> Placement {
        let own = Placement { lineage: first, first_block_index: first_index };
        let found = parent.and_then(|hash| self.find(namespace, &hash, wait));
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

    fn replace(&self, old: &[&Extent], new: Vec<Extent>) -> Result<u32, Unread> {
        let writer = self.tree.writer();
        let mut losing: BTreeMap<OrderKey, (Arc<Record>, Vec<u32>)> = BTreeMap::new();
        let mut leading: BTreeMap<ChainHash, (OrderKey, u32)> = BTreeMap::new();
        let before = old.iter().map(|extent| self.use_of(extent));
        let Some(used) = before.reduce(Use::joined) else { return Ok(0) };
        for extent in old {
            let Some((record, blocks)) = self.known(extent)? else { continue };
            let key = OrderKey::of(extent);
            let hash = |block: u32| record.extent.hashes[block as usize];
            leading.extend(blocks.into_iter().map(|block| (hash(block), (key, block))));
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
            moved += self.adopt(extent, used, &taken, &mut batch, WaitLimit::Unlimited);
        }
        for (record, blocks) in losing.into_values().filter(|(_, blocks)| !blocks.is_empty()) {
            self.without(&record, &blocks, Vec::new(), &mut batch);
        }
        self.replacements.fetch_add(1, Ordering::AcqRel);
        writer.apply(batch);
        self.replacements.fetch_add(1, Ordering::AcqRel);
        Ok(moved)
    }

    fn remove_blocks(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Removed {
        // Not while it is given up: who merges may wait for a writer, and to give tables up is to wait for who merges.
        self.in_full(|| {
            let writer = self.tree.writer();
            let (mut batch, mut removed) = (Batch::default(), Removed::default());
            for (record, blocks) in self.holders_of(namespace, hashes)? {
                removed.join(self.without(&record, &blocks, blocks.clone(), &mut batch));
            }
            writer.apply(batch);
            Ok(removed)
        })
    }

    fn remove_namespace(&self, namespace: NamespaceId) -> Removed {
        let mut removed = Removed::default();
        while self.in_full(|| self.remove_some_of(namespace, &mut removed)) {}
        removed
    }

    fn remove_extent(&self, extent: &Extent, wait: WaitLimit) -> Removed {
        let remove = || self.remove_of(&self.tree.writer(), extent, 0..extent.block_count(), wait);
        self.twice(remove).map_err(|error| self.tree.note(&error)).unwrap_or_default()
    }

    fn remove_from_extent(&self, extent: &Extent, blocks: &[u32], wait: WaitLimit) -> Removed {
        let Some(writer) = self.tree.writer_within(wait) else { return Removed::default() };
        let removed = self.remove_of(&writer, extent, blocks.iter().copied(), wait);
        self.or_missing(removed.map(Some)).unwrap_or_default()
    }

    fn drop_segment(&self, segment: u64, epoch: u64) -> u64 {
        self.usage.write().drop_segment(segment, epoch).blocks
    }

    fn losses(&self) -> u64 {
        let forgotten = self.tree.counters.forgotten_tables.load(Ordering::Relaxed);
        forgotten + u64::from(self.is_emptied())
    }

    fn live_blocks(&self, extent: &Extent) -> Result<Vec<bool>, Unread> {
        let (_, leading) = self.known(extent)?.unzip();
        let mut live = vec![false; extent.hashes.len()];
        for block in leading.into_iter().flatten() {
            live[block as usize] = true;
        }
        Ok(live)
    }

    fn raise(&self, extent: &Extent, round: u64) -> bool {
        !self.use_of(extent).is_raised(round) && self.usage.write().raise(extent, round)
    }

    fn lift(&self, extent: &Extent, last: u64) -> bool {
        self.usage.write().lift(extent, last)
    }

    fn use_of(&self, extent: &Extent) -> Use {
        self.usage.read().use_of(extent)
    }

    fn orphan_descendants(&self, extent: &Extent, limit: usize) -> usize {
        self.or_missing(self.orphan_behind(extent, limit).map(Some)).unwrap_or_default()
    }

    fn live_bytes(&self, segment: u64) -> u64 {
        self.usage.read().live_bytes(segment)
    }

    fn live_extents(&self, segment: u64) -> Vec<LiveExtent> {
        self.usage.read().live_extents(segment)
    }

    fn scan(&self, from: (NamespaceId, ChainHash, u32), limit: usize) -> Vec<Arc<Extent>> {
        self.or_missing(self.scan_from(from, limit).map(Some)).unwrap_or_default()
    }

    fn counts(&self) -> (u64, u64) {
        self.usage.read().counts()
    }
}
