//! What the processes of clients hold: connections, leases, watches and namespaces.
//!
//! 1. An account belongs to one process, which the system named when it connected. Whatever it holds is given up when
//!    its last connection ends.
//! 2. Every resource is bounded for a process, for a user and for all, so none can use up what others need.
//! 3. A lease to copy ends after [`COPY_LEASE`], released or not: its holder finds out by the stamps. A lease to use
//!    blocks in their places ends only when it is released, or with the process.
//! 4. Nothing is logged, and no place is freed, while the lock is held.

mod book;
mod bounds;
mod client_lines;
mod grant;
mod seat;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dalsegno_core::{Clock, Error, ErrorKind, Nanos};
use parking_lot::{Condvar, Mutex};
use serde::Serialize;

pub(crate) use self::book::Guest;
use self::book::{Book, Held};
use self::bounds::Resource;
pub use self::bounds::{Bound, Bounds};
pub(crate) use self::client_lines::{ClientLines, NO_USER};
pub(crate) use self::grant::{Grant, WatchShare};
use self::seat::{Limit, Seat};

/// How long blocks stay in their places for a client that copies them.
pub(crate) const COPY_LEASE: Duration = Duration::from_secs(2);

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
    clock: Arc<dyn Clock>,
    lines: Arc<ClientLines>,
    book: Mutex<Book>,
    /// A lease ended.
    ended: Condvar,
    refused: AtomicU64,
    taken_over: AtomicU64,
    malformed: AtomicU64,
    lapsed: AtomicU64,
    unsent: AtomicU64,
}

/// The account of one process, as long as it has a connection.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    accounts: Arc<Accounts>,
    guest: Guest,
}

/// A connection of a process. Dropping it ends the connection's part in the account.
#[derive(Debug)]
pub(crate) struct SessionSlot {
    account: Account,
    number: u64,
    seat: Seat,
    is_first: bool,
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

    /// Counts a connection of a process. If there are too many, an idle one is taken over.
    ///
    /// # Errors
    ///
    /// `Unavailable` if none can be taken over.
    pub(crate) fn open_session(self: &Arc<Self>, guest: Guest) -> Result<SessionSlot, Error> {
        let now = self.clock.now();
        let mut book = self.book.lock();
        if let Some(limit) = book.session_limit(guest) {
            if !book.take_over(guest, limit, now) {
                let (own, all) = (book.own(guest.process, Resource::Sessions), book.seats.len());
                drop(book);
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Err(refusal(limit, own, all));
            }
            self.taken_over.fetch_add(1, Ordering::Relaxed);
        }
        let (number, seat, is_first) = book.sit_down(guest, now);
        drop(book);
        let account = Account { accounts: Arc::clone(self), guest };
        Ok(SessionSlot { account, number, seat, is_first })
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
    fn free(&self, leases: Vec<Held>) {
        drop(leases);
        self.ended.notify_all();
    }
}

fn refusal(limit: Limit, own: u64, all: usize) -> Error {
    let message = match limit {
        Limit::Process => format!(
            "this process has {own} connections to the server, the most that one may have, and all are in use; close \
             some or wait"
        ),
        Limit::User => {
            "the processes of this user have as many connections to the server as one user may have, and all are in \
             use; stop some or wait"
                .to_owned()
        }
        Limit::All => format!(
            "the server has {all} connections, and none that this process (it has {own}) may take over is idle; wait, \
             or stop other clients"
        ),
    };
    Error::new(ErrorKind::Unavailable, message)
}

impl SessionSlot {
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    pub(crate) fn accounts(&self) -> &Arc<Accounts> {
        &self.account.accounts
    }

    /// Whether it is the first connection of its process.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first
    }

    /// A request begins. `false` if the connection was taken over: then it must end.
    pub(crate) fn begin(&self) -> bool {
        self.seat.standing.lock().begin()
    }

    /// The request has ended, and its answer was sent.
    pub(crate) fn rest(&self) {
        let now = self.account.accounts.clock.now();
        self.seat.standing.lock().rest(now);
    }

    /// Whether the connection was given to another one.
    pub(crate) fn is_taken_over(&self) -> bool {
        self.seat.standing.lock().is_taken_over()
    }

    /// Whether the connection has a watch of removals.
    pub(crate) fn set_watch(&self, has_watch: bool) {
        self.seat.standing.lock().set_watch(has_watch);
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        let accounts = &self.account.accounts;
        let Some(leases) = accounts.book.lock().get_up(self.number) else { return };
        let (count, Guest { process, user }) = (leases.len(), self.account.guest);
        accounts.free(leases);
        accounts.say(user, || {
            tracing::info!(client = %ProcessName(process), user, leases = count, "client ended");
        });
    }
}

/// Set in numbers of processes in another PID namespace: see `Peer::process`.
const OTHER_NAMESPACE: u64 = 1 << 63;
/// Set in the numbers of connections whose process has none.
pub(crate) const NAMELESS: u64 = 1 << 62;

/// A process in a log line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessName(pub(crate) u64);

impl std::fmt::Display for ProcessName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(process) = *self;
        if process & OTHER_NAMESPACE != 0 {
            write!(f, "process {} of another PID namespace", process & !OTHER_NAMESPACE)
        } else if process & NAMELESS != 0 {
            write!(f, "unknown process {} of another PID namespace", process & !NAMELESS)
        } else {
            write!(f, "pid {process}")
        }
    }
}
