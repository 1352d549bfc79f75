//! What the processes of clients hold: connections and leases.
//!
//! 1. An account belongs to one process, which the system named when it connected. Whatever it holds is given up when
//!    its last connection ends.
//! 2. A process holds at most [`Bounds`] of everything, so none can use up what others need.
//! 3. A lease to copy ends after [`COPY_LEASE`], released or not: its holder finds out by the stamps. A lease to use
//!    blocks in their places ends only when it is released, or with the process.

pub(crate) mod ahead;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dalsegno_core::Nanos;
use dalsegno_store::{Lease, LeasedBlock};
use parking_lot::{Condvar, Mutex};
use serde::Serialize;

/// How long blocks stay in their places for a client that copies them.
pub(crate) const COPY_LEASE: Duration = Duration::from_secs(2);
/// The number of a lease without blocks.
pub(crate) const NO_LEASE: u64 = 0;

/// The most that clients may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Connections of all processes together.
    pub sessions: usize,
    /// Connections of one process.
    pub client_sessions: usize,
    /// Leases of one process.
    pub client_leases: usize,
    /// Bytes that one process may have in leases to copy.
    pub client_copy_bytes: u64,
    /// Bytes that one process may have in leases to use blocks in their places.
    pub client_view_bytes: u64,
}

impl Bounds {
    /// Bounds for a pool of `capacity_bytes`.
    #[must_use]
    pub fn of_pool(capacity_bytes: u64) -> Self {
        let share = capacity_bytes / 8;
        Self {
            sessions: 256,
            client_sessions: 32,
            client_leases: 1024,
            client_copy_bytes: share,
            client_view_bytes: share,
        }
    }
}

/// How many clients there are, and what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AccountStats {
    /// Processes that are connected.
    pub clients: u64,
    /// Their connections.
    pub sessions: u64,
    /// Connections refused because there were too many.
    pub refused_sessions: u64,
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
}

/// All accounts.
#[derive(Debug)]
pub(crate) struct Accounts {
    bounds: Bounds,
    by_process: Mutex<HashMap<u64, Arc<Account>>>,
    refused: AtomicU64,
    malformed: AtomicU64,
    lapsed: AtomicU64,
}

/// The account of one process.
#[derive(Debug)]
pub(crate) struct Account {
    bounds: Bounds,
    held: Mutex<Holdings>,
    /// A lease ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Holdings {
    sessions: usize,
    leases: HashMap<u64, Held>,
    last_lease: u64,
    copy_bytes: u64,
    view_bytes: u64,
}

/// A lease. Dropping it frees its places.
#[derive(Debug)]
enum Held {
    Copy { _blocks: Vec<LeasedBlock>, bytes: u64, until: Nanos },
    View { _lease: Lease, bytes: u64 },
}

/// A connection of a process. Dropping it ends the connection's part in the account.
#[derive(Debug)]
pub(crate) struct SessionSlot {
    accounts: Arc<Accounts>,
    process: u64,
    account: Arc<Account>,
}

/// Bytes that a request may lease. What it does not use is returned when this is dropped.
#[derive(Debug)]
pub(crate) struct Grant {
    account: Arc<Account>,
    kind: Kind,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Copy,
    View,
}

impl Accounts {
    pub(crate) fn new(bounds: Bounds) -> Arc<Self> {
        let [refused, malformed, lapsed] = [(); 3].map(|()| AtomicU64::new(0));
        Arc::new(Self { bounds, by_process: Mutex::default(), refused, malformed, lapsed })
    }

    /// Counts a connection of a process; `None` if there are too many.
    pub(crate) fn open_session(self: &Arc<Self>, process: u64) -> Option<SessionSlot> {
        let mut by_process = self.by_process.lock();
        let all: usize = by_process.values().map(|account| account.held.lock().sessions).sum();
        let account = by_process.get(&process).map(Arc::clone);
        let own = account.as_ref().map_or(0, |account| account.held.lock().sessions);
        if all >= self.bounds.sessions || own >= self.bounds.client_sessions {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let account = account.unwrap_or_else(|| {
            tracing::info!(process, "client connected");
            let (bounds, held) = (self.bounds, Mutex::default());
            let account = Account { bounds, held, ended: Condvar::new() };
            let account = Arc::new(account);
            by_process.insert(process, Arc::clone(&account));
            account
        });
        account.held.lock().sessions += 1;
        Some(SessionSlot { accounts: Arc::clone(self), process, account })
    }

    /// Counts a connection that ended because of a malformed message.
    pub(crate) fn note_malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the leases to copy that are overdue.
    pub(crate) fn lapse(&self, now: Nanos) {
        let accounts: Vec<_> = self.by_process.lock().values().map(Arc::clone).collect();
        for account in accounts {
            let overdue = account.take_leases(|held| match held {
                Held::Copy { until, .. } => *until <= now,
                Held::View { .. } => false,
            });
            self.lapsed.fetch_add(overdue.len() as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn stats(&self) -> AccountStats {
        let mut stats = AccountStats {
            refused_sessions: self.refused.load(Ordering::Relaxed),
            malformed_sessions: self.malformed.load(Ordering::Relaxed),
            lapsed_leases: self.lapsed.load(Ordering::Relaxed),
            ..AccountStats::default()
        };
        for account in self.by_process.lock().values() {
            let held = account.held.lock();
            stats.clients += 1;
            stats.sessions += held.sessions as u64;
            stats.leases += held.leases.len() as u64;
            stats.copy_bytes += held.copy_bytes;
            stats.view_bytes += held.view_bytes;
        }
        stats
    }
}

impl SessionSlot {
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    pub(crate) fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        let mut by_process = self.accounts.by_process.lock();
        let mut held = self.account.held.lock();
        held.sessions -= 1;
        if held.sessions > 0 {
            return;
        }
        drop(held);
        by_process.remove(&self.process);
        drop(by_process);
        let leases = self.account.take_leases(|_| true);
        tracing::info!(process = self.process, leases = leases.len(), "client ended");
    }
}

impl Account {
    /// Bytes that the process may have in leases to copy.
    pub(crate) fn most_copy_bytes(&self) -> u64 {
        self.bounds.client_copy_bytes
    }

    /// Takes at most `wanted` bytes of those that the process may still lease.
    pub(crate) fn grant(self: &Arc<Self>, kind: Kind, wanted: u64) -> Grant {
        let mut held = self.held.lock();
        let has_lease = held.leases.len() < self.bounds.client_leases;
        let most = match kind {
            Kind::Copy => self.bounds.client_copy_bytes,
            Kind::View => self.bounds.client_view_bytes,
        };
        let used = held.bytes_of(kind);
        let bytes = if has_lease { wanted.min(most.saturating_sub(*used)) } else { 0 };
        *used += bytes;
        Grant { account: Arc::clone(self), kind, bytes }
    }

    /// Takes bytes for blocks of `least` bytes each, as [`Account::grant`] does, and waits at most `patience` for other
    /// leases of the process to end. `None` if there is not enough for one block then. A process that holds nothing
    /// gets one block, however large.
    pub(crate) fn grant_copy(
        self: &Arc<Self>,
        wanted: u64,
        least: u64,
        patience: Duration,
    ) -> Option<Grant> {
        let mut held = self.held.lock();
        let mut is_late = false;
        loop {
            let used = held.copy_bytes;
            let free = self.bounds.client_copy_bytes.saturating_sub(used);
            let has_lease = held.leases.len() < self.bounds.client_leases;
            if has_lease && (free >= least || used == 0) {
                let bytes = wanted.min(free).max(least);
                held.copy_bytes += bytes;
                return Some(Grant { account: Arc::clone(self), kind: Kind::Copy, bytes });
            }
            if is_late {
                return None;
            }
            is_late = self.ended.wait_for(&mut held, patience).timed_out();
        }
    }

    /// Ends leases of this process. Numbers of no lease are ignored: it may have ended by itself.
    pub(crate) fn release(&self, leases: &[u64]) {
        let mut ended = Vec::with_capacity(leases.len());
        let mut held = self.held.lock();
        for lease in leases {
            if let Some(one) = held.leases.remove(lease) {
                held.forget(&one);
                ended.push(one);
            }
        }
        // Places are freed without the lock.
        drop(held);
        drop(ended);
        self.ended.notify_all();
    }

    fn take_leases(&self, is_over: impl Fn(&Held) -> bool) -> Vec<Held> {
        let mut held = self.held.lock();
        let over: Vec<u64> =
            held.leases.iter().filter(|(_, one)| is_over(one)).map(|(id, _)| *id).collect();
        let ended: Vec<Held> = over.iter().filter_map(|id| held.leases.remove(id)).collect();
        for one in &ended {
            held.forget(one);
        }
        self.ended.notify_all();
        ended
    }
}

impl Holdings {
    fn bytes_of(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Copy => &mut self.copy_bytes,
            Kind::View => &mut self.view_bytes,
        }
    }

    fn forget(&mut self, held: &Held) {
        match held {
            Held::Copy { bytes, .. } => self.copy_bytes -= bytes,
            Held::View { bytes, .. } => self.view_bytes -= bytes,
        }
    }

    fn insert(&mut self, held: Held) -> u64 {
        self.last_lease += 1;
        self.leases.insert(self.last_lease, held);
        self.last_lease
    }
}

impl Grant {
    /// The bytes that may be leased.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records blocks of `bytes` in all that the process copies until `until`. Returns the lease's number.
    pub(crate) fn hold_copy(mut self, blocks: Vec<LeasedBlock>, bytes: u64, until: Nanos) -> u64 {
        let bytes = self.settle(bytes);
        self.account.held.lock().insert(Held::Copy { _blocks: blocks, bytes, until })
    }

    /// Records a lease of blocks of `bytes` in all. Returns its number.
    pub(crate) fn hold_view(mut self, lease: Lease, bytes: u64) -> u64 {
        let bytes = self.settle(bytes);
        self.account.held.lock().insert(Held::View { _lease: lease, bytes })
    }

    /// Keeps `bytes` of the grant, and returns the rest.
    fn settle(&mut self, bytes: u64) -> u64 {
        let granted = std::mem::take(&mut self.bytes);
        let mut held = self.account.held.lock();
        let used = held.bytes_of(self.kind);
        *used = *used - granted + bytes;
        drop(held);
        self.account.ended.notify_all();
        bytes
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.settle(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        sessions: 3,
        client_sessions: 2,
        client_leases: 2,
        client_copy_bytes: 100,
        client_view_bytes: 50,
    };

    #[test]
    fn connections_are_bounded_by_process_and_in_all() {
        let accounts = Accounts::new(BOUNDS);
        let first: Vec<_> = (0..3).map(|_| accounts.open_session(1)).collect();
        assert_eq!(first.iter().flatten().count(), 2);
        let second: Vec<_> = (0..3).map(|_| accounts.open_session(2)).collect();
        assert_eq!(second.iter().flatten().count(), 1);
        assert_eq!((accounts.stats().clients, accounts.stats().refused_sessions), (2, 3));
        drop((first, second));
        assert_eq!((accounts.stats().clients, accounts.stats().sessions), (0, 0));
    }

    #[test]
    fn grants_never_exceed_the_bound_and_come_back() {
        let accounts = Accounts::new(BOUNDS);
        let slot = accounts.open_session(1).unwrap();
        let account = slot.account();
        let first = account.grant(Kind::Copy, 70);
        let second = account.grant(Kind::Copy, 70);
        assert_eq!((first.bytes(), second.bytes()), (70, 30));
        assert_eq!(account.grant(Kind::View, 70).bytes(), 50);
        drop(second);
        let lease = first.hold_copy(Vec::new(), 40, Nanos(5));
        assert_eq!((accounts.stats().copy_bytes, accounts.stats().view_bytes), (40, 0));
        account.release(&[lease, 99]);
        assert_eq!((accounts.stats().copy_bytes, accounts.stats().leases), (0, 0));
    }

    #[test]
    fn a_copy_gets_whole_blocks_or_waits() {
        let accounts = Accounts::new(BOUNDS);
        let slot = accounts.open_session(1).unwrap();
        let take = |wanted, least| slot.account().grant_copy(wanted, least, Duration::ZERO);
        let first = take(1000, 70).unwrap();
        assert_eq!(first.bytes(), 100);
        assert!(take(10, 10).is_none(), "all is taken");
        let lease = first.hold_copy(Vec::new(), 80, Nanos(5));
        assert_eq!(take(70, 20).unwrap().bytes(), 20);
        assert!(take(70, 21).is_none());
        slot.account().release(&[lease]);
        assert_eq!(take(70, 300).unwrap().bytes(), 300, "one block, if nothing is held");
        assert_eq!(accounts.stats().copy_bytes, 0);
    }

    #[test]
    fn leases_to_copy_lapse_and_the_number_of_leases_is_bounded() {
        let accounts = Accounts::new(BOUNDS);
        let slot = accounts.open_session(1).unwrap();
        for until in [5, 9] {
            slot.account().grant(Kind::Copy, 10).hold_copy(Vec::new(), 10, Nanos(until));
        }
        assert_eq!(slot.account().grant(Kind::Copy, 10).bytes(), 0);
        accounts.lapse(Nanos(5));
        assert_eq!((accounts.stats().leases, accounts.stats().lapsed_leases), (1, 1));
        assert_eq!(slot.account().grant(Kind::Copy, 10).bytes(), 10);
    }

    #[test]
    fn the_last_connection_of_a_process_takes_its_leases_with_it() {
        let accounts = Accounts::new(BOUNDS);
        let (first, second) =
            (accounts.open_session(1).unwrap(), accounts.open_session(1).unwrap());
        first.account().grant(Kind::Copy, 10).hold_copy(Vec::new(), 10, Nanos(5));
        drop(first);
        assert_eq!(accounts.stats().leases, 1);
        let account = Arc::clone(second.account());
        drop(second);
        let held = account.held.lock();
        assert_eq!((held.leases.len(), held.copy_bytes), (0, 0));
    }
}
