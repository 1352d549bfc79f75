//! The thread that owns the engine's ring.
//!
//! 1. Only this thread touches the ring. Submitters fill the queue and ring the doorbell, or use the ring of their call
//!    (`call_ring.rs`).
//! 2. What the kernel may touch (memory, scatter list, file) stays in its slot until the completion. If the ring fails
//!    meanwhile, it is leaked, because the kernel may still use it.
//! 3. Each slot has at most one entry in the ring, and the ring has space for all slots and the doorbell.
//! 4. The arena stays mapped until it was unregistered, or the kernel refused that: what says that it is registered
//!    holds the pool.
//! 5. The owner sleeps only with the doorbell armed, and only when no queued request may start or every slot is taken.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Stopped};
use io_uring::{IoUring, opcode, squeue, types};

use super::call_ring::CallRingPool;
use super::doorbell::Doorbell;
use super::in_flight::{InFlight, Settled, Slots};
use super::ring::{self, MAX_STALLS, RegisteredBuffers};
use crate::IoError;
use crate::engine::backend::Setup;
use crate::engine::queue::Queue;
use crate::engine::queued_request::QueuedRequest;

/// Marks the doorbell's completion. Slot numbers are far smaller.
const DOORBELL: u64 = u64::MAX;

/// The consequence of a failed ring, for log lines (invariant 2).
const CLOSED: &str =
    "device closed; a write or sync in flight keeps its directory locked until the process exits";

/// State of the owner's thread.
pub(super) struct RingOwner {
    ring: IoUring,
    /// Dropped after the ring. Requests that are still in a slot then are leaked (invariant 2).
    slots: Slots,
    call_rings: Arc<CallRingPool>,
    /// Whether the ring reads the doorbell.
    armed: bool,
    stalls: u32,
    queue: Arc<Queue>,
    doorbell: Arc<Doorbell>,
    clock: Arc<dyn Clock>,
    /// The registered arena, if the kernel accepted it. Dropped after the ring.
    registered: Option<RegisteredBuffers>,
    reused: Reused,
}

/// Lists that are reused between rounds; empty in between.
#[derive(Default)]
struct Reused {
    arrived: Vec<QueuedRequest>,
    done: Vec<(u64, i32)>,
}

/// What the owner shares with the engine's handle.
pub(super) struct OwnerParts {
    pub(super) queue: Arc<Queue>,
    pub(super) doorbell: Arc<Doorbell>,
    pub(super) call_rings: Arc<CallRingPool>,
    pub(super) setup: Setup,
}

impl RingOwner {
    pub(super) fn new(parts: OwnerParts) -> io::Result<Self> {
        let OwnerParts { queue, doorbell, call_rings, setup } = parts;
        let ring = ring::build(setup.depth + 1)?;
        let registered = RegisteredBuffers::register(&ring, &setup.pool);
        Ok(Self {
            ring,
            slots: Slots::new(setup.depth),
            call_rings,
            armed: false,
            stalls: 0,
            queue,
            doorbell,
            clock: setup.clock,
            registered,
            reused: Reused::default(),
        })
    }

    pub(super) fn serve(mut self) {
        match catch_unwind(AssertUnwindSafe(|| self.run())) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "io_uring failed; {CLOSED}"),
            Err(_) => tracing::error!("panic in the I/O thread; {CLOSED}"),
        }
        // Every request completes even after a failure: waiting ones here, those in flight when the slots are dropped.
        self.queue.close();
        self.call_rings.close();
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            self.reap()?;
            let left = self.call_rings.reap_left();
            let closed = self.fill()?;
            if closed && !left && self.slots.in_flight() == 0 {
                return self.stop();
            }
            self.arm()?;
            self.enter()?;
        }
    }

    /// Starts waiting requests as long as slots are free. Returns whether the queue is closed.
    fn fill(&mut self) -> io::Result<bool> {
        let mut arrived = std::mem::take(&mut self.reused.arrived);
        loop {
            let free = self.slots.free_count();
            let closed = self.queue.take(free, &mut arrived);
            // Late requests take neither a slot nor a share of the slots, so others may start now. With slots still
            // free, the doorbell rings again only when the queue had nothing that may start.
            if arrived.is_empty() {
                self.reused.arrived = arrived;
                return Ok(closed);
            }
            for queued in arrived.drain(..) {
                self.launch(queued)?;
            }
        }
    }

    fn launch(&mut self, queued: QueuedRequest) -> io::Result<()> {
        if queued.is_late(&*self.clock) {
            queued.finish(Err(IoError::Stopped(Stopped::Deadline)));
            return Ok(());
        }
        self.start(InFlight::new(queued))
    }

    fn start(&mut self, flight: InFlight) -> io::Result<()> {
        let entry = flight.entry(self.registered.as_ref());
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
        // SAFETY: what the entry points to lives until its completion: a slot's parts by invariant 2, the doorbell's
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
        // Copied first, because completing a request may need the ring.
        let mut done = std::mem::take(&mut self.reused.done);
        done.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        for (user_data, result) in done.drain(..) {
            if user_data == DOORBELL {
                self.armed = false;
                ring::check_doorbell(result)?;
            } else {
                self.land(user_data, result)?;
            }
        }
        self.reused.done = done;
        Ok(())
    }

    fn land(&mut self, user_data: u64, result: i32) -> io::Result<()> {
        let Some(flight) = self.slots.take(user_data) else {
            return Err(io::Error::other("a completion without a request"));
        };
        match flight.settle(result) {
            Settled::Ended(queued, result) => queued.finish(result),
            Settled::Again(flight) => return self.start(flight),
        }
        Ok(())
    }

    /// Cancels the read of the doorbell, so that the kernel holds nothing of ours.
    fn stop(&mut self) -> io::Result<()> {
        while self.armed {
            self.doorbell.ring();
            self.enter()?;
            self.reap()?;
        }
        if let Some(registered) = self.registered.take() {
            // Now, so that the next ring finds its memory allowance free. The kernel would do it later.
            self.ring.submitter().unregister_buffers()?;
            drop(registered);
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
