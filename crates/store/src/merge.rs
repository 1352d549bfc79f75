//! Merging: who does it, when, and what is told of it. What one merge does is in `merge_row.rs`.
//!
//! 1. A thread of its own merges; no caller waits for it. It stands back while somebody reads, within bounds, and
//!    writes no more a second than the setting `merge_rate` says.
//! 2. What waits is known from puts, and after an open from a walk over the index in small steps: memory is bounded,
//!    and what is forgotten is found by the next walk.
//! 3. Where there is no room, or a merge fails, nothing is merged for a while.
//! 4. Without the thread whoever puts does one step afterwards: for simulations, which must replay.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dalsegno_core::{Extent, IndexChoice, Limits, Nanos, Result};
use dalsegno_io::Workers;
use dalsegno_policy::merging::{Bucket, Due, MergeRules, Piles, SmallExtent};
use parking_lot::{Condvar, Mutex};

use crate::merge_row::RowBuffer;
use crate::merge_walk::Walk;
use crate::store::{Inner, no_thread};

/// The thread looks so often whether something is due.
const PERIOD: Duration = Duration::from_secs(1);
/// Between two steps of a walk.
const WALK_PAUSE: Duration = Duration::from_millis(20);
/// How long a drop without a close waits for a merge that is under way.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// What the thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    /// Merging, and the walks that merging needs.
    Merge,
    /// One walk after an open: without merging, an on-disk index still has to learn which extents others depend on.
    WalkOnce,
}

/// Looks after small extents.
#[derive(Debug)]
pub(crate) struct Merger {
    /// None where there is nothing to do: no merging, and an in-memory index.
    shared: Option<Arc<Shared>>,
    threads: Mutex<Workers>,
    is_inline: bool,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) rules: MergeRules,
    duty: Duty,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    piles: Piles,
    bucket: Bucket,
    walk: Walk,
    /// Bytes that may be merged once more.
    spare_bytes: u64,
    /// Bytes that merging left dead since dead segments were looked for.
    dead_bytes: u64,
    /// Before this moment nothing is tried.
    not_before: Nanos,
    stopped: bool,
}

/// What to do next.
#[derive(Debug)]
enum Task {
    Merge(Due),
    Walk,
    Recycle,
    Wait(Duration),
    Stop,
}

/// How one merge ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Merged {
    pub(crate) fresh_bytes: u64,
    pub(crate) moved_bytes: u64,
}

impl Merger {
    /// `inline` leaves the work to those who put.
    pub(crate) fn new(rules: MergeRules, limits: &Limits, inline: bool) -> Self {
        let most_bytes = rules.most_bytes.min(limits.extent_bytes);
        let rules = MergeRules { most_bytes, ..rules };
        let state = State {
            piles: Piles::new(rules),
            bucket: Bucket::new(limits.merge_bytes_per_s),
            walk: Walk::new(),
            spare_bytes: 0,
            dead_bytes: 0,
            not_before: Nanos(0),
            stopped: false,
        };
        let duty = match (limits.merge_bytes_per_s, limits.index) {
            (0, IndexChoice::Memory) => None,
            (0, IndexChoice::Lsm) => Some(Duty::WalkOnce),
            _ => Some(Duty::Merge),
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = duty.map(|duty| Arc::new(Shared { rules, duty, state, changed }));
        Self { shared, threads: Mutex::new(Workers::new()), is_inline: inline }
    }

    /// To be called when an extent became visible: it may be worth merging.
    pub(crate) fn note(&self, extent: &Extent, now: Nanos) {
        let Some(shared) = &self.shared else { return };
        let Some(small) = shared.small(extent) else { return };
        let lineage = (extent.namespace, extent.lineage);
        if shared.state.lock().piles.note(lineage, small, now) {
            shared.changed.notify_all();
        }
    }

    /// Lineages whose small extents wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.state.lock().piles.len() as u64)
    }

    /// Begins nothing more and waits for what is under way. Calling it again does nothing.
    pub(crate) fn close(&self, patience: Duration) {
        let Some(shared) = &self.shared else { return };
        shared.state.lock().stopped = true;
        shared.changed.notify_all();
        self.threads.lock().join(patience);
    }
}

impl Drop for Merger {
    /// In a forked child there is no thread to tell, and its locks may be taken for ever.
    fn drop(&mut self) {
        if self.threads.get_mut().are_ours() {
            self.close(CLOSE_PATIENCE);
        }
    }
}

impl Shared {
    /// What a pile is told of an extent; `None` if that is large enough.
    pub(crate) fn small(&self, extent: &Extent) -> Option<SmallExtent> {
        let blocks = extent.block_count();
        let bytes = u64::from(blocks) * extent.layout.block_bytes();
        let small = SmallExtent { first: extent.first_block_index, blocks, bytes };
        (self.duty == Duty::Merge && self.rules.is_small(bytes)).then_some(small)
    }

    /// Whether the store is being closed.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Waits, but not longer than until the store is closed; `false` if it is.
    fn wait(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.stopped {
            self.changed.wait_for(&mut state, time);
        }
        !state.stopped
    }

    fn next_task(&self, now: Nanos, segment_bytes: u64) -> Task {
        let mut state = self.state.lock();
        if state.stopped {
            return Task::Stop;
        }
        if self.duty == Duty::WalkOnce {
            return match state.walk.next_at() {
                Some(at) if at <= now => Task::Walk,
                Some(at) => Task::Wait(at.since(now)),
                None => Task::Stop,
            };
        }
        let paid = state.bucket.wait(now).unwrap_or(PERIOD);
        let wait = paid.max(state.not_before.since(now));
        if !wait.is_zero() {
            return Task::Wait(wait.min(PERIOD));
        }
        if state.dead_bytes < segment_bytes / 4
            && let Some(due) = state.piles.next(now)
        {
            return Task::Merge(due);
        }
        if std::mem::take(&mut state.dead_bytes) > 0 {
            return Task::Recycle;
        }
        if state.piles.take_forgotten() > 0 {
            state.walk.again(now);
        }
        let is_full = state.piles.len() >= self.rules.most_lineages / 2;
        match state.walk.next_at().filter(|_| !is_full) {
            Some(at) if at <= now => Task::Walk,
            _ => {
                let next_at = state.piles.next_at().into_iter().chain(state.walk.next_at()).min();
                let wait = next_at.map_or(PERIOD, |at| at.since(now));
                Task::Wait(wait.clamp(Duration::from_millis(1), PERIOD))
            }
        }
    }

    fn run(&self, store: &Weak<Inner>) {
        let mut buffer = RowBuffer::default();
        while let Some(inner) = store.upgrade() {
            let wait = match inner.merge_step(self, &mut buffer) {
                Step::Done => Duration::ZERO,
                Step::Wait(wait) => wait,
                Step::Stop => return,
            };
            drop(inner);
            if !wait.is_zero() {
                if wait >= PERIOD {
                    // Nothing is to be done for a while.
                    buffer = RowBuffer::default();
                }
                if !self.wait(wait) {
                    return;
                }
            }
        }
    }
}

enum Step {
    Done,
    Wait(Duration),
    Stop,
}

impl Inner {
    /// Starts the thread that merges, if there is to be one.
    pub(crate) fn start_merging(self: &Arc<Self>) -> Result<()> {
        let Some(shared) = self.merger.shared.as_ref().filter(|_| !self.merger.is_inline) else {
            return Ok(());
        };
        let (shared, store) = (Arc::clone(shared), Arc::downgrade(self));
        let started =
            self.merger.threads.lock().start("dalsegno-merge", move || shared.run(&store));
        started.map_err(no_thread)
    }

    /// Where whoever puts merges: one step.
    pub(crate) fn merge_inline(self: &Arc<Self>) {
        if let Some(shared) = self.merger.shared.as_ref().filter(|_| self.merger.is_inline) {
            self.merge_step(shared, &mut RowBuffer::default());
        }
    }

    fn merge_step(self: &Arc<Self>, shared: &Shared, buffer: &mut RowBuffer) -> Step {
        match shared.next_task(self.clock.now(), self.limits.segment_bytes) {
            Task::Stop => return Step::Stop,
            Task::Wait(wait) => return Step::Wait(wait),
            Task::Merge(due) => self.merge_lineage(shared, &due, buffer),
            Task::Recycle => self.recycle_dead(),
            Task::Walk => {
                let walk = shared.state.lock().walk.clone();
                let (walk, found) = self.walk_step(shared, walk);
                let now = self.clock.now();
                let mut state = shared.state.lock();
                state.walk = walk.paused(now.after(WALK_PAUSE));
                for (lineage, extent) in found {
                    state.piles.note(lineage, extent, now);
                }
            }
        }
        Step::Done
    }

    /// Merges what is due of a lineage, as far as the rate allows; the rest is put back.
    fn merge_lineage(self: &Arc<Self>, shared: &Shared, due: &Due, buffer: &mut RowBuffer) {
        loop {
            let spare_bytes = shared.state.lock().spare_bytes;
            let merged = match self.merge_next(shared, due, spare_bytes, buffer) {
                Ok(Some(merged)) => merged,
                Ok(None) => return,
                Err(skip) => {
                    skip.count(&self.counters.merging);
                    let now = self.clock.now();
                    let mut state = shared.state.lock();
                    state.piles.put_back(due, now);
                    if skip.is_of_the_store() {
                        state.not_before = now.after(shared.rules.quiet);
                    }
                    return;
                }
            };
            let now = self.clock.now();
            let mut state = shared.state.lock();
            let Merged { fresh_bytes, moved_bytes } = merged;
            state.bucket.spend(fresh_bytes + moved_bytes, now);
            state.spare_bytes = state.spare_bytes.saturating_sub(moved_bytes);
            state.spare_bytes += shared.rules.spared(fresh_bytes);
            state.dead_bytes += fresh_bytes + moved_bytes;
            if state.bucket.wait(now) != Some(Duration::ZERO) || self.merger.is_inline {
                if due.is_quiet {
                    // Due again at once, when this is paid for.
                    state.piles.put_back(due, Nanos(0));
                }
                return;
            }
        }
    }
}
