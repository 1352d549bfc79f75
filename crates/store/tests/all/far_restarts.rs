//! Removals of stores that are opened again, copied, or were closed for long.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, ManualClock};
use dalsegno_far::{KEEP_REMOVALS, MemoryLocation, Tier};
use dalsegno_store::testing::Tiers;
use dalsegno_store::{ErrorKind, Store, Terms, info};

use crate::far_host::{BYTES, Host, SLICE, config, copy_of, lists};
use crate::support::hanging::hanging_by;
use crate::support::{self, LIMIT, chain, namespace, put, until};

#[test]
fn a_removal_that_was_pending_at_a_crash_is_published_once_by_the_next_open() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    a.publish(1, 8);
    until("the other host finds them", || b.present(1, 8) == 8);
    a.tier().set_silent(true);
    a.remove(Some(1), 8).unwrap_err();
    let crashed = copy_of(a.dir.path());
    a.store.close();
    assert_eq!(info(crashed.path()).unwrap().pending_removals, 1);
    let mut a = Host::open(crashed, far.path());
    assert_eq!(a.present(1, 8), 0, "before the first poll");
    until("the removal is published", || a.far().pending_removals == 0);
    until("the other host follows", || b.present(1, 8) == 0);
    a.publish(1, 8);
    until("what was put afterwards is found", || b.get(1, 8) == 8);
    for _ in 0..2 {
        let dir = a.close();
        assert_eq!(info(dir.path()).unwrap().pending_removals, 0);
        a = Host::open(dir, far.path());
        a.follow(far.path());
        assert_eq!((a.get(1, 8), b.get(1, 8)), (8, 8), "a removal is applied once");
        assert_eq!(lists(far.path()).len(), 1);
    }
}

#[test]
fn a_removal_without_the_far_location_is_published_by_the_next_open_that_has_it() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    a.publish(1, 8);
    a.publish(2, 4);
    until("the other host finds them", || b.present(1, 8) + b.present(2, 4) == 12);
    let a = Host::open_without_far(a.close());
    assert_eq!(a.remove(Some(1), 8).unwrap(), 8);
    // A crash right after the call.
    let dir = copy_of(a.dir.path());
    drop(a);
    assert_eq!(info(dir.path()).unwrap().pending_removals, 1);
    let a = Host::open(Host::open_without_far(dir).close(), far.path());
    assert_eq!(a.present(1, 8), 0, "before the first poll");
    until("the other host follows", || b.present(1, 8) == 0);
    a.follow(far.path());
    b.follow(far.path());
    assert_eq!((a.present(1, 8), a.present(2, 4), b.present(2, 4)), (0, 4, 4));
    assert_eq!(a.far().pending_removals, 0);
}

#[test]
fn a_store_that_never_had_a_far_location_notes_no_removals() {
    let a = Host::open_without_far(tempfile::tempdir().unwrap());
    a.put(1, 4);
    assert_eq!(a.remove(None, 0).unwrap(), 4);
    let dir = a.close();
    assert_eq!(info(dir.path()).unwrap().pending_removals, 0);
    assert!(support::files(dir.path()).iter().all(|file| !file.to_string_lossy().contains("far-")));
}

#[test]
fn a_copy_of_a_store_and_its_original_apply_each_others_removals() {
    for by_copy in [false, true] {
        let far = tempfile::tempdir().unwrap();
        let a = Host::new(far.path());
        a.publish(1, 8);
        let dir = a.close();
        let copied = copy_of(dir.path());
        let a = Host::open(dir, far.path());
        let copy = Host::open(copied, far.path());
        assert_eq!((a.get(1, 8), copy.get(1, 8)), (8, 8));
        let (here, there) = if by_copy { (&copy, &a) } else { (&a, &copy) };
        here.remove(Some(1), 8).unwrap();
        until("the other one follows", || there.present(1, 8) == 0);
        there.follow(far.path());
        assert_eq!((here.present(1, 8), there.present(1, 8)), (0, 0));
        there.publish(1, 8);
        until("what was put afterwards is found", || here.get(1, 8) == 8);
    }
}

#[test]
fn a_copy_that_is_older_than_a_removal_applies_it() {
    let far = tempfile::tempdir().unwrap();
    let a = Host::new(far.path());
    a.publish(1, 8);
    let dir = a.close();
    let backup = copy_of(dir.path());
    let a = Host::open(dir, far.path());
    a.remove(None, 0).unwrap();
    a.store.close();
    let restored = Host::open(backup, far.path());
    until("it applies the removal", || restored.far().applied_removals == 1);
    restored.follow(far.path());
    assert_eq!((restored.present(1, 8), restored.store.stats().blocks), (0, 0));
}

#[test]
fn a_removal_that_was_durable_here_is_not_applied_again_at_the_next_open() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    a.publish(1, 8);
    until("the other host finds them", || b.present(1, 8) == 8);
    a.tier().set_silent(true);
    a.remove(Some(1), 8).unwrap_err();
    // Put after the removal, and before it is published.
    a.put(1, 8);
    let a = Host::open(a.close(), far.path());
    assert_eq!(a.get(1, 8), 8, "stored after the removal");
    until("the removal is published", || a.far().pending_removals == 0);
    a.follow(far.path());
    assert_eq!(a.get(1, 8), 8, "stored after the removal");
}

#[test]
fn a_removal_that_was_applied_holds_while_its_list_cannot_be_read_after_a_restart() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    a.publish(1, 8);
    until("the other host finds them", || b.present(1, 8) == 8);
    a.remove(Some(1), 8).unwrap();
    until("the other host follows", || b.far().applied_removals == 1);
    b.follow(far.path());
    let dir = b.close();
    let list = lists(far.path()).remove(0);
    let bytes = std::fs::read(&list).unwrap();
    std::fs::write(&list, [7; 8192]).unwrap();
    let b = Host::open(dir, far.path());
    a.publish(2, 4);
    until("packs that name the removal as applied are found", || b.present(2, 4) == 4);
    for _ in 0..3 {
        assert_eq!(b.get(1, 8), 0);
    }
    assert_eq!(b.far().bad_objects, 1);
    let dir = b.close();
    std::fs::write(&list, bytes).unwrap();
    let b = Host::open(dir, far.path());
    b.follow(far.path());
    assert_eq!((b.present(1, 8), b.get(2, 4)), (0, 4));
}

#[test]
fn a_store_that_followed_nothing_for_a_week_removes_everything() {
    let shorter = KEEP_REMOVALS.checked_sub(Duration::from_secs(7200)).unwrap();
    for (closed, left) in [(shorter, 8), (KEEP_REMOVALS, 0)] {
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(1_000_000));
        let location = MemoryLocation::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let tier: Arc<dyn Tier> = Arc::new(location.mount());
            let tiers = Tiers { far: Some(tier), ..Tiers::default() };
            let config = config(std::path::Path::new("memory"));
            // The location and the store have one clock.
            let of_store = Arc::clone(&clock) as Arc<dyn Clock>;
            let (_, store, _) = hanging_by(of_store, dir.path(), &config, tiers);
            let namespace = namespace(&store, 1, SLICE, "far");
            (store, namespace)
        };
        let polled = |store: &Store| store.stats().far.unwrap().complete_polls > 0;
        let (store, id) = open();
        until("the location is polled", || polled(&store));
        put(&store, id, &chain(1, 8), 0, BYTES);
        store.close();
        drop(store);
        clock.advance(closed);
        let (store, id) = open();
        until("the location is polled", || polled(&store));
        assert_eq!(store.stats().blocks, left, "closed for {closed:?}");
        put(&store, id, &chain(2, 4), 0, BYTES);
        let get = |name, blocks| {
            support::get(&store, id, &chain(name, blocks), BYTES, &Terms::within(LIMIT))
        };
        assert_eq!(get(2, 4), 4, "put since");
        store.close();
    }
}

#[test]
fn a_removal_whose_caller_timed_out_holds_after_a_crash() {
    use crate::support::hanging::Hung;
    let far = tempfile::tempdir().unwrap();
    let a = Host::new(far.path());
    a.put(1, 8);
    a.tier().set_silent(true);
    a.device.hang(Hung::Syncs);
    let error = a.remove_within(Some(1), 8, Duration::from_millis(300)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    a.device.go_on();
    until("the removal is noted", || {
        info(copy_of(a.dir.path()).path()).is_ok_and(|info| info.pending_removals == 1)
    });
    let crashed = copy_of(a.dir.path());
    let a = Host::open(crashed, far.path());
    assert_eq!(a.present(1, 8), 0);
}
