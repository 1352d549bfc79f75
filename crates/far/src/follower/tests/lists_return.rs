//! Lists that cannot be read after a restart, and lists that are gone and return.

use super::*;
use crate::follower::lists::GONE_FOR;

/// A list of removal 1 of block 10, and a pack of this block whose writer had not applied it.
fn with_removal() -> Setup {
    let setup = Setup::new();
    setup.publish_list(5, 1, &[removal(5, 1, 10)]);
    setup.publish_block(1, 1, 10, &[]);
    setup
}

#[test]
fn packs_that_an_unread_list_may_cover_are_set_aside_until_it_is_read() {
    for errno in [EACCES, EIO] {
        let mut setup = with_removal();
        let applied = removal(5, 2, 10).id;
        setup.publish_list(5, 2, &[removal(5, 2, 12)]);
        setup.publish_block(1, 2, 11, &[removal(5, 1, 10).id]);
        setup.publish_block(1, 3, 10, &[applied]);
        setup.publish_block(1, 4, 20, &[]);
        setup.follower.set_earlier([applied].into_iter().collect());
        setup.break_name(list_name(5, 1), errno);
        setup.poll(6);
        let found = |setup: &Setup| [10, 11, 20].map(|block| setup.finds(block));
        assert_eq!(found(&setup), [true, false, false], "put again, and perhaps removed");
        let place = |setup: &Setup| setup.index.find(NAMESPACE, &ChainHash([10; 32])).unwrap();
        let number = |setup: &Setup| setup.index.record(place(setup)).unwrap().number;
        assert_eq!(number(&setup), packs_of(3).start);
        assert!(setup.index.known().needs(&[applied]), "they keep lists");
        setup.clear_faults();
        while setup.follower.poll().bad.now > 0 {}
        setup.poll(1);
        assert_eq!((found(&setup), number(&setup)), ([true; 3], packs_of(3).start), "{errno}");
    }
}

#[test]
fn an_unread_list_of_another_store_sets_nothing_aside() {
    let mut setup = with_removal();
    setup.publish_block(1, 2, 20, &[]);
    let other = WriterId { store: StoreId([9; 16]), open: 1 };
    setup.publish(other.object(Object::Removals(1)), vec![7; 8192]);
    setup.follower.set_earlier([removal(5, 1, 10).id].into_iter().collect());
    setup.poll(1);
    assert_eq!([10, 20].map(|block| setup.finds(block)), [false, true]);
}

#[test]
fn a_list_that_returns_within_an_hour_has_covered_packs_all_the_time() {
    // Another list of the writer stays, or none does.
    for has_other in [true, false] {
        let mut setup = Setup::new();
        let all = [removal(5, 1, 11), removal(5, 2, 10)];
        if has_other {
            setup.publish_list(5, 1, &all[..1]);
        }
        setup.publish_list(5, 2, &all);
        setup.poll(1);
        setup.remove(list_name(5, 2));
        let polled = setup.follower.poll();
        assert_eq!(at_location(&polled), Some(vec![(5, 2)]));
        setup.publish_block(1, 1, 10, &[]);
        setup.poll(LIST_EVERY);
        assert!(!setup.finds(10), "its writer had not applied the removal");
        setup.publish_list(5, 2, &all);
        setup.poll(1);
        assert!(!setup.finds(10));
        setup.manual.advance(GONE_FOR);
        setup.publish_block(1, 2, 10, &[]);
        setup.poll(LIST_EVERY);
        assert!(!setup.finds(10), "the list is there");
    }
}

#[test]
fn a_list_that_returns_after_an_hour_is_a_new_one() {
    let mut setup = with_removal();
    setup.publish_list(6, 1, &[removal(6, 1, 12)]);
    setup.poll(1);
    setup.remove(list_name(5, 1));
    assert_eq!(at_location(&setup.follower.poll()), Some(vec![(5, 1), (6, 1)]));
    setup.publish(list_name(7, 1), vec![7; 8192]);
    setup.manual.advance(GONE_FOR);
    assert_eq!(
        at_location(&setup.follower.poll()),
        Some(vec![(5, 1), (6, 1)]),
        "a list cannot be read"
    );
    setup.remove(list_name(7, 1));
    assert_eq!(at_location(&setup.follower.poll()), Some(vec![(6, 1)]));
    setup.publish_block(1, 2, 10, &[]);
    setup.poll(LIST_EVERY);
    assert!(setup.finds(10), "the list has expired, so no pack is there that it covers");
    setup.publish_list(5, 1, &[removal(5, 1, 10)]);
    assert_eq!(ids(&setup.follower.poll()), [(5, 1)]);
    assert!(!setup.finds(10));
}
