//! A file that requests in flight keep open.

use std::os::fd::OwnedFd;

/// An open file; requests in flight keep it open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) descriptor: OwnedFd,
    /// For messages.
    pub(crate) name: String,
}
