//! The mapping of a region.
//!
//! 1. It is unmapped once, by the process that made it.

use std::ptr::NonNull;

use crate::Process;

/// Mapped memory. Dropping it unmaps it.
pub struct Mapping {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
    process: Process,
}

/// Is called when no part of a region is in use any more, with the region's mapping.
pub type MappingKeeper = Box<dyn FnOnce(Mapping) + Send>;

// SAFETY: plain memory, which any thread may unmap. By itself it gives no access.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Takes over what was mapped.
    ///
    /// # Safety
    ///
    /// `start..start + bytes` is a whole mapping, and nobody else unmaps it.
    pub(super) unsafe fn of(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes, process: Process::this() }
    }

    /// Whether this process mapped it.
    pub(super) fn is_here(&self) -> bool {
        self.process.is_this()
    }

    /// Address and length.
    #[must_use]
    pub fn range(&self) -> (usize, usize) {
        (self.start.as_ptr() as usize, self.bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.is_here() {
            // This address may belong to something else by now.
            return;
        }
        // SAFETY: the mapping is ours, and its last user dropped it.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours");
    }
}
