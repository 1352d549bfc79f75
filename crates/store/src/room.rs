//! Who makes room, and who waits for it.
//!
//! 1. No call waits for room longer than its terms say. Steps of making room must not be left half-way: a segment's
//!    next header and its sync, a new file, a tombstone. So a thread of its own takes them, which may wait as long as
//!    the device does, and a call only waits for its answer: until its deadline, or until it is called off.
//! 2. What a call leaves behind is done all the same: the next call finds the room, and a removal becomes durable.
//! 3. Errands are done one by one, each to its end. Their queue is bounded; whoever finds it full waits, within its
//!    terms, for a place.
//! 4. An errand holds the store only while it is queued or done, so that a closed store is let go.
//! 5. Without the thread whoever asks does it: for simulations, which must replay. Then it stops between two extents
//!    when the call is over, and what was moved stays moved; the device answers at once there, so nothing hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, bounded};
use dalsegno_core::{Deadline, MIN_SEGMENTS, Result};
use dalsegno_io::{IoError, Workers, patiently};
use dalsegno_log::{Call, LogError, Reservation};
use parking_lot::Mutex;

use crate::store::{Inner, no_thread};

/// How often a put makes room before it gives up.
const RECLAIM_ATTEMPTS: u32 = 3;
/// Errands that wait. Every caller has one at most, and the index one, but those that a hanging device made callers
/// leave behind stay.
const QUEUE: usize = 64;
/// How long closing waits for an errand that is under way.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

type Answer = std::result::Result<(), LogError>;
type Work = Box<dyn FnOnce(&Inner, &Call) -> Answer + Send>;

struct Errand {
    inner: Arc<Inner>,
    work: Work,
    reply: Sender<Answer>,
}

/// The thread that makes room.
#[derive(Debug)]
pub(crate) struct RoomMaker {
    /// None where whoever asks does the work, and when the store is closed.
    queue: Mutex<Option<Sender<Errand>>>,
    thread: Mutex<Workers>,
    /// Held by whoever does an errand where there is no thread.
    inline: Option<Mutex<()>>,
    /// Whether an errand is under way that gives a segment back.
    is_giving_back: Arc<AtomicBool>,
}

impl RoomMaker {
    /// `inline` leaves the work to those who ask.
    pub(crate) fn start(inline: bool) -> Result<Self> {
        let mut thread = Workers::new();
        let mut queue = None;
        if !inline {
            let (sender, receiver): (_, Receiver<Errand>) = bounded(QUEUE);
            queue = Some(sender);
            let body = move || receiver.iter().for_each(Errand::run);
            thread.start("dalsegno-room", body).map_err(no_thread)?;
        }
        let inline = inline.then(Mutex::default);
        let (queue, thread, is_giving_back) =
            (Mutex::new(queue), Mutex::new(thread), Arc::default());
        Ok(Self { queue, thread, inline, is_giving_back })
    }

    /// Takes no more errands and waits until the queued ones are done, at most `patience`.
    pub(crate) fn close(&self, patience: Duration) {
        drop(self.queue.lock().take());
        self.thread.lock().join(patience);
    }
}

impl Drop for RoomMaker {
    /// In a forked child the channel may be locked for ever, so its end is not told to a thread that is not there.
    fn drop(&mut self) {
        if self.thread.get_mut().are_ours() {
            self.close(CLOSE_PATIENCE);
        } else {
            std::mem::forget(self.queue.get_mut().take());
        }
    }
}

/// One errand of a kind at a time, until this is dropped.
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

impl Errand {
    fn run(self) {
        let Self { inner, work, reply } = self;
        let answer = work(&inner, &Call::background());
        // Whoever hears of the end may close the store, and that must not wait for this thread.
        drop(inner);
        // Nobody may listen any more.
        drop(reply.send(answer));
    }
}

impl Inner {
    /// Has work done that may wait for the device; waits for its end within the call's terms.
    ///
    /// # Errors
    ///
    /// What the work says; [`LogError::Deadline`] or [`LogError::Cancelled`] if the call was over first. Then the work
    /// goes on, unless it found no place in the queue: dropping it unused tells.
    pub(crate) fn have_done(
        self: &Arc<Self>,
        call: &Call,
        work: impl FnOnce(&Self, &Call) -> Answer + Send + 'static,
    ) -> Answer {
        if let Some(one_at_a_time) = &self.room.inline {
            let _held = one_at_a_time.lock();
            // As on the thread: the patience of whoever asks is not that of what must not be left half-way.
            return patiently(Deadline::Never, self.clock.as_ref(), || work(self, call));
        }
        let clock = self.clock.as_ref();
        let queue = self.room.queue.lock().clone().ok_or(IoError::Closed)?;
        let (reply, answer) = bounded(1);
        let mut errand = Errand { inner: Arc::clone(self), work: Box::new(work), reply };
        loop {
            let sent = match call.patience(clock)? {
                None => queue.send(errand).map_err(|error| SendTimeoutError::Disconnected(error.0)),
                Some(patience) => queue.send_timeout(errand, patience),
            };
            match sent {
                Ok(()) => return call.answer(&answer, clock).flatten(),
                Err(SendTimeoutError::Timeout(back)) => errand = back,
                Err(SendTimeoutError::Disconnected(_)) => return Err(IoError::Closed.into()),
            }
        }
    }

    /// Reserves room for `bytes`, making some if there is none, within the call's terms.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        bytes: u64,
        call: &Call,
    ) -> std::result::Result<Reservation, LogError> {
        self.look_after_index(call);
        for _ in 0..RECLAIM_ATTEMPTS {
            if !self.log.has_room_now(bytes) {
                self.have_done(call, move |inner, call| inner.make_room(bytes, call))?;
            }
            // Others may have taken the room that was made.
            match self.log.reserve_now(bytes) {
                Err(LogError::Full) => {}
                reserved => return reserved,
            }
        }
        Err(LogError::Full)
    }

    /// Sees to it that the index finds room on disk. Only where it takes nothing in any more that is waited for.
    fn look_after_index(self: &Arc<Self>, call: &Call) {
        if self.upkeep.shortage().is_none() || self.log.segments().len() as u64 <= MIN_SEGMENTS {
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
        if self.room.inline.is_some() {
            return self.have_done(&Call::background(), work);
        }
        let queue = self.room.queue.lock().clone().ok_or(IoError::Closed)?;
        let (reply, _) = bounded(1);
        let errand = Errand { inner: Arc::clone(self), work: Box::new(work), reply };
        queue.try_send(errand).map_err(|_| LogError::Io(IoError::Busy))
    }

    /// Makes sure that an append of `bytes` finds room, if it can be made.
    pub(crate) fn make_room(&self, bytes: u64, call: &Call) -> Answer {
        for _ in 0..RECLAIM_ATTEMPTS {
            if self.log.prepare(bytes)? {
                return Ok(());
            }
            self.reclaim(bytes, call)?;
        }
        Ok(())
    }
}
