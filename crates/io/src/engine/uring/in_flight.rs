//! A request that the kernel executes, with what the kernel reads to execute it.
//!
//! 1. An [`InFlight`] is constructed before its entry is pushed and consumed after its completion. If it is dropped in
//!    between, it leaks what the kernel may touch and fails its request.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::with_exposed_provenance_mut;

use io_uring::{opcode, squeue, types};

use super::ring::RegisteredBuffers;
use crate::engine::queued_request::QueuedRequest;
use crate::{IoError, Memory, Operation, Request};

/// How often a request is tried that the kernel interrupts (`EINTR`, `EAGAIN`).
const MAX_RETRIES: u8 = 16;

pub(super) struct InFlight {
    /// `None` once completed.
    queued: Option<QueuedRequest>,
    /// The scatter list of a request of several pieces.
    pieces: Vec<libc::iovec>,
    retries: u8,
}

/// What happened to a request in flight.
pub(super) enum Settled {
    Ended(QueuedRequest, Result<(), IoError>),
    /// It must be submitted again.
    Again(InFlight),
}

impl InFlight {
    /// For a call's ring, which always uses a scatter list.
    pub(super) fn listed(queued: QueuedRequest) -> Self {
        let pieces = scatter_list(&queued.request().memory);
        Self { queued: Some(queued), pieces, retries: 0 }
    }

    pub(super) fn new(queued: QueuedRequest) -> Self {
        let memory = &queued.request().memory;
        let pieces = if memory.len() > 1 { scatter_list(memory) } else { Vec::new() };
        Self { queued: Some(queued), pieces, retries: 0 }
    }

    /// Applies the kernel's result.
    pub(super) fn settle(mut self, result: i32) -> Settled {
        if matches!(-result, libc::EINTR | libc::EAGAIN) && self.retries < MAX_RETRIES {
            self.retries += 1;
            return Settled::Again(self);
        }
        let is_unknown = matches!(-result, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS);
        if is_unknown && self.forget_durability() {
            return Settled::Again(self);
        }
        // The kernel is done, so the memory may be returned.
        let queued = self.queued.take().expect("a request completes once");
        let result = match u64::try_from(result) {
            Ok(got) => queued.check_count(got),
            Err(_) => Err(queued.os_error(io::Error::from_raw_os_error(-result))),
        };
        Settled::Ended(queued, result)
    }

    /// The system does not know writes that are durable when they end: the next sync makes it durable. Returns whether
    /// it was one.
    fn forget_durability(&mut self) -> bool {
        let queued = self.queued.as_mut().expect("a request completes once");
        std::mem::take(&mut queued.parts().0.purpose.is_durable)
    }

    /// Applies the kernel's result on a call's ring. Returns the request and how it ended, or only the request if the
    /// engine must execute it: the kernel refused to wait, or moved only a part.
    pub(super) fn settle_at_once(
        mut self,
        result: i32,
    ) -> (QueuedRequest, Option<Result<(), IoError>>) {
        let queued = self.queued.take().expect("a request completes once");
        let is_whole = u64::try_from(result).is_ok_and(|got| got == queued.request().bytes());
        let is_ours = matches!(-result, libc::EAGAIN | libc::EINTR | libc::EOPNOTSUPP);
        let ended = if is_whole {
            Some(Ok(()))
        } else if result >= 0 || is_ours {
            None
        } else {
            Some(Err(queued.os_error(io::Error::from_raw_os_error(-result))))
        };
        (queued, ended)
    }

    /// The entry for the owner's ring.
    pub(super) fn entry(&self, arena: Option<&RegisteredBuffers>) -> squeue::Entry {
        let queued = self.queued.as_ref().expect("a request is here until its completion");
        let (request, file) = (queued.request(), types::Fd(queued.file().descriptor.as_raw_fd()));
        let (offset, flags) = (request.offset, write_flags(request));
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
                opcode::Writev::new(file, list, count).offset(offset).rw_flags(flags).build()
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
                let entry = opcode::WriteFixed::new(file, start, bytes, index);
                entry.offset(offset).rw_flags(flags).build()
            }
            (true, None) => {
                opcode::Write::new(file, start, bytes).offset(offset).rw_flags(flags).build()
            }
        }
    }
}

/// The slots of one ring. A request is here from before its entry is pushed until its completion.
pub(super) struct Slots {
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
}

impl Slots {
    pub(super) fn new(places: u32) -> Self {
        let slots: Vec<_> = (0..places).map(|_| None).collect();
        Self { free: (0..slots.len()).rev().collect(), slots }
    }

    /// How many are free.
    pub(super) fn free_count(&self) -> usize {
        self.free.len()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Keeps a request until its completion. Returns the number that its completion will have.
    ///
    /// # Panics
    ///
    /// If no slot is free.
    pub(super) fn put(&mut self, flight: InFlight) -> u64 {
        let slot = self.free.pop().expect("the caller checked that a slot is free");
        self.slots[slot] = Some(flight);
        slot as u64
    }

    /// The request of a completion.
    pub(super) fn take(&mut self, number: u64) -> Option<InFlight> {
        let slot = usize::try_from(number).ok()?;
        let flight = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(flight)
    }

    /// Abandons all requests in flight (invariant 1).
    pub(super) fn abandon(&mut self) {
        for slot in 0..self.slots.len() {
            drop(self.take(slot as u64));
        }
    }
}

impl InFlight {
    /// The entry for a call's ring: a read or write that waits for nothing but the device. So the kernel's own threads
    /// never hold a request of a call, which would keep the calling thread from exiting.
    pub(super) fn entry_at_once(&self) -> squeue::Entry {
        let queued = self.queued.as_ref().expect("a request is here until its completion");
        let (request, file) = (queued.request(), types::Fd(queued.file().descriptor.as_raw_fd()));
        let list = self.pieces.as_ptr();
        let (count, offset) = (length(self.pieces.len()), request.offset);
        let flags = libc::RWF_NOWAIT;
        match request.operation {
            Operation::Read => {
                opcode::Readv::new(file, list, count).offset(offset).rw_flags(flags).build()
            }
            Operation::Write => {
                opcode::Writev::new(file, list, count).offset(offset).rw_flags(flags).build()
            }
            Operation::Sync => unreachable!("a call's ring takes no sync"),
        }
    }
}

// SAFETY: the scatter list points to memory of the request, which may change threads.
unsafe impl Send for InFlight {}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(queued) = self.queued.take() {
            std::mem::forget(std::mem::take(&mut self.pieces));
            queued.abandon();
        }
    }
}

/// What a write asks of the kernel beyond a plain one.
fn write_flags(request: &Request) -> i32 {
    if request.purpose.is_durable { libc::RWF_DSYNC } else { 0 }
}

/// The scatter list of a request. Adjacent pieces become one entry, because the kernel looks up the pages of each entry
/// again. The slices of one block are adjacent.
fn scatter_list(memory: &[Memory]) -> Vec<libc::iovec> {
    let mut list: Vec<libc::iovec> = Vec::new();
    for piece in memory {
        match list.last_mut() {
            Some(before) if before.iov_base.addr() + before.iov_len == piece.address() => {
                before.iov_len += piece.len();
            }
            _ => list.push(libc::iovec {
                iov_base: with_exposed_provenance_mut(piece.address()),
                iov_len: piece.len(),
            }),
        }
    }
    list
}

fn length(value: usize) -> u32 {
    u32::try_from(value).expect("requests are bounded when they are submitted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_memory_is_one_entry_of_the_scatter_list() {
        let mut bytes = vec![0_u8; 64];
        crate::lend(|lender| {
            let mut rest = lender.exclusive(&mut bytes);
            let mut memory: Vec<_> = [8, 8, 16, 4, 20].map(|len| rest.split_to(len)).into();
            drop(memory.remove(2));
            let list = scatter_list(&memory);
            let lengths: Vec<_> = list.iter().map(|entry| entry.iov_len).collect();
            assert_eq!(lengths, [16, 24]);
            assert_eq!(list[1].iov_base.addr(), memory[2].address());
            assert!(scatter_list(&[]).is_empty());
        });
    }
}
