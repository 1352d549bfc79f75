//! The tree: the newest entries in memory, older ones in levels of runs.
//!
//! 1. A reader works on one state from beginning to end; writers, flushes and merges make new ones and never wait for
//!    it.
//! 2. One writer at a time changes the newest memtable; nothing changes a frozen one, a run or a table.
//! 3. A key's newest entry is in the first of: the newest memtable, frozen ones (newest first), levels (0 first), in a
//!    level its runs (newest first).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use dalsegno_core::{ChainHash, NamespaceId, Shape, StoreId};
use dalsegno_io::WaitLimit;
use parking_lot::{Mutex, MutexGuard, RwLock};

use super::cache::BlockCache;
use super::counts::{Counts, Purpose};
use super::file::TableFiles;
use super::keys::{ForkKey, KIND_FORK, KIND_ORDER, OrderKey, Point, PointKey};
use super::memtable::{Batch, Memtable, Newest};
use super::merge::{Merge, RunSource, Source};
use super::table::{Reading, Shortage, TableError};
use super::version::Version;
use crate::usage::SegmentSum;

/// Most memtables that wait to become tables; with one more, whoever writes has to wait.
pub(crate) const MOST_FROZEN: usize = 2;
/// Entries that a scan takes from a memtable at a time: few, for most want to know what is at one place.
const SCAN_AHEAD: usize = 4;

/// What goes on while a merge does: asked before it writes. Flushes do not ask.
pub trait Pace: Send + Sync + std::fmt::Debug {
    /// Returns when so many bytes may be written.
    fn wait(&self, bytes: u64);
}

/// The bounds of a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// A memtable of so many bytes becomes a table.
    pub(crate) memtable_bytes: u64,
    /// A run is cut into tables of so many bytes.
    pub(crate) table_bytes: u64,
    /// Bytes of one write.
    pub(crate) request_bytes: usize,
    /// Bytes of blocks kept in memory.
    pub(crate) cache_bytes: u64,
    /// Bits of filter per key, on average over all levels.
    pub(crate) filter_bits: f64,
    /// Bytes of disk: half for tables, half to merge them.
    pub(crate) disk_bytes: u64,
    /// What of a checkpoint stays true without its tables.
    pub(crate) without_tables: fn(&[u8]) -> Vec<u8>,
}

/// A memtable that takes no more entries, and what is known when it is a table.
#[derive(Debug)]
pub(crate) struct Frozen {
    pub(crate) memtable: Arc<Memtable>,
    pub(crate) checkpoint: Vec<u8>,
    pub(crate) sums: Vec<SegmentSum>,
}

/// Everything that a reader needs.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) active: Arc<Memtable>,
    /// Newest first.
    pub(crate) frozen: VecDeque<Arc<Frozen>>,
    pub(crate) version: Arc<Version>,
}

/// What the tree did so far.
#[derive(Debug, Default)]
pub(crate) struct TreeCounters {
    pub(crate) flushes: AtomicU64,
    pub(crate) merges: AtomicU64,
    pub(crate) flushed_bytes: AtomicU64,
    pub(crate) merged_bytes: AtomicU64,
    pub(crate) merge_read_bytes: AtomicU64,
    pub(crate) forgotten_tables: AtomicU64,
    /// What upkeep asked of the tables.
    pub(super) upkeep: Arc<Counts>,
}

/// The tree.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) files: Arc<dyn TableFiles>,
    pub(crate) store: StoreId,
    pub(crate) options: Options,
    pub(crate) cache: BlockCache,
    pub(crate) counters: TreeCounters,
    pub(super) state: RwLock<Arc<State>>,
    shape: RwLock<Shape>,
    writing: Mutex<()>,
    /// Held by whoever flushes or merges.
    pub(super) maintaining: Mutex<()>,
    /// A table was flushed and the levels have not been put in order since.
    pub(super) is_flushed: AtomicBool,
    pub(super) next_number: AtomicU64,
    /// Something in a table is not as it was written.
    pub(super) damaged: AtomicBool,
    pub(super) missed: AtomicBool,
    /// Something found no room on disk, and nothing was written since.
    pub(super) shortage: Mutex<Option<Shortage>>,
    /// How often, since something was written.
    pub(super) shortages: AtomicU32,
    pub(super) unsure: AtomicBool,
    /// Somebody waits to give the tables up: merges are to make haste.
    pub(super) is_hurried: AtomicBool,
    /// The newest manifest names no tables, though some may be served still.
    pub(super) is_given_up: AtomicBool,
    /// A sync failed: nothing is written any more.
    pub(super) failed: AtomicBool,
    pub(super) pace: OnceLock<Arc<dyn Pace>>,
}

/// The right to change the newest memtable.
pub(crate) struct Writer<'a> {
    tree: &'a Tree,
    _one: MutexGuard<'a, ()>,
}

impl Tree {
    pub(super) fn new(
        files: Arc<dyn TableFiles>,
        store: StoreId,
        options: Options,
        shape: Shape,
        version: Version,
        next_number: u64,
    ) -> Self {
        let state =
            State { active: Arc::default(), frozen: VecDeque::new(), version: Arc::new(version) };
        Self {
            files,
            store,
            cache: BlockCache::new(options.cache_bytes),
            options,
            counters: TreeCounters::default(),
            state: RwLock::new(Arc::new(state)),
            shape: RwLock::new(shape),
            writing: Mutex::default(),
            maintaining: Mutex::default(),
            is_flushed: AtomicBool::new(false),
            next_number: AtomicU64::new(next_number),
            damaged: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            shortage: Mutex::default(),
            shortages: AtomicU32::new(0),
            unsure: AtomicBool::new(false),
            is_hurried: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            pace: OnceLock::new(),
        }
    }

    pub(crate) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read())
    }

    pub(crate) fn shape(&self) -> Shape {
        *self.shape.read()
    }

    /// From the next flush on; see [`dalsegno_policy::fluid`].
    pub(crate) fn set_shape(&self, shape: Shape) {
        *self.shape.write() = shape;
    }

    /// Waits for the right to write.
    pub(crate) fn writer(&self) -> Writer<'_> {
        Writer { tree: self, _one: self.writing.lock() }
    }

    /// As [`Self::writer`], but no longer than `wait`: the present writer may wait for the device.
    pub(crate) fn writer_within(&self, wait: WaitLimit) -> Option<Writer<'_>> {
        let WaitLimit::Until { instant, .. } = wait else { return Some(self.writer()) };
        let one = self.writing.try_lock_until(instant)?;
        Some(Writer { tree: self, _one: one })
    }

    /// Where the block is, if it was not removed.
    pub(crate) fn point(
        &self,
        key: &PointKey,
        wait: WaitLimit,
    ) -> Result<Option<Point>, TableError> {
        let state = self.state();
        let newest = state.memtables().find_map(|memtable| memtable.look().point(key));
        match newest {
            Some(newest) => Ok(newest.there()),
            None => self.point_in_tables(&state.version, key, wait),
        }
    }

    /// As [`Self::point`] for many blocks at once.
    pub(crate) fn points(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        wait: WaitLimit,
    ) -> Vec<Result<Option<Point>, TableError>> {
        let state = self.state();
        let keys: Vec<_> = hashes.iter().map(|hash| PointKey::of(namespace, hash)).collect();
        let mut newest: Vec<Option<Newest<Point>>> = vec![None; keys.len()];
        for memtable in state.memtables() {
            let view = memtable.look();
            for (found, key) in newest.iter_mut().zip(&keys).filter(|(found, _)| found.is_none()) {
                *found = view.point(key);
            }
        }
        let point = |(newest, key): (Option<Newest<Point>>, &PointKey)| match newest {
            Some(newest) => Ok(newest.there()),
            None => self.point_in_tables(&state.version, key, wait),
        };
        newest.into_iter().zip(&keys).map(point).collect()
    }

    fn point_in_tables(
        &self,
        version: &Version,
        key: &PointKey,
        wait: WaitLimit,
    ) -> Result<Option<Point>, TableError> {
        let decode = |value: &[u8]| match Point::decode(value) {
            None if !value.is_empty() => Err(TableError::Malformed("a point")),
            point => Ok(point),
        };
        let found = version.get(&key.encode(), &self.cache, wait, decode)?;
        self.cache.asked().looked_up(found.is_some());
        found.unwrap_or(Ok(None))
    }

    /// Entries of order from a key on, in their order.
    pub(crate) fn orders(&self, from: &OrderKey) -> Result<OrderScan, TableError> {
        self.orders_through(&self.cache, from)
    }

    /// As [`Self::orders`], for upkeep.
    pub(crate) fn orders_for_upkeep(&self, from: &OrderKey) -> Result<OrderScan, TableError> {
        self.orders_through(&self.cache.counted_apart(&self.counters.upkeep), from)
    }

    fn orders_through(&self, cache: &BlockCache, from: &OrderKey) -> Result<OrderScan, TableError> {
        let memtable = |memtable| MemtableScan::orders(memtable, *from);
        let merge = self.merge_from(&from.encode(), memtable, cache)?;
        Ok(OrderScan { merge, asked: Arc::clone(cache.asked()) })
    }

    /// Forks in a range of keys, in their order, at most `limit`. Reads nothing behind the range.
    pub(crate) fn forks(
        &self,
        range: &Range<ForkKey>,
        limit: usize,
    ) -> Result<Vec<ForkKey>, TableError> {
        let memtable = |memtable| MemtableScan::forks(memtable, range, limit);
        let mut merge = self.merge_from(&range.start.encode(), memtable, &self.cache)?;
        let mut found = Vec::new();
        while found.len() < limit
            && let Some(key) = merge.key().filter(|key| key[0] == KIND_FORK)
        {
            let fork = ForkKey::decode(key).ok_or(TableError::Malformed("a fork"))?;
            if fork >= range.end {
                break;
            }
            found.push(fork);
            merge.advance()?;
        }
        Ok(found)
    }

    /// All sources as one, from a key on; `of_memtable` makes one of a memtable.
    fn merge_from(
        &self,
        from: &[u8],
        of_memtable: impl Fn(Arc<Memtable>) -> MemtableScan,
        cache: &BlockCache,
    ) -> Result<Merge<Box<dyn Source>>, TableError> {
        cache.asked().began_scan();
        let state = self.state();
        let mut sources: Vec<Box<dyn Source>> = Vec::new();
        for memtable in state.memtables() {
            sources.push(Box::new(of_memtable(Arc::clone(memtable))));
        }
        for run in state.version.runs_from(from) {
            let reading = Reading::Cached(cache.clone(), Purpose::Scan, WaitLimit::Unlimited);
            sources.push(Box::new(RunSource::new(run, from, reading)?));
        }
        Ok(Merge::new(sources))
    }

    /// Whether the newest memtable is large enough to be frozen.
    pub(crate) fn is_full(&self) -> bool {
        self.state.read().active.bytes() >= self.options.memtable_bytes
    }

    /// Whether memory is used up until a flush is done.
    pub(crate) fn is_stalled(&self) -> bool {
        let state = self.state.read();
        state.frozen.len() >= MOST_FROZEN && state.active.bytes() >= self.options.memtable_bytes
    }

    /// Bytes of the table that a full memtable becomes, by those of late.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        let (flushes, bytes) = (&self.counters.flushes, &self.counters.flushed_bytes);
        let most = self.options.memtable_bytes;
        let mean = bytes.load(Ordering::Relaxed).checked_div(flushes.load(Ordering::Relaxed));
        mean.unwrap_or(most).clamp(most / 4, 2 * most)
    }

    /// Whether something waits to be flushed.
    pub(crate) fn has_frozen(&self) -> bool {
        !self.state.read().frozen.is_empty()
    }
}

impl Writer<'_> {
    pub(crate) fn apply(&self, batch: Batch) {
        self.tree.cache.asked().wrote(batch.entries());
        self.tree.state().active.apply(batch);
    }

    /// Starts a new memtable. `checkpoint` says what of the log the tree holds, `sums` what it holds of each segment.
    pub(crate) fn freeze(&self, checkpoint: Vec<u8>, sums: Vec<SegmentSum>) {
        let mut state = self.tree.state.write();
        let memtable = Arc::clone(&state.active);
        let mut frozen = state.frozen.clone();
        frozen.push_front(Arc::new(Frozen { memtable, checkpoint, sums }));
        *state = Arc::new(State { active: Arc::default(), frozen, ..State::clone(&state) });
    }
}

impl State {
    /// Newest first.
    pub(super) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(self.frozen.iter().map(|frozen| &frozen.memtable))
    }
}

/// Walks over the entries of order that were not removed.
pub(crate) struct OrderScan {
    merge: Merge<Box<dyn Source>>,
    asked: Arc<Counts>,
}

impl OrderScan {
    /// The next entry.
    pub(crate) fn next(&mut self) -> Result<Option<(OrderKey, Vec<u8>)>, TableError> {
        while let Some(key) = self.merge.key().filter(|key| key[0] == KIND_ORDER) {
            let key = OrderKey::decode(key).ok_or(TableError::Malformed("an order key"))?;
            let value = self.merge.value().to_vec();
            self.asked.scanned();
            self.merge.advance()?;
            if !value.is_empty() {
                return Ok(Some((key, value)));
            }
        }
        Ok(None)
    }
}

/// A memtable as a source, a few entries at a time.
pub(super) struct MemtableScan {
    memtable: Arc<Memtable>,
    /// Keys, and what leads to their values.
    waiting: VecDeque<(Vec<u8>, Option<u32>)>,
    /// Where the entries behind those that wait begin.
    next: Option<OrderKey>,
    /// That of the first one.
    value: Vec<u8>,
}

impl MemtableScan {
    pub(super) fn orders(memtable: Arc<Memtable>, from: OrderKey) -> Self {
        let (waiting, value) = (VecDeque::new(), Vec::new());
        let mut scan = Self { memtable, waiting, next: Some(from), value };
        scan.refill();
        scan.take_value();
        scan
    }

    fn forks(memtable: Arc<Memtable>, range: &Range<ForkKey>, limit: usize) -> Self {
        let forks = memtable.forks(range, limit).into_iter();
        let waiting = forks.map(|fork| (fork.encode().to_vec(), None)).collect();
        Self { memtable, waiting, next: None, value: Vec::new() }
    }

    fn refill(&mut self) {
        let Some(from) = self.next.take() else { return };
        let entries = self.memtable.orders(&from, SCAN_AHEAD);
        if entries.len() == SCAN_AHEAD {
            let last = entries[SCAN_AHEAD - 1].0;
            self.next = Some(OrderKey { sequence: last.sequence.saturating_add(1), ..last });
        }
        let entries = entries.into_iter().map(|(key, slot)| (key.encode().to_vec(), Some(slot)));
        self.waiting.extend(entries);
    }

    fn take_value(&mut self) {
        self.value.clear();
        if let Some((_, Some(slot))) = self.waiting.front() {
            self.memtable.value_to(*slot, &mut self.value);
        }
    }
}

impl Source for MemtableScan {
    fn key(&self) -> Option<&[u8]> {
        self.waiting.front().map(|(key, _)| &key[..])
    }

    fn value(&self) -> &[u8] {
        &self.value
    }

    fn advance(&mut self) -> Result<(), TableError> {
        self.waiting.pop_front();
        if self.waiting.is_empty() {
            self.refill();
        }
        self.take_value();
        Ok(())
    }
}
