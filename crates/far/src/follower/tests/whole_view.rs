//! What counts as read: which catalogs are known, which removals are applied, and of which directory.

use super::*;

const ENOENT: i32 = 2;

fn needs(setup: &Setup, id: RemovalId) -> bool {
    setup.index.known().needs(&[id])
}

#[test]
fn a_pack_that_could_not_be_read_once_is_known_until_no_listing_shows_its_catalog() {
    let mut setup = Setup::new();
    setup.publish_block(1, 1, 10, &[]);
    setup.poll(1);
    let id = removal(5, 1, 10).id;
    setup.index.remove_pack(writer(1), packs_of(1).start);
    assert!(!setup.finds(10) && needs(&setup, id), "others may read it");
    setup.poll(LIST_EVERY);
    assert!(needs(&setup, id));
    setup.remove(writer(1).object(Object::Catalog(1)));
    setup.poll(LIST_EVERY);
    assert!(!needs(&setup, id));
}

#[test]
fn a_catalog_that_was_not_there_once_is_known_while_listings_show_it_and_fetched_again() {
    let mut setup = Setup::new();
    let (name, id) = (writer(1).object(Object::Catalog(1)), removal(5, 1, 20).id);
    setup.publish_block(1, 1, 10, &[id]);
    for errno in [EACCES, ENOENT] {
        setup.break_name(name, errno);
        setup.poll(LIST_EVERY);
        assert!(needs(&setup, id), "it cannot be read");
    }
    setup.clear_faults();
    setup.poll(LIST_EVERY);
    assert!(setup.finds(10) && !needs(&setup, id));
}

#[test]
fn later_removals_of_a_store_with_an_unread_list_do_not_count_as_applied() {
    let mut setup = Setup::new();
    // The first list is full, so the second one does not repeat it.
    setup.publish_list(5, 1, &[removal(5, 1, 10)]);
    setup.publish_list(5, 2, &[removal(5, 2, 11)]);
    for errno in [EACCES, 21] {
        setup.break_name(list_name(5, 1), errno);
        let polled = setup.follower.poll();
        assert!(polled.at_location.is_some());
        assert_eq!(*polled.unread(), BTreeSet::from([writer(5).store]));
    }
    setup.clear_faults();
    setup.poll(LIST_EVERY - 2);
    let polled = setup.follower.poll();
    assert_eq!((ids(&polled), polled.unread().len()), (vec![(5, 1)], 0));
    assert_eq!(at_location(&polled), Some(vec![(5, 2)]));
}

#[test]
fn no_poll_reads_lists_of_a_directory_and_catalogs_of_the_one_that_appeared_meanwhile() {
    for at in ["removals", "writers"] {
        let mut setup = Setup::new();
        setup.publish_block(1, 1, 10, &[]);
        setup.poll(1);
        assert!(setup.index.known().is_fresh(setup.clock.now(), 0));
        setup.publish_block(2, 1, 20, &[]);
        *setup.reader.reopen_at.lock() = Some(at.to_owned());
        setup.poll(1);
        assert!(!setup.finds(20), "the lists were read before");
        assert!(!setup.index.known().is_fresh(setup.clock.now(), 1), "{at}");
        setup.poll(2);
        assert!(setup.finds(20) && setup.index.known().is_fresh(setup.clock.now(), 1), "{at}");
    }
}

#[test]
fn packs_behind_failed_ones_are_found_before_the_next_listing() {
    for failed in 2..MOST_AHEAD {
        let mut setup = Setup::new();
        setup.publish_block(1, 1, 10, &[]);
        setup.poll(1);
        setup.publish_block(1, failed + 2, 20, &[]);
        let is_found = |_| setup.poll(1) == 1;
        assert!((0..MOST_AHEAD - AHEAD).any(is_found), "{failed} packs failed");
        // One of them was only slow.
        setup.publish_block(1, failed + 1, 30, &[]);
        setup.poll(1);
        assert!(setup.finds(30));
    }
}

/// A setup in which the pack 1 of writer 1 has a block, and another pack has it, too.
fn with_hidden_copy(by: WriterId) -> Setup {
    let mut setup = Setup::new();
    setup.publish_block(1, 1, 10, &[]);
    setup.poll(1);
    let (extents, applied) = (vec![extent(by.open, packs_of(1).start, 10)], Applied::default());
    let packs = vec![CatalogPack { number: packs_of(1).start, bytes: 8192, extents }];
    let catalog = Catalog { writer: by, number: 1, packs, applied };
    setup.publish(by.object(Object::Catalog(1)), catalog.encode());
    if by == OWN {
        setup.index.insert(&catalog, |pack| setup.tier.file(by.object(Object::Pack(pack))));
    }
    setup.poll(1);
    assert_eq!(setup.index.view().duplicate_blocks, 1);
    setup
}

#[test]
fn an_own_pack_is_indexed_again_when_the_pack_that_hid_its_blocks_has_gone() {
    let mut setup = with_hidden_copy(OWN);
    setup.index.remove_pack(writer(1), packs_of(1).start);
    assert_eq!((setup.poll(1), setup.finds(10)), (1, true));
    assert_eq!(setup.index.view().duplicate_blocks, 0);
    assert_eq!(setup.poll(1), 0, "once");
}

#[test]
fn an_own_pack_that_leaves_meanwhile_is_not_indexed_again() {
    let mut setup = with_hidden_copy(OWN);
    setup.index.remove_pack(writer(1), packs_of(1).start);
    let due = setup.index.to_index_again();
    setup.index.remove_pack(OWN, packs_of(1).start);
    let mut polled = Polled::default();
    setup.follower.fetch(due, &mut polled);
    assert_eq!((polled.new_blocks, setup.finds(10)), (0, false));
}

#[test]
fn a_pack_that_could_not_be_indexed_again_is_tried_again() {
    for by in [writer(2), OWN] {
        for errno in [EIO, EACCES] {
            let mut setup = with_hidden_copy(by);
            setup.break_name(by.object(Object::Catalog(1)), errno);
            setup.index.remove_pack(writer(1), packs_of(1).start);
            setup.poll(3);
            assert!(!setup.finds(10));
            setup.clear_faults();
            setup.poll(LIST_EVERY);
            assert!(setup.finds(10), "{by}, {errno}");
        }
    }
}

#[test]
fn a_list_that_fails_in_five_polls_costs_only_itself() {
    let mut setup = Setup::new();
    setup.publish_list(5, 1, &[removal(5, 1, 10)]);
    setup.publish_list(6, 1, &[removal(6, 1, 11)]);
    setup.publish_block(1, 1, 20, &[]);
    setup.break_name(list_name(6, 1), EIO);
    for _ in 1..5 {
        let polled = setup.follower.poll();
        assert!(polled.failure.is_some() && polled.at_location.is_none() && !setup.finds(20));
    }
    let polled = setup.follower.poll();
    assert!(polled.failure.is_none() && setup.finds(20));
    assert_eq!(at_location(&polled), Some(vec![(5, 1)]));
    assert_eq!(*polled.unread(), BTreeSet::from([writer(6).store]));
    assert_eq!(polled.bad.now, 1);
    setup.clear_faults();
    while setup.follower.poll().bad.now > 0 {}
    assert_eq!(setup.follower.poll().unread().len(), 0);
}
