use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dalsegno_core::{Error, ManualClock, Nanos};

use super::grant::NamespaceShare;
use super::*;

const BOUNDS: Bounds = Bounds {
    sessions: Bound { all: 12, process: 4 },
    leases: Bound { all: 16, process: 2 },
    copy_bytes: Bound { all: 400, process: 100 },
    view_bytes: Bound { all: 400, process: 50 },
    watched_blocks: Bound { all: 1 << 15, process: 1 << 13 },
    namespaces: Bound { all: 40, process: 10 },
};

struct Place {
    accounts: Arc<Accounts>,
    clock: Arc<ManualClock>,
}

fn place() -> Place {
    let clock = Arc::<ManualClock>::default();
    let time = Arc::<ManualClock>::clone(&clock);
    Place { accounts: Accounts::new(BOUNDS, 0, time, Arc::default()), clock }
}

impl Place {
    /// A connection that waits for a request.
    fn open(&self, process: u64, user: u32) -> Result<SessionSlot, Error> {
        let slot = SessionSlot::open(&self.accounts, ClientId { process, user })?;
        assert!(slot.begin());
        slot.rest();
        self.clock.advance(Duration::from_millis(1));
        Ok(slot)
    }

    /// As many connections as a process gets; all of them are busy.
    fn fill(&self, process: u64, user: u32) -> Vec<SessionSlot> {
        let open = || self.open(process, user).ok().inspect(|slot| assert!(slot.begin()));
        std::iter::from_fn(open).collect()
    }
}

fn copy(slot: &SessionSlot, wanted: u64, least: u64) -> Option<Grant> {
    slot.account().grant_copy(wanted, least, Duration::ZERO)
}

fn put(slot: &SessionSlot, wanted: u64, least: u64) -> Option<Grant> {
    slot.account().grant_put(wanted, least, Duration::ZERO)
}

#[test]
fn a_process_takes_over_its_own_longest_idle_connection() {
    let place = place();
    let slots: Vec<_> = (0..4).map(|_| place.open(1, 1).unwrap()).collect();
    assert!(slots[0].begin(), "the first has a request under way");
    let fifth = place.open(1, 1).unwrap();
    let taken: Vec<bool> = slots.iter().map(SessionSlot::is_taken_over).collect();
    assert_eq!(taken, [false, true, false, false]);
    assert!(!slots[1].begin() && fifth.begin());
    assert_eq!(place.accounts.stats().taken_over_sessions, 1);
    drop((slots, fifth));
    let stats = place.accounts.stats();
    assert_eq!((stats.clients, stats.sessions, stats.refused_sessions), (0, 0, 0));
}

#[test]
fn busy_connections_are_not_taken_over_and_the_refusal_says_why() {
    let place = place();
    let slots = place.fill(1, 1);
    assert_eq!(slots.len(), 4);
    let error = place.open(1, 1).unwrap_err();
    assert!(error.message().contains("has 4 connections"), "{error}");
    assert_eq!(place.accounts.stats().refused_sessions, 2);
    slots[2].account().grant_watch(10).map(drop).unwrap();
    slots[2].set_watch(true);
    slots[2].rest();
    place.open(1, 1).unwrap_err();
    slots[2].set_watch(false);
    place.open(1, 1).unwrap();
    assert!(slots[2].is_taken_over());
}

#[test]
fn greedy_processes_leave_a_connection_to_others() {
    let place = place();
    // All of them are busy, so nothing can be taken over.
    let crowd: Vec<_> = (1..=3).map(|process| place.fill(process, 1)).collect();
    let counts: Vec<usize> = crowd.iter().map(Vec::len).collect();
    assert_eq!(counts, [4, 3, 1], "each leaves as many as it has");
    place.open(9, 1).unwrap();
    let _last = place.fill(4, 1);
    assert!(place.open(9, 2).is_ok(), "a quarter is left for other users");
}

#[test]
fn idle_connections_of_many_processes_lock_nobody_out() {
    let place = place();
    let mut idle = Vec::new();
    for process in 1..40 {
        idle.extend((0..4).filter_map(|_| place.open(process, 1).ok()));
        idle.retain(|slot| !slot.is_taken_over());
        let stats = place.accounts.stats();
        assert!(stats.sessions <= 12, "{stats:?}");
        assert!(idle.iter().any(|slot| slot.account().client.process == process));
    }
}

#[test]
fn a_process_keeps_a_connection_while_it_holds_a_lease() {
    let place = place();
    let modest = place.open(1, 1).unwrap();
    let lease = copy(&modest, 10, 10).unwrap().hold_copy(Vec::new(), 10, Nanos(u64::MAX));
    let mut others = Vec::new();
    for process in 2..30 {
        others.extend(place.open(process, 1).ok());
        assert!(!modest.is_taken_over());
    }
    assert!(place.accounts.stats().taken_over_sessions > 10);
    modest.account().release(&[lease]);
    others.retain(|slot| !slot.is_taken_over());
    for process in 30..60 {
        others.extend(place.open(process, 1).ok());
    }
    assert!(modest.is_taken_over(), "it was idle for the longest time");
}

#[test]
fn a_connection_without_a_hello_is_the_first_to_go_but_not_immediately() {
    let place = place();
    let silent = SessionSlot::open(&place.accounts, ClientId { process: 1, user: 1 }).unwrap();
    let rest: Vec<_> = (0..3).map(|_| place.open(1, 1).unwrap()).collect();
    let fifth = place.open(1, 1).unwrap();
    assert!(!silent.is_taken_over() && rest[0].is_taken_over());
    place.clock.advance(Duration::from_secs(1));
    let sixth = place.open(1, 1).unwrap();
    assert!(silent.is_taken_over() && !rest[1].is_taken_over());
    drop((fifth, sixth));
}

#[test]
fn grants_never_exceed_the_bound_and_come_back() {
    let place = place();
    let slot = place.open(1, 1).unwrap();
    let account = slot.account();
    let first = copy(&slot, 70, 1).unwrap();
    let second = put(&slot, 70, 30).unwrap();
    assert_eq!((first.bytes(), second.bytes()), (70, 30));
    assert_eq!(account.grant_view(70, 10).bytes(), 50);
    drop(second);
    let lease = first.hold_copy(Vec::new(), 40, Nanos(5));
    let stats = place.accounts.stats();
    assert_eq!((stats.copy_bytes, stats.view_bytes), (40, 0));
    account.release(&[lease, 99]);
    let stats = place.accounts.stats();
    assert_eq!((stats.copy_bytes, stats.leases), (0, 0));
}

#[test]
fn a_copy_gets_whole_blocks_or_waits() {
    let place = place();
    let slot = place.open(1, 1).unwrap();
    let first = copy(&slot, 1000, 70).unwrap();
    assert_eq!(first.bytes(), 100);
    assert!(copy(&slot, 10, 10).is_none(), "all is taken");
    let lease = first.hold_copy(Vec::new(), 80, Nanos(5));
    assert_eq!(copy(&slot, 70, 20).unwrap().bytes(), 20);
    assert!(copy(&slot, 70, 21).is_none());
    slot.account().release(&[lease]);
    assert_eq!(copy(&slot, 70, 3000).unwrap().bytes(), 3000, "one block, if nothing is held");
    assert_eq!(place.accounts.stats().copy_bytes, 0);
}

#[test]
fn a_process_puts_one_block_beyond_its_share_at_a_time() {
    let place = place();
    let slot = place.open(1, 1).unwrap();
    let first = put(&slot, 500, 250).unwrap();
    assert_eq!(first.bytes(), 250, "more than its share, and nobody else holds any");
    assert!(put(&slot, 250, 250).is_none(), "on another connection");
    drop(first);
    let second = put(&slot, 250, 250);
    assert!(second.is_some() && place.accounts.stats().leases == 0);
}

#[test]
fn greedy_processes_leave_bytes_leases_and_namespaces_to_others() {
    let place = place();
    let mut kept = Vec::new();
    let greedy: Vec<_> = (1..=3).map(|process| place.open(process, 1).unwrap()).collect();
    for slot in &greedy {
        for _ in 0..50 {
            kept.extend(put(slot, 1000, 1));
            let _ = slot.account().grant_namespace().map(NamespaceShare::keep);
        }
    }
    let stats = place.accounts.stats();
    assert!(stats.copy_bytes <= 300, "{stats:?}");
    let modest = place.open(4, 1).unwrap();
    assert!(put(&modest, 10, 1).is_some());
    modest.account().grant_namespace().unwrap().keep();
    let of_greedy = greedy[0].account().grant_namespace().unwrap_err();
    assert!(of_greedy.message().contains("has created 10 namespaces"), "{of_greedy}");
}

#[test]
fn watches_share_what_the_server_notes() {
    let place = place();
    let slot = place.open(1, 1).unwrap();
    let first = slot.account().grant_watch(u64::MAX).unwrap();
    let second = slot.account().grant_watch(u64::MAX).unwrap();
    assert_eq!((first.blocks(), second.blocks()), (1 << 12, 1 << 11));
    let third = slot.account().grant_watch(u64::MAX).unwrap();
    let error = slot.account().grant_watch(u64::MAX).unwrap_err();
    assert!(error.message().contains("close a watch"), "{error}");
    drop((first, second, third));
    assert_eq!(place.accounts.stats().watched_blocks, 0);
}

#[test]
fn leases_to_copy_lapse_and_the_number_of_leases_is_bounded() {
    let place = place();
    let slot = place.open(1, 1).unwrap();
    for until in [5, 9] {
        copy(&slot, 10, 10).unwrap().hold_copy(Vec::new(), 10, Nanos(until));
    }
    assert!(copy(&slot, 10, 10).is_none());
    place.accounts.lapse(Nanos(5));
    let stats = place.accounts.stats();
    assert_eq!((stats.leases, stats.lapsed_leases), (1, 1));
    assert_eq!(copy(&slot, 10, 10).unwrap().bytes(), 10);
}

#[test]
fn a_lease_whose_answer_was_not_sent_ends() {
    let place = place();
    let (slot, other) = (place.open(1, 1).unwrap(), place.open(1, 1).unwrap());
    let lease = copy(&slot, 10, 10).unwrap().hold_copy(Vec::new(), 10, Nanos(5));
    slot.account().take_back(0);
    slot.account().take_back(lease);
    slot.account().take_back(lease);
    let stats = place.accounts.stats();
    assert_eq!((stats.leases, stats.copy_bytes, stats.unsent_leases), (0, 0, 1));
    drop(other);
}

#[test]
fn the_last_connection_of_a_process_takes_its_leases_with_it() {
    let place = place();
    let (first, second) = (place.open(1, 1).unwrap(), place.open(1, 1).unwrap());
    copy(&first, 10, 10).unwrap().hold_copy(Vec::new(), 10, Nanos(5));
    drop(first);
    assert_eq!(place.accounts.stats().leases, 1);
    drop(second);
    let stats = place.accounts.stats();
    assert_eq!((stats.clients, stats.leases, stats.copy_bytes), (0, 0, 0));
}

#[test]
fn the_number_of_a_lease_is_not_used_again() {
    let place = place();
    let lease =
        |slot: &SessionSlot| copy(slot, 10, 10).unwrap().hold_copy(Vec::new(), 10, Nanos(u64::MAX));
    let before = lease(&place.open(1, 1).unwrap());
    let again = place.open(1, 1).unwrap();
    let after = lease(&again);
    // The process connected again, and releases what it had before.
    again.account().release(&[before]);
    assert_eq!(place.accounts.stats().leases, 1);
    assert_ne!(before, after);
}

/// Counts lines, and looks whether the lock is held.
struct Lines(Arc<Accounts>, AtomicUsize);

impl tracing::Subscriber for Lines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        assert!(self.0.book.try_lock().is_some(), "a line is written while the lock is held");
        self.1.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn lines_about_clients_are_bounded_and_written_without_the_lock() {
    let place = place();
    let lines = Arc::new(Lines(Arc::clone(&place.accounts), AtomicUsize::new(0)));
    tracing::subscriber::with_default(Arc::clone(&lines), || {
        for process in 0..1000 {
            drop(SessionSlot::open(&place.accounts, ClientId { process, user: 1 }).unwrap());
        }
    });
    let count = lines.1.load(Ordering::Relaxed);
    assert!((1..=40).contains(&count), "{count} lines");
}

#[test]
fn what_is_read_ahead_leaves_half_of_the_free_bytes_and_waits_for_nothing() {
    let place = place();
    let slot = place.open(1, 1).unwrap();
    let account = slot.account();
    let first = account.grant_free(30, 10).unwrap();
    assert_eq!(first.bytes(), 30);
    assert!(
        account.grant_free(60, 10).is_none(),
        "the last lease is not for blocks of a later round"
    );
    drop(first);
    assert!(account.grant_free(200, 51).is_none(), "half of 100 bytes");
    assert_eq!(account.grant_free(200, 50).unwrap().bytes(), 50);
    assert_eq!(place.accounts.stats().copy_bytes, 0);
}

#[test]
fn a_renewed_lease_lapses_later_and_a_lapsed_one_is_not_renewed() {
    let place = place();
    let slot = place.open(1, 1).unwrap();
    let lease = copy(&slot, 10, 10).unwrap().hold_copy(Vec::new(), 10, Nanos(5));
    assert!(slot.account().renew(lease, Nanos(9)));
    place.accounts.lapse(Nanos(8));
    assert_eq!(place.accounts.stats().leases, 1);
    place.accounts.lapse(Nanos(9));
    assert!(!slot.account().renew(lease, Nanos(20)));
    assert!(slot.account().renew(NO_LEASE, Nanos(9)), "a lease without blocks");
}
