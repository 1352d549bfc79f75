//! The engine over Linux `io_uring`: one thread owns the ring, and calls may drive small rings of their own.
//!
//! 1. Only the owner's thread touches its ring; submitters fill the queue and ring the doorbell, or use the ring of
//!    their call (`call_ring.rs`).
//! 2. What the kernel may touch (memory, scatter list, file) lives in its slot until the completion. If the ring
//!    fails while it is there, it is leaked: the kernel may come back to it.
//! 3. Each slot has at most one entry in the ring, and the ring has room for all slots and the doorbell.
//! 4. The arena stays mapped as long as it is registered: the owner holds the pool.
//! 5. The owner sleeps only with the doorbell armed, and when nothing in the queue may start or every slot is taken.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Clock;
use io_uring::{IoUring, opcode, squeue, types};

use super::call_ring::{CallRing, CallRings};
use super::doorbell::Doorbell;
use super::in_flight::{InFlight, Settled, Slots};
use super::ring::{self, RegisteredBuffers};
use crate::engine::OpenFile;
use crate::engine::backend::{CLOSE_TIMEOUT, Engine, Setup};
use crate::engine::queue::Queue;
use crate::engine::queued_request::QueuedRequest;
use crate::threads::Workers;
use crate::{BufferPool, IoError, Request};

/// Marks the doorbell's completion; slots are far smaller.
const DOORBELL: u64 = u64::MAX;

/// What a ring that fails leaves behind (invariant 2).
const CLOSED: &str = "the device is closed; if it owes a write or sync, its directory is locked until the process ends";

/// How often the kernel may be out of resources, a millisecond apart, before the ring is given up.
const MAX_STALLS: u32 = 5000;

#[derive(Debug)]
pub(in crate::engine) struct Uring {
    queue: Arc<Queue>,
    doorbell: Arc<Doorbell>,
    shelf: Arc<CallRings>,
    workers: Workers,
}

impl Uring {
    pub(in crate::engine) fn start(setup: &Setup) -> io::Result<Self> {
        let queue = Arc::new(Queue::new(setup.queue, setup.depth));
        let doorbell = Arc::new(Doorbell::new()?);
        let shelf = Arc::new(CallRings::new(&queue, &doorbell, &setup.clock, setup.depth));
        let mut workers = Workers::new();
        let (report, started) = crossbeam_channel::bounded(1);
        let parts = (Arc::clone(&queue), Arc::clone(&doorbell), Arc::clone(&shelf), setup.clone());
        // The ring is made by the thread that will use it: the kernel holds it to that.
        workers.start("dalsegno-uring", move || match RingOwner::new(parts) {
            Ok(owner) => {
                drop(report.send(Ok(())));
                owner.serve();
            }
            Err(error) => drop(report.send(Err(error))),
        })?;
        started.recv().map_err(|_| io::Error::other("the I/O thread failed"))??;
        Ok(Self { queue, doorbell, shelf, workers })
    }
}

impl Engine for Uring {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn submit(&self, batch: Vec<(Request, Arc<OpenFile>)>) {
        if self.queue.push(batch) {
            self.doorbell.ring();
        }
    }

    fn call_ring(&self) -> Option<CallRing> {
        self.shelf.take()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.workers.are_ours() {
            self.queue.close();
            self.doorbell.ring();
            self.workers.join(CLOSE_TIMEOUT);
        }
    }
}

/// What the owner's thread works with.
struct RingOwner {
    ring: IoUring,
    /// Dropped after the ring; whatever is still in a slot then is leaked (invariant 2).
    slots: Slots,
    shelf: Arc<CallRings>,
    /// Whether the ring reads the doorbell.
    armed: bool,
    stalls: u32,
    queue: Arc<Queue>,
    doorbell: Arc<Doorbell>,
    clock: Arc<dyn Clock>,
    /// The registered arena, if the kernel took it.
    arena: Option<RegisteredBuffers>,
    /// Keeps the arena mapped (invariant 4).
    _pool: BufferPool,
    /// Reused between rounds.
    arrived: Vec<QueuedRequest>,
    done: Vec<(u64, i32)>,
}

type OwnerParts = (Arc<Queue>, Arc<Doorbell>, Arc<CallRings>, Setup);

impl RingOwner {
    fn new((queue, doorbell, shelf, setup): OwnerParts) -> io::Result<Self> {
        let ring = ring::build(setup.depth + 1)?;
        let arena = RegisteredBuffers::register(&ring, &setup.pool);
        Ok(Self {
            ring,
            slots: Slots::new(setup.depth),
            shelf,
            armed: false,
            stalls: 0,
            queue,
            doorbell,
            clock: setup.clock,
            arena,
            _pool: setup.pool,
            arrived: Vec::new(),
            done: Vec::new(),
        })
    }

    fn serve(mut self) {
        match catch_unwind(AssertUnwindSafe(|| self.run())) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the ring failed; {CLOSED}"),
            Err(_) => tracing::error!("the I/O thread panicked; {CLOSED}"),
        }
        // Also after a failure every request gets its answer: what waits here, what flies when the slots are dropped.
        self.queue.close();
        self.shelf.close();
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            self.reap()?;
            let left = self.shelf.reap_left();
            let closed = self.fill()?;
            if closed && !left && self.slots.in_flight() == 0 {
                return self.stop();
            }
            self.arm()?;
            self.enter()?;
        }
    }

    /// Starts what waits, as far as slots are free. Returns whether the queue is closed.
    fn fill(&mut self) -> io::Result<bool> {
        let mut arrived = std::mem::take(&mut self.arrived);
        loop {
            let room = self.slots.room();
            let closed = self.queue.take(room, &mut arrived);
            // Late requests take neither a slot nor a share of the slots, so others may start now. With slots still
            // free, the doorbell rings again only when the queue had nothing that may start.
            if arrived.is_empty() {
                self.arrived = arrived;
                return Ok(closed);
            }
            for job in arrived.drain(..) {
                self.launch(job)?;
            }
        }
    }

    fn launch(&mut self, job: QueuedRequest) -> io::Result<()> {
        if job.is_late(&*self.clock) {
            job.finish(Err(IoError::Deadline));
            return Ok(());
        }
        self.start(InFlight::new(job))
    }

    fn start(&mut self, flight: InFlight) -> io::Result<()> {
        let entry = flight.entry(self.arena.as_ref());
        let number = self.slots.put(flight);
        self.push(&entry.user_data(number))
    }

    fn arm(&mut self) -> io::Result<()> {
        if self.armed {
            return Ok(());
        }
        let descriptor = types::Fd(self.doorbell.as_raw_fd());
        let entry = opcode::Read::new(descriptor, self.doorbell.count.as_ptr().cast(), 8).build();
        self.armed = true;
        self.push(&entry.user_data(DOORBELL))
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: what the entry names lives until its completion: a slot's parts by invariant 2, the doorbell's
        // count because `drop` leaks the doorbell while it is armed.
        unsafe { self.ring.submission().push(entry) }
            .map_err(|_| io::Error::other("the submission queue is full"))
    }

    /// Submits what was pushed and waits for a completion.
    fn enter(&mut self) -> io::Result<()> {
        match self.ring.submit_and_wait(1).map_err(|e| (e.raw_os_error(), e)) {
            Ok(_) => self.stalls = 0,
            Err((Some(libc::EINTR), _)) => {}
            Err((Some(libc::EAGAIN | libc::EBUSY), _)) if self.stalls < MAX_STALLS => {
                self.stalls += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err((_, error)) => return Err(error),
        }
        Ok(())
    }

    fn reap(&mut self) -> io::Result<()> {
        // Copied first: landing may need the ring again.
        let mut done = std::mem::take(&mut self.done);
        done.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        for (user_data, result) in done.drain(..) {
            if user_data == DOORBELL {
                self.armed = false;
                ring::check_doorbell(result)?;
            } else {
                self.land(user_data, result)?;
            }
        }
        self.done = done;
        Ok(())
    }

    fn land(&mut self, user_data: u64, result: i32) -> io::Result<()> {
        let Some(flight) = self.slots.take(user_data) else {
            return Err(io::Error::other("a completion without a request"));
        };
        match flight.settle(result) {
            Settled::Ended(job, result) => job.finish(result),
            Settled::Again(flight) => return self.start(flight),
        }
        Ok(())
    }

    /// Takes the doorbell back from the kernel, so that nothing of ours is left with it.
    fn stop(&mut self) -> io::Result<()> {
        while self.armed {
            self.doorbell.ring();
            self.enter()?;
            self.reap()?;
        }
        if self.arena.take().is_some() {
            // At once, so that the next ring finds its memory allowance free; the kernel would do it later.
            self.ring.submitter().unregister_buffers()?;
        }
        Ok(())
    }
}

impl Drop for RingOwner {
    fn drop(&mut self) {
        if self.armed {
            std::mem::forget(Arc::clone(&self.doorbell));
        }
    }
}
