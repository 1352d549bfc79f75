//! Keeps an index that lives in files in shape: what was written becomes tables, tables are merged, and the shape
//! follows what is asked of the index.
//!
//! 1. A checkpoint is made before the index is frozen, so that whatever it covers is in the index.
//! 2. One thread does it, or whoever writes where there is none; nobody who reads ever waits for it.
//! 3. Merges keep to a rate, and while one goes on memtables are frozen and flushed as ever.
//! 4. The thread writes what is in memory before it ends. Closing waits for that, but not for a device that hangs: then
//!    the directory is let go when the thread ends, and the next open takes in from the log what is missing.
//! 5. Waiting for it is bounded, and so is the memory of what waits to be written: an index that takes nothing in any
//!    more costs puts, not threads and not memory.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dalsegno_core::{Clock, Result};
use dalsegno_index::{LsmIndex, Pace, Shortage};
use dalsegno_io::Workers;
use dalsegno_log::{Call, Log, OtherFiles};
use dalsegno_policy::merging::Bucket;
use parking_lot::{Condvar, Mutex};

use crate::store::no_thread;
use crate::tuner::{IndexStats, Tuner};

/// The thread looks after the index so often even if nobody calls it.
const PERIOD: Duration = Duration::from_secs(5);
/// How long a put waits for memory of the index before its blocks are not kept.
const PATIENCE: Duration = Duration::from_secs(5);
/// A merge that waits for its turn looks so often whether it is still to.
const PAUSE: Duration = Duration::from_millis(100);
/// How long closing waits for a flush or a merge that is under way.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// Looks after an index; does nothing for one that lives in memory.
#[derive(Debug)]
pub(crate) struct Upkeep {
    shared: Option<Arc<Shared>>,
    /// None where whoever writes does the work.
    threads: Option<Mutex<Workers>>,
}

#[derive(Debug)]
struct Shared {
    index: Arc<LsmIndex>,
    log: Log,
    tuner: Mutex<Tuner>,
    state: Mutex<State>,
    changed: Condvar,
    /// What it may take of the disk.
    index_bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    called: bool,
    stopped: bool,
    /// The last round could not make room: a disk that is full or fails, a damaged index.
    stuck: bool,
}

/// How an index in files is looked after.
pub(crate) struct UpkeepRules {
    pub(crate) clock: Arc<dyn Clock>,
    /// What merges may write, zero for any.
    pub(crate) bytes_per_s: u64,
    /// What the index may take of the disk.
    pub(crate) index_bytes: u64,
    /// Leaves the work to those who write, so that a simulation replays.
    pub(crate) inline: bool,
}

impl Upkeep {
    /// For an index that needs none.
    pub(crate) fn none() -> Self {
        Self { shared: None, threads: None }
    }

    pub(crate) fn start(
        index: Arc<LsmIndex>,
        log: Log,
        tuner: Tuner,
        rules: UpkeepRules,
    ) -> Result<Self> {
        let UpkeepRules { clock, bytes_per_s, index_bytes, inline } = rules;
        let (tuner, state, changed) = (Mutex::new(tuner), Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { index, log, tuner, state, changed, index_bytes });
        shared.keep_free();
        if inline {
            return Ok(Self { shared: Some(shared), threads: None });
        }
        let bucket = (bytes_per_s > 0).then(|| Mutex::new(Bucket::new(bytes_per_s)));
        let of = Arc::downgrade(&shared);
        shared.index.set_pace(Arc::new(MergePace { of, clock, bucket }));
        let mut threads = Workers::new();
        let body = Arc::clone(&shared);
        threads.start("dalsegno-index", move || body.run()).map_err(no_thread)?;
        Ok(Self { shared: Some(shared), threads: Some(Mutex::new(threads)) })
    }

    /// What the index is made of, and why; none for one that lives in memory.
    pub(crate) fn stats(&self) -> Option<IndexStats> {
        let shared = self.shared.as_ref()?;
        Some(shared.tuner.lock().stats(&shared.index))
    }

    /// To be called before something is put into the index: waits until it takes it in, but not for ever, and not when
    /// the call is over.
    pub(crate) fn before_write(&self, call: &Call, clock: &dyn Clock) {
        let Some(shared) = self.shared.as_ref().filter(|shared| shared.index.is_stalled()) else {
            return;
        };
        if self.threads.is_none() {
            shared.round();
            return;
        }
        let call = call.clone().until(call.at_most(PATIENCE, clock));
        let mut state = shared.state.lock();
        // Where nothing can be made room for, waiting for it helps nobody.
        while shared.index.is_stalled() && !state.stopped && !state.stuck {
            state.called = true;
            shared.changed.notify_all();
            if let Ok(patience) = call.timeout(clock) {
                let patience = patience.unwrap_or(PATIENCE);
                shared.changed.wait_for(&mut state, patience);
            } else {
                tracing::warn!("the index takes nothing in; blocks are not kept until it does");
                return;
            }
        }
    }

    /// Why the index could not write something, unless it wrote something else since.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        self.shared.as_ref().and_then(|shared| shared.index.shortage())
    }

    /// Whether the index takes nothing in until it has written something.
    pub(crate) fn is_stalled(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.index.is_stalled())
    }

    /// To be called when somebody made room on disk.
    pub(crate) fn has_room_again(&self) {
        let Some(shared) = &self.shared else { return };
        shared.index.has_room_again();
        let mut state = shared.state.lock();
        (state.called, state.stuck) = (true, false);
        shared.changed.notify_all();
    }

    /// To be called when something was put into the index.
    pub(crate) fn after_write(&self) {
        let Some(shared) = self.shared.as_ref().filter(|shared| shared.index.is_full()) else {
            return;
        };
        if self.threads.is_none() {
            shared.round();
        } else {
            shared.state.lock().called = true;
            shared.changed.notify_all();
        }
    }

    /// Stops writing, for the index is of no use any more: the next open builds it anew.
    pub(crate) fn give_up(&self, why: &str) {
        if let Some(shared) = &self.shared {
            // First: engines need not wait for a merge under way.
            shared.log.poison(why);
            shared.index.condemn();
        }
    }

    /// As [`Self::give_up`] if a removal had to empty the index: what is put now would take the room of what it does
    /// not know of. To be called when the removal is durable.
    pub(crate) fn give_up_if_emptied(&self) {
        if self.is_emptied() {
            self.give_up("the index cannot be read, and is empty since a removal");
        }
    }

    /// Whether a removal had to empty the index, because it could not be read.
    pub(crate) fn is_emptied(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.index.is_emptied())
    }

    /// Makes tables of what is in memory, so that the next open has nothing to take in again. Once is enough.
    pub(crate) fn close(&self) {
        let Some(shared) = &self.shared else { return };
        if std::mem::replace(&mut shared.state.lock().stopped, true) {
            return;
        }
        shared.changed.notify_all();
        match &self.threads {
            Some(threads) => threads.lock().join(CLOSE_PATIENCE),
            None => shared.finish(),
        }
    }
}

/// What happens between two writes of a merge.
#[derive(Debug)]
struct MergePace {
    of: Weak<Shared>,
    clock: Arc<dyn Clock>,
    /// None where merges may write as much as they can.
    bucket: Option<Mutex<Bucket>>,
}

impl Pace for MergePace {
    fn wait(&self, bytes: u64) {
        let Some(shared) = self.of.upgrade() else { return };
        shared.freeze_if_full();
        let Some(bucket) = &self.bucket else { return };
        let mut bucket = bucket.lock();
        let mut state = shared.state.lock();
        // Whoever waits for a flush waits for this merge's next table.
        while !state.stopped
            && !shared.index.is_stalled()
            && !shared.index.is_hurried()
            && let Some(wait) = bucket.wait(self.clock.now()).filter(|wait| !wait.is_zero())
        {
            shared.changed.wait_for(&mut state, wait.min(PAUSE));
        }
        bucket.spend(bytes, self.clock.now());
    }
}

impl Shared {
    fn run(&self) {
        loop {
            {
                let mut state = self.state.lock();
                if !state.called && !state.stopped {
                    self.changed.wait_for(&mut state, PERIOD);
                }
                if state.stopped {
                    break;
                }
                state.called = false;
            }
            self.round();
            self.state.lock().stuck = self.index.is_stalled();
            self.changed.notify_all();
        }
        self.finish();
    }

    /// Writes what is in memory.
    fn finish(&self) {
        self.freeze();
        while self.index.has_frozen() && self.index.step() {}
        self.condemn_if_damaged();
        self.stop_if_useless();
    }

    fn round(&self) {
        self.freeze_if_full();
        self.tune();
        while !self.state.lock().stopped && self.index.step() {
            self.keep_free();
            // Whoever waits for memory looks again after every flush.
            self.changed.notify_all();
            self.freeze_if_full();
        }
        self.keep_free();
        self.condemn_if_damaged();
        self.stop_if_useless();
    }

    /// The log leaves it room to grow, and to merge.
    fn keep_free(&self) {
        self.log.segments().keep_space_for(OtherFiles {
            most_bytes: self.index_bytes,
            used_bytes: self.index.disk_bytes(),
            soon_bytes: self.index.waiting_bytes(),
        });
    }

    /// What an index that cannot be made durable, or has no room and never will, does not take in would be written for
    /// nothing, and others dropped for it.
    fn stop_if_useless(&self) {
        if self.index.is_unsure() {
            self.log.poison("the index could not be made durable");
        } else if self.index.has_failed() && self.index.is_stalled() {
            self.log.poison("the index takes in nothing more until it is built anew");
        }
    }

    fn freeze_if_full(&self) {
        if self.index.is_full() {
            self.freeze();
            self.tune();
        }
    }

    /// Unless too much waits already.
    fn freeze(&self) {
        if self.index.is_stalled() {
            return;
        }
        match self.log.checkpoint() {
            Ok(checkpoint) => self.index.freeze(checkpoint),
            Err(error) => tracing::warn!("the index stays in memory: {error}"),
        }
    }

    /// After a memtable was frozen, so that its flush already follows the new shape; and now and then, for where
    /// nothing is written the window moves too.
    fn tune(&self) {
        let notes = {
            let mut tuner = self.tuner.lock();
            tuner.turn(&self.index).map(|_| tuner.notes())
        };
        // Without the tuner: closing asks it for counters, and does not wait for a device that hangs.
        if let Some(notes) = notes {
            self.index.note(&notes);
        }
    }

    fn condemn_if_damaged(&self) {
        if self.index.is_damaged() {
            self.index.condemn();
        }
    }
}

impl Drop for Upkeep {
    /// A store that was dropped is closed as well. But where writers do the work a drop is how a simulation ends a
    /// process, and that leaves no trace.
    fn drop(&mut self) {
        if self.threads.as_ref().is_some_and(|threads| threads.lock().are_ours()) {
            self.close();
        }
    }
}
