//! All accounts of a tenant.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{Clock, Nanos};
use parking_lot::{Condvar, Mutex};
use serde::Serialize;

use super::book::{Book, Held};
use super::bounds::{Bounds, Resource};
use super::client_lines::ClientLines;

/// How many clients there are, and what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AccountStats {
    /// Processes that are connected.
    pub clients: u64,
    /// Their connections.
    pub sessions: u64,
    /// Connections refused because there were too many.
    pub refused_sessions: u64,
    /// Idle connections that were closed to make space for others.
    pub taken_over_sessions: u64,
    /// Connections ended because of a malformed message.
    pub malformed_sessions: u64,
    /// Leases that are held.
    pub leases: u64,
    /// Bytes of blocks in leases to copy.
    pub copy_bytes: u64,
    /// Bytes of blocks in leases to use them in their places.
    pub view_bytes: u64,
    /// Leases to copy that ended because they were not released in time.
    pub lapsed_leases: u64,
    /// Leases released because their answer could not be sent.
    pub unsent_leases: u64,
    /// Removals that watches may note.
    pub watched_blocks: u64,
}

/// All accounts.
#[derive(Debug)]
pub(crate) struct Accounts {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) lines: Arc<ClientLines>,
    pub(super) book: Mutex<Book>,
    /// A lease ended.
    pub(super) ended: Condvar,
    pub(super) refused: AtomicU64,
    pub(super) taken_over: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) lapsed: AtomicU64,
    pub(super) unsent: AtomicU64,
}

impl Accounts {
    /// Accounts for a store that has `namespaces` already.
    pub(crate) fn new(
        bounds: Bounds,
        namespaces: u64,
        clock: Arc<dyn Clock>,
        lines: Arc<ClientLines>,
    ) -> Arc<Self> {
        let [refused, taken_over, malformed, lapsed, unsent] = [(); 5].map(|()| AtomicU64::new(0));
        let (book, ended) = (Mutex::new(Book::new(bounds, namespaces)), Condvar::new());
        Arc::new(Self { clock, lines, book, ended, refused, taken_over, malformed, lapsed, unsent })
    }

    /// Counts a connection that ended because of a malformed message.
    pub(crate) fn note_malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the leases to copy that are overdue.
    pub(crate) fn lapse(&self, now: Nanos) {
        let overdue = self.book.lock().take_overdue(now);
        if !overdue.is_empty() {
            self.lapsed.fetch_add(overdue.len() as u64, Ordering::Relaxed);
            self.free(overdue);
        }
    }

    pub(crate) fn stats(&self) -> AccountStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let book = self.book.lock();
        AccountStats {
            clients: book.clients() as u64,
            // Those that were taken over have a thread until they end.
            sessions: (book.seats.len() + book.leaving) as u64,
            refused_sessions: load(&self.refused),
            taken_over_sessions: load(&self.taken_over),
            malformed_sessions: load(&self.malformed),
            leases: book.leases() as u64,
            copy_bytes: book.all().of(Resource::CopyBytes),
            view_bytes: book.all().of(Resource::ViewBytes),
            lapsed_leases: load(&self.lapsed),
            unsent_leases: load(&self.unsent),
            watched_blocks: book.all().of(Resource::WatchedBlocks),
        }
    }

    /// Writes a line about clients of a user, if the user has one left.
    pub(crate) fn say(&self, user: u32, line: impl FnOnce()) {
        self.lines.say(user, self.clock.now(), line);
    }

    /// Frees the places of leases, without the lock.
    pub(super) fn free(&self, leases: Vec<Held>) {
        drop(leases);
        self.ended.notify_all();
    }
}
