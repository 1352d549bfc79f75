//! What removing the folder of a dead writer and following removals rely on, on each kind of tier.

use std::time::Duration;

use dalsegno_core::NamespaceId;
use dalsegno_far::{Object, Tier, WriterId};

use crate::common::{
    Pair, SECTOR, TEST_TIMEOUT, call, eventually, fetch, on_every_location, pack, publish, writer,
};

fn objects(tier: &dyn Tier, after: Option<Object>) -> Vec<Object> {
    let listed = call(|ask| tier.list(writer(1), after, ask)).unwrap();
    listed.iter().map(|listed| listed.object).collect()
}

fn has_folder(tier: &dyn Tier, of: WriterId) -> bool {
    call(|ask| tier.writers(ask)).unwrap().contains(&of)
}

/// Publishes one object of each kind.
fn publish_all(pair: &Pair) -> [Object; 5] {
    let all = [
        Object::Pack(1),
        Object::Catalog(1),
        Object::Namespace(NamespaceId([0xff; 16])),
        Object::Beat(0),
        Object::Beat(7),
    ];
    for object in all {
        let bytes: &[u8] = if matches!(object, Object::Beat(_)) { &[] } else { &[7; SECTOR] };
        publish(&*pair.near, writer(1).object(object), bytes).unwrap();
    }
    all
}

#[test]
fn a_beat_has_no_bytes_is_listed_last_and_has_an_age() {
    on_every_location(|pair| {
        publish_all(pair);
        let last_namespace = Object::Namespace(NamespaceId([0xff; 16]));
        for tier in [&*pair.near, &*pair.other] {
            eventually("the beats", || {
                let beats = objects(tier, Some(last_namespace));
                (beats == [Object::Beat(0), Object::Beat(7)]).then_some(())
            });
            let beat = writer(1).object(Object::Beat(7));
            assert_eq!(call(|ask| tier.fetch(beat, 0, ask)).unwrap(), [0; 0], "{}", pair.label);
            let age = call(|ask| tier.age(beat, ask)).unwrap();
            assert!(age < TEST_TIMEOUT, "{} {age:?}", pair.label);
        }
        (pair.pass)(Duration::from_millis(2100));
        // Compared by the clock of the location: the other mount agrees with the one that published.
        let beat = writer(1).object(Object::Beat(7));
        let ages = [&*pair.near, &*pair.other].map(|tier| call(|ask| tier.age(beat, ask)).unwrap());
        assert!(ages.iter().all(|age| *age >= Duration::from_secs(1)), "{} {ages:?}", pair.label);
    });
}

#[test]
fn a_folder_has_an_age_from_when_it_appears() {
    on_every_location(|pair| {
        let age = |tier: &dyn Tier| call(|ask| tier.writer_age(writer(1), ask));
        assert!(age(&*pair.near).unwrap_err().is_not_found(), "{}", pair.label);
        publish(&*pair.near, pack(1), &[7; SECTOR]).unwrap();
        call(|ask| pair.near.remove(pack(1), ask)).unwrap();
        let early = eventually("the folder", || age(&*pair.other).ok());
        assert!(early < TEST_TIMEOUT, "{} {early:?}", pair.label);
        (pair.pass)(Duration::from_millis(2100));
        for tier in [&*pair.near, &*pair.other] {
            let late = age(tier).unwrap();
            assert!(late >= early + Duration::from_secs(1) && late < TEST_TIMEOUT, "{late:?}");
        }
    });
}

#[test]
fn another_mount_removes_a_folder_in_any_order_and_only_when_it_is_empty() {
    on_every_location(|pair| {
        let all = publish_all(pair);
        eventually("all objects", || (objects(&*pair.other, None) == all).then_some(()));
        let remove_writer = |tier: &dyn Tier| call(|ask| tier.remove_writer(writer(1), ask));
        for (at, object) in all.into_iter().enumerate() {
            remove_writer(&*pair.other).unwrap();
            assert!(has_folder(&*pair.other, writer(1)), "{}: it has objects", pair.label);
            assert_eq!(objects(&*pair.near, None), all[at..], "{}", pair.label);
            // Both remove it, as two collectors do.
            for tier in [&*pair.other, &*pair.near] {
                call(|ask| tier.remove(writer(1).object(object), ask)).unwrap();
            }
            eventually("a removal", || {
                (objects(&*pair.other, None) == all[at + 1..]).then_some(())
            });
            eventually("a removal", || (objects(&*pair.near, None) == all[at + 1..]).then_some(()));
        }
        for tier in [&*pair.other, &*pair.near] {
            remove_writer(tier).unwrap();
            eventually("a removed folder", || (!has_folder(tier, writer(1))).then_some(()));
        }
        // Its writer was only suspended, and goes on.
        let next = writer(1).object(Object::Pack(2));
        eventually("a pack", || publish(&*pair.near, next, &[8; SECTOR]).ok());
        eventually("a pack", || fetch(&*pair.other, next).ok());
    });
}

#[test]
fn files_that_a_crash_left_under_temporary_names_leave_with_the_folder() {
    on_every_location(|pair| {
        publish(&*pair.near, pack(1), &[7; SECTOR]).unwrap();
        let name = ".0000000000000002.pack.0123456789abcdef.tmp";
        let Some(left_behind) = pair.path(writer(1), name) else { return };
        #[expect(clippy::disallowed_methods, reason = "what a crash leaves")]
        std::fs::write(&left_behind, b"half of a pack").unwrap();
        eventually("the pack", || (objects(&*pair.other, None) == [Object::Pack(1)]).then_some(()));
        let remove_writer = || call(|ask| pair.other.remove_writer(writer(1), ask)).unwrap();
        remove_writer();
        #[expect(clippy::disallowed_methods, reason = "looks at a directory from outside")]
        let is_left = || left_behind.exists();
        assert!(is_left(), "{}: its writer may still write it", pair.label);
        call(|ask| pair.other.remove(pack(1), ask)).unwrap();
        remove_writer();
        eventually("a removed folder", || (!has_folder(&*pair.other, writer(1))).then_some(()));
        eventually("a removed folder", || (!is_left()).then_some(()));
    });
}

#[test]
fn lists_of_removals_share_a_folder_that_is_no_writer_s_and_stay_when_folders_are_removed() {
    on_every_location(|pair| {
        let lists = |tier: &dyn Tier| call(|ask| tier.removals(ask)).unwrap();
        assert_eq!(lists(&*pair.near), [], "{}", pair.label);
        let names = [(1, 2), (1, 16), (2, 1)]
            .map(|(open, number)| writer(open).object(Object::Removals(number)));
        for name in names.iter().rev() {
            publish(&*pair.near, *name, &[7; SECTOR]).unwrap();
            assert!(publish(&*pair.other, *name, &[8; SECTOR]).unwrap_err().is_exists());
        }
        publish(&*pair.near, pack(1), &[7; SECTOR]).unwrap();
        for tier in [&*pair.near, &*pair.other] {
            let all = names.map(|name| (name, SECTOR as u64));
            eventually("the lists", || (lists(tier) == all).then_some(()));
            assert_eq!(fetch(tier, names[0]).unwrap(), [7; SECTOR], "{}", pair.label);
            assert_eq!(objects(tier, None), [Object::Pack(1)], "{}", pair.label);
            assert_eq!(call(|ask| tier.writers(ask)).unwrap(), [writer(1)], "{}", pair.label);
            assert!(call(|ask| tier.age(names[0], ask)).unwrap() < TEST_TIMEOUT);
        }
        call(|ask| pair.other.remove(pack(1), ask)).unwrap();
        call(|ask| pair.other.remove_writer(writer(1), ask)).unwrap();
        for tier in [&*pair.near, &*pair.other] {
            call(|ask| tier.remove(names[0], ask)).unwrap();
        }
        eventually("a removal", || (lists(&*pair.other).len() == 2).then_some(()));
    });
}

#[test]
fn the_time_of_a_location_goes_on() {
    on_every_location(|pair| {
        let now = |tier: &dyn Tier| call(|ask| tier.now(ask)).unwrap();
        let early = now(&*pair.near);
        (pair.pass)(Duration::from_millis(1100));
        assert!(now(&*pair.other) > early, "{}", pair.label);
        assert!(call(|ask| pair.near.writers(ask)).unwrap().is_empty(), "it leaves nothing");
    });
}
