//! How the system provides the memory of a file: in parts, so that a process that ends does not wait for all of it.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::Advice;

use crate::StopSignal;

/// Bytes that the system provides at a time: 10 to 60 ms.
const PART_BYTES: u64 = 64 << 20;

/// Allocates the memory of a file. Returns `false` if the kernel or a sandbox does not have that call. The error is
/// `ECANCELED` if the signal was set.
pub(super) fn provide(file: &OwnedFd, bytes: u64, stop: &StopSignal) -> Result<bool, Errno> {
    // Whole pages, of whatever size the file has.
    let page = u64::try_from(rustix::fs::fstat(file)?.st_blksize).unwrap_or_default();
    let part = PART_BYTES.max(page);
    let mut done = 0;
    while done < bytes {
        if stop.is_set() {
            return Err(Errno::CANCELED);
        }
        let count = part.min(bytes - done);
        let flags = FallocateFlags::empty();
        match rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, flags, done, count)) {
            Ok(()) => done += count,
            Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Touches all pages of a mapping, so that the system provides them now. A kernel before 5.14 provides them at use.
///
/// # Safety
///
/// `bytes` at `start` are a mapping of this process that no reference of Rust points to.
pub(super) unsafe fn touch_all(
    start: NonNull<u8>,
    bytes: usize,
    stop: &StopSignal,
) -> Result<(), Errno> {
    let part = usize::try_from(PART_BYTES).expect("64-bit addresses");
    for offset in (0..bytes).step_by(part) {
        if stop.is_set() {
            return Err(Errno::CANCELED);
        }
        let (count, advice) = (part.min(bytes - offset), Advice::LinuxPopulateWrite);
        // SAFETY: a range of the caller's mapping; the advice changes none of its bytes.
        match unsafe { rustix::mm::madvise(start.add(offset).as_ptr().cast(), count, advice) } {
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, ProtFlags};

    use super::*;

    #[test]
    fn memory_is_touched_where_it_cannot_be_allocated() {
        let (bytes, protection) = (1 << 20, ProtFlags::READ | ProtFlags::WRITE);
        let at = std::ptr::null_mut();
        // SAFETY: a new mapping, which nothing else uses.
        let start = unsafe { rustix::mm::mmap_anonymous(at, bytes, protection, MapFlags::PRIVATE) };
        let start = NonNull::new(start.unwrap().cast()).unwrap();
        for (is_set, is_done) in [(false, true), (true, false)] {
            let stop = StopSignal::new(move || is_set);
            // SAFETY: the mapping from above.
            assert_eq!(unsafe { touch_all(start, bytes, &stop) }.is_ok(), is_done);
        }
    }
}
