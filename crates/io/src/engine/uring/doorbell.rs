//! Wakes the thread that owns a ring.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;

use rustix::event::EventfdFlags;

/// An eventfd that the ring reads, so that a new request wakes a sleeping owner.
#[derive(Debug)]
pub(super) struct Doorbell {
    descriptor: OwnedFd,
    /// Where the kernel stores the count, which is never used.
    pub(super) count: AtomicU64,
}

impl Doorbell {
    pub(super) fn new() -> io::Result<Self> {
        // Blocking on purpose: the ring would complete a read of a non-blocking one immediately.
        let descriptor = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { descriptor, count: AtomicU64::new(0) })
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    #[expect(clippy::host_endian_bytes, reason = "an eventfd counts in the byte order of the host")]
    pub(super) fn ring(&self) {
        if let Err(error) =
            rustix::io::retry_on_intr(|| rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes()))
        {
            tracing::error!(%error, "cannot wake the I/O thread");
        }
    }
}
