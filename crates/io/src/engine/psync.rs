//! The engine for every kernel and every container: threads that call `preadv` and `pwritev`.
//!
//! 1. A transfer continues until every byte has moved, the file has ended, or the system has failed.
//! 2. A panic while serving one request completes that request with an error and spares the thread.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use dalsegno_core::{Clock, SECTOR_BYTES};
use rustix::fd::AsFd;
use rustix::io::Errno;

use super::OpenFile;
use super::backend::{CLOSE_TIMEOUT, Engine, Setup};
use super::queue::Queue;
use super::queued_request::QueuedRequest;
use crate::threads::Workers;
use crate::{IoError, Operation, Request};

/// More threads only wait for each other: the device is saturated long before.
const MAX_THREADS: u32 = 16;

/// How often a call is tried that the system interrupts (`EINTR`, `EAGAIN`).
const MAX_TRIES: u32 = 16;

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
        return queued.finish(Err(IoError::Deadline));
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

fn read(request: &mut Request, file: BorrowedFd<'_>) -> Result<u64, Errno> {
    let offset = request.offset;
    let mut slices: Vec<IoSliceMut<'_>> =
        request.memory.iter_mut().map(|memory| IoSliceMut::new(memory.as_mut_slice())).collect();
    let mut left = slices.as_mut_slice();
    transfer(|done| {
        IoSliceMut::advance_slices(&mut left, done.step);
        if left.is_empty() {
            return Ok(0);
        }
        retried(|| rustix::io::preadv(file, left, offset + done.total))
    })
}

fn write(request: &Request, file: BorrowedFd<'_>) -> Result<u64, Errno> {
    let offset = request.offset;
    let mut slices: Vec<IoSlice<'_>> =
        request.memory.iter().map(|memory| IoSlice::new(memory.as_slice())).collect();
    let mut left = slices.as_mut_slice();
    transfer(|done| {
        IoSlice::advance_slices(&mut left, done.step);
        if left.is_empty() {
            return Ok(0);
        }
        retried(|| rustix::io::pwritev(file, left, offset + done.total))
    })
}

/// Progress of a transfer.
#[derive(Clone, Copy, Default)]
struct Progress {
    total: u64,
    /// Bytes of the last step.
    step: usize,
}

/// Repeats `step` until it moves nothing more. Returns the total of bytes moved.
fn transfer(mut step: impl FnMut(Progress) -> Result<usize, Errno>) -> Result<u64, Errno> {
    let mut done = Progress::default();
    loop {
        done.step = step(done)?;
        done.total += done.step as u64;
        // A partial sector occurs only at the end of a file, where direct I/O cannot continue anyway.
        if done.step == 0 || !done.total.is_multiple_of(SECTOR_BYTES) {
            return Ok(done.total);
        }
    }
}

fn retried<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..MAX_TRIES {
        match call() {
            Err(Errno::INTR | Errno::AGAIN) => {}
            result => return result,
        }
    }
    call()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_transfer_continues_where_it_stopped() {
        let mut steps = vec![(0, 8192), (8192, 4096), (12288, 0)].into_iter();
        let moved = transfer(|done| {
            let (total, step) = steps.next().unwrap();
            assert_eq!(done.total, total);
            Ok(step)
        });
        assert_eq!(moved, Ok(12288));
    }

    #[test]
    fn interruptions_are_retried_a_bounded_number_of_times() {
        let mut calls = 0;
        let result: Result<(), Errno> = retried(|| {
            calls += 1;
            Err(Errno::INTR)
        });
        assert_eq!((result, calls), (Err(Errno::INTR), MAX_TRIES));
    }
}
