//! The process at the other end of a channel.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::IoError;

/// Not in libc yet for every target.
const SO_PEERPIDFD: libc::c_int = 77;
/// Set in numbers of processes that are no pids.
const NOT_A_PID: u64 = 1 << 63;

/// A number of [`Peer::process`] for people, or one that stands for a process without such a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerName(pub u64);

impl PeerName {
    /// Set in numbers that stand for a process to which the system gives none.
    pub const NAMELESS: u64 = 1 << 62;
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(process) = *self;
        let other = "of another PID namespace";
        if process & NOT_A_PID != 0 {
            write!(f, "process {} {other}", process & !NOT_A_PID)
        } else if process & Self::NAMELESS != 0 {
            write!(f, "unknown process {} {other}", process & !Self::NAMELESS)
        } else {
            write!(f, "pid {process}")
        }
    }
}

/// The process that connected, as the kernel saw it then.
#[derive(Debug)]
pub struct Peer {
    /// Its number; 0 if it is in another PID namespace.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Becomes readable when the process ends, although a child of it may still hold the socket. `None` if it had ended
    /// already, or if the system has no such descriptors.
    end: Option<OwnedFd>,
}

impl Peer {
    /// The process at the other end of a connected socket.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the system does not say.
    pub(super) fn of(socket: impl AsFd) -> Result<Self, IoError> {
        let socket = socket.as_fd();
        let none = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let peer = option(socket, libc::SO_PEERCRED, none)
            .map_err(|error| IoError::os("identify the peer", "a socket", error))?;
        // A system before 6.5 knows only the number, which another process may have by now.
        let end = match option(socket, SO_PEERPIDFD, -1) {
            // SAFETY: the system made this descriptor for us, and nobody else has it.
            Ok(fd) if fd >= 0 => Some(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Pid::from_raw(peer.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
        };
        Ok(Self { pid: peer.pid, uid: peer.uid, gid: peer.gid, end })
    }

    /// A number that is the same for all connections of one process, and for no two processes at a time; `None` if the
    /// system gives none.
    #[must_use]
    pub fn process(&self) -> Option<u64> {
        if self.pid > 0 {
            return Some(self.pid.unsigned_abs().into());
        }
        // Since 6.9 each process has an inode of its own for its descriptors; before, all have the same.
        let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).ok()?;
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).ok().map(|stat| stat.st_ino);
        let (own, peer) = (inode(&own)?, inode(self.end.as_ref()?)?);
        (own != peer).then_some(peer | NOT_A_PID)
    }

    /// A descriptor that is readable once the process has ended.
    pub(super) fn end(&self) -> Option<BorrowedFd<'_>> {
        self.end.as_ref().map(AsFd::as_fd)
    }
}

/// An option of a socket. rustix takes 0, a process of another PID namespace, for an impossible pid.
fn option<T: Copy>(
    socket: BorrowedFd<'_>,
    name: libc::c_int,
    mut value: T,
) -> Result<T, std::io::Error> {
    let mut length = libc::socklen_t::try_from(size_of::<T>()).expect("a small type");
    // SAFETY: pointer and length describe `value`, a plain C type, which outlives the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if done == 0 { Ok(value) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_other_namespaces_are_named() {
        let named = |number| PeerName(number).to_string();
        assert_eq!(named(7), "pid 7");
        assert_eq!(named(NOT_A_PID | 0x40), "process 64 of another PID namespace");
        assert_eq!(named(PeerName::NAMELESS | 3), "unknown process 3 of another PID namespace");
    }
}
