//! Two hosts share a location, and one of them is killed at every operation that changes it.
//!
//! A third host, which starts afterwards, finds everything that was published and not removed, finds nothing that was
//! removed, and reads the right bytes.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_core::{Clock, Deadline, ManualClock};
use dalsegno_far::{MemoryLocation, StopMode};

use crate::hosts::{Host, RECORD_BYTES};

/// What must hold afterwards.
#[derive(Debug, Default)]
struct Expected {
    /// Published, and neither removed nor evicted.
    present: BTreeSet<u8>,
    /// Removed, and that was acknowledged.
    gone: BTreeSet<u8>,
}

/// Makes a location of a kind.
type NewLocation = fn(Arc<dyn Clock>) -> MemoryLocation;

/// How a host publishes its first packs.
#[derive(Clone, Copy, Debug)]
enum First {
    /// Each with a catalog of its own.
    Apart,
    /// All with one catalog.
    Together,
}

/// Publishes three packs with one catalog.
fn publish_together(host: &mut Host, expected: &mut Expected) {
    let begun = [10, 20, 30].into_iter().filter(|first| host.begin(*first)).count();
    host.complete();
    // All of them, or none.
    let packs = host.publisher.stats().packs;
    assert!(packs == 0 || packs == 3 && begun == 3, "{packs} of {begun}");
    if packs == 3 {
        expected.present.extend([10, 11, 20, 21, 30, 31]);
    }
}

/// Runs a history in which host A stops after so many changes of the location. `false` if it never stopped.
fn history(new: NewLocation, changes: u64, mode: StopMode, how: First) -> bool {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let location = new(Arc::clone(&clock));
    // Three packs that are published together leave together; they are a sixteenth of what may be there.
    let most = if matches!(how, First::Apart) { 3 } else { 48 };
    let (mut a, mut b) =
        (Host::new(&location, &clock, (1, 1), most), Host::new(&location, &clock, (2, 2), 99));
    a.tier.stop_after(changes, mode);
    let mut expected = Expected::default();
    let publish = |host: &mut Host, first: u8, expected: &mut Expected| {
        // Blocks that are put again may be there, also if that was not acknowledged.
        expected.gone.retain(|block| *block != first && *block != first + 1);
        if host.publish(first) {
            expected.present.extend([first, first + 1]);
        }
    };
    match how {
        First::Apart => {
            for first in [10, 20, 30] {
                publish(&mut a, first, &mut expected);
            }
        }
        First::Together => publish_together(&mut a, &mut expected),
    }
    drop(b.poll());
    publish(&mut b, 40, &mut expected);
    drop(a.poll());
    // Each removes a block of its own, and one of the other.
    for (is_a, block) in [(true, 10), (false, 20), (false, 41), (true, 40)] {
        let host = if is_a { &mut a } else { &mut b };
        let is_gone = host.remove(block);
        expected.present.remove(&block);
        if is_gone {
            expected.gone.insert(block);
        }
    }
    publish(&mut a, 10, &mut expected);
    publish(&mut a, 50, &mut expected);
    let is_killed = a.tier.is_stopped();
    if matches!(how, First::Together) {
        a.publisher.set_capacity(3 * RECORD_BYTES);
    }
    drop(a.publisher.evict());
    let is_killed_then = a.tier.is_stopped();
    drop(a.publisher.beat());
    a.publisher.finish(Deadline::At(clock.now()));
    if !is_killed {
        // The oldest packs of A leave: three fit. If A is killed while they leave, the last one may stay.
        let end = if matches!(how, First::Apart) { 30 } else { 40 };
        let may_leave = if is_killed_then { 10..end } else { 20..end };
        expected.present.retain(|block| !may_leave.contains(block));
    }

    let mut c = Host::new(&location, &clock, (3, 3), 99);
    for _ in 0..2 {
        let polled = c.poll();
        assert!(polled.bad.now == 0 && polled.failure.is_none(), "{polled:?}");
    }
    for block in 0..=u8::MAX {
        let reads = c.reads(block);
        let wanted = expected.present.contains(&block);
        assert!(
            reads || !wanted,
            "block {block} is gone after {changes} {mode:?} {how:?}: {expected:?}"
        );
        let is_gone = expected.gone.contains(&block);
        assert!(!(reads && is_gone), "block {block} is back after {changes} {mode:?} {how:?}");
    }
    a.tier.is_stopped()
}

#[test]
fn a_host_that_is_killed_at_any_operation_loses_nothing_published_and_brings_nothing_back() {
    let kinds: [NewLocation; 2] = [MemoryLocation::new, MemoryLocation::bucket];
    let modes = [StopMode::NotDone, StopMode::DoneUnanswered];
    let all = kinds.into_iter().flat_map(|new| modes.map(|mode| (new, mode)));
    for ((new, mode), how) in
        all.flat_map(|one| [First::Apart, First::Together].map(|how| (one, how)))
    {
        let stops = (0..1000).take_while(|changes| history(new, *changes, mode, how)).count();
        let least = if matches!(how, First::Apart) { 18 } else { 16 };
        assert!(stops >= least, "{stops} operations change the location");
    }
}

#[test]
fn a_location_without_space_costs_the_oldest_packs() {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let location = MemoryLocation::new(Arc::clone(&clock));
    let mut a = Host::new(&location, &clock, (1, 1), 99);
    assert!([10, 20, 30].into_iter().all(|first| a.publish(first)));
    location.set_full(true);
    assert!(!a.publish(40));
    let stats = a.publisher.stats();
    assert_eq!((stats.full, stats.failed_blocks, stats.packs), (1, 2, 3));
    a.publisher.evict().unwrap();
    assert_eq!([10, 20, 30].map(|first| a.finds(first)), [false, true, true]);
    location.set_full(false);
    assert!(a.publish(50) && a.reads(51) && a.reads(21));
    a.publisher.evict().unwrap();
    assert_eq!(a.publisher.stats().evicted_packs, 1);
}
