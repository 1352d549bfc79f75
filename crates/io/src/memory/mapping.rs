//! One anonymous mapping of fixed size, from which the buffer pool and the block frames hand out parts.
//!
//! 1. A mapping hands out addresses, not access. The free lists of its user decide who may access which part.
//! 2. An address that it hands out, and the bytes requested with it, are inside the mapping.
//! 3. A forked child has no mapping: nothing there may touch its address.

use std::ptr::NonNull;

use crate::{IoError, Process};

/// When the system provides the physical memory of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// When it is mapped.
    Now,
    /// Page by page, when a page is first used.
    AtUse,
}

/// A private anonymous mapping, page-aligned and zeroed.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    process: Process,
}

// SAFETY: the mapping is plain memory, which any thread may use and unmap. Its user rules access (invariant 1).
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives no access by itself.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` for a `purpose`, which an error names. A request beyond the machine's memory fails here, unless
    /// `vm.overcommit_memory` defers that failure.
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
        // A fork would copy all of it if the device holds its pages, or share the pages under a running read: open(2)
        // warns of that. The child does not need them.
        // SAFETY: advice about our own mapping; a forked child never touches it (invariant 3).
        unsafe { libc::madvise(start, bytes, libc::MADV_DONTFORK) };
        if touch == Touch::Now {
            // Huge pages keep a request in few physical pieces: 2.6 instead of 1.9 GB/s on a virtio disk, whose
            // requests hold 254 of them. Without huge pages, ordinary pages are used. Memory that is touched on use
            // gets none: in a guest whose host reclaims free memory, the first huge pages cost 1.5 to 3.1 CPU seconds
            // per GiB, ordinary ones 0.4 to 0.5, and each first touch delays its thread.
            // SAFETY: as above.
            unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
            // So that no request pays for the page faults. A kernel before 5.14 ignores this and faults on first use.
            // SAFETY: as above; it changes no bytes.
            unsafe { libc::madvise(start, bytes, libc::MADV_POPULATE_WRITE) };
        }
        Ok(mapping)
    }

    /// Address and length.
    pub(crate) fn range(&self) -> (usize, usize) {
        (self.start.as_ptr() as usize, self.bytes)
    }

    /// Whether it was mapped by this process.
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_this()
    }

    /// The address of `len` bytes at `offset`.
    ///
    /// # Panics
    ///
    /// If they are not inside the mapping.
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
            // This address may belong to something else by now.
            return;
        }
        // SAFETY: the mapping is ours. Every part holds its owner, and so this mapping, alive.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_size_is_refused_by_name_and_size() {
        let error = Mapping::map(1 << 62, Touch::AtUse, "notes").unwrap_err().to_string();
        assert!(error.contains("4611686018427387904 bytes of notes"), "{error}");
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095 of a mapping of 4096")]
    fn addresses_outside_the_mapping_are_never_handed_out() {
        let _ = Mapping::map(4096, Touch::AtUse, "notes").unwrap().part(4095, 2);
    }
}
