//! The handle of the engine: starts the thread that owns the ring, and passes requests to it.

use std::io;
use std::sync::Arc;

use super::call_ring::{CallRing, CallRingPool};
use super::doorbell::Doorbell;
use super::owner::{OwnerParts, RingOwner};
use crate::Request;
use crate::engine::OpenFile;
use crate::engine::backend::{CLOSE_TIMEOUT, Engine, Setup};
use crate::engine::queue::Queue;
use crate::threads::Workers;

#[derive(Debug)]
pub(in crate::engine) struct Uring {
    queue: Arc<Queue>,
    doorbell: Arc<Doorbell>,
    call_rings: Arc<CallRingPool>,
    workers: Workers,
}

impl Uring {
    pub(in crate::engine) fn start(setup: &Setup) -> io::Result<Self> {
        let queue = Arc::new(Queue::new(setup.queue, setup.depth));
        let doorbell = Arc::new(Doorbell::new()?);
        let call_rings = Arc::new(CallRingPool::new(&queue, &doorbell, &setup.clock, setup.depth));
        let mut workers = Workers::new();
        let (report, started) = crossbeam_channel::bounded(1);
        let parts = OwnerParts {
            queue: Arc::clone(&queue),
            doorbell: Arc::clone(&doorbell),
            call_rings: Arc::clone(&call_rings),
            setup: setup.clone(),
        };
        // The kernel requires that the thread that creates the ring also uses it.
        workers.start("dalsegno-uring", move || match RingOwner::new(parts) {
            Ok(owner) => {
                drop(report.send(Ok(())));
                owner.serve();
            }
            Err(error) => drop(report.send(Err(error))),
        })?;
        started.recv().map_err(|_| io::Error::other("the I/O thread failed"))??;
        Ok(Self { queue, doorbell, call_rings, workers })
    }
}

impl Engine for Uring {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn places(&self) -> usize {
        self.queue.share()
    }

    fn submit(&self, batch: Vec<(Request, Arc<OpenFile>)>) {
        if self.queue.push(batch) {
            self.doorbell.ring();
        }
    }

    fn call_ring(&self) -> Option<CallRing> {
        self.call_rings.take()
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
