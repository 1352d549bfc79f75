//! Setup of a ring, and the buffers registered with it.

use std::io;
use std::ptr::with_exposed_provenance_mut;

use io_uring::{IoUring, Probe, opcode};

use crate::{BufferPool, Memory, RegionId};

/// The kernel takes at most 1 GiB as one registered buffer.
const CHUNK_BYTES: usize = 1 << 30;

/// How often in a row the kernel may be out of resources, a millisecond apart, before a ring counts as failed.
pub(super) const MAX_STALLS: u32 = 5000;

const NEEDED: [u8; 8] = [
    opcode::Nop::CODE,
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::Readv::CODE,
    opcode::Writev::CODE,
    opcode::ReadFixed::CODE,
    opcode::WriteFixed::CODE,
    opcode::Fsync::CODE,
];

/// Makes a ring for at least `entries` requests and proves that it works.
pub(super) fn build(entries: u32) -> io::Result<IoUring> {
    let entries = entries.next_power_of_two();
    // A forked child must not share the queues.
    let modern =
        IoUring::builder().dontfork().setup_single_issuer().setup_defer_taskrun().build(entries);
    let mut ring = match modern {
        // Kernels before 6.1 do not support the flags.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().dontfork().build(entries)?
        }
        other => other?,
    };
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    if !NEEDED.iter().all(|&code| probe.is_supported(code)) {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    rehearse(&mut ring)?;
    Ok(ring)
}

/// A sandbox may allow a ring's setup but not its use.
fn rehearse(ring: &mut IoUring) -> io::Result<()> {
    // SAFETY: this entry names no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.map_err(io::Error::other)?;
    while ring.completion().next().is_none() {
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Whether the doorbell's read succeeded or may be retried.
pub(super) fn check_doorbell(result: i32) -> io::Result<()> {
    match result {
        8 => Ok(()),
        _ if matches!(-result, libc::EINTR | libc::EAGAIN) => Ok(()),
        _ if result < 0 => Err(io::Error::from_raw_os_error(-result)),
        _ => Err(io::Error::other("short read of the doorbell")),
    }
}

/// The pool's arena as registered with a ring, so that the kernel need not pin its pages for each request.
#[derive(Debug)]
pub(super) struct RegisteredBuffers {
    region: RegionId,
    bytes: usize,
    /// Keeps the arena mapped.
    _pool: BufferPool,
}

impl RegisteredBuffers {
    /// `None` if the kernel refuses. For an ordinary user the limit on locked memory is the usual reason.
    pub(super) fn register(ring: &IoUring, pool: &BufferPool) -> Option<Self> {
        let (start, bytes) = pool.region().range();
        let chunk = |at: usize| libc::iovec {
            iov_base: with_exposed_provenance_mut(start + at),
            iov_len: CHUNK_BYTES.min(bytes - at),
        };
        let chunks: Vec<libc::iovec> = (0..bytes).step_by(CHUNK_BYTES).map(chunk).collect();
        // SAFETY: the arena is mapped and stays mapped while it is registered: the result holds the pool, and is
        // dropped after the registration or the ring ended.
        match unsafe { ring.submitter().register_buffers(&chunks) } {
            Ok(()) => Some(Self { region: pool.region().id(), bytes, _pool: pool.clone() }),
            Err(error) => {
                tracing::debug!(%error, bytes, "cannot register staging memory with io_uring; using it unregistered");
                None
            }
        }
    }

    /// The index of the registered buffer that contains all of `memory`.
    pub(super) fn index_of(&self, memory: &Memory) -> Option<u16> {
        let range = memory.region_range().filter(|range| range.region == self.region)?;
        let first = range.offset;
        let last = first + range.len.checked_sub(1)?;
        let inside = last < self.bytes && first / CHUNK_BYTES == last / CHUNK_BYTES;
        inside.then(|| u16::try_from(first / CHUNK_BYTES).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_entirely_inside_the_arena_counts_as_registered() {
        let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
        let (start, bytes) = pool.region().range();
        let registered =
            RegisteredBuffers { region: pool.region().id(), bytes: bytes / 2, _pool: pool.clone() };
        let mut taken = Vec::new();
        while let Some(memory) = pool.try_take(1 << 20) {
            let inside = memory.address() + memory.len() <= start + bytes / 2;
            assert_eq!(registered.index_of(&memory), inside.then_some(0));
            taken.push(memory);
        }
        let other = BufferPool::new(16 << 20, 1 << 20).unwrap().try_take(1 << 20).unwrap();
        assert_eq!(registered.index_of(&other), None);
        let mut outside = [0_u8; 16];
        crate::lend(|lender| {
            assert_eq!(registered.index_of(&lender.exclusive(&mut outside)), None);
        });
    }

    #[test]
    fn a_doorbell_that_cannot_be_read_is_an_error() {
        assert!(check_doorbell(8).is_ok() && check_doorbell(-libc::EINTR).is_ok());
        assert!(check_doorbell(-libc::EBADF).is_err() && check_doorbell(4).is_err());
    }
}
