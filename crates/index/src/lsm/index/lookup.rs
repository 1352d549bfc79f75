//! Looks up blocks and extents.
//!
//! 1. A block is present if its newest point references the current epoch of a segment. Then the order entry of the
//!    extent shows it: both change in one batch, which becomes visible as a whole.
//! 2. Blocks are returned only for a full hash in an order entry that shows the block. A point is found by half of the
//!    hash. A block that shares that half with another one is not stored, and is a miss.
//! 3. In a partial index points were dropped for lack of space, and a record alone is not enough: no block is returned
//!    without its point. A removal finds blocks by points, so blocks that it missed would otherwise be served in a run.
//! 4. What cannot be read is absent: a damaged index costs misses until it is rebuilt.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{ChainHash, Deadline, Extent, NamespaceId};
use dalsegno_io::IoError;
use parking_lot::RwLock;

use crate::answers::{Placement, Run, Scope, Unread};
use crate::error::TableError;
use crate::index::ScanPlace;
use crate::lsm::format::keys::{OrderKey, Point, PointKey, Record, short};
use crate::lsm::health::Health;
use crate::lsm::maintenance::retention::LineageCheck;
use crate::lsm::read::order_scan::OrderScan;
use crate::lsm::read::place_cursor::PlaceCursor;
use crate::lsm::read::reader::TreeReader;
use crate::usage::Usage;

/// How often a lookup is repeated because the block was moved meanwhile.
const RETRIES: u32 = 8;

/// A block that was found: the record of its extent, and its position there.
pub(crate) struct Hit {
    pub(crate) record: Arc<Record>,
    pub(crate) block: u32,
}

/// The record of an extent, and some of its blocks.
pub(crate) struct Holder {
    pub(crate) record: Arc<Record>,
    pub(crate) blocks: Vec<u32>,
}

/// Looks up blocks and extents.
#[derive(Debug)]
pub(crate) struct Lookup {
    pub(crate) reader: TreeReader,
    pub(crate) usage: RwLock<Usage>,
    pub(crate) health: Arc<Health>,
    /// Counts replacements, so that a lookup that lost track of a block repeats. Odd while one is under way.
    replacements: AtomicU64,
}

impl Lookup {
    pub(crate) fn new(reader: TreeReader, usage: Usage, health: Arc<Health>) -> Self {
        Self { reader, usage: RwLock::new(usage), health, replacements: AtomicU64::new(0) }
    }

    /// Whether a removal emptied the index because it could not be read.
    pub(crate) fn is_emptied(&self) -> bool {
        self.health.is_stopped() && self.reader.is_partial() && !self.reader.has_tables()
    }

    /// Runs `replace`, during which blocks move from extent to extent.
    pub(crate) fn replacing(&self, replace: impl FnOnce()) {
        self.replacements.fetch_add(1, Ordering::AcqRel);
        replace();
        self.replacements.fetch_add(1, Ordering::AcqRel);
    }

    fn is_present(&self, segment: u64, epoch: u64) -> bool {
        self.usage.read().epoch(segment) == Some(epoch)
    }

    /// The record under a key, unless it is gone.
    pub(crate) fn record(
        &self,
        key: &OrderKey,
        deadline: Deadline,
    ) -> Result<Option<Arc<Record>>, TableError> {
        self.record_in(&mut self.reader.places(deadline), key)
    }

    /// Like [`Self::record`], for a caller that continues with `places`.
    fn record_in(
        &self,
        places: &mut PlaceCursor,
        key: &OrderKey,
    ) -> Result<Option<Arc<Record>>, TableError> {
        let is_here = |record: &Record| {
            let location = record.extent.location;
            self.is_present(location.segment, location.epoch)
        };
        Ok(places.get(key)?.filter(is_here).map(Arc::new))
    }

    /// Whether a block is here.
    pub(crate) fn has(&self, namespace: NamespaceId, hash: &ChainHash, deadline: Deadline) -> bool {
        let point = self.or_missing(self.reader.point(&PointKey::of(namespace, hash), deadline));
        point.is_some_and(|point| self.is_present(point.segment, point.epoch))
    }

    /// Which blocks of an extent are here; `None` if the extent itself is.
    pub(crate) fn present_blocks(
        &self,
        extent: &Extent,
        deadline: Deadline,
    ) -> Result<Option<Vec<bool>>, TableError> {
        if self.record(&OrderKey::of(extent), deadline)?.is_some() {
            return Ok(None);
        }
        let points = self.reader.points(extent.namespace, &extent.hashes, deadline);
        let usage = self.usage.read();
        let is_here = |point: Point| usage.epoch(point.segment) == Some(point.epoch);
        let here = points.into_iter().map(|point| Ok(point?.is_some_and(is_here)));
        here.collect::<Result<_, TableError>>().map(Some)
    }

    /// The record of an order entry, unless it is gone.
    pub(crate) fn decode(
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

    /// Finds a block, and a cursor for the extents after it. If the block moves during the lookup, the lookup repeats.
    pub(crate) fn find(
        &self,
        namespace: NamespaceId,
        hash: &ChainHash,
        deadline: Deadline,
    ) -> Option<(Hit, PlaceCursor)> {
        for _ in 0..RETRIES {
            let before = self.replacements.load(Ordering::Acquire);
            let found = self.try_find(namespace, hash, deadline);
            let is_settled =
                before.is_multiple_of(2) && self.replacements.load(Ordering::Acquire) == before;
            match found {
                Ok(None) if !is_settled => std::thread::yield_now(),
                found => return self.or_missing(found),
            }
        }
        None
    }

    /// Like [`Self::find`], without repeating.
    pub(crate) fn try_find(
        &self,
        namespace: NamespaceId,
        hash: &ChainHash,
        deadline: Deadline,
    ) -> Result<Option<(Hit, PlaceCursor)>, TableError> {
        let Some(point) = self.reader.point(&PointKey::of(namespace, hash), deadline)? else {
            return Ok(None);
        };
        if !self.is_present(point.segment, point.epoch) {
            return Ok(None);
        }
        let mut places = self.reader.places(deadline);
        let record = self.record_in(&mut places, &point.order_key(namespace))?;
        let shows = |record: &Arc<Record>| {
            record.extent.hashes.get(point.block as usize) == Some(hash)
                && record.live.get(point.block)
        };
        let hit = record.filter(shows);
        Ok(hit.map(|record| (Hit { record, block: point.block }, places)))
    }

    /// Records an error; then the result is absent.
    pub(crate) fn or_missing<T>(&self, found: Result<Option<T>, TableError>) -> Option<T> {
        found.unwrap_or_else(|error| {
            self.health.record(&error);
            None
        })
    }

    /// The record of an extent and its blocks that point to it, for a caller that must not treat unreadable entries as
    /// absent.
    pub(crate) fn known(&self, extent: &Extent) -> Result<Option<Holder>, Unread> {
        if self.is_emptied() {
            return Err(Unread(IoError::Closed.into()));
        }
        let find = || {
            let never = Deadline::Never;
            let Some(record) = self.record(&OrderKey::of(extent), never)? else { return Ok(None) };
            let shown = (0..extent.block_count()).filter(|block| record.live.get(*block)).collect();
            let blocks = self.confirmed(extent, shown, never)?;
            Ok(Some(Holder { record, blocks }))
        };
        find().map_err(|error| {
            self.health.record(&error);
            Unread(error)
        })
    }

    /// Of these blocks, which the record of an extent shows, those whose points confirm it. In a partial index not all
    /// do.
    pub(crate) fn confirmed(
        &self,
        extent: &Extent,
        shown: Vec<u32>,
        deadline: Deadline,
    ) -> Result<Vec<u32>, TableError> {
        if !self.reader.is_partial() {
            return Ok(shown);
        }
        let key = OrderKey::of(extent);
        let hashes: Vec<_> = shown.iter().map(|block| extent.hashes[*block as usize]).collect();
        let points = self.reader.points(extent.namespace, &hashes, deadline);
        let mut confirmed = Vec::new();
        for (block, point) in shown.into_iter().zip(points) {
            let is_here =
                |point: Point| point.block == block && point.order_key(key.namespace) == key;
            confirmed.extend(point?.is_some_and(is_here).then_some(block));
        }
        Ok(confirmed)
    }

    /// The extent that continues `record` with `hash`, if it is the next of its lineage; `places` found `record`.
    fn next_of(
        &self,
        places: &mut PlaceCursor,
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

    /// See [`Index::resolve`](crate::Index::resolve).
    pub(crate) fn resolve(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        scope: Scope,
        deadline: Deadline,
    ) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut before: Option<(PlaceCursor, Arc<Record>)> = None;
        let is_partial = self.reader.is_partial();
        let mut at = 0;
        while at < hashes.len() {
            let next = before.take().filter(|_| !is_partial).and_then(|(mut places, record)| {
                let next = self.next_of(&mut places, &record, &hashes[at]);
                Some((self.or_missing(next)?, places))
            });
            let found = next.or_else(|| self.find(namespace, &hashes[at], deadline));
            let Some((Hit { record, block }, places)) = found else {
                match scope {
                    Scope::Prefix => break,
                    Scope::Each => at += 1,
                }
                continue;
            };
            let mut count = common_blocks(&record, block, &hashes[at..]);
            if is_partial {
                let shown = (block..block + count).collect();
                let confirmed = self.confirmed(&record.extent, shown, deadline);
                let confirmed = self.or_missing(confirmed.map(Some)).unwrap_or_default();
                let confirmed = (block..).zip(&confirmed).take_while(|(block, at)| block == *at);
                count = at_least_one(confirmed.count());
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

    /// See [`Index::place`](crate::Index::place).
    pub(crate) fn place(
        &self,
        namespace: NamespaceId,
        parent: Option<ChainHash>,
        first: ChainHash,
        first_index: u32,
        deadline: Deadline,
    ) -> Placement {
        let own = Placement { lineage: first, first_block_index: first_index };
        let found = parent.and_then(|hash| self.find(namespace, &hash, deadline));
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
                self.health.record(&error);
                fork
            }
        }
    }

    /// Extents from a place on, in their order.
    pub(crate) fn scan_from(
        &self,
        ScanPlace { namespace, lineage, first }: ScanPlace,
        limit: usize,
    ) -> Result<Vec<Arc<Extent>>, TableError> {
        let from = OrderKey { namespace, lineage: short(&lineage), first, sequence: 0 };
        let mut scan = self.reader.orders(&from)?;
        let mut found = Vec::new();
        while found.len() < limit
            && let Some((key, value)) = scan.next()?
        {
            found.extend(self.decode(&key, &value)?.map(|record| record.extent));
        }
        Ok(found)
    }

    /// Whether a scan finds any extent before the first key that is not `wanted`.
    fn any_of(
        &self,
        mut scan: OrderScan,
        is_wanted: impl Fn(&OrderKey) -> bool,
    ) -> Result<bool, TableError> {
        while let Some((key, value)) = scan.next()?
            && is_wanted(&key)
        {
            if self.decode(&key, &value)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl LineageCheck for Lookup {
    fn has_lineage(&self, namespace: NamespaceId, lineage: [u8; 16]) -> Result<bool, TableError> {
        let from = OrderKey { namespace, lineage, first: 0, sequence: 0 };
        let scan = self.reader.orders_for_maintenance(&from)?;
        self.any_of(scan, |key| (key.namespace, key.lineage) == (namespace, lineage))
    }
}

/// How many blocks of a record, from `block` on, are shown and have the wanted hashes. The lookup found the first one.
fn common_blocks(record: &Record, block: u32, wanted: &[ChainHash]) -> u32 {
    let rest = record.extent.hashes[block as usize..].iter();
    let same = (block..)
        .zip(wanted.iter().zip(rest))
        .take_while(|(block, (wanted, found))| wanted == found && record.live.get(*block));
    at_least_one(same.count())
}

fn at_least_one(count: usize) -> u32 {
    u32::try_from(count).expect("bounded by the extent").max(1)
}
