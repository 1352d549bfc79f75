//! Flushes and compactions keep memory bounded and reads cheap, in the background.
//!
//! 1. One step runs at a time.
//! 2. After a failed sync nothing is written any more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use dalsegno_core::Shape;
use dalsegno_policy::fluid::{Step, filter_bits, next_step};
use parking_lot::Mutex;

use crate::error::TableError;
use crate::lsm::health::{Health, StopCause};
use crate::lsm::maintenance::directory::IndexDirectory;
use crate::lsm::maintenance::level_changes::{drop_empty, take_inputs};
use crate::lsm::maintenance::manifests::Manifests;
use crate::lsm::maintenance::pace::Pace;
use crate::lsm::maintenance::retention::{Fate, LineageCheck, Retention};
use crate::lsm::maintenance::run_output::{OutputHooks, RunOutput};
use crate::lsm::read::merge::MergedSources;
use crate::lsm::table::iter::ReadMode;
use crate::lsm::table::source::Source;
use crate::lsm::version::levels::Version;
use crate::lsm::version::run::SortedRun;
use crate::lsm::version::run_source::{RunSource, Tables};
use crate::lsm::version::snapshot::{Frozen, Snapshot, Snapshots};

/// Bytes that a compaction reads from a table at a time.
const COMPACTION_AHEAD_BYTES: usize = 256 << 10;

/// The bounds of a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeBounds {
    /// A memtable of so many bytes becomes a table.
    pub(crate) memtable_bytes: u64,
    /// A run is split into tables of so many bytes.
    pub(crate) table_bytes: u64,
    /// Bits of filter per key, on average over all levels.
    pub(crate) filter_bits: f64,
    /// Bytes of disk: half for tables, half to compact them.
    pub(crate) disk_bytes: u64,
}

/// What maintenance did so far.
#[derive(Debug, Default)]
pub(crate) struct MaintenanceCounters {
    pub(crate) flushes: AtomicU64,
    pub(crate) merges: AtomicU64,
    pub(crate) flushed_bytes: AtomicU64,
    pub(crate) merged_bytes: AtomicU64,
    pub(crate) merge_read_bytes: AtomicU64,
    pub(crate) forgotten_tables: AtomicU64,
}

/// Maintains a tree.
#[derive(Debug)]
pub(crate) struct Maintenance {
    directory: Arc<IndexDirectory>,
    snapshots: Arc<Snapshots>,
    health: Arc<Health>,
    manifests: Manifests,
    bounds: TreeBounds,
    counters: MaintenanceCounters,
    one_at_a_time: Mutex<()>,
    /// A table was flushed, and the levels have not been put in order since.
    is_flushed: AtomicBool,
    /// A caller waits for the tables to be dropped, so a compaction must not wait for its pace.
    is_urgent: AtomicBool,
    pace: OnceLock<Arc<dyn Pace>>,
}

impl Maintenance {
    pub(crate) fn new(
        directory: Arc<IndexDirectory>,
        snapshots: Arc<Snapshots>,
        health: Arc<Health>,
        manifests: Manifests,
        bounds: TreeBounds,
    ) -> Self {
        Self {
            directory,
            snapshots,
            health,
            manifests,
            bounds,
            counters: MaintenanceCounters::default(),
            one_at_a_time: Mutex::default(),
            is_flushed: AtomicBool::new(false),
            is_urgent: AtomicBool::new(false),
            pace: OnceLock::new(),
        }
    }

    pub(crate) fn counters(&self) -> &MaintenanceCounters {
        &self.counters
    }

    pub(crate) fn shape(&self) -> Shape {
        self.manifests.shape()
    }

    pub(crate) fn set_shape(&self, shape: Shape) {
        self.manifests.set_shape(shape);
    }

    pub(crate) fn mean_filter_bits(&self) -> f64 {
        self.bounds.filter_bits
    }

    /// Sets the pace of compactions, once and for good.
    pub(crate) fn set_pace(&self, pace: Arc<dyn Pace>) {
        // A second pace would be a bug of the store, and no reason to fail it.
        drop(self.pace.set(pace));
    }

    /// Whether a compaction must not wait.
    pub(crate) fn is_urgent(&self) -> bool {
        self.is_urgent.load(Ordering::Acquire)
    }

    /// Bytes of the table that a full memtable becomes, by the mean of recent ones.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        let (flushes, bytes) = (&self.counters.flushes, &self.counters.flushed_bytes);
        let most = self.bounds.memtable_bytes;
        let mean = bytes.load(Ordering::Relaxed).checked_div(flushes.load(Ordering::Relaxed));
        mean.unwrap_or(most).clamp(most / 4, 2 * most)
    }

    /// Does one step that is due; `false` if none is.
    pub(crate) fn step(&self, lineages: &dyn LineageCheck) -> Result<bool, TableError> {
        let _one_at_a_time = self.one_at_a_time.lock();
        if self.health.is_stopped() {
            return Ok(false);
        }
        let snapshot = self.snapshots.current();
        let done = if let Some((smaller, forgotten)) = self.without_oldest(&snapshot.version) {
            // The counter moves last: a reader that sees the new number uses an index without the tables.
            self.manifests.install(smaller, false).inspect(|()| {
                self.counters.forgotten_tables.fetch_add(forgotten, Ordering::Relaxed);
            })
        } else if let Some(step) = self.due(&snapshot.version) {
            // Compactions come first, or runs would pile up while memtables arrive. A compaction flushes waiting
            // memtables between its tables.
            self.carry_out(&snapshot.version, &step, lineages).inspect_err(|_| {
                // It is due again after the next flush, which must not wait for a step that fails.
                self.is_flushed.store(false, Ordering::Release);
            })
        } else if let Some(frozen) = snapshot.frozen.back() {
            self.flush(&snapshot, frozen)
        } else {
            return Ok(false);
        };
        if let Err(error) = &done {
            self.health.record(error);
        }
        done.map(|()| true)
    }

    /// The step that the last flush made necessary. Once there is none, nothing is due until the next flush.
    fn due(&self, version: &Version) -> Option<Step> {
        if !self.is_flushed.load(Ordering::Acquire) {
            return None;
        }
        let step = next_step(self.shape(), self.buffer_bytes(), &version.sizes());
        self.is_flushed.store(step.is_some(), Ordering::Release);
        step
    }

    /// Bits of filter per key for a table of a level; `bytes` are the bytes of all tables.
    fn filter_bits(&self, level: usize, bytes: u64) -> f64 {
        let buffer = self.buffer_bytes();
        #[expect(clippy::cast_precision_loss, reason = "a ratio that need not be exact")]
        let memtables = bytes.max(buffer) as f64 / buffer as f64;
        filter_bits(self.shape(), memtables, level, self.bounds.filter_bits)
    }

    /// Writes the current manifest again. The last one of a killed process may not be durable, so no file may be
    /// removed because of it. Without tables there is nothing to write.
    pub(crate) fn renew(&self) -> Result<(), TableError> {
        let _one_at_a_time = self.one_at_a_time.lock();
        let before = self.snapshots.current().version.clone();
        if before.number == 0 {
            return Ok(());
        }
        self.manifests.install(before.with_levels(before.levels.clone()), false)
    }

    /// Installs a version without tables, unless that was done. `false` if it is not possible.
    pub(crate) fn reset(&self) -> bool {
        let _one_at_a_time = self.one_at_a_time.lock();
        if let Some(cause) = self.health.stop_cause() {
            return cause == StopCause::TablesDropped;
        }
        self.manifests.install(self.manifests.without_tables(0), false).is_ok()
    }

    /// Stops all writes and drops the tables, so that the next open finds none.
    pub(crate) fn condemn(&self) {
        self.is_urgent.store(true, Ordering::Release);
        let _one_at_a_time = self.one_at_a_time.lock();
        self.manifests.drop_tables();
    }

    /// Like [`Self::condemn`], and readers do not find the tables any more either.
    pub(crate) fn empty(&self) {
        self.is_urgent.store(true, Ordering::Release);
        let _one_at_a_time = self.one_at_a_time.lock();
        self.manifests.drop_tables();
        // Points in the dropped tables may have referenced extents of the memtables.
        let version = Arc::new(Version { is_partial: true, ..Version::default() });
        self.snapshots.install(version, false);
    }

    /// A version that fits the space on disk, if this one does not, and how many tables it lacks. It drops tables of
    /// the oldest run, those with the largest keys, which are points. A block without its point is a miss. Entries of
    /// newer runs stay. Records may still show such blocks, so from then on no record counts without the point.
    fn without_oldest(&self, version: &Version) -> Option<(Version, u64)> {
        let mut bytes = version.bytes();
        let most = self.bounds.disk_bytes / 2;
        if bytes <= most {
            return None;
        }
        let mut levels = version.levels.clone();
        let oldest = levels.iter_mut().rev().find_map(|runs| runs.last_mut())?;
        let mut tables = oldest.tables().to_vec();
        let mut forgotten = 0;
        while bytes > most
            && let Some(table) = tables.pop()
        {
            bytes -= table.file_bytes();
            forgotten += 1;
        }
        tracing::warn!(
            most_bytes = most,
            "index outgrew its disk space; dropping its oldest blocks"
        );
        *oldest = Arc::new(SortedRun::new(tables));
        drop_empty(&mut levels);
        Some((Version { is_partial: true, ..version.with_levels(levels) }, forgotten))
    }

    fn flush(&self, snapshot: &Snapshot, frozen: &Arc<Frozen>) -> Result<(), TableError> {
        let mut levels = snapshot.version.levels.clone();
        if levels.is_empty() {
            levels.push(Vec::new());
        }
        let bits = self.filter_bits(0, snapshot.version.bytes());
        let hooks = OutputHooks { before_write: &|_| (), after_table: &|| Ok(()) };
        let mut output = RunOutput::new(&self.directory, bits, self.bounds.table_bytes, hooks);
        let mut written = Ok(());
        frozen.memtable.drain_sorted(|key, value| {
            if written.is_ok() {
                written = output.add(key, value);
            }
        });
        let run = written.and_then(|()| output.finish())?;
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.counters.flushed_bytes.fetch_add(run.bytes(), Ordering::Relaxed);
        if !run.tables().is_empty() {
            levels[0].insert(0, Arc::new(run));
            self.is_flushed.store(true, Ordering::Release);
        }
        let (sums, checkpoint) = (frozen.sums.clone(), frozen.checkpoint.clone());
        let version = Version { sums, checkpoint, ..snapshot.version.with_levels(levels) };
        self.manifests.install(version, true)
    }

    fn carry_out(
        &self,
        version: &Version,
        step: &Step,
        lineages: &dyn LineageCheck,
    ) -> Result<(), TableError> {
        let mut levels = version.levels.clone();
        let (inputs, level) = take_inputs(step, &mut levels);
        let mut compacted = None;
        if !inputs.is_empty() {
            let is_oldest = levels[level..].iter().all(Vec::is_empty);
            let bits = self.filter_bits(level, version.bytes());
            let turn = self.counters.merges.load(Ordering::Relaxed);
            let retention = Retention::new(version, is_oldest, lineages, turn);
            let run = self.compact(&inputs, bits, &retention)?;
            self.counters.merges.fetch_add(1, Ordering::Relaxed);
            self.counters.merged_bytes.fetch_add(run.bytes(), Ordering::Relaxed);
            let read = inputs.iter().map(|run| run.bytes()).sum();
            self.counters.merge_read_bytes.fetch_add(read, Ordering::Relaxed);
            compacted = Some(run).filter(|run| !run.tables().is_empty());
        }
        // Memtables may have been flushed meanwhile. Their runs are the newest ones.
        let now = Arc::clone(&self.snapshots.current().version);
        let mut levels = now.levels.clone();
        let flushed = now.levels[0].len() - version.levels[0].len();
        let newest: Vec<_> = levels[0].drain(..flushed).collect();
        take_inputs(step, &mut levels);
        levels[level].splice(0..0, compacted.map(Arc::new));
        levels[0].splice(0..0, newest);
        drop_empty(&mut levels);
        self.manifests.install(now.with_levels(levels), false)
    }

    /// Flushes a waiting memtable in the middle of a compaction. At most one per table that the compaction writes: if
    /// writers are faster than compactions, they have to wait in the end. Fails if the compaction must not go on.
    fn flush_one(&self) -> Result<(), TableError> {
        let snapshot = self.snapshots.current();
        let Some(frozen) = snapshot.frozen.back() else { return Ok(()) };
        match self.flush(&snapshot, frozen) {
            Err(error) if !self.health.is_stopped() => {
                // The next step tries again.
                self.health.record(&error);
                Ok(())
            }
            flushed => flushed,
        }
    }

    /// Compacts runs, the newest first, into one.
    fn compact(
        &self,
        inputs: &[Arc<SortedRun>],
        filter_bits: f64,
        retention: &Retention<'_>,
    ) -> Result<SortedRun, TableError> {
        let ahead = ReadMode::Ahead(COMPACTION_AHEAD_BYTES);
        let sources: Result<Vec<_>, _> =
            inputs.iter().map(|run| RunSource::new(Arc::clone(run), &[], ahead.clone())).collect();
        let mut entries = MergedSources::new(sources?);
        let before_write = |bytes| {
            if let Some(pace) = self.pace.get() {
                pace.wait(bytes);
            }
        };
        let after_table = || self.flush_one();
        let hooks = OutputHooks { before_write: &before_write, after_table: &after_table };
        let mut output =
            RunOutput::new(&self.directory, filter_bits, self.bounds.table_bytes, hooks);
        while let Some(key) = entries.key() {
            match retention.fate(key, entries.value())? {
                Fate::Keep => output.add(key, entries.value())?,
                Fate::KeepAsRemoval => output.add(key, &[])?,
                Fate::Drop => {}
            }
            entries.advance()?;
        }
        output.finish()
    }
}
