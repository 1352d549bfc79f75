//! Whether a file system supports direct I/O, and which alignment it requires of memory.
//!
//! 1. A trial on the file system decides, not its name. The trial leaves nothing behind.
//! 2. In doubt there is no direct I/O: buffered I/O always works.

use std::os::fd::OwnedFd;

use dalsegno_core::SECTOR_BYTES;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::{PageBuffer, random_bytes};

/// How to try direct I/O.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DirectIoTrial<'a> {
    /// Write a nameless file.
    Write,
    /// Read the file of this name, if nothing may be written.
    Read(&'a str),
}

/// The alignment of memory that direct I/O requires in an open directory; `None` without direct I/O.
pub(crate) fn probe(directory: &OwnedFd, trial: DirectIoTrial<'_>) -> Option<usize> {
    // A mapping of its own starts at a page.
    let mut sector = PageBuffer::default();
    sector.resize(SECTOR);
    let tried = match trial {
        DirectIoTrial::Write => {
            scratch(directory).and_then(|file| try_write(&file, &sector).map(|()| file))
        }
        DirectIoTrial::Read(name) => rustix::fs::openat(directory, name, READ, Mode::empty())
            .and_then(|file| try_read(&file, &mut sector).map(|()| file)),
    };
    match tried {
        Ok(file) => alignment(&file),
        Err(error) => {
            tracing::debug!(%error, "no direct I/O here; using the page cache");
            None
        }
    }
}

const READ: OFlags = OFlags::RDONLY.union(COMMON);
const WRITE: OFlags = OFlags::RDWR.union(COMMON);
const COMMON: OFlags = OFlags::DIRECT.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// A file without a name, or one whose name is removed immediately.
fn scratch(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    match rustix::fs::openat(directory, ".", flags, mode) {
        // The errors of file systems without nameless files, by kernel and kind.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {}
        other => return other,
    }
    // On a shared file system, a process of another host may have the same id.
    let random = random_bytes().map(u64::from_le_bytes).map_err(|_| Errno::NOSYS)?;
    let name = format!("probe-{random:016x}");
    let file = rustix::fs::openat(directory, &name, WRITE | OFlags::CREATE | OFlags::EXCL, mode)?;
    rustix::fs::unlinkat(directory, &name, AtFlags::empty())?;
    Ok(file)
}

fn try_write(file: &OwnedFd, sector: &[u8]) -> Result<(), Errno> {
    match rustix::io::pwrite(file, sector, 0) {
        // A full disk says nothing about direct I/O.
        Ok(_) | Err(Errno::NOSPC | Errno::DQUOT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn try_read(file: &OwnedFd, sector: &mut [u8]) -> Result<(), Errno> {
    rustix::io::pread(file, sector, 0).map(|_| ())
}

/// The alignment that the kernel reports (since 6.1), otherwise the one that every disk accepts.
fn alignment(file: &OwnedFd) -> Option<usize> {
    let reported = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .ok()
        .filter(|reported| reported.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    let Some(reported) = reported else {
        return Some(SECTOR);
    };
    // A piece of a scatter list must end at a valid file offset, so its length follows the larger of the two.
    let align =
        usize::try_from(reported.stx_dio_mem_align.max(reported.stx_dio_offset_align)).ok()?;
    let usable = reported.stx_dio_mem_align > 0 && align <= SECTOR && SECTOR.is_multiple_of(align);
    usable.then_some(align)
}

/// [`SECTOR_BYTES`] as a length in memory.
const SECTOR: usize = 4096;
const _: () = assert!(SECTOR as u64 == SECTOR_BYTES);
