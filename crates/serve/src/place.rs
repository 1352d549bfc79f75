//! Where the files of a server are, within the directory that it owns.

use std::path::{Path, PathBuf};

/// What precedes the path of a socket where a store may be a directory or a server.
pub const SOCKET_PREFIX: &str = "unix:";

/// The socket of a server that owns `directory`, unless it was given another one.
#[must_use]
pub fn socket_of(directory: &Path) -> PathBuf {
    directory.join("serve/socket")
}

/// The file of `directory` that records the sockets of its servers: docs/formats/sockets.md.
#[must_use]
pub(crate) fn record_of(directory: &Path) -> PathBuf {
    directory.join("serve/sockets")
}
