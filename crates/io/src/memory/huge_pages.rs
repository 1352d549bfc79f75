//! Huge pages for files in memory.
//!
//! A device writes each request into few pieces of physical memory, and a page is a piece: reads into huge pages are up
//! to a third faster, and take half of the CPU time. Each process that maps the file takes a page fault for each page.
//!
//! The kernel gives such files huge pages by itself only if an administrator allows it
//! (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`). It collapses small pages to huge ones on request of every
//! user, since Linux 6.1. A range with a single small page is collapsed without copying much.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{Advice, MapFlags, ProtFlags};

const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// How much is collapsed by one call: each of them looks at all processors first.
const STEP_BYTES: usize = 16 * HUGE_PAGE_BYTES;
/// Steps refused in a row after which no more are tried: the kernel looks for contiguous memory each time.
const MOST_REFUSALS: u32 = 3;
/// Of `madvise`, since Linux 6.1.
const MADV_COLLAPSE: libc::c_int = 25;

/// An address at which a file of `bytes` can be mapped in huge pages; null if there is none, or the file is too small.
/// It is free at the moment of the call, so it is only a hint.
pub(super) fn aligned_address(bytes: usize) -> *mut c_void {
    let Some(len) = bytes.checked_add(HUGE_PAGE_BYTES) else { return null_mut() };
    if bytes < HUGE_PAGE_BYTES {
        return null_mut();
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh anonymous mapping without access; no existing memory is involved.
    let found = unsafe { rustix::mm::mmap_anonymous(null_mut(), len, ProtFlags::empty(), flags) };
    let Ok(start) = found else { return null_mut() };
    // SAFETY: the mapping of the line above, which nothing refers to.
    let unmapped = unsafe { rustix::mm::munmap(start, len) };
    debug_assert!(unmapped.is_ok(), "a mapping of ours");
    start.wrapping_byte_add(start.align_offset(HUGE_PAGE_BYTES))
}

/// Has the system provide the memory of a mapped file, in huge pages where it can. Bytes of the file stay. Memory that
/// the system does not provide is left for the caller, who asks for it in a way that returns errors.
pub(super) fn provide(start: NonNull<u8>, bytes: usize) {
    let mut refusals = 0;
    let mut at = start.as_ptr().align_offset(HUGE_PAGE_BYTES).min(bytes);
    populate(start, at);
    while at < bytes {
        let step = STEP_BYTES.min(bytes - at);
        // SAFETY: `at` is less than the length of the mapping.
        let part = unsafe { start.add(at) };
        let whole = step - step % HUGE_PAGE_BYTES;
        if whole > 0 && refusals < MOST_REFUSALS {
            refusals = if collapse(part, whole) { 0 } else { refusals + 1 };
        }
        if !populate(part, step) {
            return;
        }
        at += step;
    }
}

/// Turns a range of whole huge pages into them. Returns whether all of it is.
fn collapse(start: NonNull<u8>, bytes: usize) -> bool {
    for at in (0..bytes).step_by(HUGE_PAGE_BYTES) {
        // SAFETY: inside the range. A range without any page is not collapsed.
        if !populate(unsafe { start.add(at) }, PAGE_BYTES) {
            return false;
        }
    }
    // SAFETY: a mapping of the caller's, whose bytes this does not change.
    let refused = unsafe { libc::madvise(start.as_ptr().cast(), bytes, MADV_COLLAPSE) };
    refused == 0
}

/// Touches all pages for writing, without a change of their bytes. `false` if the system refuses.
fn populate(start: NonNull<u8>, bytes: usize) -> bool {
    let advice = Advice::LinuxPopulateWrite;
    // SAFETY: a mapping of the caller's, whose bytes this does not change. Where it would fault, it returns an error.
    unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, advice) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::claim::Claim;
    use crate::memory::region::Region;
    use crate::{Access, Backing};
    use std::sync::Arc;

    #[test]
    fn memory_provided_at_once_is_zero_and_that_of_a_named_file_keeps_its_bytes() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let named = Backing::Named(folder.path().join("arena"));
        for bytes in [4096, HUGE_PAGE_BYTES + 4096, STEP_BYTES + 3 * HUGE_PAGE_BYTES + 4096] {
            for (backing, round) in [(&Backing::MemoryFile, 0), (&named, 0), (&named, 1)] {
                let region = Region::shared(backing, bytes, "a test").unwrap();
                let region = Arc::new(region);
                let reader =
                    Region::map(region.reader_file().unwrap(), bytes, Access::Read, "a test");
                let mut claim = Claim::of(&region, 0, bytes, ());
                let mut memory = claim.memory();
                assert!(memory.as_slice().iter().all(|byte| *byte == round), "{bytes} {backing:?}");
                memory.as_mut_slice().fill(1);
                assert_eq!(reader.unwrap().counter(bytes - 8), Some(0x0101_0101_0101_0101));
            }
        }
    }

    #[test]
    fn a_file_of_a_huge_page_or_more_is_mapped_at_a_multiple_of_one() {
        assert!(aligned_address(HUGE_PAGE_BYTES - 1).is_null());
        for bytes in [HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 4096] {
            let at = aligned_address(bytes);
            assert!(!at.is_null() && at.align_offset(HUGE_PAGE_BYTES) == 0);
        }
        assert!(aligned_address(1 << 62).is_null() && aligned_address(usize::MAX).is_null());
    }
}
