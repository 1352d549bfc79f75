//! Whether a file system does direct I/O, and what it asks of memory.
//!
//! 1. The answer comes from a trial on the file system itself, not from its name; the trial leaves nothing behind.
//! 2. In doubt the answer is no: buffered I/O always works.

use std::os::fd::OwnedFd;

use dalsegno_core::SECTOR_BYTES;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::BufferPool;

/// How to find out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DirectIoTrial<'a> {
    /// By writing a nameless file.
    Write,
    /// By reading the file of this name, where nothing may be written.
    Read(&'a str),
}

/// The alignment that direct I/O in an open directory asks of memory; `None` if there is no direct I/O.
pub(crate) fn probe(
    directory: &OwnedFd,
    trial: DirectIoTrial<'_>,
    pool: &BufferPool,
) -> Option<usize> {
    let tried = match trial {
        DirectIoTrial::Write => {
            scratch(directory).and_then(|file| try_write(&file, pool).map(|()| file))
        }
        DirectIoTrial::Read(name) => rustix::fs::openat(directory, name, READ, Mode::empty())
            .and_then(|file| try_read(&file, pool).map(|()| file)),
    };
    match tried {
        Ok(file) => alignment(&file),
        Err(error) => {
            tracing::debug!(%error, "no direct I/O here; the page cache is used");
            None
        }
    }
}

const READ: OFlags = OFlags::RDONLY.union(COMMON);
const WRITE: OFlags = OFlags::RDWR.union(COMMON);
const COMMON: OFlags = OFlags::DIRECT.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// A file without a name, or at least one that loses it at once.
fn scratch(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    match rustix::fs::openat(directory, ".", flags, mode) {
        // What file systems without nameless files answer, by kernel and kind.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {}
        other => return other,
    }
    let name = format!("probe-{}", std::process::id());
    let file = rustix::fs::openat(directory, &name, WRITE | OFlags::CREATE | OFlags::EXCL, mode)?;
    rustix::fs::unlinkat(directory, &name, AtFlags::empty())?;
    Ok(file)
}

fn try_write(file: &OwnedFd, pool: &BufferPool) -> Result<(), Errno> {
    let mut memory = pool.try_take(SECTOR).ok_or(Errno::NOMEM)?;
    memory.as_mut_slice()[..SECTOR].fill(0);
    match rustix::io::pwrite(file, &memory.as_slice()[..SECTOR], 0) {
        // A full disk says nothing about direct I/O.
        Ok(_) | Err(Errno::NOSPC | Errno::DQUOT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn try_read(file: &OwnedFd, pool: &BufferPool) -> Result<(), Errno> {
    let mut memory = pool.try_take(SECTOR).ok_or(Errno::NOMEM)?;
    rustix::io::pread(file, &mut memory.as_mut_slice()[..SECTOR], 0).map(|_| ())
}

/// What the kernel says, where it is new enough to (6.1); else what every disk accepts.
fn alignment(file: &OwnedFd) -> Option<usize> {
    let told = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .ok()
        .filter(|told| told.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    let Some(told) = told else {
        return Some(SECTOR);
    };
    // Pieces of a scatter list must end where a file offset may lie, so their lengths follow the larger of the two.
    let align = usize::try_from(told.stx_dio_mem_align.max(told.stx_dio_offset_align)).ok()?;
    let usable = told.stx_dio_mem_align > 0 && align <= SECTOR && SECTOR.is_multiple_of(align);
    usable.then_some(align)
}

/// [`SECTOR_BYTES`] as a length in memory.
const SECTOR: usize = 4096;
const _: () = assert!(SECTOR as u64 == SECTOR_BYTES);
