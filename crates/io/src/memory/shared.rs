//! Regions whose memory is provided before anybody uses it, so that no access fails later.
//!
//! 1. It is provided in parts, and between two of them the caller may stop it.
//! 2. What the system does not provide is an error, never a fault.

use std::io::ErrorKind;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::Advice;

use super::available::available_bytes;
use super::backing::{Backing, is_in_memory, is_regular, open_named};
use super::huge_pages;
use super::region::{Access, Region, refused};
use crate::{IoError, StopSignal};

/// Bytes that the system provides at a time: 10 to 60 ms.
const PART_BYTES: usize = 64 << 20;

impl Region {
    /// Creates memory of `bytes` that other processes can map, and maps it. The system sets all of it aside now, so that
    /// no access fails later for lack of memory.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] with purpose and size if the system refuses the memory or the file.
    pub fn shared(backing: &Backing, bytes: usize, purpose: &str) -> Result<Self, IoError> {
        Self::shared_unless(backing, bytes, purpose, &StopSignal::default())
    }

    /// As [`Self::shared`], and stops when a signal is set. A named file that was created for it is removed then.
    ///
    /// # Errors
    ///
    /// As [`Self::shared`]; `ECANCELED` if the signal was set.
    pub fn shared_unless(
        backing: &Backing,
        bytes: usize,
        purpose: &str,
        stop: &StopSignal,
    ) -> Result<Self, IoError> {
        let failed = |error| refused(bytes, purpose, error);
        let (file, created) = match backing {
            Backing::MemoryFile => {
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
                (rustix::fs::memfd_create("dalsegno", flags).map_err(failed)?, None)
            }
            Backing::Named(path) => open_named(path, bytes)?,
        };
        if is_in_memory(&file) {
            // The system would end processes before it refused this.
            let available = available_bytes().unwrap_or(u64::MAX);
            if bytes as u64 > available {
                let file =
                    format!("{bytes} bytes of {purpose}, of which {available} are available,");
                return Err(IoError::os("allocation", file, ErrorKind::OutOfMemory));
            }
        }
        let has_size = *backing == Backing::MemoryFile || is_regular(&file);
        if has_size {
            rustix::fs::ftruncate(&file, bytes as u64).map_err(failed)?;
        }
        let region = Self::map(file, bytes, Access::ReadWrite, purpose)?;
        if has_size {
            provide(&region, stop).map_err(failed)?;
        }
        if let Some(created) = created {
            created.keep();
        }
        if *backing == Backing::MemoryFile {
            // From now on no other mapping can be written, through whatever descriptor, and nobody can truncate it.
            let seals =
                SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(region.file(), seals).map_err(failed)?;
        }
        Ok(region)
    }
}

/// Provides all memory of a region that has a file of its size.
///
/// # Errors
///
/// What the system says; `ECANCELED` if the signal was set.
fn provide(region: &Region, stop: &StopSignal) -> Result<(), Errno> {
    let file = region.file();
    // Whole pages, of whatever size the file has.
    let page = usize::try_from(rustix::fs::fstat(file)?.st_blksize).unwrap_or_default();
    let part = PART_BYTES.max(page);
    let takes_huge_pages = is_in_memory(file);
    for offset in (0..region.bytes()).step_by(part) {
        if stop.is_set() {
            return Err(Errno::CANCELED);
        }
        let count = part.min(region.bytes() - offset);
        if takes_huge_pages {
            huge_pages::provide(region.part(offset, count), count);
        }
        let (start, len) = (offset as u64, count as u64);
        let none = FallocateFlags::empty();
        match rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, none, start, len)) {
            Ok(()) => {}
            // The kernel or a sandbox does not have the call.
            Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => touch(region, offset, count)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Touches pages, so that the system provides them now. A kernel before 5.14 provides them at use.
fn touch(region: &Region, offset: usize, count: usize) -> Result<(), Errno> {
    let start = region.part(offset, count);
    // SAFETY: a range of a mapping; the advice changes none of its bytes.
    match unsafe { rustix::mm::madvise(start.as_ptr().cast(), count, Advice::LinuxPopulateWrite) } {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::claim::Claim;
    use std::sync::Arc;

    #[test]
    fn memory_is_touched_where_it_cannot_be_allocated() {
        let region = Region::lent(1 << 20, "a test").unwrap();
        touch(&region, 4096, 65_536).unwrap();
        assert_eq!(rustix::fs::fstat(region.file()).unwrap().st_blocks * 512, 65_536);
    }

    #[test]
    fn nothing_is_provided_once_it_was_stopped() {
        let stop = StopSignal::new(|| true);
        let error = Region::shared_unless(&Backing::MemoryFile, 1 << 20, "a test", &stop);
        assert!(error.unwrap_err().to_string().contains("1048576 bytes of a test"));
    }

    #[test]
    fn a_named_region_keeps_its_bytes() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let backing = Backing::Named(folder.path().join("arena"));
        for round in 0..2_u8 {
            let region = Arc::new(Region::shared(&backing, 1 << 16, "a test").unwrap());
            let mut claim = Claim::of(&region, 100, 1, ());
            let mut memory = claim.memory();
            assert_eq!(memory.as_slice(), [round]);
            memory.as_mut_slice().fill(round + 1);
        }
    }

    #[test]
    fn a_named_file_of_another_size_is_replaced_and_its_readers_live_on() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let backing = Backing::Named(folder.path().join("arena"));
        let first = Region::shared(&backing, 1 << 16, "a test").unwrap();
        let reader = Region::map(first.reader_file().unwrap(), 1 << 16, Access::Read, "a test");
        let reader = reader.unwrap();
        drop(first);
        for bytes in [4096, 1 << 17] {
            let other = Region::shared(&backing, bytes, "a test").unwrap();
            assert_eq!((other.bytes(), reader.counter((1 << 16) - 8)), (bytes, Some(0)));
        }
    }
}
