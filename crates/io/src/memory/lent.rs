//! Memory that one other process reads: it is provided piece by piece, and can be given back although the other process
//! keeps its descriptor.

use std::os::fd::OwnedFd;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::available::available_bytes;
use super::backing::{provide_part, refused};
use crate::IoError;

/// Bytes that the system provides in one call.
const PART_BYTES: usize = 4 << 20;

/// Creates a file of `bytes` whose memory can be given back.
pub(super) fn open(bytes: usize, purpose: &str) -> Result<OwnedFd, IoError> {
    let failed = |error| refused(bytes, purpose, error);
    check_available(bytes).map_err(failed)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("dalsegno", flags).map_err(failed)?;
    rustix::fs::ftruncate(&file, bytes as u64).map_err(failed)?;
    // A seal against writing would also keep us from giving memory back.
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(failed)?;
    Ok(file)
}

/// Fails if the system would end processes before it refused this.
fn check_available(bytes: usize) -> Result<(), Errno> {
    let is_too_much = available_bytes().is_some_and(|available| bytes as u64 > available);
    if is_too_much { Err(Errno::NOMEM) } else { Ok(()) }
}

/// Has the system provide a part of a file.
pub(super) fn provide(file: &OwnedFd, offset: usize, len: usize) -> Result<(), IoError> {
    let failed = |error| refused(len, "memory that others read", error);
    check_available(len).map_err(failed)?;
    // A signal may undo a call, so each is for a part that is provided before the next signal comes.
    for from in (offset..offset + len).step_by(PART_BYTES) {
        let part = PART_BYTES.min(offset + len - from);
        if !provide_part(file, from, part).map_err(failed)? {
            // It is provided when it is used.
            return Ok(());
        }
    }
    Ok(())
}

/// Gives a part of a file back to the system.
pub(super) fn give_back(file: &OwnedFd, offset: usize, len: usize) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // If the system refuses, the memory stays until the last descriptor is closed.
    let _ = rustix::fs::fallocate(file, flags, offset as u64, len as u64);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::memory::claim::Claim;
    use crate::{Region, lend};

    #[test]
    fn memory_that_was_given_back_is_free_although_another_process_has_the_file() {
        let region = Arc::new(Region::lent(1 << 20, "a test").unwrap());
        let file = region.reader_file().unwrap();
        let blocks = || rustix::fs::fstat(&file).unwrap().st_blocks;
        region.provide(4096, 65_536).unwrap();
        Claim::of(&region, 0, 8, ()).memory().as_mut_slice().fill(7);
        assert_eq!(blocks() * 512, 4096 + 65_536);
        region.give_back(4096, (1 << 20) - 4096);
        assert_eq!(blocks() * 512, 4096);
        let mut bytes = [0; 9];
        lend(|lender| region.copy_racing(0, &mut [lender.exclusive(&mut bytes)]));
        assert_eq!(bytes, [7, 7, 7, 7, 7, 7, 7, 7, 0]);
        drop(region);
        assert_eq!(blocks(), 0);
    }
}
