//! Where the files of a server are, within the directory that it owns.

use std::path::{Path, PathBuf};

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
