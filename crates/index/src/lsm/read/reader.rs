//! Looks up and scans entries in memtables and tables.

use std::ops::Range;
use std::sync::Arc;

use dalsegno_core::{ChainHash, Deadline, NamespaceId};

use crate::error::TableError;
use crate::lsm::format::keys::{ForkKey, KIND_FORK, OrderKey, Point, PointKey};
use crate::lsm::memtable::batch::Newest;
use crate::lsm::memtable::entries::Memtable;
use crate::lsm::memtable::scan::MemtableScan;
use crate::lsm::read::merge::MergedSources;
use crate::lsm::read::order_scan::OrderScan;
use crate::lsm::read::place_cursor::PlaceCursor;
use crate::lsm::table::block_cache::BlockCache;
use crate::lsm::table::iter::ReadMode;
use crate::lsm::table::read_counts::{LsmCounts, Purpose, ReadCounts};
use crate::lsm::table::source::Source;
use crate::lsm::version::levels::Version;
use crate::lsm::version::run_source::RunSource;
use crate::lsm::version::snapshot::Snapshots;

/// Reads the tree.
#[derive(Debug)]
pub(crate) struct TreeReader {
    snapshots: Arc<Snapshots>,
    cache: BlockCache,
    /// The reads of maintenance, which no caller requested.
    maintenance_counts: Arc<ReadCounts>,
}

impl TreeReader {
    pub(crate) fn new(snapshots: Arc<Snapshots>, cache: BlockCache) -> Self {
        Self { snapshots, cache, maintenance_counts: Arc::default() }
    }

    /// Whether points were dropped for lack of space.
    pub(crate) fn is_partial(&self) -> bool {
        self.snapshots.is_partial()
    }

    /// Whether any entry is in a table.
    pub(crate) fn has_tables(&self) -> bool {
        self.snapshots.current().version.bytes() > 0
    }

    /// The counts of requested reads, and the sectors that maintenance read.
    pub(crate) fn counts(&self) -> (LsmCounts, u64) {
        (self.cache.counts().view(), self.maintenance_counts.view().scan_sectors)
    }

    /// The point of a block, if it was not removed.
    pub(crate) fn point(
        &self,
        key: &PointKey,
        deadline: Deadline,
    ) -> Result<Option<Point>, TableError> {
        let snapshot = self.snapshots.current();
        let newest = snapshot.memtables().find_map(|memtable| memtable.view().point(key));
        match newest {
            Some(newest) => Ok(newest.present()),
            None => self.point_in_tables(&snapshot.version, key, deadline),
        }
    }

    /// Like [`Self::point`] for many blocks.
    pub(crate) fn points(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        deadline: Deadline,
    ) -> Vec<Result<Option<Point>, TableError>> {
        let snapshot = self.snapshots.current();
        let keys: Vec<_> = hashes.iter().map(|hash| PointKey::of(namespace, hash)).collect();
        let mut newest: Vec<Option<Newest<Point>>> = vec![None; keys.len()];
        for memtable in snapshot.memtables() {
            let view = memtable.view();
            for (found, key) in newest.iter_mut().zip(&keys).filter(|(found, _)| found.is_none()) {
                *found = view.point(key);
            }
        }
        let point = |(newest, key): (Option<Newest<Point>>, &PointKey)| match newest {
            Some(newest) => Ok(newest.present()),
            None => self.point_in_tables(&snapshot.version, key, deadline),
        };
        newest.into_iter().zip(&keys).map(point).collect()
    }

    fn point_in_tables(
        &self,
        version: &Version,
        key: &PointKey,
        deadline: Deadline,
    ) -> Result<Option<Point>, TableError> {
        let decode = |value: &[u8]| match Point::decode(value) {
            None if !value.is_empty() => Err(TableError::Malformed("a point")),
            point => Ok(point),
        };
        let found = version.get(&key.encode(), &self.cache, deadline, decode)?;
        self.cache.counts().count_lookup(found.is_some());
        found.unwrap_or(Ok(None))
    }

    /// A cursor over the extents of one lineage, in the current snapshot.
    pub(crate) fn places(&self, deadline: Deadline) -> PlaceCursor {
        PlaceCursor::new(self.snapshots.current(), self.cache.clone(), deadline)
    }

    /// Order entries from a key on.
    pub(crate) fn orders(&self, from: &OrderKey) -> Result<OrderScan, TableError> {
        self.orders_through(&self.cache, from)
    }

    /// Like [`Self::orders`], for maintenance.
    pub(crate) fn orders_for_maintenance(&self, from: &OrderKey) -> Result<OrderScan, TableError> {
        self.orders_through(&self.cache.counted_in(&self.maintenance_counts), from)
    }

    fn orders_through(&self, cache: &BlockCache, from: &OrderKey) -> Result<OrderScan, TableError> {
        let memtable = |memtable| MemtableScan::orders(memtable, *from);
        let entries = self.merge_from(&from.encode(), memtable, cache)?;
        Ok(OrderScan::new(entries, Arc::clone(cache.counts())))
    }

    /// At most `limit` forks in a range of keys. Reads nothing after the range.
    pub(crate) fn forks(
        &self,
        range: &Range<ForkKey>,
        limit: usize,
    ) -> Result<Vec<ForkKey>, TableError> {
        let memtable = |memtable| MemtableScan::forks(memtable, range, limit);
        let mut entries = self.merge_from(&range.start.encode(), memtable, &self.cache)?;
        let mut found = Vec::new();
        while found.len() < limit
            && let Some(key) = entries.key().filter(|key| key[0] == KIND_FORK)
        {
            let fork = ForkKey::decode(key).ok_or(TableError::Malformed("a fork"))?;
            if fork >= range.end {
                break;
            }
            found.push(fork);
            entries.advance()?;
        }
        Ok(found)
    }

    /// All entries from a key on; `of_memtable` makes a source of a memtable.
    fn merge_from(
        &self,
        from: &[u8],
        of_memtable: impl Fn(Arc<Memtable>) -> MemtableScan,
        cache: &BlockCache,
    ) -> Result<MergedSources<Box<dyn Source>>, TableError> {
        cache.counts().count_scan();
        let snapshot = self.snapshots.current();
        let mut sources: Vec<Box<dyn Source>> = Vec::new();
        for memtable in snapshot.memtables() {
            sources.push(Box::new(of_memtable(Arc::clone(memtable))));
        }
        for run in snapshot.version.runs_from(from) {
            let mode = ReadMode::Cached(cache.clone(), Purpose::Scan, Deadline::Never);
            sources.push(Box::new(RunSource::new(run, from, mode)?));
        }
        Ok(MergedSources::new(sources))
    }
}
