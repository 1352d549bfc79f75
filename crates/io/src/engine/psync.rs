//! The engine for every kernel and every container: threads that call `preadv` and `pwritev`.
//!
//! 1. A panic while serving one request completes that request with an error and spares the thread.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use dalsegno_core::{Clock, Stopped};
use rustix::fd::AsFd;

use super::OpenFile;
use super::backend::{CLOSE_TIMEOUT, Engine, Setup};
use super::queue::Queue;
use super::queued_request::QueuedRequest;
use super::transfer::{read, retried, write};
use crate::threads::Workers;
use crate::{IoError, Operation, Request};

/// More threads only wait for each other: the device is saturated long before.
const MAX_THREADS: u32 = 16;

#[derive(Debug)]
pub(super) struct Psync {
    queue: Arc<Queue>,
    workers: Workers,
}

impl Psync {
    pub(super) fn start(setup: &Setup) -> io::Result<Self> {
        let threads = setup.depth.min(MAX_THREADS);
        let queue = Arc::new(Queue::new(setup.queue, threads));
        let mut engine = Self { queue, workers: Workers::new() };
        for _ in 0..threads {
            let (queue, clock) = (Arc::clone(&engine.queue), Arc::clone(&setup.clock));
            engine.workers.start("dalsegno-psync", move || work(&queue, &*clock))?;
        }
        Ok(engine)
    }
}

impl Engine for Psync {
    fn name(&self) -> &'static str {
        "psync"
    }

    fn places(&self) -> usize {
        self.queue.share()
    }

    fn submit(&self, batch: Vec<(Request, Arc<OpenFile>)>) {
        // The threads wait on the queue itself, so no wake-up is needed.
        let _ = self.queue.push(batch);
    }
}

impl Drop for Psync {
    fn drop(&mut self) {
        if self.workers.are_ours() {
            self.queue.close();
            self.workers.join(CLOSE_TIMEOUT);
        }
    }
}

fn work(queue: &Queue, clock: &dyn Clock) {
    while let Some(queued) = queue.wait() {
        // Dropping the request in the panic completes it.
        if catch_unwind(AssertUnwindSafe(|| serve(queued, clock))).is_err() {
            tracing::error!("panic in an I/O thread; its request failed, the thread continues");
        }
    }
}

fn serve(mut queued: QueuedRequest, clock: &dyn Clock) {
    if queued.is_late(clock) {
        return queued.finish(Err(IoError::Stopped(Stopped::Deadline)));
    }
    let (request, file) = queued.parts();
    let moved = match request.operation {
        Operation::Read => read(request, file.descriptor.as_fd()),
        Operation::Write => write(request, file.descriptor.as_fd()),
        Operation::Sync => retried(|| rustix::fs::fdatasync(&file.descriptor)).map(|()| 0),
    };
    let result = match moved {
        Ok(got) => queued.check_count(got),
        Err(errno) => Err(queued.os_error(errno.into())),
    };
    queued.finish(result);
}
