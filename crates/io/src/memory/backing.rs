//! The files behind regions that several processes map.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::IoError;

/// `f_type` of tmpfs, which also holds unnamed files in memory.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// What holds the bytes of a region that several processes map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// An unnamed file in memory. It ends with the last process that maps it.
    MemoryFile,
    /// A named file on tmpfs or hugetlbfs, or a DAX device. Its bytes stay.
    Named(PathBuf),
}

/// A file that was created, and is removed again unless it is kept.
#[derive(Debug)]
pub(super) struct CreatedFile(Option<PathBuf>);

impl CreatedFile {
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for CreatedFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = rustix::fs::unlink(path);
        }
    }
}

/// Opens a named file for a region, for this process alone. A file of another size is replaced, not truncated: another
/// process may still read it, and would end.
pub(super) fn open_named(
    path: &Path,
    bytes: usize,
) -> Result<(OwnedFd, Option<CreatedFile>), IoError> {
    let named = |operation| move |error| IoError::os(operation, path.display().to_string(), error);
    let open = || -> Result<OwnedFd, IoError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(named("open"))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(named("lock"))?;
        Ok(file)
    };
    let file = open()?;
    let size = rustix::fs::fstat(&file).map_err(named("stat"))?.st_size.unsigned_abs();
    let created = || Some(CreatedFile(Some(path.to_owned())));
    if !is_regular(&file) || size == bytes as u64 {
        return Ok((file, None));
    }
    if size == 0 {
        return Ok((file, created()));
    }
    rustix::fs::unlink(path).map_err(named("replace"))?;
    Ok((open()?, created()))
}

/// Whether the file takes ordinary memory. Huge pages and DAX devices have their own.
pub(super) fn is_in_memory(file: &OwnedFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type == TMPFS_MAGIC)
}

pub(super) fn is_regular(file: &OwnedFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile
    })
}

/// Has the system provide a part of a file. `false` if the kernel, or a sandbox, does not have the call.
///
/// # Errors
///
/// What the system says.
pub(super) fn provide_part(file: &OwnedFd, offset: usize, len: usize) -> Result<bool, Errno> {
    let (none, from, len) = (FallocateFlags::empty(), offset as u64, len as u64);
    match rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, none, from, len)) {
        Ok(()) => Ok(true),
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The error of memory that the system refused.
pub(super) fn refused(bytes: usize, purpose: &str, error: Errno) -> IoError {
    IoError::os("allocation", format!("{bytes} bytes of {purpose}"), error)
}
