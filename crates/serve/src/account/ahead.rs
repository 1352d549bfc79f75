//! Leases of blocks that are read ahead.

use dalsegno_core::Nanos;

use super::book::NO_LEASE;
use super::bounds::Resource;
use super::grant::{Account, Grant};

impl Account {
    /// Takes at most `wanted` bytes, and at most half of those that the process may still lease, for blocks of `least`
    /// bytes each that no request has named yet. `None` if that is not enough for one block.
    pub(crate) fn grant_free(&self, wanted: u64, least: u64) -> Option<Grant> {
        let mut book = self.accounts.book.lock();
        let bytes = wanted.min(book.offer(self.client, Resource::CopyBytes) / 2);
        let has_lease = book.offer(self.client, Resource::Leases) > 1;
        if !has_lease || bytes < least {
            return None;
        }
        self.try_lease(&mut book, Resource::CopyBytes, (bytes, least))
    }

    /// Lets a lease to copy last until `end`. Returns whether it has not ended. A lease without blocks never ends.
    pub(crate) fn renew(&self, lease: u64, end: Nanos) -> bool {
        lease == NO_LEASE || self.accounts.book.lock().renew(self.client.process, lease, end)
    }
}
