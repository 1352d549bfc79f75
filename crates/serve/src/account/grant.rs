//! What a request may take, and what it keeps.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dalsegno_core::{Error, ErrorKind, Nanos, Result};
use dalsegno_store::{Lease, LeasedBlock};

use super::accounts::Accounts;
use super::book::{Book, Held, NO_LEASE};
use super::bounds::Resource;
use super::seat::ClientId;

/// Most removals that wait for one watch.
const MOST_WATCHED: u64 = 1 << 18;
/// A watch with fewer would have a gap after every removal.
const LEAST_WATCHED: u64 = 1024;

/// The account of one process, as long as it has a connection.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(super) accounts: Arc<Accounts>,
    pub(super) client: ClientId,
}

/// Bytes that a request may use. What it does not use is returned when this is dropped.
#[derive(Debug)]
pub(crate) struct Grant {
    account: Account,
    resource: Resource,
    bytes: u64,
    /// Whether it has the number of a lease.
    has_lease: bool,
}

/// Removals that a watch may note, until this is dropped.
#[derive(Debug)]
pub(crate) struct WatchShare {
    account: Account,
    blocks: u64,
}

/// A namespace that is about to be created. It is returned when this is dropped, unless it was kept.
#[derive(Debug)]
pub(crate) struct NamespaceShare {
    account: Account,
    is_kept: bool,
}

impl Account {
    /// The process.
    pub(crate) fn process(&self) -> u64 {
        self.client.process
    }

    /// Bytes that the process may have in leases to copy.
    pub(crate) fn most_copy_bytes(&self) -> u64 {
        self.accounts.book.lock().bounds().copy_bytes.process
    }

    /// Takes at most `wanted` bytes for blocks of `least` bytes each of a put that is copied now, and waits at most
    /// `patience` for others. `None` if there is not enough for one block then.
    pub(crate) fn grant_put(&self, wanted: u64, least: u64, patience: Duration) -> Option<Grant> {
        self.wait_for(wanted, least, false, patience)
    }

    /// Takes at most `wanted` bytes for a lease of blocks of `least` bytes each in their places. There may be none.
    pub(crate) fn grant_view(&self, wanted: u64, least: u64) -> Grant {
        let mut book = self.accounts.book.lock();
        let grant = self.try_take(&mut book, Resource::ViewBytes, wanted, least, true);
        grant.unwrap_or_else(|| Grant {
            account: self.clone(),
            resource: Resource::ViewBytes,
            bytes: 0,
            has_lease: false,
        })
    }

    /// Takes bytes for a lease to copy blocks of `least` bytes each, and waits at most `patience` for other leases to
    /// end. `None` if there is not enough for one block then.
    pub(crate) fn grant_copy(&self, wanted: u64, least: u64, patience: Duration) -> Option<Grant> {
        self.wait_for(wanted, least, true, patience)
    }

    fn wait_for(
        &self,
        wanted: u64,
        least: u64,
        has_lease: bool,
        patience: Duration,
    ) -> Option<Grant> {
        let until = self.accounts.clock.now().after(patience);
        let mut book = self.accounts.book.lock();
        loop {
            let (resource, most) = (Resource::CopyBytes, wanted.max(least));
            if let Some(grant) = self.try_take(&mut book, resource, most, least, has_lease) {
                return Some(grant);
            }
            let left = until.since(self.accounts.clock.now());
            if left.is_zero() {
                return None;
            }
            self.accounts.ended.wait_for(&mut book, left);
        }
    }

    fn try_take(
        &self,
        book: &mut Book,
        resource: Resource,
        wanted: u64,
        least: u64,
        has_lease: bool,
    ) -> Option<Grant> {
        let offer = book.offer_block(self.client, resource, least);
        if offer == 0 || has_lease && book.offer(self.client, Resource::Leases) == 0 {
            return None;
        }
        let bytes = wanted.min(offer);
        book.take(self.client, resource, bytes);
        book.take(self.client, Resource::Leases, u64::from(has_lease));
        Some(Grant { account: self.clone(), resource, bytes, has_lease })
    }

    /// Takes at most `wanted` bytes, and at most half of those that the process may still lease, for blocks of `least`
    /// bytes each that no request has named yet. `None` if that is not enough for one block.
    pub(crate) fn grant_free(&self, wanted: u64, least: u64) -> Option<Grant> {
        let mut book = self.accounts.book.lock();
        let bytes = wanted.min(book.offer(self.client, Resource::CopyBytes) / 2);
        let has_lease = book.offer(self.client, Resource::Leases) > 1;
        if !has_lease || bytes < least {
            return None;
        }
        self.try_take(&mut book, Resource::CopyBytes, bytes, least, true)
    }

    /// Lets a lease to copy last until `end`. Returns whether it has not ended. A lease without blocks never ends.
    pub(crate) fn renew(&self, lease: u64, end: Nanos) -> bool {
        lease == NO_LEASE || self.accounts.book.lock().renew(self.client.process, lease, end)
    }

    /// Ends leases of this process. Numbers of no lease are ignored: it may have ended by itself.
    pub(crate) fn release(&self, leases: &[u64]) {
        let mut book = self.accounts.book.lock();
        let remove = |lease: &u64| book.remove(self.client.process, *lease);
        let ended: Vec<_> = leases.iter().filter_map(remove).collect();
        drop(book);
        self.accounts.free(ended);
    }

    /// Ends the lease of an answer that could not be sent.
    pub(crate) fn take_back(&self, lease: u64) {
        let Some(held) = self.accounts.book.lock().remove(self.client.process, lease) else {
            return;
        };
        self.accounts.unsent.fetch_add(1, Ordering::Relaxed);
        self.accounts.free(vec![held]);
    }

    /// Takes removals for a watch that asks for `wanted`.
    ///
    /// # Errors
    ///
    /// `Unavailable` if too few are left.
    pub(crate) fn grant_watch(&self, wanted: u64) -> Result<WatchShare> {
        let wanted = wanted.min(MOST_WATCHED);
        let mut book = self.accounts.book.lock();
        let offer = book.offer(self.client, Resource::WatchedBlocks);
        // Half of it: the process may want another watch.
        let blocks = wanted.min(offer.div_ceil(2));
        if blocks < wanted.min(LEAST_WATCHED) {
            let own = book.own(self.client.process, Resource::WatchedBlocks);
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "watches of removals of this process may note {own} blocks already, and the server has no more \
                     for it; close a watch, or give each a lower capacity"
                ),
            ));
        }
        book.take(self.client, Resource::WatchedBlocks, blocks);
        Ok(WatchShare { account: self.clone(), blocks })
    }

    /// Takes the right to create a namespace.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the process may not create another one.
    pub(crate) fn grant_namespace(&self) -> Result<NamespaceShare> {
        let mut book = self.accounts.book.lock();
        if book.offer(self.client, Resource::Namespaces) == 0 {
            let own = book.own(self.client.process, Resource::Namespaces);
            let left = book.left(self.client.user, Resource::Namespaces);
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "this process has created {own} namespaces at the server, which has {left} left for its user; a \
                     process may create as many as it leaves, at most {}; use fewer, raise the setting \
                     \"namespaces\" of the server, or restart it, which forgets namespaces without blocks",
                    book.bounds().namespaces.process
                ),
            ));
        }
        book.take(self.client, Resource::Namespaces, 1);
        Ok(NamespaceShare { account: self.clone(), is_kept: false })
    }

    fn give_back(&self, resource: Resource, amount: u64) {
        self.accounts.book.lock().give_back(self.client, resource, amount);
    }
}

impl Grant {
    /// The bytes that may be used.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records blocks of `bytes` in all that the process copies until `until`. Returns the lease's number.
    pub(crate) fn hold_copy(self, blocks: Vec<LeasedBlock>, bytes: u64, until: Nanos) -> u64 {
        self.hold(bytes, Held::Copy { _blocks: blocks, bytes, until })
    }

    /// Records a lease of blocks of `bytes` in all. Returns its number.
    pub(crate) fn hold_view(self, lease: Lease, bytes: u64) -> u64 {
        self.hold(bytes, Held::View { _lease: lease, bytes })
    }

    /// Keeps `bytes` of the grant for a lease, and returns the rest.
    fn hold(mut self, bytes: u64, held: Held) -> u64 {
        let mut book = self.account.accounts.book.lock();
        book.take(self.account.client, self.resource, bytes);
        book.give_back(self.account.client, self.resource, self.bytes);
        let lease = book.insert(self.account.client.process, held);
        drop(book);
        (self.bytes, self.has_lease) = (0, false);
        lease
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.account.give_back(self.resource, self.bytes);
        }
        if self.has_lease {
            self.account.give_back(Resource::Leases, 1);
        }
        // Whatever was returned may be what another request waits for.
        self.account.accounts.ended.notify_all();
    }
}

impl WatchShare {
    /// How many removals the watch may note.
    pub(crate) fn blocks(&self) -> usize {
        usize::try_from(self.blocks).expect("64-bit addresses")
    }
}

impl Drop for WatchShare {
    fn drop(&mut self) {
        self.account.give_back(Resource::WatchedBlocks, self.blocks);
    }
}

impl NamespaceShare {
    /// The namespace was created.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for NamespaceShare {
    fn drop(&mut self) {
        if !self.is_kept {
            self.account.give_back(Resource::Namespaces, 1);
        }
    }
}
