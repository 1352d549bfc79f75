//! What all attachments of a client share, one after the other.

use super::ended_leases::EndedLeases;
use super::namespaces::Namespaces;
use super::waker::Waker;

/// What the attachments of a client share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) namespaces: Namespaces,
    /// Leases that ended here, and that their server has not heard of.
    pub(super) ended: EndedLeases,
    /// Wakes the thread that looks after the connections.
    pub(super) waker: Waker,
}
