//! Memory that one other process reads: it is provided piece by piece, and can be given back although the other process
//! keeps its descriptor.

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use super::available::available_bytes;
use super::region::{Access, Region, refused};
use crate::IoError;

impl Region {
    /// Creates memory of `bytes` that another process can read, and maps it. The system provides it when it is used, or
    /// by [`Region::provide`], and takes it back by [`Region::give_back`], or when the region
    /// is dropped.
    ///
    /// # Errors
    ///
    /// As [`Region::shared`].
    pub fn lent(bytes: usize, purpose: &str) -> Result<Self, IoError> {
        let failed = |error| refused(bytes, purpose, error);
        // The system would end processes before it refused this.
        if available_bytes().is_some_and(|available| bytes as u64 > available) {
            return Err(failed(rustix::io::Errno::NOMEM));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("dalsegno", flags).map_err(failed)?;
        rustix::fs::ftruncate(&file, bytes as u64).map_err(failed)?;
        // A seal against writing would also keep us from giving memory back.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(failed)?;
        Ok(Self::map(file, bytes, Access::ReadWrite, purpose)?.into_lent())
    }

    /// Has the system provide the memory of `len` bytes at `offset`, so that no access fails for lack of it.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if it refuses.
    ///
    /// # Panics
    ///
    /// If the region has no file of its own.
    pub fn provide(&self, offset: usize, len: usize) -> Result<(), IoError> {
        let file = self.file();
        let none = FallocateFlags::empty();
        let provided = rustix::fs::fallocate(file, none, offset as u64, len as u64);
        provided.map_err(|error| refused(len, "memory that others read", error))
    }

    /// Gives the memory of `len` bytes at `offset` back to the system, whoever else has the file open. They are zeros
    /// from then on, until somebody writes them. Only for regions of [`Region::lent`].
    ///
    /// # Panics
    ///
    /// If one of the bytes is claimed, or not inside the region.
    pub fn give_back(&self, offset: usize, len: usize) {
        if !self.is_here() {
            return;
        }
        self.begin_claim(offset, len);
        let file = self.file();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // If the system refuses, the memory stays until the last descriptor is closed.
        let _ = rustix::fs::fallocate(file, flags, offset as u64, len as u64);
        self.end_claim(offset);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::lend;
    use crate::memory::claim::Claim;

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
