//! Background tasks that calls wait for: making room, and recording removals and namespaces.
//!
//! 1. No call waits for a task longer than its terms say. A task must not stop half-way: a segment's next header and
//!    its sync, a new file, a tombstone. So threads carry tasks out and wait as long as the device does. A call only
//!    waits for the answer: until its deadline, or until it is cancelled.
//! 2. What a call leaves behind is done all the same: the next call finds the room, and a removal becomes durable.
//! 3. Tasks of one lane are done one by one, each to its end. The queue is bounded; a call that finds it full waits,
//!    within its terms, for a place.
//! 4. Room is made in one lane, removals and namespaces are recorded in another one. So the put of one tenant does not
//!    wait for the sync of another tenant's removal. A task of the second lane may wait for one of the first, never the
//!    other way round.
//! 5. What an index on disk removes, it removes in the first lane. So no task there takes blocks for dead because a
//!    removal had to empty the index.
//! 6. A task holds the store only while it is queued or done, so that a closed store is let go.
//! 7. Without threads the caller does the work: for simulations, which must replay. Then it stops between two extents
//!    when the call is over, and what was moved stays moved; the device answers immediately there, so nothing hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{SendTimeoutError, Sender, bounded};
use dalsegno_core::{Clock, Deadline, MIN_SEGMENTS, Result};
use dalsegno_io::{IoError, patiently};
use dalsegno_log::{Call, LogError, Reservation};
use parking_lot::Mutex;

use crate::lane::Lane;
use crate::store::{Inner, no_thread};

/// How often a put makes room before it gives up.
const RECLAIM_ATTEMPTS: u32 = 3;
/// Tasks that wait in a lane. Every caller has one at most, and the index one, but those that a hanging device made
/// callers leave behind stay.
const QUEUE: u32 = 64;

type Answer = std::result::Result<(), LogError>;
type Work = Box<dyn FnOnce(&Arc<Inner>, &Call) -> Answer + Send>;

struct Task {
    inner: Arc<Inner>,
    work: Work,
    reply: Sender<Answer>,
}

#[derive(Debug)]
struct Lanes {
    /// Records removals and namespaces. Closed first, because a removal asks for room.
    record: Lane<Task>,
    /// Makes room, creates segments, and gives them back.
    room: Lane<Task>,
}

/// The threads that make room and record things.
#[derive(Debug)]
pub(crate) struct RoomMaker {
    /// None where the caller does the work.
    lanes: Option<Lanes>,
    /// Held by the caller that makes room, where there are no threads.
    inline: Mutex<()>,
    /// Whether a task is under way that gives a segment back.
    is_giving_back: Arc<AtomicBool>,
}

impl RoomMaker {
    /// `inline` leaves the work to the callers.
    pub(crate) fn start(inline: bool) -> Result<Self> {
        let lane = |name| Lane::start(name, 1, QUEUE, Task::run).map_err(no_thread);
        let lanes = if inline {
            None
        } else {
            Some(Lanes { record: lane("dalsegno-record")?, room: lane("dalsegno-room")? })
        };
        Ok(Self { lanes, inline: Mutex::default(), is_giving_back: Arc::default() })
    }

    /// Accepts no more tasks and waits until the queued ones are done, at most until `deadline`.
    pub(crate) fn close(&self, deadline: Deadline, clock: &dyn Clock) {
        let Some(Lanes { record, room }) = &self.lanes else { return };
        for lane in [record, room] {
            lane.close();
            lane.join(deadline.remaining(clock.now()).unwrap_or_default());
        }
    }
}

/// One task of a kind at a time, until this is dropped.
struct Only(Arc<AtomicBool>);

impl Only {
    fn one(is_taken: &Arc<AtomicBool>) -> Option<Self> {
        (!is_taken.swap(true, Ordering::AcqRel)).then(|| Self(Arc::clone(is_taken)))
    }
}

impl Drop for Only {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Task {
    fn run(self) {
        let Self { inner, work, reply } = self;
        let answer = work(&inner, &Call::background());
        // The caller that gets the answer may close the store, and that must not wait for this thread.
        drop(inner);
        // The caller may have left.
        drop(reply.send(answer));
    }
}

impl Inner {
    /// Has room made, or work done that needs the room to itself; waits for its end within the call's terms.
    ///
    /// # Errors
    ///
    /// What the work says; [`LogError::Deadline`] or [`LogError::Cancelled`] if the call was over first. Then the work
    /// goes on, unless it found no place in the queue: then it is dropped unused.
    pub(crate) fn have_done(
        self: &Arc<Self>,
        call: &Call,
        work: impl FnOnce(&Self, &Call) -> Answer + Send + 'static,
    ) -> Answer {
        let work = |inner: &Arc<Self>, call: &Call| work(inner, call);
        let Some(lanes) = &self.room.lanes else {
            let _held = self.room.inline.lock();
            return self.run_here(call, work);
        };
        self.run_in(&lanes.room, call, work)
    }

    /// As [`Self::have_done`], for work that records something: it keeps nobody waiting who needs room, and may itself
    /// have room made.
    ///
    /// # Errors
    ///
    /// As [`Self::have_done`].
    pub(crate) fn have_recorded(
        self: &Arc<Self>,
        call: &Call,
        work: impl FnOnce(&Arc<Self>, &Call) -> Answer + Send + 'static,
    ) -> Answer {
        match &self.room.lanes {
            Some(lanes) => self.run_in(&lanes.record, call, work),
            None => self.run_here(call, work),
        }
    }

    fn run_in(
        self: &Arc<Self>,
        lane: &Lane<Task>,
        call: &Call,
        work: impl FnOnce(&Arc<Self>, &Call) -> Answer + Send + 'static,
    ) -> Answer {
        let clock = self.clock.as_ref();
        let queue = lane.queue().ok_or(IoError::Closed)?;
        let (reply, answer) = bounded(1);
        let mut task = Task { inner: Arc::clone(self), work: Box::new(work), reply };
        loop {
            let sent = match call.timeout(clock)? {
                None => queue.send(task).map_err(|error| SendTimeoutError::Disconnected(error.0)),
                Some(patience) => queue.send_timeout(task, patience),
            };
            match sent {
                Ok(()) => return call.receive(&answer, clock).flatten(),
                Err(SendTimeoutError::Timeout(back)) => task = back,
                Err(SendTimeoutError::Disconnected(_)) => return Err(IoError::Closed.into()),
            }
        }
    }

    /// Does the work on the caller's thread. As on a thread of ours, the caller's patience does not limit work that
    /// must not stop half-way.
    fn run_here(
        self: &Arc<Self>,
        call: &Call,
        work: impl FnOnce(&Arc<Self>, &Call) -> Answer,
    ) -> Answer {
        patiently(Deadline::Never, self.clock.as_ref(), || work(self, call))
    }

    /// Reserves room for `bytes`, making some if there is none, within the call's terms.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        bytes: u64,
        call: &Call,
    ) -> std::result::Result<Reservation, LogError> {
        self.look_after_index(call);
        for _ in 0..RECLAIM_ATTEMPTS {
            if !self.log.segments().has_space_now(bytes) {
                self.have_done(call, move |inner, call| inner.make_room(bytes, call))?;
                self.list_new_segments();
            }
            // Others may have taken the room that was made.
            match self.log.writer().reserve_now(bytes) {
                Err(LogError::Full) => {}
                reserved => return reserved,
            }
        }
        Err(LogError::Full)
    }

    /// Sees to it that the index finds room on disk. Only where it takes nothing in any more that is waited for.
    fn look_after_index(self: &Arc<Self>, call: &Call) {
        if self.upkeep.shortage().is_none() || self.log.segments().count() as u64 <= MIN_SEGMENTS {
            return;
        }
        let done = if self.upkeep.is_stalled() {
            self.have_done(call, Self::give_back)
        } else if let Some(only) = Only::one(&self.room.is_giving_back) {
            self.have_begun(move |inner, call| {
                let _until_it_ends = only;
                inner.give_back(call)
            })
        } else {
            Ok(())
        };
        if let Err(error) = done {
            // The append says what comes of it.
            tracing::debug!("no room was made for the index: {error}");
        }
    }

    /// As [`Self::have_done`], but nobody waits for the end.
    fn have_begun(
        self: &Arc<Self>,
        work: impl FnOnce(&Self, &Call) -> Answer + Send + 'static,
    ) -> Answer {
        let Some(lanes) = &self.room.lanes else {
            return self.have_done(&Call::background(), work);
        };
        let queue = lanes.room.queue().ok_or(IoError::Closed)?;
        let (reply, _) = bounded(1);
        let work: Work = Box::new(move |inner, call| work(inner, call));
        let task = Task { inner: Arc::clone(self), work, reply };
        queue.try_send(task).map_err(|_| LogError::Io(IoError::Busy))
    }

    /// Has a new segment listed, should the process be killed. Nobody waits for that.
    fn list_new_segments(self: &Arc<Self>) {
        if self.watch.is_suspended() || self.log.is_poisoned() {
            return;
        }
        if let Err(error) = self.have_begun(|inner, _| inner.log.segment_list().add_new_segments())
        {
            tracing::debug!("new segments are not listed: {error}");
        }
    }

    /// Writes down which segments there are and what they hold, at the end of a session. Nobody waits for a device that
    /// hangs: without a list `verify` finds less.
    pub(crate) fn list_segments(self: &Arc<Self>, deadline: Deadline) {
        if self.watch.is_suspended() || self.log.is_poisoned() {
            return;
        }
        let call = Call::background().until(deadline);
        if let Err(error) = self.have_done(&call, |inner, _| inner.log.segment_list().update()) {
            tracing::debug!("the segments were not listed: {error}");
        }
    }

    /// Makes sure that an append of `bytes` finds room, if it can be made.
    pub(crate) fn make_room(&self, bytes: u64, call: &Call) -> Answer {
        for _ in 0..RECLAIM_ATTEMPTS {
            if self.log.segments().prepare(bytes)? {
                return Ok(());
            }
            self.reclaim(bytes, call)?;
        }
        Ok(())
    }
}
