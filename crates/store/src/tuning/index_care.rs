//! Maintains an on-disk index: flushes what is in memory, compacts tables, and adapts the shape to the workload.
//!
//! 1. A checkpoint is made before the index is frozen, so everything before it is in the index.
//! 2. One thread does the work, or the writers where there is no thread. Readers never wait for it.
//! 3. Compaction keeps to a rate. Meanwhile memtables are still frozen and flushed.
//! 4. The thread flushes what is in memory before it ends. Closing waits for that, but not for a device that hangs.
//!    Then the directory stays locked until the thread ends, and the next open indexes from the log what is missing.
//! 5. Waiting for it is bounded, and so is the memory of what waits for a flush. An index that accepts no more entries
//!    fails puts; it does not hold threads or memory.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dalsegno_core::{Clock, Result};
use dalsegno_index::{LsmIndex, Pace, Shortage};
use dalsegno_io::{Call, Duty, Executor, NextStep, Periodic, StopSignal};
use dalsegno_log::{Log, OtherFiles};
use dalsegno_policy::merging::Bucket;
use parking_lot::{Condvar, Mutex};

use crate::error::no_thread;
use crate::tuning::tuner::{IndexStats, Tuner};

/// The thread looks after the index so often even if nobody wakes it.
const PERIOD: Duration = Duration::from_secs(5);
/// How long a put waits for memory of the index before its blocks are not kept.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a compaction that waits for its rate looks whether it may go on.
const PAUSE: Duration = Duration::from_millis(100);
/// How long closing waits for a flush or a compaction that is under way.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maintains an index; does nothing for one in memory.
#[derive(Debug)]
pub(crate) struct IndexCare(Option<Maintenance>);

#[derive(Debug)]
struct Maintenance {
    index: Arc<MaintainedIndex>,
    helper: Periodic<IndexDuty>,
}

/// An on-disk index, and what its maintenance shares with those who write to it.
#[derive(Debug)]
struct MaintainedIndex {
    lsm: Arc<LsmIndex>,
    log: Log,
    tuner: Mutex<Tuner>,
    progress: Mutex<CareProgress>,
    /// Signals every change of `progress`, and every flush.
    changed: Condvar,
    /// What the index may take of the disk.
    index_bytes: u64,
    clock: Arc<dyn Clock>,
}

#[derive(Debug, Default)]
struct CareProgress {
    is_stopped: bool,
    /// The last round freed no memory: the disk is full or fails, or the index is damaged.
    is_stuck: bool,
}

#[derive(Debug)]
struct IndexDuty(Arc<MaintainedIndex>);

/// How an on-disk index is maintained.
pub(crate) struct IndexCareOptions {
    pub(crate) clock: Arc<dyn Clock>,
    /// What compaction may write, zero for any rate.
    pub(crate) bytes_per_s: u64,
    /// What the index may take of the disk.
    pub(crate) index_bytes: u64,
    pub(crate) executor: Executor,
}

impl IndexCare {
    /// For an index in memory.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    pub(crate) fn start(
        lsm: Arc<LsmIndex>,
        log: Log,
        tuner: Tuner,
        options: IndexCareOptions,
    ) -> Result<Self> {
        let IndexCareOptions { clock, bytes_per_s, index_bytes, executor } = options;
        let (tuner, progress) = (Mutex::new(tuner), Mutex::default());
        let changed = Condvar::new();
        let index = MaintainedIndex { lsm, log, tuner, progress, changed, index_bytes, clock };
        let index = Arc::new(index);
        index.reserve_space();
        if executor == Executor::Threads {
            let bucket = (bytes_per_s > 0).then(|| Mutex::new(Bucket::new(bytes_per_s)));
            let of = Arc::downgrade(&index);
            index.lsm.set_pace(Arc::new(CompactionPace { of, bucket }));
        }
        let (duty, first) = (IndexDuty(Arc::clone(&index)), NextStep::After(PERIOD));
        let helper = Periodic::start("dalsegno-index", executor, duty, first).map_err(no_thread)?;
        Ok(Self(Some(Maintenance { index, helper })))
    }

    /// What the index consists of, and why; none for one in memory.
    pub(crate) fn stats(&self) -> Option<IndexStats> {
        let index = &self.0.as_ref()?.index;
        Some(index.tuner.lock().stats(&index.lsm))
    }

    /// To be called before something is inserted: waits until the index accepts it, but not for long, and not when the
    /// call is over.
    pub(crate) fn before_write(&self, call: &Call) {
        let Some(Maintenance { index, helper }) = self.0.as_ref().filter(|care| care.is_stalled())
        else {
            return;
        };
        if helper.is_inline() {
            return helper.step_inline();
        }
        let clock = index.clock.as_ref();
        let call = call.clone().until(call.at_most(WRITE_TIMEOUT, clock));
        let mut progress = index.progress.lock();
        // If the index cannot free memory, waiting is for nothing.
        while index.lsm.is_stalled() && !progress.is_stopped && !progress.is_stuck {
            helper.wake();
            if let Ok(timeout) = call.timeout(clock) {
                index.changed.wait_for(&mut progress, timeout.unwrap_or(WRITE_TIMEOUT));
            } else {
                tracing::warn!("index write stalled; blocks are not kept until it goes on");
                return;
            }
        }
    }

    /// To be called when something was inserted.
    pub(crate) fn after_write(&self) {
        if let Some(care) = self.0.as_ref().filter(|care| care.index.lsm.is_full()) {
            care.helper.wake();
            care.helper.step_inline();
        }
    }

    /// Why the index could not write something, unless it wrote something else since.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        self.0.as_ref().and_then(|care| care.index.lsm.shortage())
    }

    /// Whether the index accepts nothing until it has flushed something.
    pub(crate) fn is_stalled(&self) -> bool {
        self.0.as_ref().is_some_and(Maintenance::is_stalled)
    }

    /// To be called when space on disk was freed.
    pub(crate) fn has_space_again(&self) {
        let Some(Maintenance { index, helper }) = &self.0 else { return };
        index.lsm.has_space_again();
        index.progress.lock().is_stuck = false;
        index.changed.notify_all();
        helper.wake();
    }

    /// Stops writing because the index cannot be used any more: the next open rebuilds it.
    pub(crate) fn condemn(&self, why: &str) {
        if let Some(Maintenance { index, .. }) = &self.0 {
            // First, because engines need not wait for a compaction under way.
            index.log.poison(why);
            index.lsm.condemn();
        }
    }

    /// Stops writing if a removal had to empty the index. A put would otherwise take the space of extents that the
    /// index no longer knows. To be called when the removal is durable.
    pub(crate) fn condemn_if_emptied(&self) {
        if self.is_emptied() {
            self.condemn("the index cannot be read, and a removal emptied it");
        }
    }

    /// Whether a removal had to empty the index because it could not be read.
    pub(crate) fn is_emptied(&self) -> bool {
        self.0.as_ref().is_some_and(|care| care.index.lsm.is_emptied())
    }

    /// Flushes what is in memory, so that the next open need not index it again. Calling it again does nothing.
    pub(crate) fn close(&self) {
        let Some(Maintenance { index, helper }) = &self.0 else { return };
        index.stop();
        helper.close();
        helper.join(CLOSE_TIMEOUT);
    }
}

impl Maintenance {
    fn is_stalled(&self) -> bool {
        self.index.lsm.is_stalled()
    }
}

impl Drop for Maintenance {
    /// A dropped store is closed too, if this process opened it; the helper does the rest. Before that, a compaction
    /// that waits for its rate must see the end.
    fn drop(&mut self) {
        if self.helper.is_ours() {
            self.index.stop();
        }
    }
}

impl Duty for IndexDuty {
    fn step(&mut self, _: &StopSignal) -> NextStep {
        let Self(index) = self;
        index.round();
        index.progress.lock().is_stuck = index.lsm.is_stalled();
        index.changed.notify_all();
        NextStep::After(PERIOD)
    }

    /// Flushes what is in memory.
    fn finish(&mut self) {
        let Self(index) = self;
        index.freeze();
        while index.lsm.has_frozen() && index.lsm.step() {}
        index.condemn_if_damaged();
        index.stop_if_useless();
    }
}

/// What happens between two writes of a compaction.
#[derive(Debug)]
struct CompactionPace {
    of: Weak<MaintainedIndex>,
    /// None where compaction may write at any rate.
    bucket: Option<Mutex<Bucket>>,
}

impl Pace for CompactionPace {
    fn wait(&self, bytes: u64) {
        let Some(index) = self.of.upgrade() else { return };
        index.freeze_if_full();
        let Some(bucket) = &self.bucket else { return };
        let mut bucket = bucket.lock();
        let mut progress = index.progress.lock();
        // A writer that waits for a flush waits for this compaction's next table.
        while !progress.is_stopped
            && !index.lsm.is_stalled()
            && !index.lsm.is_urgent()
            && let Some(wait) = bucket.wait(index.clock.now()).filter(|wait| !wait.is_zero())
        {
            index.changed.wait_for(&mut progress, wait.min(PAUSE));
        }
        bucket.spend(bytes, index.clock.now());
    }
}

impl MaintainedIndex {
    /// Ends what waits for a rate or for memory, and a round after its next step.
    fn stop(&self) {
        self.progress.lock().is_stopped = true;
        self.changed.notify_all();
    }

    fn round(&self) {
        self.freeze_if_full();
        self.tune();
        while !self.progress.lock().is_stopped && self.lsm.step() {
            self.reserve_space();
            // Writers that wait for memory look again after every flush.
            self.changed.notify_all();
            self.freeze_if_full();
        }
        self.reserve_space();
        self.condemn_if_damaged();
        self.stop_if_useless();
    }

    /// Makes the log leave space for the index to grow and to compact.
    fn reserve_space(&self) {
        self.log.segments().keep_space_for(OtherFiles {
            most_bytes: self.index_bytes,
            used_bytes: self.lsm.disk_bytes(),
            soon_bytes: self.lsm.waiting_bytes(),
        });
    }

    /// Stops writing if the index cannot become durable, or has no space and never will. A put would then evict other
    /// blocks for nothing, because the index would not accept its own.
    fn stop_if_useless(&self) {
        if self.lsm.is_unsure() {
            self.log.poison("the index could not be made durable");
        } else if self.lsm.has_failed() && self.lsm.is_stalled() {
            self.log.poison("the index accepts no more entries until it is rebuilt");
        }
    }

    fn freeze_if_full(&self) {
        if self.lsm.is_full() {
            self.freeze();
            self.tune();
        }
    }

    /// Unless too much waits already.
    fn freeze(&self) {
        if self.lsm.is_stalled() {
            return;
        }
        match self.log.checkpoint() {
            Ok(checkpoint) => self.lsm.freeze(checkpoint),
            Err(error) => tracing::warn!(%error, "index flush postponed; entries stay in memory"),
        }
    }

    /// Runs after a memtable was frozen, so that its flush already follows the new shape. It also runs periodically:
    /// where nothing is written, the window of the tuner moves too.
    fn tune(&self) {
        let notes = {
            let mut tuner = self.tuner.lock();
            tuner.turn(&self.lsm).map(|_| tuner.notes())
        };
        // Without the tuner's lock: closing reads its counters, and must not wait for a device that hangs.
        if let Some(notes) = notes {
            self.lsm.write_notes(&notes);
        }
    }

    fn condemn_if_damaged(&self) {
        if self.lsm.is_damaged() {
            self.lsm.condemn();
        }
    }
}
