//! One mapping that buffers are cut from.
//!
//! 1. Who may touch which part is ruled by the lists of whoever cuts it; an mapping gives out addresses, no access.
//! 2. An address that it gives out, and the bytes asked for with it, lie inside of the mapping.
//! 3. A forked child has no mapping: nothing there may touch its address.

use std::ptr::NonNull;

use crate::{IoError, Process};

/// When the system gives the memory of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// At once.
    Now,
    /// Piece by piece as it is used first.
    AtUse,
}

/// A private anonymous mapping, page-aligned and zeroed.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    process: Process,
}

// SAFETY: the mapping is plain memory, which any thread may use and unmap; access is ruled elsewhere (invariant 1).
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out no access by itself.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` for a `purpose`, which an error names. What the machine can never give is refused here, unless its
    /// administrator wants that found out later (`vm.overcommit_memory`).
    pub(crate) fn map(bytes: usize, touch: Touch, purpose: &str) -> Result<Self, IoError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping; no existing memory is involved.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        let failed = || {
            let error = std::io::Error::last_os_error();
            IoError::os("allocation", format!("{bytes} bytes of {purpose}"), error)
        };
        let mapped = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED);
        let mapping = Self { start: mapped.ok_or_else(failed)?, bytes, process: Process::this() };
        // A fork would copy all of it, since the device may hold its pages, or else share the pages under a running
        // read: open(2) warns of that. The child has no use for them.
        // SAFETY: advice about our own mapping; a forked child never touches the mapping (invariant 3).
        unsafe { libc::madvise(start, bytes, libc::MADV_DONTFORK) };
        if touch == Touch::Now {
            // Huge pages keep a request in few physical pieces: 2.6 instead of 1.9 GB/s on a virtio disk, whose
            // requests hold 254 of them. Where there are none, ordinary pages do. Not for memory that is touched at
            // use: a guest whose host takes free memory back got its first huge pages for 1.5 to 3.1 CPU seconds per
            // GiB, ordinary ones for 0.4 to 0.5, and each of them holds up whoever touches it.
            // SAFETY: as above.
            unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
            // So that no request pays for it. A kernel without this advice (before 5.14) touches them at first use.
            // SAFETY: as above; it changes no bytes.
            unsafe { libc::madvise(start, bytes, libc::MADV_POPULATE_WRITE) };
        }
        Ok(mapping)
    }

    /// Address and length.
    pub(crate) fn range(&self) -> (usize, usize) {
        (self.start.as_ptr() as usize, self.bytes)
    }

    /// Whether it is mapped in the process that asks.
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_this()
    }

    /// Where `len` bytes from `offset` on begin.
    ///
    /// # Panics
    ///
    /// If they do not lie in the mapping.
    pub(crate) fn part(&self, offset: usize, len: usize) -> NonNull<u8> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.bytes);
        assert!(fits, "{len} bytes at {offset} of a mapping of {}", self.bytes);
        // SAFETY: at most the end of the mapping.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.is_here() {
            // Whatever lies at this address by now is somebody else's.
            return;
        }
        // SAFETY: the mapping is ours, and everything that was cut from it held its owner (and so this mapping) alive.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_has_is_refused_by_name_and_size() {
        let error = Mapping::map(1 << 62, Touch::AtUse, "notes").unwrap_err().to_string();
        assert!(error.contains("4611686018427387904 bytes of notes"), "{error}");
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095 of a mapping of 4096")]
    fn nothing_outside_is_given_out() {
        let _ = Mapping::map(4096, Touch::AtUse, "notes").unwrap().part(4095, 2);
    }
}
