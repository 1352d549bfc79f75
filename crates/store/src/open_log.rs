//! Opening the log with the index that belongs to it.
//!
//! 1. An index in files is taken as it is only if it saw all of the log that it says it has taken in. While a segment
//!    cannot be read it counts as gone: what is removed then stays in tables, what is put to them is past. When such a
//!    segment is back, the index is built anew.
//! 2. So it is where a removal that it does not know yet cannot be carried out, for it cannot be read.
//! 3. Removals that only the old index knew are handed on to the new one.

use std::sync::Arc;

use dalsegno_core::{
    ChainHash, Clock, Error, ErrorKind, IndexChoice, Limits, NamespaceId, Result, StoreId,
};
use dalsegno_index::{
    Index, LsmIndex, LsmOptions, MemoryIndex, NOTES_FILE, index_number, lift_ancestors,
};
use dalsegno_io::{BufferPool, Device};
use dalsegno_log::{Log, LogOptions, Recovered, removals_of};

use crate::rebuild::{rebuild, tell_faults};
use crate::stats::Counters;
use crate::store::to_error;

/// Extents of one step of [`lift_all`].
const LIFTED_AT_ONCE: usize = 4096;

/// A log and the index that belongs to it.
pub(crate) struct Opened {
    pub(crate) log: Log,
    pub(crate) index: Arc<dyn Index>,
    /// The index once more if it lives in files.
    pub(crate) lsm: Option<Arc<LsmIndex>>,
}

/// Where a log is, and how it is opened.
pub(crate) struct Whence<'a> {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) pool: BufferPool,
    pub(crate) limits: &'a Limits,
    /// Whether headers are read one after the other.
    pub(crate) in_order: bool,
    /// The id if the store is new.
    pub(crate) new_store: StoreId,
}

/// A log, and an index that does not know all of it yet.
struct Found {
    opened: Opened,
    recovered: Recovered,
    /// What of the log the index had taken in, or what it says of removals if it is new.
    checkpoint: Vec<u8>,
    /// Whether the index began empty.
    is_new: bool,
    /// Whether it began empty since it was given up, or lost its tables: it takes in all of the log.
    began_anew: bool,
    /// Whether it saw all of what it had taken in.
    is_whole: bool,
}

impl Whence<'_> {
    /// Opens the log and fills the index.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the device fails; `Incompatible` if the store is not ours to open.
    pub(crate) fn open(&self, counters: &Counters) -> Result<Opened> {
        let found = self.find(None)?;
        tell_faults(counters, &found.recovered.faults);
        let (told, removals) = (found.recovered.faults.clone(), removals_of(&found.checkpoint));
        let outdated = if found.is_whole {
            let began_anew = found.began_anew;
            let (opened, is_filled) = found.fill();
            if is_filled {
                if began_anew {
                    flush(&opened);
                }
                return Ok(opened);
            }
            opened
        } else {
            found.opened
        };
        tracing::warn!("the index in files does not know all of the log; it is built anew");
        let Opened { log, index, lsm } = outdated;
        let is_anew = lsm.as_ref().is_some_and(|lsm| lsm.begin_anew());
        drop((index, lsm));
        log.release();
        if !is_anew {
            remove_index_files(self.device.as_ref(), |name| index_number(name).is_some());
        }
        let found = self.find(removals)?;
        let untold = found.recovered.faults.iter().filter(|fault| !told.contains(fault));
        tell_faults(counters, &untold.cloned().collect::<Vec<_>>());
        if !found.is_new {
            let message = "the files of the index are out of date and cannot be removed";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let (opened, is_filled) = found.fill();
        if !is_filled {
            // Segments of which it knows nothing would look dead.
            let message = "the index could not be built anew: its files cannot be read or written";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        flush(&opened);
        Ok(opened)
    }

    /// What the log holds that the index does not know; `removals` are known of if there is no index.
    fn find(&self, removals: Option<Vec<u8>>) -> Result<Found> {
        let (device, clock) = (Arc::clone(&self.device), Arc::clone(&self.clock));
        let (pool, mut options) = (self.pool.clone(), LogOptions::new(self.limits.clone()));
        if self.in_order {
            options.scan_threads = 1;
        }
        if self.limits.index == IndexChoice::Memory {
            let (log, recovered) =
                Log::open(Arc::clone(&device), clock, pool, options, self.new_store)
                    .map_err(to_error)?;
            // Not before the store is known to be ours.
            let is_of_index = |name: &str| index_number(name).is_some() || name == NOTES_FILE;
            remove_index_files(device.as_ref(), is_of_index);
            let opened = Opened { log, index: Arc::new(MemoryIndex::default()), lsm: None };
            let checkpoint = Vec::new();
            let (is_new, began_anew, is_whole) = (true, false, true);
            return Ok(Found { opened, recovered, checkpoint, is_new, began_anew, is_whole });
        }
        let lsm_options = LsmOptions {
            memtable_bytes: self.limits.index_memory_bytes / 8,
            cache_bytes: self.limits.index_memory_bytes / 4,
            disk_bytes: self.limits.index_bytes,
            shape: self.limits.index_tuning.pinned(),
            without_tables: |checkpoint| removals_of(checkpoint).unwrap_or_default(),
            ..LsmOptions::default()
        };
        let mut opened = None;
        let index_device = Arc::clone(&device);
        let mut known = removals;
        let checkpoint_of = |store| {
            let index = LsmIndex::open(index_device, store, lsm_options);
            let checkpoint = index.as_ref().ok().and_then(|(_, checkpoint)| checkpoint.clone());
            opened = Some(index);
            known = checkpoint.or(known.take());
            known.clone()
        };
        let (log, recovered) =
            Log::open_with_checkpoint(device, clock, pool, options, self.new_store, checkpoint_of)
                .map_err(to_error)?;
        let (lsm, _) = opened.expect("the log asks for its checkpoint").map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the index cannot be opened").with_source(error)
        })?;
        let lsm = Arc::new(lsm);
        // A segment whose header is damaged has no epoch.
        let sound = log.segments().views().into_iter().filter(|view| view.epoch > 0);
        let is_aligned =
            lsm.align(&sound.map(|view| (view.number, view.epoch)).collect::<Vec<_>>());
        log.segments().begin_after(lsm.newest_segment().unwrap_or_default());
        let is_new = !lsm.has_tables();
        let began_anew =
            is_new && known.as_ref().is_some_and(|checkpoint| is_of_removals(checkpoint));
        let is_whole = began_anew || is_aligned && !recovered.is_one_back;
        let index = Arc::<LsmIndex>::clone(&lsm);
        let opened = Opened { log, index, lsm: Some(lsm) };
        let checkpoint = known.unwrap_or_default();
        Ok(Found { opened, recovered, checkpoint, is_new, began_anew, is_whole })
    }
}

impl Found {
    /// Lets the index take in what it does not know; `false` if something of it could not be read: it may not have
    /// learned of every removal, and a torn merge may have taken the place of what was not found.
    fn fill(self) -> (Opened, bool) {
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
        rebuild(&opened.log, opened.index.as_ref(), recovered, &goes_on);
        if lsm.is_none() {
            lift_all(opened.index.as_ref());
        }
        let is_filled = is_readable();
        (opened, is_filled)
    }
}

/// Makes each extent as recent as what depends on it. For an index whose look-ups cost no I/O; an on-disk index
/// learns it from a walk once it is open.
fn lift_all(index: &dyn Index) {
    let mut from = (NamespaceId::default(), ChainHash::default(), 0);
    loop {
        let extents = index.scan(from, LIFTED_AT_ONCE);
        lift_ancestors(index, &extents);
        let next = extents.last().filter(|_| extents.len() == LIFTED_AT_ONCE).and_then(|last| {
            let first = last.first_block_index.checked_add(1)?;
            Some((last.namespace, last.lineage, first))
        });
        let Some(next) = next else { return };
        from = next;
    }
}

/// Flushes an index that was built anew: who is killed soon and often need not build it again.
fn flush(opened: &Opened) {
    if let (Some(lsm), Ok(checkpoint)) = (&opened.lsm, opened.log.checkpoint()) {
        lsm.freeze(checkpoint);
        while lsm.step() {}
    }
}

/// Whether a checkpoint knows of removals at most.
fn is_of_removals(checkpoint: &[u8]) -> bool {
    removals_of(checkpoint).is_none_or(|removals| removals == checkpoint)
}

/// Bounds an index's memory while much is taken in. The checkpoint is the old one until all is: what is taken in twice
/// is taken in once.
fn keep_up(lsm: Option<&LsmIndex>, log: &Log, checkpoint: &[u8]) {
    if let Some(lsm) = lsm.filter(|lsm| lsm.is_full())
        && log.checkpoint().is_ok()
    {
        lsm.freeze(checkpoint.to_vec());
        while lsm.step() {}
    }
}

/// Removes files of an index that is not used any more. Best effort.
fn remove_index_files(device: &dyn Device, which: impl Fn(&str) -> bool) {
    let names = device.list().unwrap_or_default().into_iter().map(|entry| entry.name);
    for name in names.filter(|name| which(name)) {
        if let Err(error) = device.remove(&name) {
            tracing::warn!("{name} was not removed: {error}");
        }
    }
}
