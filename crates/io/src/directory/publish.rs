//! Writing a file that appears under its name whole and durable, or not at all.
//!
//! 1. The bytes are written and synced under a temporary name that nobody else has, and renamed afterwards.
//! 2. A name is never replaced, as far as the file system knows that it exists.
//! 3. After a failure neither the temporary name nor the new one is left, unless their removal fails too.
//! 4. Every write has its byte count checked.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::entries::{CONFINED, OWNER_ONLY, check_name, stat_at};
use crate::engine::{MAX_PIECES, retried};
use crate::{IoError, Memory, random_bytes};

const TEMPORARY_END: &str = ".tmp";
/// Bytes of one write. FUSE splits a larger one into requests that it queues all at once: 32 MiB take three times the
/// CPU time of 32 writes of 1 MiB, and writes of 4 MiB a quarter more.
const WRITE_BYTES: usize = 1 << 20;

/// Whether a name is that of a file that is being written, or was when its writer crashed.
pub(super) fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(TEMPORARY_END)
}

/// A file under a temporary name, which is removed when the value is dropped before [`Self::rename`] succeeded.
#[derive(Debug)]
pub(super) struct TemporaryFile<'a> {
    folder: &'a OwnedFd,
    name: String,
    descriptor: OwnedFd,
    direct: bool,
    is_renamed: bool,
}

impl<'a> TemporaryFile<'a> {
    /// Creates the file. It bypasses the page cache if `direct`, and if the file system opens files that way.
    pub(super) fn create(folder: &'a OwnedFd, stem: &str, direct: bool) -> Result<Self, IoError> {
        let random = u64::from_le_bytes(random_bytes()?);
        let name = format!(".{stem}.{random:016x}{TEMPORARY_END}");
        check_name(&name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | CONFINED;
        let open = |flags| rustix::fs::openat(folder, &name, flags, OWNER_ONLY);
        let failed = |errno| IoError::os("create", &name, errno);
        let (descriptor, direct) = if direct {
            match open(flags | OFlags::DIRECT) {
                Err(Errno::INVAL) => {
                    // Some file systems refuse the flag only after they created the file.
                    let _ = remove(folder, &name);
                    (open(flags).map_err(failed)?, false)
                }
                opened => (opened.map_err(failed)?, true),
            }
        } else {
            (open(flags).map_err(failed)?, false)
        };
        Ok(Self { folder, name, descriptor, direct, is_renamed: false })
    }

    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// Writes all bytes and makes them durable. `label` is the name for errors.
    pub(super) fn write(&mut self, memory: &[Memory], label: &str) -> Result<(), IoError> {
        let expected: u64 = memory.iter().map(|piece| piece.len() as u64).sum();
        let got = write_pieces(memory, |pieces, offset| self.write_at(pieces, offset))
            .map_err(|errno| IoError::os("write", label, errno))?;
        if got != expected {
            let (operation, file) = ("write", label.to_owned());
            return Err(IoError::Short { operation, file, expected, got });
        }
        retried(|| rustix::fs::fsync(&self.descriptor))
            .map_err(|errno| IoError::os("sync", label, errno))
    }

    fn write_at(&mut self, pieces: &[IoSlice<'_>], offset: u64) -> Result<usize, Errno> {
        match retried(|| rustix::io::pwritev(&self.descriptor, pieces, offset)) {
            // Direct I/O that the file system announced but refuses, or a write that ended inside a sector.
            Err(Errno::INVAL) if self.direct => {
                let flags = rustix::fs::fcntl_getfl(&self.descriptor)?;
                rustix::fs::fcntl_setfl(&self.descriptor, flags - OFlags::DIRECT)?;
                self.direct = false;
                retried(|| rustix::io::pwritev(&self.descriptor, pieces, offset))
            }
            written => written,
        }
    }

    /// Gives the file its name, durably. Fails with `EEXIST` if the name exists.
    pub(super) fn rename(
        mut self,
        name: &str,
        label: &str,
        renames: &Renames,
    ) -> Result<(), IoError> {
        renames
            .to_new(self.folder, &self.name, name)
            .map_err(|errno| IoError::os("rename", label, errno))?;
        self.is_renamed = true;
        sync_directory(self.folder).map_err(|errno| {
            // The error that is returned is the first one.
            let _ = remove(self.folder, name);
            IoError::os("sync", label, errno)
        })
    }
}

impl Drop for TemporaryFile<'_> {
    fn drop(&mut self) {
        if !self.is_renamed {
            // Best effort: the caller gets the error that led here.
            let _ = remove(self.folder, &self.name);
        }
    }
}

fn remove(folder: &OwnedFd, name: &str) -> Result<(), Errno> {
    rustix::fs::unlinkat(folder, name, AtFlags::empty())
}

/// Renames on one file system, to names that do not exist.
#[derive(Debug, Default)]
pub(super) struct Renames {
    /// Whether the file system cannot refuse a name that exists. Asking again would cost a round trip each time.
    replaces: AtomicBool,
}

impl Renames {
    /// Renames to a name that does not exist. Where the file system cannot guarantee that, the name is looked up first:
    /// two writers of one name would be a bug.
    fn to_new(&self, folder: &OwnedFd, from: &str, to: &str) -> Result<(), Errno> {
        if !self.replaces.load(Ordering::Relaxed) {
            match rustix::fs::renameat_with(folder, from, folder, to, RenameFlags::NOREPLACE) {
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    self.replaces.store(true, Ordering::Relaxed);
                }
                renamed => return renamed,
            }
        }
        match stat_at(folder, to) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => rustix::fs::renameat(folder, from, folder, to),
            Err(errno) => Err(errno),
        }
    }
}

/// Makes the names in a directory durable. Some file systems have nothing to sync there, and refuse.
pub(super) fn sync_directory(directory: &OwnedFd) -> Result<(), Errno> {
    match retried(|| rustix::fs::fsync(directory)) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
        synced => synced,
    }
}

/// Creates a folder unless it exists.
pub(super) fn create_folder(directory: &OwnedFd, name: &str) -> Result<(), Errno> {
    match rustix::fs::mkdirat(directory, name, Mode::RWXU) {
        Err(Errno::EXIST) => Ok(()),
        created => created,
    }
}

/// Calls `step` with the next pieces, of at most [`WRITE_BYTES`], and their offset until all are written, or until it
/// writes nothing. Returns the bytes written.
fn write_pieces(
    memory: &[Memory],
    mut step: impl FnMut(&[IoSlice<'_>], u64) -> Result<usize, Errno>,
) -> Result<u64, Errno> {
    let pieces = memory.iter().flat_map(|piece| piece.as_slice().chunks(WRITE_BYTES));
    let mut slices: Vec<IoSlice<'_>> = pieces.map(IoSlice::new).collect();
    let mut left = slices.as_mut_slice();
    let mut total = 0;
    while !left.is_empty() {
        let count = step(&left[..next_pieces(left)], total)?;
        if count == 0 {
            break;
        }
        total += count as u64;
        IoSlice::advance_slices(&mut left, count);
    }
    Ok(total)
}

/// How many pieces the next write takes: at least one.
fn next_pieces(left: &[IoSlice<'_>]) -> usize {
    let mut bytes = 0;
    let fits = |piece: &&IoSlice<'_>| {
        bytes += piece.len();
        bytes <= WRITE_BYTES
    };
    left.iter().take(MAX_PIECES).take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(lengths: &[usize]) -> Vec<Memory> {
        let bytes = |len: usize| (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
        lengths.iter().map(|len| Memory::owned(bytes(*len), ())).collect()
    }

    fn contents(memory: &[Memory]) -> Vec<u8> {
        memory.iter().flat_map(|piece| piece.as_slice().to_vec()).collect()
    }

    #[test]
    fn a_short_write_continues_where_it_stopped() {
        let memory = memory(&[0, 5000, 0, 1, 3000, 0]);
        let mut written = Vec::new();
        let total = write_pieces(&memory, |pieces, offset| {
            assert_eq!(offset, written.len() as u64);
            let rest: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
            let count = rest.len().min(777);
            written.extend_from_slice(&rest[..count]);
            Ok(count)
        });
        assert_eq!((total, written), (Ok(8001), contents(&memory)));
    }

    #[test]
    fn a_write_of_nothing_ends_the_transfer_short() {
        let mut steps = [Ok(4096), Ok(0)].into_iter();
        let total = write_pieces(&memory(&[8192]), |_, _| steps.next().unwrap());
        assert_eq!(total, Ok(4096));
        let failed = write_pieces(&memory(&[8192]), |_, _| Err(Errno::NOSPC));
        assert_eq!(failed, Err(Errno::NOSPC));
    }

    #[test]
    fn no_call_gets_more_pieces_than_the_kernel_takes() {
        let memory = memory(&vec![1; MAX_PIECES * 2 + 1]);
        let mut counts = Vec::new();
        let total = write_pieces(&memory, |pieces, _| {
            counts.push(pieces.len());
            Ok(pieces.len())
        });
        assert_eq!((total, counts), (Ok(2049), vec![MAX_PIECES, MAX_PIECES, 1]));
    }

    #[test]
    fn a_large_piece_is_written_in_parts() {
        let memory = memory(&[2 * WRITE_BYTES + 4096, 4096]);
        let mut sizes = Vec::new();
        let total = write_pieces(&memory, |pieces, offset| {
            assert_eq!(offset, sizes.iter().sum::<usize>() as u64);
            sizes.push(pieces.iter().map(|piece| piece.len()).sum());
            Ok(*sizes.last().unwrap())
        });
        assert_eq!(total, Ok(2 * WRITE_BYTES as u64 + 8192));
        assert_eq!(sizes, [WRITE_BYTES, WRITE_BYTES, 8192]);
    }

    #[test]
    fn no_bytes_need_no_call() {
        assert_eq!(write_pieces(&memory(&[0]), |_, _| panic!("a call")), Ok(0));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "this crate touches files")]
    fn a_rename_refuses_an_existing_name_with_and_without_help_of_the_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let folder = OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        for replaces in [false, true] {
            let renames = Renames { replaces: AtomicBool::new(replaces) };
            let (from, to) = (format!("from-{replaces}"), format!("to-{replaces}"));
            std::fs::write(dir.path().join(&from), b"first").unwrap();
            renames.to_new(&folder, &from, &to).unwrap();
            std::fs::write(dir.path().join(&from), b"second").unwrap();
            assert_eq!(renames.to_new(&folder, &from, &to), Err(Errno::EXIST));
            assert_eq!(std::fs::read(dir.path().join(&to)).unwrap(), b"first");
            assert_eq!(renames.replaces.load(Ordering::Relaxed), replaces);
        }
    }

    #[test]
    fn only_hidden_names_with_the_right_end_are_temporary() {
        assert!(is_temporary(".a.pack.0123456789abcdef.tmp"));
        for name in ["a.tmp", ".a", "a", ".nfs000012"] {
            assert!(!is_temporary(name), "{name}");
        }
    }
}
