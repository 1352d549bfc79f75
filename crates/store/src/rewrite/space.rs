//! The lane in which space is freed: for puts, for the index, for merging; and in which segments are listed.
//!
//! 1. No call waits for a job longer than its terms say. A job must not stop half-way: it writes a segment's next
//!    header and syncs it, or creates a file. So a thread does it and waits as long as the device takes. A call only
//!    waits for the answer.
//! 2. A job that a call leaves behind is still done: the next call finds the space.
//! 3. Jobs run one after the other, each to its end. The queue is bounded: a call that finds it full waits for a place,
//!    within its terms.
//! 4. Removals and namespaces are recorded in another lane (`remove/local.rs`). So the put of one tenant does not wait
//!    for the sync of another tenant's removal. A job of that lane may wait for one of this lane, never the reverse.
//! 5. An on-disk index removes blocks in this lane. So no job here takes blocks for dead because a removal had to empty
//!    the index.
//! 6. A job holds the reclaimer only while it is queued or runs, and with it the log and the directory. So a closed
//!    store lets go of its directory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dalsegno_core::{Class, Clock, Deadline, MIN_SEGMENTS, Result};
use dalsegno_io::{Call, Executor, JobLane};
use dalsegno_log::{LogError, Reservation, SpaceUse};

use crate::blocks::indexed_log::IndexedLog;
use crate::device::Watched;
use crate::error::no_thread;
use crate::jobs::calls::{Answer, run_blocking};
use crate::rewrite::reclaimer::Reclaimer;

/// Jobs that wait in a lane. A caller has at most one, and the index one. Callers that a hanging device made leave stay
/// in the queue.
pub(crate) const LANE_JOBS: usize = 64;

/// Frees space on a thread of its own.
#[derive(Debug)]
pub(crate) struct SpaceLane {
    pub(crate) reclaimer: Arc<Reclaimer>,
    device: Arc<Watched>,
    clock: Arc<dyn Clock>,
    lane: JobLane,
    /// Whether a job that gives a segment back is under way.
    is_giving_back: Arc<AtomicBool>,
}

/// Allows one job of a kind at a time, until it is dropped.
struct OneAtATime(Arc<AtomicBool>);

impl OneAtATime {
    fn take(is_taken: &Arc<AtomicBool>) -> Option<Self> {
        (!is_taken.swap(true, Ordering::AcqRel)).then(|| Self(Arc::clone(is_taken)))
    }
}

impl Drop for OneAtATime {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl SpaceLane {
    pub(crate) fn start(
        reclaimer: Reclaimer,
        device: Arc<Watched>,
        clock: Arc<dyn Clock>,
        executor: Executor,
    ) -> Result<Self> {
        let lane = JobLane::start("dalsegno-space", executor, 1, LANE_JOBS);
        let lane = lane.map_err(no_thread)?;
        let (reclaimer, is_giving_back) = (Arc::new(reclaimer), Arc::default());
        Ok(Self { reclaimer, device, clock, lane, is_giving_back })
    }

    /// Accepts no more jobs and waits until the queued ones are done, at most until `deadline`.
    pub(crate) fn close(&self, deadline: Deadline) {
        self.lane.close();
        self.lane.join(deadline.remaining(self.clock.now()).unwrap_or_default());
    }

    /// Frees space, or does work that must be alone with the space; waits for its end within the call's terms.
    ///
    /// # Errors
    ///
    /// As [`run_blocking`].
    pub(crate) fn run_blocking<T: Send + 'static>(
        &self,
        call: &Call,
        work: impl FnOnce(&Reclaimer) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let reclaimer = Arc::clone(&self.reclaimer);
        run_blocking(&self.lane, call, self.clock.as_ref(), move || work(&reclaimer))
    }

    /// Reserves space for `bytes` within the call's terms; frees some if there is not enough.
    ///
    /// # Errors
    ///
    /// `Full` if no space could be freed, and as [`Self::run_blocking`].
    pub(crate) fn reserve(
        &self,
        bytes: u64,
        call: &Call,
    ) -> std::result::Result<Reservation, LogError> {
        self.relieve_index(call);
        let log = &self.reclaimer.stored.log;
        if log.segments().has_space_now(bytes) {
            match log.writer().reserve(bytes, SpaceUse::Ready) {
                // Another call has taken the space.
                Err(LogError::Full) => {}
                reserved => return reserved,
            }
        }
        // If the call ends meanwhile, nothing is reserved for it.
        let (terms, clock) = (call.clone(), Arc::clone(&self.clock));
        let reserved = self
            .run_blocking(call, move |reclaimer| reclaimer.reserve(bytes, &terms, clock.as_ref()));
        self.list_new_segments();
        reserved
    }

    /// Gives the index space on disk if it found none. A put waits for that only if the index accepts no more entries.
    fn relieve_index(&self, call: &Call) {
        let IndexedLog { log, care, .. } = self.reclaimer.stored.as_ref();
        let is_small = || log.segments().count() as u64 <= MIN_SEGMENTS;
        if care.shortage().is_none() || is_small() {
            return;
        }
        let done = if care.is_stalled() {
            self.run_blocking(call, Reclaimer::give_back)
        } else if let Some(only) = OneAtATime::take(&self.is_giving_back) {
            self.spawn(move |reclaimer| {
                let _until_it_ends = only;
                reclaimer.give_back()
            })
        } else {
            Ok(())
        };
        if let Err(error) = done {
            // The append reports what follows from it.
            tracing::debug!(%error, "no space freed for the index");
        }
    }

    /// Queues work whose end nobody waits for.
    fn spawn(&self, work: impl FnOnce(&Reclaimer) -> Answer + Send + 'static) -> Answer {
        let reclaimer = Arc::clone(&self.reclaimer);
        self.lane.keep_place(Some(Duration::ZERO))?.start(move |permission| {
            let done = permission.map_err(LogError::from).and_then(|()| work(&reclaimer));
            if let Err(error) = done {
                tracing::debug!(%error, "a background job of the log failed");
            }
        });
        Ok(())
    }

    /// Lists new segments on disk, should the process be killed. Nobody waits for that.
    fn list_new_segments(&self) {
        if !self.can_list() {
            return;
        }
        let add = |reclaimer: &Reclaimer| reclaimer.stored.log.segment_list().add_new_segments();
        if let Err(error) = self.spawn(add) {
            tracing::debug!(%error, "new segments not listed");
        }
    }

    /// Writes the list of segments and of what they hold, at the end of a session. Nobody waits for a device that
    /// hangs: without a list `verify` finds less.
    pub(crate) fn list_segments(&self, deadline: Deadline) {
        if !self.can_list() {
            return;
        }
        let call = Call::of(Class::Save).until(deadline);
        let update = |reclaimer: &Reclaimer| reclaimer.stored.log.segment_list().update();
        if let Err(error) = self.run_blocking(&call, update) {
            tracing::debug!(%error, "segments not listed");
        }
    }

    fn can_list(&self) -> bool {
        !self.device.is_suspended() && !self.reclaimer.stored.log.is_poisoned()
    }

    /// Recycles segments without live extents, so that the next open does not read what was merged.
    pub(crate) fn recycle_dead(&self) {
        let recycle = Reclaimer::recycle_dead_segments;
        if let Err(error) = self.run_blocking(&Call::of(Class::Save), recycle) {
            tracing::debug!(%error, "dead segments not recycled");
        }
    }
}
