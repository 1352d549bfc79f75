//! How the system provides the memory of a file: in parts, so that a process that is to end does not wait for all of it.

use std::os::fd::OwnedFd;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::Advice;

use super::region::Region;
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

/// Touches all pages of a region, so that the system provides them now. A kernel before 5.14 provides them at use.
pub(super) fn touch_all(region: &Region, stop: &StopSignal) -> Result<(), Errno> {
    let part = usize::try_from(PART_BYTES).expect("64-bit addresses");
    for offset in (0..region.bytes()).step_by(part) {
        if stop.is_set() {
            return Err(Errno::CANCELED);
        }
        let (start, count) = (region.part(offset, 0), part.min(region.bytes() - offset));
        let advice = Advice::LinuxPopulateWrite;
        // SAFETY: a range of a mapping that the region holds; the advice changes none of its bytes.
        match unsafe { rustix::mm::madvise(start.as_ptr().cast(), count, advice) } {
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::memory::backing::Backing;

    #[test]
    fn a_stopped_allocation_leaves_no_file_and_a_file_that_was_there() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("arena");
        let backing = Backing::Named(path.clone());
        let bytes = 3 * usize::try_from(PART_BYTES).unwrap();
        let left = AtomicU64::new(2);
        let stop = StopSignal::new(move || left.fetch_sub(1, Ordering::Relaxed) == 1);
        let error = Region::shared_unless(&backing, bytes, "a test", &stop).unwrap_err();
        assert!(error.to_string().contains("201326592 bytes of a test"), "{error}");
        assert!(rustix::fs::stat(&path).is_err());
        drop(Region::shared(&backing, 4096, "a test").unwrap());
        let stop = StopSignal::new(|| true);
        assert!(Region::shared_unless(&backing, 4096, "a test", &stop).is_err());
        assert!(rustix::fs::stat(&path).is_ok());
    }

    #[test]
    fn memory_is_touched_where_it_cannot_be_allocated() {
        let region = Region::shared(&Backing::MemoryFile, 1 << 20, "a test").unwrap();
        touch_all(&region, &StopSignal::default()).unwrap();
        assert!(touch_all(&region, &StopSignal::new(|| true)).is_err());
    }
}
