mod faulty_tier;
mod lists_return;
mod other_names;
mod whole_view;

use std::sync::Arc;

use dalsegno_core::{
    ChainHash, Clock, Extent, ExtentId, KvLayout, Location, ManualClock, NamespaceId, StoreId,
};
use dalsegno_io::Memory;
use parking_lot::Mutex;

use self::faulty_tier::{FaultyTier, LATE};
use super::*;
use crate::format::{CatalogPack, RemovalList};
use crate::index::FarIndex;
use crate::names::ObjectName;
use crate::removal::{Applied, Removal, RemovalId};
use crate::replies::wait_for;
use crate::tier::{MemoryLocation, MemoryTier, Tier};

const EACCES: i32 = 13;
const EIO: i32 = 5;
const NAMESPACE: NamespaceId = NamespaceId([1; 16]);
const OWN: WriterId = WriterId { store: StoreId([2; 16]), open: 1 };

fn writer(open: u64) -> WriterId {
    WriterId { store: StoreId([1; 16]), open }
}

struct Setup {
    tier: MemoryTier,
    reader: Arc<FaultyTier>,
    manual: Arc<ManualClock>,
    clock: Arc<dyn Clock>,
    index: Arc<FarIndex>,
    follower: Follower,
}

impl Setup {
    fn new() -> Self {
        let manual = Arc::new(ManualClock::default());
        let clock = Arc::clone(&manual) as Arc<dyn Clock>;
        let location = MemoryLocation::new(Arc::clone(&clock));
        let index = Arc::new(FarIndex::new(1 << 20));
        let (inner, faults, stale) = (location.mount(), Mutex::default(), Mutex::default());
        let (reopen_at, reopened) = (Mutex::default(), 0.into());
        let reader = Arc::new(FaultyTier { inner, faults, stale, reopen_at, reopened });
        let (of_follower, of_clock) = (Arc::<FaultyTier>::clone(&reader), Arc::clone(&clock));
        let follower = Follower::new(Member {
            tier: of_follower,
            index: Arc::clone(&index),
            clock: of_clock,
            writer: OWN,
        });
        Self { tier: location.mount(), reader, manual, clock, index, follower }
    }

    fn publish(&self, name: ObjectName, bytes: Vec<u8>) {
        let bytes = vec![Memory::owned(bytes, ())];
        wait_for(&self.clock, FOLLOW_LIMIT, |ask| self.tier.publish(name, bytes, ask)).unwrap();
    }

    fn remove(&self, name: ObjectName) {
        wait_for(&self.clock, FOLLOW_LIMIT, |ask| self.tier.remove(name, ask)).unwrap();
    }

    fn publish_catalog(&self, open: u64, number: u64) {
        self.publish_block(open, number, 0, &[]);
    }

    /// Publishes the catalog of a pack of one block, whose writer had applied some removals.
    fn publish_block(&self, open: u64, number: u64, block: u8, applied: &[RemovalId]) {
        let writer = writer(open);
        let pack = packs_of(number).start;
        let extents = vec![extent(open, pack, block)];
        let packs = vec![CatalogPack { number: pack, bytes: 8192, extents }];
        let applied = applied.iter().copied().collect();
        let catalog = Catalog { writer, number, packs, applied };
        self.publish(writer.object(Object::Catalog(number)), catalog.encode());
    }

    fn publish_list(&self, open: u64, number: u64, removals: &[Removal]) {
        let (writer, removals) = (writer(open), removals.to_vec());
        let list = RemovalList { writer, number, removals };
        self.publish(list_name(open, number), list.encode());
    }

    fn finds(&self, block: u8) -> bool {
        self.index.find(NAMESPACE, &ChainHash([block; 32])).is_some()
    }

    fn break_name(&self, name: impl std::fmt::Display, errno: i32) {
        self.reader.faults.lock().insert(name.to_string(), errno);
    }

    fn clear_faults(&self) {
        self.reader.faults.lock().clear();
    }

    /// Polls so often; returns how many catalogs were found.
    fn poll(&mut self, times: u64) -> u64 {
        (0..times).map(|_| self.follower.poll().catalogs).sum()
    }
}

fn extent(open: u64, number: u64, block: u8) -> Extent {
    Extent {
        id: ExtentId(number),
        born: number,
        namespace: NAMESPACE,
        lineage: ChainHash::default(),
        first_block_index: 0,
        parent: ChainHash::default(),
        layout: KvLayout::new(1, 4096).unwrap(),
        location: Location {
            segment: number,
            epoch: open,
            offset: 0,
            header_bytes: 4096,
            compressed_bytes: 0,
        },
        hashes: vec![ChainHash([block; 32])],
    }
}

fn list_name(open: u64, number: u64) -> ObjectName {
    writer(open).object(Object::Removals(number))
}

/// A removal of a block.
fn removal(open: u64, number: u64, block: u8) -> Removal {
    let id = RemovalId { by: writer(open), number };
    Removal { id, namespace: NAMESPACE, hashes: vec![ChainHash([block; 32])] }
}

fn ids(polled: &Polled) -> Vec<(u64, u64)> {
    polled.removals.iter().map(|one| (one.id.by.open, one.id.number)).collect()
}

/// What is at the location, as pairs of open and number; `None` if not all was read.
fn at_location(polled: &Polled) -> Option<Vec<(u64, u64)>> {
    let pairs = |applied: &Applied| applied.iter().map(|id| (id.by.open, id.number)).collect();
    polled.at_location.as_ref().map(pairs)
}

#[test]
fn a_writer_without_signs_of_life_is_looked_at_only_by_listings() {
    let mut setup = Setup::new();
    setup.publish_catalog(1, 1);
    assert_eq!(setup.poll(1 + u64::from(QUIET_LISTS) * LIST_EVERY), 1);
    setup.publish_catalog(1, 2);
    assert_eq!([setup.poll(LIST_EVERY - 1), setup.poll(1)], [0, 1]);
    setup.publish_catalog(1, 3);
    assert_eq!(setup.poll(1), 1, "it has shown that it runs");
}

#[test]
fn a_writer_that_only_beats_is_looked_at_by_every_poll() {
    let mut setup = Setup::new();
    setup.publish_catalog(1, 1);
    for beat in 1..=3 * u64::from(QUIET_LISTS) {
        setup.publish(writer(1).object(Object::Beat(beat)), Vec::new());
        setup.poll(LIST_EVERY);
    }
    setup.publish_catalog(1, 2);
    setup.poll(1);
    setup.publish_catalog(1, 3);
    assert_eq!(setup.poll(1), 1);
}

#[test]
fn a_list_is_found_by_the_next_poll_also_of_a_writer_without_a_folder() {
    let mut setup = Setup::new();
    setup.publish_block(1, 1, 10, &[]);
    let polled = setup.follower.poll();
    assert_eq!((polled.removals.len(), at_location(&polled)), (0, Some(Vec::new())));
    assert!(setup.finds(10));
    setup.publish_list(5, 1, &[removal(5, 1, 10)]);
    let polled = setup.follower.poll();
    assert_eq!((ids(&polled), at_location(&polled)), (vec![(5, 1)], Some(vec![(5, 1)])));
    assert!(!setup.finds(10));
    setup.publish_block(1, 2, 10, &[removal(5, 1, 10).id]);
    let polled = setup.follower.poll();
    assert_eq!((ids(&polled), at_location(&polled)), (vec![], Some(vec![(5, 1)])));
    assert!(setup.finds(10), "it was put after the removal was applied");
}

#[test]
fn a_newer_list_reports_only_its_new_removals_and_keeps_the_old_ones() {
    let mut setup = Setup::new();
    let all = [removal(5, 1, 10), removal(5, 2, 11), removal(5, 3, 12)];
    setup.publish_list(5, 1, &all[..2]);
    assert_eq!(ids(&setup.follower.poll()), [(5, 1), (5, 2)]);
    setup.publish_list(5, 2, &all);
    setup.remove(list_name(5, 1));
    let polled = setup.follower.poll();
    assert_eq!((ids(&polled), at_location(&polled)), (vec![(5, 3)], Some(vec![(5, 3)])));
    setup.publish_block(1, 1, 10, &[]);
    setup.poll(LIST_EVERY);
    assert!(!setup.finds(10));
}

#[test]
fn a_list_that_is_gone_is_looked_for_again_in_the_same_poll() {
    let mut setup = Setup::new();
    setup.publish_list(5, 2, &[removal(5, 1, 10), removal(5, 2, 11)]);
    // The listing is older than that.
    setup.reader.stale.lock().push(list_name(5, 1));
    let polled = setup.follower.poll();
    assert_eq!((ids(&polled), at_location(&polled)), (vec![(5, 1), (5, 2)], Some(vec![(5, 2)])));
}

#[test]
fn removals_of_the_own_open_are_neither_reported_nor_counted() {
    let mut setup = Setup::new();
    let own = Removal { id: RemovalId { by: OWN, number: 7 }, ..removal(5, 1, 10) };
    let name = OWN.object(Object::Removals(1));
    let removals = vec![own, removal(4, 2, 11)];
    setup.publish(name, RemovalList { writer: OWN, number: 1, removals }.encode());
    let polled = setup.follower.poll();
    assert_eq!((ids(&polled), at_location(&polled)), (vec![(4, 2)], Some(vec![(4, 2)])));
    setup.publish_block(1, 1, 10, &[]);
    setup.poll(1);
    assert!(!setup.finds(10), "what it covers is not found all the same");
}

#[test]
fn removals_that_were_read_count_although_the_rest_of_the_poll_fails() {
    let mut setup = Setup::new();
    setup.publish_list(5, 1, &[removal(5, 1, 10)]);
    setup.break_name("writers", EIO);
    let polled = setup.follower.poll();
    assert!(polled.failure.is_some());
    assert_eq!((ids(&polled), at_location(&polled)), (vec![(5, 1)], Some(vec![(5, 1)])));
}

#[test]
fn a_list_that_fails_for_the_moment_leaves_the_others_and_the_poll_incomplete() {
    let mut setup = Setup::new();
    for open in 5..8 {
        setup.publish_list(open, 1, &[removal(open, 1, 10)]);
    }
    setup.publish_block(1, 1, 20, &[]);
    setup.break_name(list_name(6, 1), EIO);
    let polled = setup.follower.poll();
    assert_eq!((ids(&polled), at_location(&polled)), (vec![(5, 1), (7, 1)], None));
    assert!(polled.failure.is_some() && polled.bad.now == 0);
    assert!(!setup.finds(20), "its blocks may be removed");
    assert!(!setup.index.known().is_fresh(setup.clock.now(), 0));
    setup.clear_faults();
    let polled = setup.follower.poll();
    assert_eq!(ids(&polled), [(6, 1)]);
    assert_eq!(at_location(&polled), Some(vec![(5, 1), (6, 1), (7, 1)]));
    assert!(polled.failure.is_none() && setup.finds(20));
}

#[test]
fn lists_that_cannot_be_used_are_counted_named_skipped_and_tried_again_at_listings() {
    let mut setup = Setup::new();
    setup.publish_list(5, 1, &[removal(5, 1, 10)]);
    setup.publish_list(6, 1, &[removal(6, 1, 11)]);
    setup.publish(list_name(7, 1), vec![7; 8192]);
    let other = RemovalList { writer: writer(9), number: 1, removals: Vec::new() };
    setup.publish(list_name(8, 1), other.encode());
    setup.break_name(list_name(6, 1), EACCES);
    let polled = setup.follower.poll();
    assert_eq!((ids(&polled), at_location(&polled)), (vec![(5, 1)], Some(vec![(5, 1)])));
    assert_eq!((polled.bad.new, polled.bad.now), (3, 3));
    let newest = polled.bad.newest.unwrap();
    assert!(newest.name.starts_with("removals/"), "{newest:?}");
    assert!(polled.failure.is_none());
    setup.clear_faults();
    for _ in 2..LIST_EVERY {
        let polled = setup.follower.poll();
        assert_eq!((polled.removals.len(), polled.bad.new, polled.bad.now), (0, 0, 3));
    }
    setup.follower.poll();
    let polled = setup.follower.poll();
    assert_eq!((ids(&polled), polled.bad.now), (vec![(6, 1)], 2));
    assert_eq!(at_location(&polled), Some(vec![(5, 1), (6, 1)]));
    // One that is removed is forgotten.
    setup.remove(list_name(7, 1));
    assert_eq!(setup.follower.poll().bad.now, 1);
}

#[test]
fn catalogs_are_not_followed_while_lists_of_removals_cannot_be_read() {
    let mut setup = Setup::new();
    setup.publish_block(1, 1, 20, &[]);
    setup.break_name("removals", EACCES);
    let polled = setup.follower.poll();
    assert!(polled.at_location.is_none() && polled.failure.is_none() && !setup.finds(20));
    assert_eq!(polled.bad.newest.unwrap().name, "removals");
    setup.break_name("removals", EIO);
    assert!(setup.follower.poll().failure.is_some() && !setup.finds(20));
    setup.clear_faults();
    let polled = setup.follower.poll();
    assert!(polled.at_location.is_some() && polled.bad.now == 0 && setup.finds(20));
}

#[test]
fn a_catalog_that_cannot_be_used_costs_only_itself() {
    let mut setup = Setup::new();
    for (open, number) in [(1, 1), (1, 2), (1, 3), (2, 1)] {
        setup.publish_block(open, number, u8::try_from(10 * open + number).unwrap(), &[]);
    }
    let refused = writer(1).object(Object::Catalog(2));
    setup.break_name(refused, EACCES);
    let polled = setup.follower.poll();
    assert!(setup.finds(11) && !setup.finds(12) && setup.finds(13) && setup.finds(21));
    assert_eq!((polled.bad.new, polled.bad.now, polled.bad.catalogs), (1, 1, 1));
    let newest = polled.bad.newest.unwrap();
    assert_eq!(newest.name, refused.to_string());
    assert!(newest.reason.contains("denied"), "{}", newest.reason);
    assert!(polled.failure.is_none());
    setup.publish_block(1, 4, 14, &[]);
    let polled = setup.follower.poll();
    assert!(setup.finds(14) && polled.bad.new == 0);
    setup.clear_faults();
    setup.poll(LIST_EVERY);
    assert!(setup.finds(12) && setup.follower.poll().bad.now == 0);
}

#[test]
fn a_directory_in_the_place_of_the_next_catalog_does_not_hide_those_behind_it() {
    const EISDIR: i32 = 21;
    let mut setup = Setup::new();
    setup.publish_block(1, 1, 11, &[]);
    setup.poll(1);
    // No listing shows it.
    setup.break_name(writer(1).object(Object::Catalog(2)), EISDIR);
    setup.publish_block(1, 3, 13, &[]);
    let polled = setup.follower.poll();
    assert!(setup.finds(13) && polled.bad.now == 1);
    setup.poll(LIST_EVERY);
    assert_eq!(setup.follower.poll().bad.now, 1);
    setup.clear_faults();
    setup.poll(LIST_EVERY);
    assert_eq!(setup.follower.poll().bad.now, 0);
}

#[test]
fn a_folder_of_another_user_costs_only_itself_and_is_tried_again_at_listings() {
    let mut setup = Setup::new();
    for open in 1..4 {
        setup.publish_block(open, 1, u8::try_from(10 * open).unwrap(), &[]);
    }
    setup.break_name(writer(2), EACCES);
    let polled = setup.follower.poll();
    assert!(setup.finds(10) && !setup.finds(20) && setup.finds(30));
    assert_eq!((polled.bad.new, polled.bad.now), (1, 1));
    assert_eq!(polled.bad.newest.unwrap().name, writer(2).to_string());
    assert!(polled.failure.is_none() && polled.at_location.is_some());
    setup.clear_faults();
    assert_eq!(setup.poll(LIST_EVERY - 1), 0);
    assert_eq!(setup.poll(1), 1);
    assert!(setup.finds(20) && setup.follower.poll().bad.now == 0);
}

#[test]
fn a_folder_that_is_not_listed_in_time_keeps_no_other_one_from_being_followed() {
    let mut setup = Setup::new();
    for open in 1..4 {
        setup.publish_block(open, 1, u8::try_from(10 * open).unwrap(), &[]);
    }
    setup.break_name(writer(2), LATE);
    assert!(setup.follower.poll().hangs());
    assert!(setup.finds(10) && !setup.finds(30), "behind the folder that hangs");
    assert!(setup.follower.poll().hangs());
    assert!(setup.finds(30) && !setup.finds(20));
    setup.clear_faults();
    assert!(setup.follower.poll().failure.is_none() && setup.finds(20));
}

#[test]
fn a_writer_whose_objects_fail_for_the_moment_is_read_by_the_next_poll_and_others_at_once() {
    let mut setup = Setup::new();
    for open in 1..4 {
        setup.publish_block(open, 1, u8::try_from(10 * open).unwrap(), &[]);
    }
    setup.break_name(writer(1), EIO);
    setup.break_name(writer(2).object(Object::Catalog(1)), EIO);
    let polled = setup.follower.poll();
    assert!(!setup.finds(10) && !setup.finds(20) && setup.finds(30));
    assert!(polled.failure.is_some() && polled.bad.now == 0);
    setup.clear_faults();
    let polled = setup.follower.poll();
    assert!(setup.finds(10) && setup.finds(20) && polled.failure.is_none());
}

#[test]
fn the_time_of_the_location_is_asked_at_listings_and_may_be_unknown() {
    let mut setup = Setup::new();
    setup.manual.advance(Duration::from_secs(5));
    let time = LocationTime::Is(Duration::from_secs(5));
    assert_eq!(setup.follower.poll().time, time);
    assert_eq!(setup.follower.poll().time, LocationTime::Unknown);
    setup.break_name("now", EACCES);
    setup.poll(LIST_EVERY - 2);
    let polled = setup.follower.poll();
    assert!(polled.failure.is_none() && polled.at_location.is_some());
    let never = LocationTime::NotBefore(Duration::ZERO);
    assert_eq!(polled.time, never, "there never was a list");
    setup.manual.advance(ASK_AFTER);
    setup.publish_list(5, 1, &[removal(5, 1, 10)]);
    let changed = LocationTime::NotBefore(setup.clock.now().since(Nanos::default()));
    setup.break_name("removals changed", EIO);
    setup.manual.advance(ASK_AFTER);
    assert_eq!(setup.follower.poll().time, LocationTime::Unknown);
    setup.clear_faults();
    setup.break_name("now", EACCES);
    assert_eq!(setup.follower.poll().time, changed, "the next poll asks again");
    assert_eq!(setup.follower.poll().time, LocationTime::Unknown);
}

#[test]
fn regression_a_host_that_was_suspended_asks_for_the_time_at_its_next_poll() {
    let mut setup = Setup::new();
    assert!(matches!(setup.follower.poll().time, LocationTime::Is(_)));
    setup.manual.advance(ASK_AFTER);
    assert!(matches!(setup.follower.poll().time, LocationTime::Is(_)), "removals may have expired");
    assert_eq!(setup.follower.poll().time, LocationTime::Unknown);
}
