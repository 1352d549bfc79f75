//! A ring that one call drives on its own thread, so that neither a request nor its completion changes threads.
//!
//! 1. Requests on a call ring use the engine's places, like those on the owner's ring: bounds and shares hold for both
//!    together. A request gets a place only if nothing waits in the queue, so it overtakes no other request.
//! 2. A call may end before its requests do. Then the owner's thread reaps them and returns the ring to the pool.
//! 3. A call ring only executes what the kernel does without waiting for anything but the device. The engine executes
//!    the rest. So a calling thread may exit at any time, and a device that hangs blocks no calling thread.
//! 4. There are at most [`MAX_RINGS`]. A call that gets none uses the owner's ring.
//! 5. A forked child leaves a ring as it is: its mappings do not exist there.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Stopped};
use io_uring::{IoUring, cqueue, types};
use parking_lot::Mutex;

use super::doorbell::Doorbell;
use super::in_flight::{InFlight, Slots};
use super::ring::MAX_STALLS;
use crate::engine::OpenFile;
use crate::engine::queue::{CallStart, Queue};
use crate::engine::queued_request::QueuedRequest;
use crate::{IoError, Operation, Process, Request};

/// Most rings that calls drive themselves. More threads would wait for the device, not for each other.
const MAX_RINGS: usize = 16;

/// Most requests on one such ring.
const MAX_PLACES: u32 = 16;

/// Hands out rings to calls and takes them back.
#[derive(Debug)]
pub(super) struct CallRingPool {
    queue: Arc<Queue>,
    doorbell: Arc<Doorbell>,
    clock: Arc<dyn Clock>,
    places: u32,
    process: Process,
    rings: Mutex<CallRingStock>,
}

#[derive(Debug, Default)]
struct CallRingStock {
    /// All existing rings, including those in use.
    made: usize,
    idle: Vec<KernelRing>,
    /// Rings of calls that ended before their requests.
    left: Vec<KernelRing>,
    /// Whether the kernel or the file system does not support `RWF_NOWAIT`.
    unsupported: bool,
    /// Whether the owner's thread has ended.
    closed: bool,
}

impl CallRingPool {
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

    /// A ring for one call, or `None` if all are taken or the kernel refuses another one.
    pub(super) fn take(self: &Arc<Self>) -> Option<CallRing> {
        let mut rings = self.rings.lock();
        if rings.closed || rings.unsupported {
            return None;
        }
        if let Some(ring) = rings.idle.pop() {
            return Some(CallRing { ring: Some(ring), pool: Arc::clone(self) });
        }
        if rings.made == MAX_RINGS {
            return None;
        }
        rings.made += 1;
        drop(rings);
        match KernelRing::new(self.places) {
            Ok(ring) => Some(CallRing { ring: Some(ring), pool: Arc::clone(self) }),
            Err(error) => {
                tracing::debug!(%error, "no ring for a call; calls use the engine's ring");
                let mut rings = self.rings.lock();
                rings.made -= 1;
                rings.unsupported |= error.kind() == io::ErrorKind::Unsupported;
                None
            }
        }
    }

    /// Passes a request to the engine that a ring could not execute without waiting.
    fn hand_over(&self, queued: QueuedRequest, errno: i32) {
        if errno == libc::EOPNOTSUPP {
            // The file system never supports it.
            self.rings.lock().unsupported = true;
        }
        if self.queue.hand_over(queued) {
            self.doorbell.ring();
        }
    }

    /// Takes a ring back from its call.
    fn give_back(&self, ring: KernelRing) {
        let mut rings = self.rings.lock();
        if rings.closed {
            // The owner's thread would no longer reap it, and its requests in flight must stay untouched.
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
            tracing::error!(%error, "cannot reap the ring of a call; abandoning its requests in flight");
            rings.made -= 1;
            drop(rings);
            return drop(ring);
        }
        rings.left.push(ring);
        drop(rings);
        // Requests may have completed before the ring could ring the doorbell.
        self.doorbell.ring();
    }

    /// Reaps the rings of ended calls; for the owner's thread. Returns whether any has requests in flight.
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

    /// The owner's thread exits: requests in flight fail, and the memory that the kernel may touch is leaked.
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
    ring: Option<KernelRing>,
    pool: Arc<CallRingPool>,
}

impl CallRing {
    /// How many requests are on it.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.ring.as_ref().map_or(0, |ring| ring.slots.in_flight())
    }

    /// Starts a request, or returns it if it belongs in the engine's queue.
    pub(crate) fn submit(
        &mut self,
        request: Request,
        file: Arc<OpenFile>,
    ) -> Option<(Request, Arc<OpenFile>)> {
        let Some(ring) = self.ring.as_mut().filter(|ring| ring.has_room()) else {
            return Some((request, file));
        };
        // The kernel executes a sync on one of its own threads anyway.
        if request.operation == Operation::Sync {
            return Some((request, file));
        }
        let queued = match self.pool.queue.begin_here((request, file)) {
            CallStart::Here(queued) => queued,
            CallStart::NotYet(request) => return Some(request),
        };
        if queued.is_late(&*self.pool.clock) {
            queued.finish(Err(IoError::Stopped(Stopped::Deadline)));
            self.return_places();
        } else {
            ring.launch(InFlight::listed(queued));
            if ring.failed {
                self.return_places();
            }
        }
        None
    }

    /// Waits at most `limit` until one request on the ring has completed, or `all` have. An interruption ends the wait
    /// early.
    pub fn wait(&mut self, all: bool, limit: Option<Duration>) {
        let Some(ring) = self.ring.as_mut() else { return };
        if !ring.reap(&self.pool) || all && !ring.is_idle() {
            ring.enter(if all { ring.slots.in_flight() } else { 1 }, limit);
            ring.reap(&self.pool);
        }
        self.return_places();
    }

    fn return_places(&self) {
        if self.pool.queue.end_here() {
            self.pool.doorbell.ring();
        }
    }
}

impl Drop for CallRing {
    fn drop(&mut self) {
        let Some(ring) = self.ring.take() else { return };
        if self.pool.process.is_this() {
            self.pool.give_back(ring);
        } else {
            std::mem::forget(ring);
        }
    }
}

/// A ring of the kernel with its slots.
struct KernelRing {
    kernel: IoUring,
    /// Dropped after the ring. Requests that are still in a slot then are leaked.
    slots: Slots,
    stalls: u32,
    failed: bool,
}

impl fmt::Debug for KernelRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelRing").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl KernelRing {
    fn new(places: u32) -> io::Result<Self> {
        let entries = places.next_power_of_two();
        // Not for a single issuer: the next call that uses this ring may be on another thread.
        let kernel = match IoUring::builder().dontfork().setup_coop_taskrun().build(entries) {
            // Kernels before 5.19 do not support the flag.
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
        !self.failed && self.slots.free_count() > 0
    }

    fn is_idle(&self) -> bool {
        self.slots.in_flight() == 0
    }

    /// Starts a request immediately, so that the device works on it while the call continues.
    fn launch(&mut self, flight: InFlight) {
        let entry = flight.entry_at_once();
        let number = self.slots.put(flight);
        self.push(&entry.user_data(number));
        self.settle(self.kernel.submit().map(drop));
    }

    fn push(&mut self, entry: &io_uring::squeue::Entry) {
        // SAFETY: what the entry points to stays in its slot until its completion, or is leaked with it.
        let pushed = unsafe { self.kernel.submission().push(entry) };
        // The ring has an entry for every slot, and each slot uses one at a time.
        self.failed |= pushed.is_err();
    }

    /// Submits what is not submitted yet and waits for completions.
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
                tracing::error!(%error, "the ring of a call failed; abandoning its requests in flight");
                self.failed = true;
            }
        }
        if self.failed {
            self.slots.abandon();
        }
    }

    /// Completes the requests that the kernel has finished. Returns whether there were any.
    fn reap(&mut self, of: &CallRingPool) -> bool {
        let mut any = false;
        // One by one, so that a panic in a completion loses no other one.
        while let Some(done) = self.next() {
            any = true;
            let Some(flight) = self.slots.take(done.user_data()) else { continue };
            match flight.settle_at_once(done.result()) {
                (queued, Some(ended)) => queued.finish(ended),
                (queued, None) => of.hand_over(queued, -done.result()),
            }
        }
        any
    }

    fn next(&mut self) -> Option<cqueue::Entry> {
        self.kernel.completion().next()
    }
}
