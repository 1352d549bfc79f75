//! A ring that one call drives on its own thread, so that neither a request nor its completion changes threads.
//!
//! 1. Requests on a call ring have places of the engine, like those on the owner's ring: bounds and shares hold for
//!    both together. A request gets one only if nothing waits in the queue, so it overtakes nobody.
//! 2. A call may end before its requests do. Then the owner's thread reaps them and the ring goes back to its shelf.
//! 3. Only what the kernel does without waiting for anything but the device stays on a call ring; the rest is handed
//!    over to the engine. So a calling thread may end at any time, and a device that hangs keeps no thread of a caller.
//! 4. There are at most [`MAX_RINGS`]; a call that finds none hands its requests to the owner's ring.
//! 5. In a forked child a ring is left as it is: its mappings are not there.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Clock;
use io_uring::{IoUring, cqueue, types};
use parking_lot::Mutex;

use super::doorbell::Doorbell;
use super::in_flight::{InFlight, Slots};
use crate::engine::OpenFile;
use crate::engine::queue::{CallStart, Queue};
use crate::engine::queued_request::QueuedRequest;
use crate::{IoError, Operation, Process, Request};

/// Most rings that calls drive themselves. More threads than this wait for the device, not for each other.
const MAX_RINGS: usize = 16;

/// Most requests on one of them.
const MAX_PLACES: u32 = 16;

/// How often the kernel may be out of resources, a millisecond apart, before a ring is given up.
const MAX_STALLS: u32 = 5000;

/// The rings of an engine that calls drive.
#[derive(Debug)]
pub(super) struct CallRings {
    queue: Arc<Queue>,
    doorbell: Arc<Doorbell>,
    clock: Arc<dyn Clock>,
    places: u32,
    process: Process,
    rings: Mutex<Rings>,
}

#[derive(Debug, Default)]
struct Rings {
    /// All there are, with those that calls have.
    made: usize,
    idle: Vec<Ring>,
    /// Left by calls that ended before their requests.
    left: Vec<Ring>,
    /// Whether the kernel or the file system cannot do without waiting.
    unsupported: bool,
    /// Whether the owner's thread has ended.
    closed: bool,
}

impl CallRings {
    pub(super) fn new(
        queue: &Arc<Queue>,
        doorbell: &Arc<Doorbell>,
        clock: &Arc<dyn Clock>,
        depth: u32,
    ) -> Self {
        Self {
            queue: Arc::clone(queue),
            doorbell: Arc::clone(doorbell),
            clock: Arc::clone(clock),
            places: depth.min(MAX_PLACES),
            process: Process::this(),
            rings: Mutex::default(),
        }
    }

    /// A ring for one call; `None` if all are taken or the kernel has no more.
    pub(super) fn take(self: &Arc<Self>) -> Option<CallRing> {
        let mut rings = self.rings.lock();
        if rings.closed || rings.unsupported {
            return None;
        }
        if let Some(ring) = rings.idle.pop() {
            return Some(CallRing { ring: Some(ring), shelf: Arc::clone(self) });
        }
        if rings.made == MAX_RINGS {
            return None;
        }
        rings.made += 1;
        drop(rings);
        match Ring::new(self.places) {
            Ok(ring) => Some(CallRing { ring: Some(ring), shelf: Arc::clone(self) }),
            Err(error) => {
                tracing::debug!(%error, "calls share the engine's ring");
                let mut rings = self.rings.lock();
                rings.made -= 1;
                rings.unsupported |= error.kind() == io::ErrorKind::Unsupported;
                None
            }
        }
    }

    /// Leaves to the engine what a ring could not do without waiting.
    fn hand_over(&self, job: QueuedRequest, errno: i32) {
        if errno == libc::EOPNOTSUPP {
            // The file system never can.
            self.rings.lock().unsupported = true;
        }
        if self.queue.hand_over(job) {
            self.doorbell.ring();
        }
    }

    /// Takes a ring back from its call.
    fn give_back(&self, ring: Ring) {
        let mut rings = self.rings.lock();
        if rings.closed {
            // Nobody would reap it, and what it has in flight must not be touched before.
            drop(rings);
            return if ring.is_idle() { drop(ring) } else { std::mem::forget(ring) };
        }
        if ring.failed {
            rings.made -= 1;
            drop(rings);
            return drop(ring);
        }
        if ring.is_idle() {
            return rings.idle.push(ring);
        }
        if let Err(error) = ring.kernel.submitter().register_eventfd(self.doorbell.as_raw_fd()) {
            tracing::error!(%error, "a call's ring cannot be reaped; what it has in flight is left behind");
            rings.made -= 1;
            drop(rings);
            return drop(ring);
        }
        rings.left.push(ring);
        drop(rings);
        // What completed before the ring could ring the doorbell.
        self.doorbell.ring();
    }

    /// Reaps what calls left; by the owner's thread. Returns whether anything is left still.
    pub(super) fn reap_left(&self) -> bool {
        let left = std::mem::take(&mut self.rings.lock().left);
        if left.is_empty() {
            return false;
        }
        let mut still = Vec::new();
        for mut ring in left {
            ring.reap(self);
            if ring.is_idle() && ring.kernel.submitter().unregister_eventfd().is_ok() {
                self.give_back(ring);
            } else if ring.failed || ring.is_idle() {
                self.rings.lock().made -= 1;
            } else {
                still.push(ring);
            }
        }
        let mut rings = self.rings.lock();
        rings.left.append(&mut still);
        !rings.left.is_empty()
    }

    /// The owner's thread ends: what is in flight is answered with an error and leaks what the kernel may touch.
    pub(super) fn close(&self) {
        let mut rings = self.rings.lock();
        rings.closed = true;
        let gone = (std::mem::take(&mut rings.idle), std::mem::take(&mut rings.left));
        drop(rings);
        drop(gone);
    }
}

/// A ring of one call.
#[derive(Debug)]
pub struct CallRing {
    /// `None` only while it is dropped.
    ring: Option<Ring>,
    shelf: Arc<CallRings>,
}

impl CallRing {
    /// How many requests are on it.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.ring.as_ref().map_or(0, |ring| ring.slots.in_flight())
    }

    /// Starts a request; returns it if it is for the engine's queue.
    pub(crate) fn submit(
        &mut self,
        request: Request,
        file: Arc<OpenFile>,
    ) -> Option<(Request, Arc<OpenFile>)> {
        let Some(ring) = self.ring.as_mut().filter(|ring| ring.has_room()) else {
            return Some((request, file));
        };
        // The kernel hands a sync to a thread of its own anyway.
        if request.operation == Operation::Sync {
            return Some((request, file));
        }
        let job = match self.shelf.queue.begin_here((request, file)) {
            CallStart::Here(job) => job,
            CallStart::NotYet(request) => return Some(request),
        };
        if job.is_late(&*self.shelf.clock) {
            job.finish(Err(IoError::Deadline));
            self.return_places();
        } else {
            ring.launch(InFlight::listed(job));
            if ring.failed {
                self.return_places();
            }
        }
        None
    }

    /// Waits until a request on it has completed, or `all` have, at most `limit`; an interruption ends the wait early.
    pub fn wait(&mut self, all: bool, limit: Option<Duration>) {
        let Some(ring) = self.ring.as_mut() else { return };
        if !ring.reap(&self.shelf) || all && !ring.is_idle() {
            ring.enter(if all { ring.slots.in_flight() } else { 1 }, limit);
            ring.reap(&self.shelf);
        }
        self.return_places();
    }

    fn return_places(&self) {
        if self.shelf.queue.end_here() {
            self.shelf.doorbell.ring();
        }
    }
}

impl Drop for CallRing {
    fn drop(&mut self) {
        let Some(ring) = self.ring.take() else { return };
        if self.shelf.process.is_this() {
            self.shelf.give_back(ring);
        } else {
            std::mem::forget(ring);
        }
    }
}

/// The ring itself.
struct Ring {
    kernel: IoUring,
    /// Dropped after the ring; what is still in a slot then is leaked.
    slots: Slots,
    stalls: u32,
    failed: bool,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl Ring {
    fn new(places: u32) -> io::Result<Self> {
        let entries = places.next_power_of_two();
        // Not for a single issuer: the next call that has this ring may be on another thread.
        let kernel = match IoUring::builder().dontfork().setup_coop_taskrun().build(entries) {
            // Kernels before 5.19 do not know the flag.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                IoUring::builder().dontfork().build(entries)?
            }
            other => other?,
        };
        if !kernel.params().is_feature_ext_arg() {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        Ok(Self { kernel, slots: Slots::new(places), stalls: 0, failed: false })
    }

    fn has_room(&self) -> bool {
        !self.failed && self.slots.room() > 0
    }

    fn is_idle(&self) -> bool {
        self.slots.in_flight() == 0
    }

    /// Starts a request immediately, so that the device works on it while the call goes on.
    fn launch(&mut self, flight: InFlight) {
        let entry = flight.entry_at_once();
        let number = self.slots.put(flight);
        self.push(&entry.user_data(number));
        self.settle(self.kernel.submit().map(drop));
    }

    fn push(&mut self, entry: &io_uring::squeue::Entry) {
        // SAFETY: what the entry names lives in its slot until its completion, or is leaked with it.
        let pushed = unsafe { self.kernel.submission().push(entry) };
        // There is an entry for every slot, and each slot has one at a time.
        self.failed |= pushed.is_err();
    }

    /// Submits what is left to submit and waits for completions.
    fn enter(&mut self, count: usize, limit: Option<Duration>) {
        let entered = match limit {
            None => self.kernel.submit_and_wait(count),
            Some(limit) => {
                let limit = types::Timespec::from(limit);
                let args = types::SubmitArgs::new().timespec(&limit);
                self.kernel.submitter().submit_with_args(count, &args)
            }
        };
        self.settle(entered.map(drop));
    }

    fn settle(&mut self, entered: io::Result<()>) {
        match entered.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => self.stalls = 0,
            Err((Some(libc::EINTR | libc::ETIME), _)) => {}
            Err((Some(libc::EAGAIN | libc::EBUSY), _)) if self.stalls < MAX_STALLS => {
                self.stalls += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err((_, error)) => {
                tracing::error!(%error, "a call's ring failed; what it has in flight is left behind");
                self.failed = true;
            }
        }
        if self.failed {
            self.slots.abandon();
        }
    }

    /// Answers what has completed; returns whether anything had.
    fn reap(&mut self, of: &CallRings) -> bool {
        let mut any = false;
        // One by one, so that a panic in an answer loses no completion.
        while let Some(done) = self.next() {
            any = true;
            let Some(flight) = self.slots.take(done.user_data()) else { continue };
            match flight.settle_at_once(done.result()) {
                (job, Some(ended)) => job.finish(ended),
                (job, None) => of.hand_over(job, -done.result()),
            }
        }
        any
    }

    fn next(&mut self) -> Option<cqueue::Entry> {
        self.kernel.completion().next()
    }
}
