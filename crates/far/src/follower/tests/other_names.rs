//! A name that cannot be removed or looked at keeps no other one.

use super::*;
use crate::earlier::{EarlierOpens, EarlierSearch};
use crate::expired_lists::ExpiredLists;
use crate::own_folder::OwnFolder;
use crate::own_lists::{LIST_EXPIRES, OwnLists};
use crate::signs::SILENT_AFTER;

/// The setup as the member that it is, through its faulty tier.
fn member(setup: &Setup) -> Member {
    let (index, clock) = (Arc::clone(&setup.index), Arc::clone(&setup.clock));
    Member { tier: Arc::<FaultyTier>::clone(&setup.reader), index, clock, writer: OWN }
}

fn is_there(setup: &Setup, name: ObjectName) -> bool {
    wait_for(&setup.clock, FOLLOW_LIMIT, |ask| setup.tier.fetch(name, MAX_CATALOG_BYTES, ask))
        .is_ok()
}

/// Publishes packs of this writer, which have no records that can be read, and their catalog.
fn publish_own(setup: &Setup, number: u64, packs: &[u64]) -> Catalog {
    let pack = |pack: u64| {
        let block = u8::try_from(pack).unwrap();
        CatalogPack { number: pack, bytes: 8192, extents: vec![extent(OWN.open, pack, block)] }
    };
    let packs: Vec<CatalogPack> = packs.iter().copied().map(pack).collect();
    let catalog = Catalog { writer: OWN, number, packs, applied: Applied::default() };
    for pack in &catalog.packs {
        setup.publish(OWN.object(Object::Pack(pack.number)), vec![7; 8192]);
    }
    setup.publish(OWN.object(Object::Catalog(number)), catalog.encode());
    setup.index.insert(&catalog, |pack| setup.tier.file(OWN.object(Object::Pack(pack))));
    catalog
}

#[test]
fn all_packs_of_a_catalog_leave_together_and_it_leaves_last() {
    let setup = Setup::new();
    let mut folder = OwnFolder::new(member(&setup));
    folder.add(&publish_own(&setup, 1, &[16, 17, 20]));
    folder.add(&publish_own(&setup, 2, &[32]));
    let there = |number| is_there(&setup, OWN.object(Object::Pack(number)));
    let has_catalog = || is_there(&setup, OWN.object(Object::Catalog(1)));
    // One pack of the first catalog would be enough. Another one cannot be removed for a minute, and its catalog stays
    // for as long.
    setup.break_name(OWN.object(Object::Pack(17)), EIO);
    assert_eq!(folder.evict(24_576), 3);
    folder.remove_leaving().unwrap();
    assert_eq!(([16, 17, 20].map(there), has_catalog()), ([false, true, false], true));
    assert!([16, 17, 20].into_iter().all(|block| !setup.finds(block)) && setup.finds(32));
    assert_eq!(setup.index.known().numbers(OWN), [1, 2]);
    setup.clear_faults();
    setup.manual.advance(Duration::from_secs(60));
    folder.remove_leaving().unwrap();
    assert_eq!((there(17), has_catalog()), (false, false));
    assert_eq!(setup.index.known().numbers(OWN), [2]);
}

#[test]
fn a_pack_that_could_not_be_written_leaves_without_the_catalog_of_the_others() {
    let setup = Setup::new();
    let mut folder = OwnFolder::new(member(&setup));
    setup.publish(OWN.object(Object::Pack(16)), vec![7; 8192]);
    folder.add_failed_pack(16);
    // The folder does not know the catalog yet: its reply is on its way.
    let catalog = publish_own(&setup, 1, &[17, 18]);
    folder.remove_leaving().unwrap();
    assert!(!is_there(&setup, OWN.object(Object::Pack(16))));
    assert!(is_there(&setup, OWN.object(Object::Catalog(1))));
    assert_eq!(setup.index.known().numbers(OWN), [1]);
    // That it failed makes all of its packs leave.
    folder.add_failed(&catalog);
    folder.remove_leaving().unwrap();
    for object in [Object::Pack(17), Object::Pack(18), Object::Catalog(1)] {
        assert!(!is_there(&setup, OWN.object(object)), "{object}");
    }
}

#[test]
fn a_pack_that_cannot_be_removed_keeps_neither_others_nor_signs_of_life() {
    let setup = Setup::new();
    let mut folder = OwnFolder::new(member(&setup));
    for number in 1..=2 {
        folder.add(&publish_own(&setup, number, &[packs_of(number).start]));
    }
    let [first, second] = [1, 2].map(|catalog| OWN.object(Object::Pack(packs_of(catalog).start)));
    setup.break_name(first, EIO);
    setup.break_name(OWN.object(Object::Beat(1)), EIO);
    assert_eq!(folder.evict(0), 2);
    folder.remove_leaving().unwrap();
    assert!(is_there(&setup, first) && !is_there(&setup, second));
    assert_eq!(setup.index.known().numbers(OWN), [1], "its catalog is there");
    folder.beat().unwrap();
    assert!(folder.beat().is_err(), "it cannot look whether the one before is there");
    for beat in 2..=3 {
        folder.beat().unwrap();
        assert!(is_there(&setup, OWN.object(Object::Beat(beat))));
    }
    assert!(!is_there(&setup, OWN.object(Object::Beat(2))));
    setup.clear_faults();
    setup.manual.advance(Duration::from_secs(60));
    folder.remove_leaving().unwrap();
    assert!(setup.index.known().numbers(OWN).is_empty());
}

#[test]
fn a_superseded_list_that_cannot_be_removed_keeps_no_other_one() {
    let setup = Setup::new();
    let mut lists = OwnLists::new(member(&setup));
    let all: Vec<Removal> = (1..=3)
        .map(|number| Removal { id: RemovalId { by: OWN, number }, ..removal(5, 1, 10) })
        .collect();
    for count in 1..=3 {
        lists.publish(&all[..count]).unwrap();
    }
    let name = |number| OWN.object(Object::Removals(number));
    setup.break_name(name(1), EIO);
    setup.manual.advance(Duration::from_secs(60));
    lists.remove_superseded().unwrap();
    let left = [1, 2, 3].map(|number| is_there(&setup, name(number)));
    assert_eq!(left, [true, false, true]);
    setup.clear_faults();
    lists.remove_superseded().unwrap();
    assert!(is_there(&setup, name(1)), "not yet");
    setup.manual.advance(Duration::from_secs(60));
    lists.remove_superseded().unwrap();
    assert!(!is_there(&setup, name(1)));
}

#[test]
fn an_expired_list_that_cannot_be_looked_at_keeps_no_other_one() {
    let mut setup = Setup::new();
    for open in 5..=6 {
        setup.publish_list(open, 1, &[removal(open, 1, 10)]);
    }
    setup.poll(1);
    setup.manual.advance(LIST_EXPIRES);
    setup.poll(LIST_EVERY);
    let mut expired = ExpiredLists::new(member(&setup));
    setup.break_name(list_name(5, 1), EIO);
    assert_eq!(expired.remove_some(&|| false).unwrap(), 1);
    assert!(is_there(&setup, list_name(5, 1)) && !is_there(&setup, list_name(6, 1)));
    setup.clear_faults();
    setup.manual.advance(Duration::from_secs(3600));
    setup.poll(LIST_EVERY);
    assert_eq!(expired.remove_some(&|| false).unwrap(), 1);
}

#[test]
fn no_list_is_removed_in_another_directory_by_what_the_one_before_had() {
    let mut setup = Setup::new();
    setup.publish_list(5, 1, &[removal(5, 1, 10)]);
    setup.manual.advance(LIST_EXPIRES);
    setup.poll(1);
    let mut expired = ExpiredLists::new(member(&setup));
    // It appears before the age is asked for.
    *setup.reader.reopen_at.lock() = Some(list_name(5, 1).to_string());
    assert_eq!(expired.remove_some(&|| false).unwrap(), 0);
    assert!(is_there(&setup, list_name(5, 1)));
}

#[test]
fn a_pack_of_an_earlier_open_that_cannot_be_removed_keeps_no_other_one() {
    let mut setup = Setup::new();
    let earlier = WriterId { open: 9, ..OWN };
    let pack = |catalog| Object::Pack(packs_of(catalog).start);
    for number in 1..=3 {
        setup.publish(earlier.object(pack(number)), vec![7; 4096]);
        setup.publish(earlier.object(Object::Catalog(number)), vec![7; 4096]);
    }
    // Another pack of the first catalog.
    setup.publish(earlier.object(Object::Pack(packs_of(1).start + 1)), vec![7; 4096]);
    setup.poll(1);
    setup.manual.advance(SILENT_AFTER);
    let mut search = EarlierSearch::new(member(&setup));
    let mut opens = EarlierOpens::new(member(&setup));
    opens.take_over(search.step().unwrap().unwrap());
    setup.break_name(earlier.object(pack(1)), EIO);
    setup.break_name(earlier.object(Object::Catalog(2)), EIO);
    opens.evict(0).unwrap();
    let left = |object: fn(u64) -> Object| {
        [1, 2, 3].map(|number| is_there(&setup, earlier.object(object(number))))
    };
    assert_eq!(left(pack), [true, false, false]);
    let second = earlier.object(Object::Pack(packs_of(1).start + 1));
    assert!(is_there(&setup, second), "it leaves with the first one");
    assert_eq!(left(Object::Catalog), [true, true, false]);
    assert_eq!(setup.index.known().numbers(earlier), [1, 2], "these catalogs are there");
    assert_eq!((opens.bytes(), opens.evicted()), (0, 1));
    assert!(opens.take_search_due().is_some(), "it is found again");
}
