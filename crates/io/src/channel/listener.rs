//! The server's end: a socket in a directory that only its group may enter.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};

use super::stream::Channel;
use super::system::{Until, poll, stream_socket};
use crate::{IoError, Process};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// Accepts connections on a path. The path is removed when the listener is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    process: Process,
}

impl Listener {
    /// Listens on `path`. A socket that nobody listens on any more is replaced. Its directory is created with mode 0750
    /// if it is missing; the socket itself has mode 0660.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`], with the path: `AddrInUse` if another process listens there.
    pub fn bind(path: &Path) -> Result<Self, IoError> {
        let failed = |error: Errno| IoError::os("listen", path.display().to_string(), error);
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            match rustix::fs::mkdir(folder, Mode::from_raw_mode(0o750)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let socket = stream_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(failed)?;
        if let Err(error) = rustix::net::bind(&socket, &address) {
            if error != Errno::ADDRINUSE || is_alive(&address) {
                return Err(failed(error));
            }
            // What an earlier server left: nobody answers there.
            rustix::fs::unlink(path).map_err(failed)?;
            rustix::net::bind(&socket, &address).map_err(failed)?;
        }
        rustix::fs::chmod(path, Mode::from_raw_mode(0o660)).map_err(failed)?;
        rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
        Ok(Self { socket, path: path.to_owned(), process: Process::this() })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits at most `timeout` for a connection.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`], also for a connection that ended before it was accepted: the caller may go on.
    pub fn accept(&self, timeout: Duration) -> Result<Option<Channel>, IoError> {
        let failed = |error| IoError::os("accept", self.path.display().to_string(), error);
        let mut waiting = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut waiting, Until::after(Some(timeout))).map_err(failed)? == 0 {
            return Ok(None);
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.socket, flags) {
            Ok(socket) => Channel::of(socket).map(Some),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.process.is_this() {
            // Another server may listen there by now only if this one stopped; then the path is not ours.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// Whether somebody listens at an address.
fn is_alive(address: &SocketAddrUnix) -> bool {
    stream_socket(SocketFlags::CLOEXEC)
        .is_ok_and(|socket| rustix::net::connect(socket.as_fd(), address).is_ok())
}
