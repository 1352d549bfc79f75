//! Removals on hosts that share a far location: what was removed on one is found on none.

use std::time::Duration;

use dalsegno_store::{ErrorKind, Terms};

use crate::far_host::{Host, lists};
use crate::support::hanging::Hung;
use crate::support::{self, LIMIT, until};

#[test]
fn a_removal_right_after_the_open_holds_on_all_hosts() {
    for name in [Some(1), None] {
        let far = tempfile::tempdir().unwrap();
        let (a, b) = (Host::new(far.path()), Host::new(far.path()));
        a.publish(1, 8);
        until("the other host finds them", || b.present(1, 8) == 8);
        let c = Host::new(far.path());
        c.remove(name, 8).unwrap();
        for host in [&a, &b, &c] {
            host.follow(far.path());
            assert_eq!(host.present(1, 8), 0, "{name:?}");
        }
        assert_eq!(Host::new(far.path()).present(1, 8), 0);
    }
}

#[test]
fn blocks_that_another_host_put_before_it_followed_the_removal_are_removed_there() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    b.tier().set_silent(true);
    a.publish(1, 4);
    b.put(1, 4);
    b.put(2, 4);
    assert!(a.remove(None, 0).unwrap() >= 4);
    b.put(3, 4);
    b.tier().set_silent(false);
    until("the other host applies the removal", || b.far().applied_removals == 1);
    b.follow(far.path());
    let c = Host::new(far.path());
    c.follow(far.path());
    for (host, name) in
        [&a, &b, &c].into_iter().zip(1..=3).flat_map(|(host, _)| [(host, 1), (host, 2), (host, 3)])
    {
        assert_eq!(host.present(name, 4), 0, "chain {name}");
    }
    b.publish(3, 4);
    until("what was put afterwards is found", || a.get(3, 4) == 4 && c.get(3, 4) == 4);
}

#[test]
fn a_location_that_fails_gets_the_removal_when_it_responds_again() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    a.publish(1, 8);
    until("the other host finds them", || b.present(1, 8) == 8);
    a.tier().set_silent(true);
    let error = a.store.remove(a.namespace, None, &Terms::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let expected =
        format!("removed on this host; other hosts follow when {} responds", far.path().display());
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert_eq!((a.far().pending_removals, a.present(1, 8), b.present(1, 8)), (1, 0, 8));
    a.tier().set_silent(false);
    until("the removal is published", || a.far().pending_removals == 0);
    until("the other host follows", || b.present(1, 8) == 0);
    assert_eq!(lists(far.path()).len(), 1);
    a.publish(1, 8);
    until("what was put afterwards is found", || b.get(1, 8) == 8);
}

#[test]
fn a_location_that_hangs_costs_the_timeout_and_gets_the_removal_later() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    a.publish(1, 8);
    until("the other host finds them", || b.present(1, 8) == 8);
    a.tier().hold_publications();
    let error = a.remove_within(Some(1), 8, Duration::from_millis(300)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().starts_with("removed on this host; other hosts follow"), "{error}");
    assert_eq!((a.far().pending_removals, a.present(1, 8)), (1, 0));
    a.tier().publish_kept();
    until("the removal is published", || a.far().pending_removals == 0);
    until("the other host follows", || b.present(1, 8) == 0);
}

#[test]
fn a_pack_that_is_written_during_a_removal_does_not_bring_blocks_back() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    a.publish(9, 1);
    a.tier().hold_publications();
    a.put(1, 8);
    until("the pack is being written", || a.tier().waiting_publications() > 0);
    let removal = std::thread::scope(|scope| {
        let removal = scope.spawn(|| a.remove(Some(1), 8));
        until("the list is being written", || a.tier().waiting_publications() > 1);
        a.tier().publish_kept();
        removal.join().unwrap()
    });
    assert_eq!(removal.unwrap(), 8);
    until("the pack is published", || a.far().published.blocks >= 9);
    for host in [&a, &b, &Host::new(far.path())] {
        host.follow(far.path());
        assert_eq!(host.present(1, 8), 0);
    }
}

#[test]
fn a_removal_of_no_blocks_removes_nothing_anywhere() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    a.publish(1, 8);
    until("the other host finds them", || b.present(1, 8) == 8);
    for host in [&a, &b] {
        assert_eq!(host.remove(Some(1), 0).unwrap(), 0);
    }
    assert_eq!(lists(far.path()).len(), 0);
    b.follow(far.path());
    assert_eq!((a.present(1, 8), b.present(1, 8)), (8, 8));
}

#[test]
fn a_local_log_that_hangs_does_not_keep_other_hosts_from_following() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    a.publish(1, 8);
    until("the other host finds them", || b.present(1, 8) == 8);
    a.device.hang(Hung::Syncs);
    let error = a.remove_within(Some(1), 8, Duration::from_millis(300)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!error.to_string().contains("other hosts"), "{error}");
    assert_eq!(a.present(1, 8), 0);
    until("the other host follows", || b.present(1, 8) == 0);
    assert_eq!(a.far().pending_removals, 0);
    a.device.go_on();
    // A put counts as later when the removal is durable here as well.
    let later = std::cell::Cell::new(100);
    until("later puts are published", || {
        a.put(later.get(), 1);
        later.set(later.get() + 1);
        (100..later.get()).any(|name| b.get(name, 1) == 1)
    });
}

#[test]
fn two_threads_that_remove_at_the_same_time_do_not_cover_later_puts() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    let rounds = 20;
    // The second thread's removals wait for those of the first one, whose numbers are smaller.
    std::thread::scope(|scope| {
        for first in [1, 2] {
            let a = &a;
            scope.spawn(move || {
                for name in (first..).step_by(2).take(rounds) {
                    a.put(name, 1);
                    a.remove(Some(name), 1).unwrap();
                    a.put(name, 1);
                }
            });
        }
    });
    a.follow(far.path());
    b.follow(far.path());
    let missing = || (1..=2 * rounds as u64).filter(|name| b.present(*name, 1) == 0).count();
    until("the other host finds all that was put later", || missing() == 0);
}

#[test]
fn many_removals_leave_few_lists() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    a.publish(1, 64);
    until("the other host finds them", || b.present(1, 64) == 64);
    for hash in support::chain(1, 64) {
        a.store.remove(a.namespace, Some(&[hash]), &Terms::within(LIMIT)).unwrap();
    }
    until("the other host follows", || b.present(1, 64) == 0);
    // A list stays for ten seconds after a newer one contains it.
    until("few lists are left", || lists(far.path()).len() <= 2);
}
