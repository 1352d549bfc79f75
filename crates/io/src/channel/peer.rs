//! The process at the other end of a channel.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::IoError;

/// The process that connected, as the kernel saw it then.
#[derive(Debug)]
pub struct Peer {
    /// Its number.
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
        let peer = socket_peercred(socket)
            .map_err(|error| IoError::os("identify the peer", "a socket", error))?;
        let end = pidfd_open(peer.pid, PidfdFlags::empty()).ok();
        let (pid, uid, gid) = (peer.pid.as_raw_nonzero().get(), peer.uid, peer.gid);
        Ok(Self { pid, uid: uid.as_raw(), gid: gid.as_raw(), end })
    }

    /// A descriptor that is readable once the process has ended.
    pub(super) fn end(&self) -> Option<BorrowedFd<'_>> {
        self.end.as_ref().map(AsFd::as_fd)
    }
}
