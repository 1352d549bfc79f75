//! Packs that are written at the same time share a catalog: they are published together, and leave together.

use std::sync::Arc;

use dalsegno_core::{Clock, ManualClock};
use dalsegno_far::format::packs_of;
use dalsegno_far::offline::{Location, verify};
use dalsegno_far::{MemoryLocation, Object, StopMode};

use crate::hosts::{Host, RECORD_BYTES};

fn new_clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::default())
}

/// The numbers of the packs and of the catalogs at a location.
fn numbers(location: &MemoryLocation) -> (Vec<u64>, Vec<u64>) {
    let (mut packs, mut catalogs) = (Vec::new(), Vec::new());
    for (name, _) in location.objects() {
        match name.object {
            Object::Pack(number) => packs.push(number),
            Object::Catalog(number) => catalogs.push(number),
            _ => {}
        }
    }
    (packs, catalogs)
}

/// The number of findings about packs and catalogs, and of packs that no catalog names.
fn findings(location: &MemoryLocation, clock: &Arc<dyn Clock>) -> (usize, usize) {
    let location = Location::new(Arc::new(location.mount()), Arc::clone(clock));
    let report = verify(&location, &|_, _| ()).unwrap();
    let is_description = |file: &str| file.contains("/namespace-");
    let found = report.findings.iter().filter(|one| !is_description(&one.file)).count();
    (found, report.unpublished.len())
}

#[test]
fn packs_that_are_written_together_share_a_catalog_and_leave_together() {
    let clock = new_clock();
    let location = MemoryLocation::new(Arc::clone(&clock));
    // A catalog has a sixteenth of them at most.
    let mut a = Host::new(&location, &clock, (1, 1), 48);
    let mut b = Host::new(&location, &clock, (2, 2), 99);
    assert!([10, 20, 30].into_iter().all(|first| a.begin(first)));
    b.poll();
    assert!(!b.finds(10), "nothing is published before the catalog is there");
    assert!(a.complete());
    assert_eq!(numbers(&location), (vec![16, 17, 18], vec![1]));
    b.poll();
    assert!([10, 21, 31].into_iter().all(|block| a.reads(block) && b.reads(block)));
    assert_eq!(findings(&location, &clock), (0, 0));
    assert!(a.publish(40) && a.publish(50));
    a.publisher.set_capacity(4 * RECORD_BYTES);
    a.publisher.evict().unwrap();
    assert_eq!(numbers(&location), ([2, 3].map(|one| packs_of(one).start).to_vec(), vec![2, 3]));
    b.read_all();
    assert!(!b.finds(20) && !b.finds(30) && b.reads(40) && b.reads(51));
}

#[test]
fn packs_that_were_begun_before_and_after_a_removal_have_different_catalogs() {
    let clock = new_clock();
    let location = MemoryLocation::new(Arc::clone(&clock));
    let mut a = Host::new(&location, &clock, (1, 1), 99);
    assert!(a.begin(10) && a.remove(10) && a.begin(10) && a.complete());
    assert_eq!(numbers(&location), (vec![16, 32], vec![1, 2]));
    let mut b = Host::new(&location, &clock, (2, 2), 99);
    b.poll();
    let number = |host: &Host| host.index.numbers(a.writer);
    assert_eq!((number(&b), b.reads(10), b.reads(11)), (vec![16, 32], true, true));
    assert!(a.remove(10));
    b.poll();
    assert!(!b.finds(10) && b.reads(11));
}

#[test]
fn a_writer_that_is_killed_publishes_all_packs_of_a_catalog_or_none() {
    for mode in [StopMode::NotDone, StopMode::DoneUnanswered] {
        let mut seen = [false; 2];
        for changes in 0..6 {
            let clock = new_clock();
            let location = MemoryLocation::new(Arc::clone(&clock));
            let mut a = Host::new(&location, &clock, (1, 1), 99);
            a.tier.stop_after(changes, mode);
            if [10, 20, 30].into_iter().all(|first| a.begin(first)) {
                a.complete();
            }
            let mut b = Host::new(&location, &clock, (2, 2), 99);
            b.poll();
            let (packs, catalogs) = numbers(&location);
            let is_published = !catalogs.is_empty();
            let named = if is_published { packs.clone() } else { Vec::new() };
            assert_eq!(b.index.numbers(a.writer), named, "{changes} {mode:?}");
            let blocks = [10, 20, 30].into_iter().filter(|block| b.reads(*block)).count();
            assert_eq!(blocks, named.len(), "{changes} {mode:?}");
            assert_eq!(findings(&location, &clock), (0, packs.len() - named.len()));
            seen[usize::from(is_published)] = true;
        }
        assert_eq!(seen, [true; 2], "{mode:?}");
    }
}
