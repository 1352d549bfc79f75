//! Opening the log with the index that belongs to it.
//!
//! 1. An on-disk index is used only if it has seen all of the log up to its checkpoint. While a segment cannot be read
//!    it counts as gone: removals since then stay in tables, puts to it do not. When such a segment is back, the index
//!    is rebuilt.
//! 2. The index is also rebuilt if it cannot be read where a removal that it does not know must be applied.
//! 3. Removals that only the old index knew are handed to the new one.

use std::sync::Arc;

use dalsegno_core::{Clock, Error, ErrorKind, IndexChoice, Limits, Result, StoreId};
use dalsegno_index::{
    Index, LsmIndex, LsmOptions, MemoryIndex, NOTES_FILE, ScanPlace, index_number, lift_ancestors,
};
use dalsegno_io::{BufferPool, Device, Executor};
use dalsegno_log::{Log, LogOptions, Recovered, removals_of};

use crate::counters::Counters;
use crate::error::to_error;
use crate::open::fill_index::{fill_index, report_faults};

/// Extents of one step of [`lift_all`].
const LIFTED_AT_ONCE: usize = 4096;

/// A log and the index that belongs to it.
pub(crate) struct LogAndIndex {
    pub(crate) log: Log,
    pub(crate) index: Arc<dyn Index>,
    /// The same index, if it is on disk.
    pub(crate) lsm: Option<Arc<LsmIndex>>,
}

/// Where a log is, and how it is opened.
pub(crate) struct LogSource<'a> {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) pool: BufferPool,
    pub(crate) limits: &'a Limits,
    /// With [`Executor::Inline`] one thread reads all headers.
    pub(crate) executor: Executor,
    /// The id if the store is new.
    pub(crate) new_store: StoreId,
}

/// A log, and an index that does not know all of it yet.
struct UnfilledIndex {
    opened: LogAndIndex,
    recovered: Recovered,
    /// How far the index knows the log; if it is new, its removals.
    checkpoint: Vec<u8>,
    start: IndexStart,
}

/// What an index knows when it is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IndexStart {
    /// Nothing: it is in memory, or the store is new.
    Empty,
    /// Nothing: it was given up, or lost its tables. It indexes the whole log.
    Reset,
    /// All of the log up to its checkpoint.
    Current,
    /// Not all of the log up to its checkpoint.
    Outdated { has_tables: bool },
}

impl LogSource<'_> {
    /// Opens the log and fills the index.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the device fails; `Incompatible` if the store is not ours to open.
    pub(crate) fn open(&self, counters: &Counters) -> Result<LogAndIndex> {
        let found = self.find(None)?;
        report_faults(counters, &found.recovered.faults);
        let (reported, removals) = (found.recovered.faults.clone(), removals_of(&found.checkpoint));
        let start = found.start;
        let outdated = if matches!(start, IndexStart::Outdated { .. }) {
            found.opened
        } else {
            let (opened, is_filled) = found.fill();
            if is_filled {
                if start == IndexStart::Reset {
                    flush(&opened);
                }
                return Ok(opened);
            }
            opened
        };
        tracing::warn!("the on-disk index does not know all of the log; rebuilding it");
        self.discard(outdated);
        let found = self.find(removals)?;
        let is_new = |fault: &&_| !reported.contains(fault);
        let new_faults = found.recovered.faults.iter().filter(is_new);
        report_faults(counters, &new_faults.cloned().collect::<Vec<_>>());
        if matches!(found.start, IndexStart::Current | IndexStart::Outdated { has_tables: true }) {
            let message = "the files of the index are out of date and cannot be removed";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let (opened, is_filled) = found.fill();
        if !is_filled {
            // Segments that it does not know would look dead.
            let message = "the index could not be rebuilt: its files cannot be read or written";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        flush(&opened);
        Ok(opened)
    }

    /// Closes a log and removes the tables of its index.
    fn discard(&self, outdated: LogAndIndex) {
        let LogAndIndex { log, index, lsm } = outdated;
        let is_reset = lsm.as_ref().is_some_and(|lsm| lsm.reset());
        drop((index, lsm));
        log.release();
        if !is_reset {
            remove_index_files(self.device.as_ref(), |name| index_number(name).is_some());
        }
    }

    /// Opens the log, and the index if it is on disk; `removals` are known if there is no index.
    fn find(&self, removals: Option<Vec<u8>>) -> Result<UnfilledIndex> {
        let (device, clock) = (Arc::clone(&self.device), Arc::clone(&self.clock));
        let (pool, mut options) = (self.pool.clone(), LogOptions::new(self.limits.clone()));
        if self.executor == Executor::Inline {
            options.scan_threads = 1;
        }
        if self.limits.index == IndexChoice::Memory {
            let (log, recovered) =
                Log::open(Arc::clone(&device), clock, pool, options, self.new_store)
                    .map_err(to_error)?;
            // Not before the store is known to be ours.
            let is_of_index = |name: &str| index_number(name).is_some() || name == NOTES_FILE;
            remove_index_files(device.as_ref(), is_of_index);
            let opened = LogAndIndex { log, index: Arc::new(MemoryIndex::default()), lsm: None };
            let (checkpoint, start) = (Vec::new(), IndexStart::Empty);
            return Ok(UnfilledIndex { opened, recovered, checkpoint, start });
        }
        let lsm_options = self.lsm_options();
        let mut opened = None;
        let (index_device, index_clock) = (Arc::clone(&device), Arc::clone(&clock));
        let mut known = removals;
        let checkpoint_of = |store| {
            let index = LsmIndex::open(index_device, index_clock, store, lsm_options);
            let checkpoint = index.as_ref().ok().and_then(|(_, checkpoint)| checkpoint.clone());
            opened = Some(index);
            known = checkpoint.or(known.take());
            known.clone()
        };
        let (log, recovered) =
            Log::open_with_checkpoint(device, clock, pool, options, self.new_store, checkpoint_of)
                .map_err(to_error)?;
        let (lsm, _) = opened.expect("the log requests its checkpoint").map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the index cannot be opened").with_source(error)
        })?;
        let lsm = Arc::new(lsm);
        // A segment whose header is damaged has no epoch.
        let sound = log.segments().views().into_iter().filter(|view| view.epoch > 0);
        let is_aligned =
            lsm.align(&sound.map(|view| (view.number, view.epoch)).collect::<Vec<_>>());
        log.segments().begin_after(lsm.newest_segment().unwrap_or_default());
        let has_tables = lsm.has_tables();
        let is_reset = !has_tables && known.as_deref().is_some_and(is_of_removals);
        let start = if is_reset {
            IndexStart::Reset
        } else if !is_aligned || recovered.is_one_back {
            IndexStart::Outdated { has_tables }
        } else if has_tables {
            IndexStart::Current
        } else {
            IndexStart::Empty
        };
        let index = Arc::<LsmIndex>::clone(&lsm);
        let opened = LogAndIndex { log, index, lsm: Some(lsm) };
        let checkpoint = known.unwrap_or_default();
        Ok(UnfilledIndex { opened, recovered, checkpoint, start })
    }

    fn lsm_options(&self) -> LsmOptions {
        LsmOptions {
            memtable_bytes: self.limits.index_memory_bytes / 8,
            cache_bytes: self.limits.index_memory_bytes / 4,
            disk_bytes: self.limits.index_bytes,
            shape: self.limits.index_tuning.pinned(),
            without_tables: |checkpoint| removals_of(checkpoint).unwrap_or_default(),
            ..LsmOptions::default()
        }
    }
}

impl UnfilledIndex {
    /// Indexes what the index does not know. `false` if the index could not be read: it may not have applied every
    /// removal, and a torn merge may have replaced extents that were not found.
    fn fill(self) -> (LogAndIndex, bool) {
        let Self { opened, recovered, checkpoint, .. } = self;
        let lsm = opened.lsm.as_deref();
        let is_readable = || lsm.is_none_or(|lsm| !lsm.is_damaged() && !lsm.has_missed());
        let goes_on = || {
            let is_readable = is_readable();
            if is_readable {
                keep_up(lsm, &opened.log, &checkpoint);
            }
            is_readable
        };
        fill_index(&opened.log, opened.index.as_ref(), recovered, &goes_on);
        if lsm.is_none() {
            lift_all(opened.index.as_ref());
        }
        let is_filled = is_readable();
        (opened, is_filled)
    }
}

/// Makes each extent as recent as the extents that depend on it. For an index whose lookups need no I/O; an on-disk
/// index learns this from a walk once it is open.
fn lift_all(index: &dyn Index) {
    let mut from = ScanPlace::default();
    loop {
        let extents = index.scan(from, LIFTED_AT_ONCE);
        lift_ancestors(index, &extents);
        let last = extents.last().filter(|_| extents.len() == LIFTED_AT_ONCE);
        let Some(next) = last.and_then(|last| ScanPlace::behind(last)) else { return };
        from = next;
    }
}

/// Flushes a rebuilt index, so that a process that is killed soon need not rebuild it again.
fn flush(opened: &LogAndIndex) {
    if let (Some(lsm), Ok(checkpoint)) = (&opened.lsm, opened.log.checkpoint()) {
        lsm.freeze(checkpoint);
        while lsm.step() {}
    }
}

/// Whether a checkpoint holds only removals.
fn is_of_removals(checkpoint: &[u8]) -> bool {
    removals_of(checkpoint).is_none_or(|removals| removals == checkpoint)
}

/// Bounds an index's memory while much is indexed. The checkpoint stays the old one until all is indexed; an extent
/// that is indexed twice counts once.
fn keep_up(lsm: Option<&LsmIndex>, log: &Log, checkpoint: &[u8]) {
    if let Some(lsm) = lsm.filter(|lsm| lsm.is_full())
        && log.checkpoint().is_ok()
    {
        lsm.freeze(checkpoint.to_vec());
        while lsm.step() {}
    }
}

/// Removes files of an index that is not used any more, as far as possible.
fn remove_index_files(device: &dyn Device, which: impl Fn(&str) -> bool) {
    let names = device.list().unwrap_or_default().into_iter().map(|entry| entry.name);
    for name in names.filter(|name| which(name)) {
        if let Err(error) = device.remove(&name) {
            tracing::warn!(file = name, %error, "unused index file not removed");
        }
    }
}
