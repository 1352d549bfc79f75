//! Two hosts share a location, and one of them is killed at every operation that changes it.
//!
//! A third host, which starts afterwards, finds everything that was published and not removed, finds nothing that was
//! removed, and reads the right bytes.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_core::{Clock, Deadline, ManualClock};
use dalsegno_far::{MemoryLocation, StopMode};

use crate::hosts::Host;

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

/// Runs a history in which host A stops after so many changes of the location. `false` if it never stopped.
fn history(new: NewLocation, changes: u64, mode: StopMode) -> bool {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let location = new(Arc::clone(&clock));
    let (mut a, mut b) =
        (Host::new(&location, &clock, (1, 1), 3), Host::new(&location, &clock, (2, 2), 99));
    a.tier.stop_after(changes, mode);
    let mut expected = Expected::default();
    let publish = |host: &mut Host, first: u8, expected: &mut Expected| {
        // Blocks that are put again may be there, also if that was not acknowledged.
        expected.gone.retain(|block| *block != first && *block != first + 1);
        if host.publish(first) {
            expected.present.extend([first, first + 1]);
        }
    };
    for first in [10, 20, 30] {
        publish(&mut a, first, &mut expected);
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
    drop(a.publisher.evict());
    let is_killed_then = a.tier.is_stopped();
    drop(a.publisher.beat());
    a.publisher.finish(Deadline::At(clock.now()));
    if !is_killed {
        // The oldest packs of A leave: three fit. If A is killed while they leave, the last one may stay.
        let may_leave = if is_killed_then { 10..30 } else { 20..30 };
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
        assert!(reads || !wanted, "block {block} is gone after {changes} {mode:?}: {expected:?}");
        let is_gone = expected.gone.contains(&block);
        assert!(!(reads && is_gone), "block {block} is back after {changes} {mode:?}");
    }
    a.tier.is_stopped()
}

#[test]
fn a_host_that_is_killed_at_any_operation_loses_nothing_published_and_brings_nothing_back() {
    let kinds: [NewLocation; 2] = [MemoryLocation::new, MemoryLocation::bucket];
    for (new, mode) in kinds
        .into_iter()
        .flat_map(|new| [StopMode::NotDone, StopMode::DoneUnanswered].map(|mode| (new, mode)))
    {
        let stops = (0..1000).take_while(|changes| history(new, *changes, mode)).count();
        assert!(stops >= 18, "{stops} operations change the location");
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
