//! Regions whose memory is provided before anybody uses it, so that no access fails later.
//!
//! 1. It is provided in parts, and between two of them the caller may stop it.
//! 2. What the system does not provide is an error, never a fault.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::Advice;

use super::available::available_bytes;
use super::backing::{
    Backing, CreatedFile, is_in_memory, is_regular, open_named, provide_part, refused,
};
use super::huge_pages;
use crate::{IoError, StopSignal};

/// Bytes that the system provides at a time: 10 to 60 ms.
const PART_BYTES: usize = 64 << 20;

/// The file of a region that other processes map.
pub(super) struct BackingFile {
    pub(super) file: OwnedFd,
    /// It is removed again unless it is kept.
    pub(super) created: Option<CreatedFile>,
    /// Whether it is a file that got its size here.
    pub(super) has_size: bool,
}

/// Opens the file of a region of `bytes`.
pub(super) fn open(backing: &Backing, bytes: usize, purpose: &str) -> Result<BackingFile, IoError> {
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
            let file = format!("{bytes} bytes of {purpose}, of which {available} are available,");
            return Err(IoError::os("allocation", file, ErrorKind::OutOfMemory));
        }
    }
    let has_size = *backing == Backing::MemoryFile || is_regular(&file);
    if has_size {
        rustix::fs::ftruncate(&file, bytes as u64).map_err(failed)?;
    }
    Ok(BackingFile { file, created, has_size })
}

/// Seals a memory file: no further mapping can be written, through whatever descriptor, and nobody can truncate it.
pub(super) fn seal(file: &OwnedFd) -> Result<(), Errno> {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(file, seals)
}

/// Provides all memory of a file that is mapped at `start`.
///
/// # Errors
///
/// What the system says; `ECANCELED` if the signal was set.
pub(super) fn provide(
    file: &OwnedFd,
    start: NonNull<u8>,
    bytes: usize,
    stop: &StopSignal,
) -> Result<(), Errno> {
    // Whole pages, of whatever size the file has.
    let page = usize::try_from(rustix::fs::fstat(file)?.st_blksize).unwrap_or_default();
    let part = PART_BYTES.max(page);
    let takes_huge_pages = is_in_memory(file);
    for offset in (0..bytes).step_by(part) {
        if stop.is_set() {
            return Err(Errno::CANCELED);
        }
        let count = part.min(bytes - offset);
        // SAFETY: `offset` is less than the length of the mapping.
        let start = unsafe { start.add(offset) };
        if takes_huge_pages {
            huge_pages::provide(start, count);
        }
        if !provide_part(file, offset, count)? {
            touch(start, count)?;
        }
    }
    Ok(())
}

/// Touches pages, so that the system provides them now. A kernel before 5.14 provides them at use.
fn touch(start: NonNull<u8>, bytes: usize) -> Result<(), Errno> {
    let advice = Advice::LinuxPopulateWrite;
    // SAFETY: a range of a mapping of the caller's; the advice changes none of its bytes.
    match unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, advice) } {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::claim::Claim;
    use crate::{Access, Region};
    use std::sync::Arc;

    #[test]
    fn memory_is_touched_where_it_cannot_be_allocated() {
        let region = Region::lent(1 << 20, "a test").unwrap();
        touch(region.part(4096, 65_536), 65_536).unwrap();
        let file = region.reader_file().unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks * 512, 65_536);
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
