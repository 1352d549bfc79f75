//! Transfers with `preadv` and `pwritev`, which move less than was requested at times.
//!
//! 1. A transfer continues until every byte has moved, the file has ended, or the system has failed.
//! 2. A call that the system interrupts is repeated a bounded number of times.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use dalsegno_core::SECTOR_BYTES;
use rustix::io::{Errno, ReadWriteFlags};

use crate::Request;

/// Most pieces of one call, the kernel's `IOV_MAX`.
pub(crate) const MAX_PIECES: usize = 1024;
/// Most bytes of one request. The kernel itself cuts a transfer at 2 GiB less a page.
const MAX_REQUEST_BYTES: u64 = 1 << 30;
/// How often a call is tried that the system interrupts (`EINTR`, `EAGAIN`).
const MAX_TRIES: u32 = 16;

/// Asserts [`Request::check`], and that one system call can carry out the request.
pub(crate) fn check_bounds(request: &Request) {
    request.check();
    assert!(request.memory.len() <= MAX_PIECES, "{} pieces", request.memory.len());
    assert!(request.bytes() <= MAX_REQUEST_BYTES, "{} bytes", request.bytes());
}

/// Fills the memory of a request from an open file. Returns the bytes moved.
pub(crate) fn read(request: &mut Request, file: BorrowedFd<'_>) -> Result<u64, Errno> {
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

/// Writes the memory of a request to an open file. Returns the bytes moved.
pub(super) fn write(request: &Request, file: BorrowedFd<'_>) -> Result<u64, Errno> {
    let (offset, mut is_durable) = (request.offset, request.purpose.is_durable);
    let mut slices: Vec<IoSlice<'_>> =
        request.memory.iter().map(|memory| IoSlice::new(memory.as_slice())).collect();
    let mut left = slices.as_mut_slice();
    transfer(|done| {
        IoSlice::advance_slices(&mut left, done.step);
        if left.is_empty() {
            return Ok(0);
        }
        let offset = offset + done.total;
        if is_durable {
            match retried(|| rustix::io::pwritev2(file, left, offset, ReadWriteFlags::DSYNC)) {
                // This system does not know how: the next sync makes it durable.
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => is_durable = false,
                moved => return moved,
            }
        }
        retried(|| rustix::io::pwritev(file, left, offset))
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

/// Repeats a call that the system interrupts.
pub(crate) fn retried<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
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
