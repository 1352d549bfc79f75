//! Memory of another process, read through its descriptor.
//!
//! It is read with `pread`, never mapped: whatever the other process does to its file, a read of it returns bytes or an
//! error, and never ends this process.

use std::os::fd::OwnedFd;

use rustix::fs::SealFlags;
use rustix::io::Errno;

use super::handle::Memory;
use crate::IoError;

/// A memory file of another process that nobody can make shorter.
#[derive(Debug)]
pub struct SealedFile {
    file: OwnedFd,
    bytes: u64,
}

impl SealedFile {
    /// Takes a descriptor that another process sent.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if it is not a memory file with the seal against shrinking: a read of another file may hang.
    pub fn new(file: OwnedFd) -> Result<Self, IoError> {
        let refused = |error| IoError::os("accept", "a file that is no sealed memory", error);
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(refused)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(refused(Errno::PERM));
        }
        let size = rustix::fs::fstat(&file).map_err(refused)?.st_size;
        Ok(Self { file, bytes: size.unsigned_abs() })
    }

    /// Its size when it was taken. It may have grown.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills memory with the bytes at `offset`.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the file has fewer bytes, or the system refuses to read them.
    pub fn read_at(&self, offset: u64, memory: &mut Memory) -> Result<(), IoError> {
        let failed = |error| IoError::os("read", "the memory of another process", error);
        let mut rest = memory.as_mut_slice();
        let mut at = offset;
        while !rest.is_empty() {
            match rustix::io::pread(&self.file, &mut *rest, at) {
                Ok(0) => return Err(failed(Errno::OVERFLOW)),
                Ok(count) => {
                    at += count as u64;
                    rest = &mut rest[count..];
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::backing::Backing;
    use crate::memory::claim::Claim;
    use crate::memory::region::Region;
    use rustix::fs::MemfdFlags;
    use std::sync::Arc;

    #[test]
    fn bytes_of_another_mapping_are_read_and_none_behind_its_end() {
        let region = Arc::new(Region::shared(&Backing::MemoryFile, 1 << 16, "a test").unwrap());
        let mut claim = Claim::of(&region, 5000, 3, ());
        claim.memory().as_mut_slice().copy_from_slice(b"abc");
        let file = SealedFile::new(region.reader_file().unwrap()).unwrap();
        let mut memory = Memory::zeroed(3);
        file.read_at(5000, &mut memory).unwrap();
        assert_eq!((memory.as_slice(), file.bytes()), (&b"abc"[..], 1 << 16));
        for behind in [(1 << 16) - 2, 1 << 16, u64::MAX >> 1] {
            assert!(file.read_at(behind, &mut memory).is_err(), "{behind}");
        }
    }

    #[test]
    fn what_is_no_memory_file_or_can_be_truncated_is_refused() {
        let open = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(SealedFile::new(open).is_err(), "without the seal");
        let disk = tempfile::tempfile().unwrap();
        assert!(SealedFile::new(disk.into()).is_err(), "a file on disk");
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(SealedFile::new(reader.into()).is_err(), "a pipe");
    }
}
