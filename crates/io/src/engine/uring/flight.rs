//! A request in the kernel's hands.
//!
//! 1. A flight is constructed before its entry is pushed and lands after its completion; dropped in between, it leaks
//!    what the kernel may touch and answers its request with an error.

use std::os::fd::AsRawFd;
use std::ptr::with_exposed_provenance_mut;

use io_uring::{opcode, squeue, types};

use super::ring::Arena;
use crate::engine::job::Job;
use crate::{Memory, Operation};

/// How often a request that the kernel wants to see again is tried.
const MAX_RETRIES: u8 = 16;

pub(super) struct Flight {
    /// `None` once landed.
    job: Option<Job>,
    /// The scatter list of a request of several pieces.
    pieces: Vec<libc::iovec>,
    retries: u8,
}

impl Flight {
    pub(super) fn new(job: Job) -> Self {
        let memory = &job.request().memory;
        let pieces = if memory.len() > 1 { memory.iter().map(piece).collect() } else { Vec::new() };
        Self { job: Some(job), pieces, retries: 0 }
    }

    /// Counts a retry, unless there were enough.
    pub(super) fn may_retry(&mut self) -> bool {
        self.retries += 1;
        self.retries <= MAX_RETRIES
    }

    /// The kernel is done: the memory may go back.
    pub(super) fn land(mut self) -> Job {
        self.job.take().expect("a flight lands once")
    }

    /// What the ring is asked for.
    pub(super) fn entry(&self, arena: Option<&Arena>) -> squeue::Entry {
        let job = self.job.as_ref().expect("a flight has its job until it lands");
        let (request, file) = (job.request(), types::Fd(job.file().descriptor.as_raw_fd()));
        let offset = request.offset;
        let write = match request.operation {
            Operation::Sync => {
                let flags = types::FsyncFlags::DATASYNC;
                return opcode::Fsync::new(file).flags(flags).build();
            }
            Operation::Write => true,
            Operation::Read => false,
        };
        let [memory] = request.memory.as_slice() else {
            let (list, count) = (self.pieces.as_ptr(), length(self.pieces.len()));
            return if write {
                opcode::Writev::new(file, list, count).offset(offset).build()
            } else {
                opcode::Readv::new(file, list, count).offset(offset).build()
            };
        };
        let (start, bytes) = (with_exposed_provenance_mut(memory.address()), length(memory.len()));
        match (write, arena.and_then(|arena| arena.index_of(memory))) {
            (false, Some(index)) => {
                opcode::ReadFixed::new(file, start, bytes, index).offset(offset).build()
            }
            (false, None) => opcode::Read::new(file, start, bytes).offset(offset).build(),
            (true, Some(index)) => {
                opcode::WriteFixed::new(file, start, bytes, index).offset(offset).build()
            }
            (true, None) => opcode::Write::new(file, start, bytes).offset(offset).build(),
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            std::mem::forget(std::mem::take(&mut self.pieces));
            job.abandon();
        }
    }
}

fn piece(memory: &Memory) -> libc::iovec {
    libc::iovec { iov_base: with_exposed_provenance_mut(memory.address()), iov_len: memory.len() }
}

fn length(value: usize) -> u32 {
    u32::try_from(value).expect("requests are bounded when they are submitted")
}
