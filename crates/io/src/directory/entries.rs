//! What every directory here agrees on: which names it accepts, and what it reads from the metadata of a file.
//!
//! 1. A name is plain: it has no separator, and no path leads out of the directory.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::Space;

const MAX_NAME_BYTES: usize = 255;

/// Flags of every open: the descriptor is not inherited, and no link leaves the directory.
pub(super) const CONFINED: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW);

/// Permissions of every new file: its owner's.
pub(super) const OWNER_ONLY: Mode = Mode::RUSR.union(Mode::WUSR);

/// File names come from this code, never from users. Any other name is a bug, and a path out of the directory a severe
/// one.
pub(super) fn check_name(name: &str) {
    assert!(is_plain(name), "{name:?} is not a plain file name");
}

pub(super) fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(plain)
        && name != "."
        && name != ".."
}

/// The metadata of a name itself, not of what a link points to.
pub(super) fn stat_at(directory: impl AsFd, name: &str) -> Result<Stat, Errno> {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

pub(super) fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

pub(super) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// When a file or folder was last written, by the clock of its file system since 1970.
pub(super) fn modified(stat: &Stat) -> Duration {
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    let nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

/// Space of the file system of an open directory.
pub(super) fn space_of(directory: impl AsFd) -> Result<Space, Errno> {
    let reported = rustix::fs::fstatvfs(directory)?;
    let bytes = |blocks: u64| blocks.saturating_mul(reported.f_frsize);
    Ok(Space { free_bytes: bytes(reported.f_bavail), total_bytes: bytes(reported.f_blocks) })
}
/// Every name in a directory with its kind, which may be unknown.
pub(super) fn names_in(directory: &OwnedFd) -> Result<Vec<(String, FileType)>, Errno> {
    let mut names = Vec::new();
    // Opened again: each listing has a position of its own.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | CONFINED;
    let opened = rustix::fs::openat(directory, ".", flags, Mode::empty())?;
    for found in Dir::new(opened)? {
        let found = found?;
        if !matches!(found.file_name().to_bytes(), b"." | b"..") {
            let name = found.file_name().to_string_lossy().into_owned();
            names.push((name, found.file_type()));
        }
    }
    Ok(names)
}
