//! The server's end: a socket in a directory that only its group may enter.
//!
//! 1. Nothing is removed from the path but a socket that a server of the same record made.
//! 2. A listener that could not be made leaves neither a socket nor a directory.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};
use thiserror::Error;

use super::record::{Identity, SocketRecord};
use super::stream::Channel;
use super::system::{Until, poll, stream_socket};
use crate::{IoError, Process};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Most bytes of the path of a socket.
const MOST_PATH_BYTES: usize = 107;

/// Accepts connections on a path. The path is removed when the listener is dropped.
#[derive(Debug)]
pub struct Listener {
    /// Before the socket: as long as that is open, no other file gets its inode.
    made: MadeSocket,
    socket: OwnedFd,
}

/// Why nobody can listen on a path.
#[derive(Debug, Error)]
pub enum BindError {
    /// Something else is there.
    #[error("{path} exists: {occupant}")]
    Occupied {
        /// Where.
        path: String,
        /// What is there.
        occupant: Occupant,
    },
    /// It is longer than the kernel allows, or cannot be recorded.
    #[error("{0}")]
    Path(String),
    /// The operating system refused or failed.
    #[error("{0}")]
    Io(#[from] IoError),
}

/// What is in the place of a new socket.
#[derive(Debug, Error)]
pub enum Occupant {
    /// Somebody listens.
    #[error("a process listens there; stop it, or choose another path for the socket")]
    Listener,
    /// Somebody listens, and accepts nothing.
    #[error(
        "a process listens there, which accepts no connections; stop it, or choose another path for the socket"
    )]
    Busy,
    /// No socket.
    #[error("it is {0}; remove it if nothing needs it, or choose another path for the socket")]
    File(&'static str),
    /// A socket to which no stream leads.
    #[error("it is a socket of another kind; choose another path for the socket")]
    OtherSocket,
    /// A socket that nobody listens on, and that is not recorded.
    #[error(
        "nobody listens on this socket, and it is not recorded as one of this store's servers; remove it if no \
         program needs it, or choose another path for the socket"
    )]
    DeadSocket,
    /// Connecting failed in another way.
    #[error(
        "it is a socket, and connecting to it failed ({0}); choose another path for the socket"
    )]
    Unknown(std::io::Error),
}

impl Listener {
    /// Listens on `path`. A socket that a killed server left is replaced, if the file `record` says that a server made
    /// it. The directories of both are created with mode 0750 if they are missing; the socket itself has mode 0660.
    ///
    /// # Errors
    ///
    /// [`BindError`]; then nothing was changed.
    pub fn bind(path: &Path, record: &Path) -> Result<Self, BindError> {
        let path = std::path::absolute(path).map_err(|error| io_error(path, error))?;
        let address = address_of(&path)?;
        let folders = [MadeFolder::around(&path)?, MadeFolder::around(record)?];
        let mut record = SocketRecord::load(record);
        if let Some(left) = left_behind(&path, &address, &record)? {
            tracing::info!(path = %path.display(), "replacing the socket of a server that was killed");
            left.remove();
        }
        let made =
            Self::make(&path, &address, &mut record).inspect_err(|_| record.forget(&path))?;
        folders.into_iter().for_each(MadeFolder::keep);
        Ok(made)
    }

    /// Fails if [`Self::bind`] would, unless a process listens on `path`. It changes nothing.
    ///
    /// # Errors
    ///
    /// [`BindError`].
    pub fn check(path: &Path, record: &Path) -> Result<(), BindError> {
        let path = std::path::absolute(path).map_err(|error| io_error(path, error))?;
        let address = address_of(&path)?;
        match left_behind(&path, &address, &SocketRecord::load(record)) {
            Err(BindError::Occupied { occupant: Occupant::Listener | Occupant::Busy, .. }) => {
                Ok(())
            }
            found => found.map(|_| ()),
        }
    }

    /// The last path that was recorded.
    #[must_use]
    pub fn last_recorded(record: &Path) -> Option<PathBuf> {
        SocketRecord::load(record).last()
    }

    fn make(
        path: &Path,
        address: &SocketAddrUnix,
        record: &mut SocketRecord,
    ) -> Result<Self, BindError> {
        let noted = record.begin(path);
        let socket = stream_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
            .map_err(|error| io_error(path, error))?;
        rustix::net::bind(&socket, address).map_err(|error| io_error(path, error))?;
        let identity = Identity::of(path).map_err(|error| io_error(path, error))?;
        let mut listener = Self { made: MadeSocket::new(path, identity), socket };
        let mode = Mode::from_raw_mode(0o660);
        rustix::fs::chmod(path, mode).map_err(|error| io_error(path, error))?;
        // Where nothing else identifies it, the time of this change does.
        let identity = Identity::of(path).map_err(|error| io_error(path, error))?;
        listener.made.identity = identity;
        rustix::net::listen(&listener.socket, BACKLOG).map_err(|error| io_error(path, error))?;
        // A full disk must not keep a server from starting.
        if let Err(error) = noted.and_then(|()| record.finish(path, &listener.made.identity)) {
            tracing::warn!(
                path = %path.display(), %error,
                "the socket cannot be recorded; if this server is killed, remove its socket before the next start"
            );
        }
        Ok(listener)
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.made.path
    }

    /// Waits at most `timeout` for a connection.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`], also for a connection that ended before it was accepted: the caller may go on.
    pub fn accept(&self, timeout: Duration) -> Result<Option<Channel>, IoError> {
        let failed = |error| IoError::os("accept", self.path().display().to_string(), error);
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

/// A socket that a server of this process or an earlier one made.
#[derive(Debug)]
struct MadeSocket {
    path: PathBuf,
    identity: Identity,
    process: Process,
}

impl MadeSocket {
    fn new(path: &Path, identity: Identity) -> Self {
        Self { path: path.to_owned(), identity, process: Process::this() }
    }

    /// Removes it, unless something else is in its place.
    fn remove(self) {
        drop(self);
    }
}

impl Drop for MadeSocket {
    fn drop(&mut self) {
        let is_there =
            || Identity::of(&self.path).is_ok_and(|found| found.is_same_file(&self.identity));
        if self.process.is_this() && is_there() {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// A directory that is removed again unless it is kept.
struct MadeFolder(Option<PathBuf>);

impl MadeFolder {
    /// Creates the directory of a file if it is missing.
    fn around(file: &Path) -> Result<Self, BindError> {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let Some(folder) = folder else { return Ok(Self(None)) };
        match rustix::fs::mkdir(folder, Mode::from_raw_mode(0o750)) {
            Ok(()) => Ok(Self(Some(folder.to_owned()))),
            Err(Errno::EXIST) => Ok(Self(None)),
            Err(error) => Err(io_error(folder, error)),
        }
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for MadeFolder {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            // Only if it is empty.
            let _ = rustix::fs::rmdir(folder);
        }
    }
}

/// What a killed server left at `path`, if there is something.
fn left_behind(
    path: &Path,
    address: &SocketAddrUnix,
    record: &SocketRecord,
) -> Result<Option<MadeSocket>, BindError> {
    let occupied = |occupant| {
        let path = path.display().to_string();
        Err(BindError::Occupied { path, occupant })
    };
    let found = match rustix::fs::lstat(path) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(io_error(path, error)),
    };
    let kind = match FileType::from_raw_mode(found.st_mode) {
        FileType::Socket => None,
        FileType::RegularFile => Some("an ordinary file"),
        FileType::Directory => Some("a directory"),
        FileType::Symlink => Some("a symbolic link"),
        FileType::Fifo => Some("a pipe"),
        _ => Some("a device"),
    };
    if let Some(kind) = kind {
        return occupied(Occupant::File(kind));
    }
    let socket = stream_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        .map_err(|error| io_error(path, error))?;
    match rustix::net::connect(socket.as_fd(), address) {
        Ok(()) => occupied(Occupant::Listener),
        Err(Errno::AGAIN) => occupied(Occupant::Busy),
        Err(Errno::PROTOTYPE) => occupied(Occupant::OtherSocket),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::CONNREFUSED) => match Identity::of(path) {
            Ok(identity) if record.has_made(path, &identity) => {
                Ok(Some(MadeSocket::new(path, identity)))
            }
            _ => occupied(Occupant::DeadSocket),
        },
        Err(error) => occupied(Occupant::Unknown(error.into())),
    }
}

fn address_of(path: &Path) -> Result<SocketAddrUnix, BindError> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() > MOST_PATH_BYTES {
        return Err(BindError::Path(format!(
            "{} has {} bytes, and the path of a socket at most {MOST_PATH_BYTES}; choose a shorter one",
            path.display(),
            bytes.len()
        )));
    }
    if bytes.contains(&b'\n') {
        return Err(BindError::Path(format!("{} contains a line break", path.display())));
    }
    SocketAddrUnix::new(path).map_err(|error| io_error(path, error))
}

fn io_error(path: &Path, error: impl Into<std::io::Error>) -> BindError {
    BindError::Io(IoError::os("listen", path.display().to_string(), error))
}
