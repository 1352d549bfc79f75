//! What all attachments of a client share, one after the other.

use dalsegno_io::Process;

use super::ended_leases::EndedLeases;
use super::namespaces::Namespaces;
use super::waker::Waker;

/// What the attachments of a client share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) namespaces: Namespaces,
    /// Leases that ended here, and that their server has not heard of.
    pub(super) ended: EndedLeases,
    /// The process that opened the client.
    pub(super) process: Process,
    /// Wakes the thread that looks after the connections.
    pub(super) waker: Waker,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            namespaces: Namespaces::default(),
            ended: EndedLeases::default(),
            process: Process::this(),
            waker: Waker::default(),
        }
    }
}
