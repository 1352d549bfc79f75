//! The owner of a directory: an advisory lock on its file `LOCK`, and one on the directory itself.
//!
//! 1. The locks are the kernel's, not the file's existence. A crashed owner leaves nothing to clean up. If a cleaner
//!    removes `LOCK`, the lock on the directory still keeps others out. A file system that locks no directories has
//!    only the first lock.
//! 2. The file's text names the owner for people. No code decides by it or removes the file.
//! 3. A forked child that drops its copy of the lock does not release the parent's.
//! 4. Unlocking writes nothing, so it does not wait for a disk that hangs. The text stays. A refused process trusts it
//!    only while an owner, not a reader, has the lock. Until a new owner has written its own text, it names the last
//!    owner.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use thiserror::Error;

use crate::Process;

const FILE_NAME: &str = "LOCK";
const OWNER_BYTES: usize = 256;
/// The owner of a directory that only readers have locked.
const READER: &str = "a tool that reads it";

/// A locked directory; unlocked when dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    /// `LOCK` and the directory, as far as there was something to lock.
    locked: Vec<OwnedFd>,
    process: Process,
}

/// Why a directory could not be locked.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another process has the lock.
    #[error("the directory is in use by {owner}")]
    Held {
        /// The owner according to the lock file: `pid 123 (command) on host`.
        owner: String,
    },
    /// The file system is mounted read-only.
    #[error("the file system is read-only")]
    ReadOnly,
    /// The operating system refused or failed.
    #[error("{operation} of {file} failed: {source}")]
    Os {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        file: String,
        /// The system's own error.
        source: std::io::Error,
    },
}

impl DirectoryLock {
    /// Locks the directory for this process alone. Never waits.
    ///
    /// # Errors
    ///
    /// [`LockError::Held`] if another owner or a reader has the lock, [`LockError::ReadOnly`] if nothing can be
    /// written.
    pub fn acquire(directory: &Path) -> Result<Self, LockError> {
        let path = directory.join(FILE_NAME);
        let failed = |operation| move |errno| os_error(operation, directory, errno);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(CWD, &path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(failed("open"))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(LockError::Held { owner: owner_of(&file) }),
            Err(errno) => return Err(failed("lock")(errno)),
        }
        let directory = lock_directory(directory, FlockOperation::NonBlockingLockExclusive)?;
        // A full disk must not keep a store closed: the text is a courtesy (invariant 2).
        if let Err(errno) = write_owner(&file) {
            tracing::warn!(error = %errno, "cannot write this process into the lock file; keeping the lock");
            // A refused process must not see the last owner.
            let _ = rustix::fs::ftruncate(&file, 0);
        }
        Ok(Self {
            locked: [Some(file), directory].into_iter().flatten().collect(),
            process: Process::this(),
        })
    }

    /// Keeps owners out while an offline tool reads. Writes nothing, so it works on a read-only mount. Without a lock
    /// file only the directory is locked.
    ///
    /// # Errors
    ///
    /// [`LockError::Held`] if an owner has the lock.
    #[expect(clippy::disallowed_methods, reason = "this crate touches files")]
    pub fn acquire_shared(directory: &Path) -> Result<Self, LockError> {
        let path = directory.join(FILE_NAME);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match rustix::fs::openat(CWD, &path, flags, Mode::empty()) {
            Ok(file) => Some(file),
            Err(Errno::NOENT) if directory.is_dir() => None,
            Err(errno) => return Err(os_error("open", directory, errno)),
        };
        if let Some(file) = &file {
            match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(LockError::Held { owner: owner_of(file) }),
                Err(errno) => return Err(os_error("lock", directory, errno)),
            }
        }
        let directory = lock_directory(directory, FlockOperation::NonBlockingLockShared)?;
        Ok(Self {
            locked: [file, directory].into_iter().flatten().collect(),
            process: Process::this(),
        })
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        if !self.process.is_this() {
            return;
        }
        // Unlocked explicitly, because a forked child may still hold copies of the descriptors.
        for one in &self.locked {
            let _ = rustix::fs::flock(one, FlockOperation::Unlock);
        }
    }
}

/// Locks the directory itself; `None` where the file system does not lock directories.
fn lock_directory(
    directory: &Path,
    operation: FlockOperation,
) -> Result<Option<OwnedFd>, LockError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::openat(CWD, directory, flags, Mode::empty()) else {
        return Ok(None);
    };
    match rustix::fs::flock(&opened, operation) {
        Ok(()) => Ok(Some(opened)),
        Err(Errno::WOULDBLOCK) => {
            let read = rustix::fs::flock(&opened, FlockOperation::NonBlockingLockShared).is_ok();
            let owner = if read { READER } else { "another process, whose file LOCK was removed" };
            Err(LockError::Held { owner: owner.to_owned() })
        }
        Err(_) => Ok(None),
    }
}

fn os_error(operation: &'static str, directory: &Path, errno: Errno) -> LockError {
    if errno == Errno::ROFS {
        return LockError::ReadOnly;
    }
    let file = directory.join(FILE_NAME).display().to_string();
    LockError::Os { operation, file, source: errno.into() }
}

fn write_owner(file: &OwnedFd) -> Result<(), Errno> {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let command = command_name().map_or_else(String::new, |name| format!(" ({name})"));
    let line = format!("pid {}{command} on {host}\n", std::process::id());
    // Not truncated first: file systems treat that as replacing the file and flush it on close, which must not wait for
    // a disk that hangs (invariant 4).
    let written = rustix::io::pwrite(file, line.as_bytes(), 0)? as u64;
    let is_longer = rustix::fs::fstat(file)?.st_size.unsigned_abs() > written;
    if is_longer { rustix::fs::ftruncate(file, written) } else { Ok(()) }
}

/// The command name of this process on one line; `None` if the system does not provide it.
///
/// The owner records its own name, because the pid of another machine or container is of no use to a refused process.
#[expect(clippy::disallowed_methods, reason = "this crate touches files")]
fn command_name() -> Option<String> {
    let raw = std::fs::read("/proc/self/comm").ok()?;
    let text = String::from_utf8_lossy(&raw);
    let name: String = text.trim().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    (!name.is_empty()).then_some(name)
}

/// Names the owner of the lock that this process was refused.
fn owner_of(file: &OwnedFd) -> String {
    // Readers write no text. If a shared lock is available, only readers hold the lock.
    if rustix::fs::flock(file, FlockOperation::NonBlockingLockShared).is_ok() {
        return READER.to_owned();
    }
    let mut text = [0_u8; OWNER_BYTES];
    let length = rustix::io::pread(file, &mut text, 0).unwrap_or(0);
    // Text after the first line may be a previous owner's, while the new one writes.
    match String::from_utf8_lossy(&text[..length]).lines().next().unwrap_or_default().trim() {
        "" => "another process".to_owned(),
        owner => owner.to_owned(),
    }
}
