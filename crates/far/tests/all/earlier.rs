//! What earlier opens of a store left at a location: it stays while the store lives, and counts to its bound.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Clock;
use dalsegno_far::format::catalog_of;
use dalsegno_far::offline::{Location, SurveyOptions, WriterState, prune, survey};
use dalsegno_far::{DEAD_AFTER, Object, SILENT_AFTER, StopMode, WATCHED, WriterId};

use crate::hosts::{Host, RECORD_BYTES};
use crate::world::{HOUR, Model, World, collect};

/// The catalogs of the packs of a writer that publishes one after the other.
fn packs_of(world: &World, writer: WriterId) -> Vec<u64> {
    let number = |object| {
        if let Object::Pack(number) = object { Some(catalog_of(number)) } else { None }
    };
    world.objects(writer).into_iter().filter_map(number).collect()
}

fn own_packs(host: &Host) -> u64 {
    host.publisher.stats().own_bytes / RECORD_BYTES
}

/// Half a day in which these hosts live and collect.
fn pass_half_a_day(world: &mut World, hosts: &mut [&mut Host]) {
    world.pass(DEAD_AFTER / 2);
    for host in &mut *hosts {
        host.keep_up().unwrap();
    }
    collect(world, hosts, &mut |_| ());
}

#[test]
fn packs_of_an_earlier_open_stay_while_the_store_lives_and_go_when_all_its_opens_are_dead() {
    let mut world = World::new();
    let (mut first, mut b) = (world.host(1), world.host(2));
    assert!(first.publish(10) && b.publish(30));
    first.keep_up().unwrap();
    // It publishes nothing: its blocks are at the location already.
    let mut again = world.host(1);
    for _ in 0..8 {
        pass_half_a_day(&mut world, &mut [&mut again, &mut b]);
    }
    b.poll();
    again.poll();
    assert!(b.reads(10) && again.reads(11) && again.reads(30));
    for _ in 0..6 {
        assert!(again.collect() && !again.collector.is_working(), "its own store lives");
    }
    let collected = |host: &Host| host.collector.stats().writers;
    assert_eq!((collected(&b), collected(&again)), (0, 0));
    // It is closed for less than a day, and opened again.
    for _ in 0..2 {
        world.pass(DEAD_AFTER / 4 * 3);
        let mut third = world.host(1);
        third.keep_up().unwrap();
        b.keep_up().unwrap();
        collect(&mut world, &mut [&mut b], &mut |_| ());
    }
    assert!(b.reads(10));
    world.pass(DEAD_AFTER + HOUR);
    b.keep_up().unwrap();
    for _ in 0..3 {
        collect(&mut world, &mut [&mut b], &mut |_| ());
    }
    let left = world.location.objects();
    assert!(left.iter().all(|(name, _)| name.writer == b.writer), "{left:?}");
    assert_eq!(b.collector.stats().packs, 1);
}

#[test]
fn an_earlier_folder_without_packs_is_removed_by_anybody_and_its_list_of_removals_stays() {
    for is_own in [true, false] {
        let mut world = World::new();
        let (mut first, mut b) = (world.host(1), world.host(2));
        assert!(first.publish(10) && b.publish(30) && first.remove(30));
        first.keep_up().unwrap();
        world.pass(SILENT_AFTER);
        let mut again = world.host_of(1, 1);
        assert!(again.publish(40));
        again.keep_up().unwrap();
        assert_eq!(packs_of(&world, first.writer), [0; 0]);
        let mut c = world.host(3);
        for _ in 0..4 {
            world.pass(DEAD_AFTER / 2);
            for host in [&mut again, &mut b] {
                host.keep_up().unwrap();
            }
            let collector = if is_own { &mut again } else { &mut c };
            collect(&mut world, &mut [collector], &mut |_| ());
        }
        assert!(!world.has_folder(first.writer));
        assert_eq!(world.lists(), [(first.writer, 1)]);
        c.poll();
        assert!(!c.finds(30) && c.finds(31));
    }
}

/// A store that is dead in two opens, of which the first has many packs, and another host that found out and is about
/// to remove them.
fn about_to_collect(world: &mut World) -> (Host, Host, Host) {
    let (mut first, mut second, mut b) = (world.host(1), world.host(1), world.host(2));
    for block in (0..180).step_by(2) {
        assert!(first.publish(block));
    }
    assert!(second.publish(200));
    first.keep_up().unwrap();
    second.keep_up().unwrap();
    world.pass(DEAD_AFTER);
    for _ in 0..4 {
        assert!(b.collect());
    }
    world.pass(WATCHED);
    while !b.collector.is_working() {
        assert!(b.collect());
    }
    (first, second, b)
}

#[test]
fn a_store_that_continues_in_another_folder_before_packs_are_removed_keeps_all() {
    let mut world = World::new();
    let (first, mut second, mut b) = about_to_collect(&mut world);
    second.keep_up().unwrap();
    for _ in 0..10 {
        assert!(b.collect());
        world.pass(WATCHED);
        second.keep_up().unwrap();
    }
    assert_eq!(packs_of(&world, first.writer).len(), 90);
    assert_eq!(b.collector.stats().packs, 0);
}

#[test]
fn a_store_that_is_opened_again_while_it_is_collected_keeps_the_rest() {
    let mut world = World::new();
    let (first, second, mut b) = about_to_collect(&mut world);
    assert!(b.collect());
    let removed = b.collector.stats().packs;
    assert!((1..90).contains(&removed), "a step is bounded: {removed}");
    let mut again = world.host(1);
    again.keep_up().unwrap();
    for _ in 0..10 {
        assert!(b.collect());
        world.pass(WATCHED);
        again.keep_up().unwrap();
    }
    assert_eq!(b.collector.stats().packs, removed);
    let left = [first.writer, second.writer].map(|writer| packs_of(&world, writer).len() as u64);
    assert_eq!(left.iter().sum::<u64>(), 91 - removed);
}

#[test]
fn the_bound_holds_for_all_opens_and_takes_the_earliest_packs_first() {
    let mut world = World::new();
    let (mut first, mut second) = (world.host(1), world.host(1));
    assert!([10, 20, 30].into_iter().all(|block| first.publish(block)));
    assert!([40, 50].into_iter().all(|block| second.publish(block)));
    second.keep_up().unwrap();
    world.pass(HOUR);
    first.publisher.beat().unwrap();
    world.pass(SILENT_AFTER);
    // The second one was the last to publish, but the first one lived longer.
    let mut third = world.host_of(1, 4);
    third.poll();
    assert!(third.publish(60) && third.finds(40));
    third.keep_up().unwrap();
    assert_eq!(packs_of(&world, second.writer), [0; 0]);
    assert_eq!(packs_of(&world, first.writer), [1, 2, 3]);
    assert!(!third.finds(40) && !third.finds(51), "no put of these blocks is skipped");
    assert_eq!((own_packs(&third), third.publisher.stats().evicted_packs), (4, 2));
    assert!(third.publish(70) && third.publish(80));
    third.keep_up().unwrap();
    assert_eq!(packs_of(&world, first.writer), [3]);
    assert!(world.objects(first.writer).contains(&Object::Catalog(3)));
    assert!(!world.objects(first.writer).contains(&Object::Catalog(2)));
    assert_eq!(own_packs(&third), 4);
    for block in (90..140).step_by(10) {
        assert!(third.publish(block));
    }
    third.keep_up().unwrap();
    assert_eq!(packs_of(&world, first.writer), [0; 0]);
    assert_eq!(packs_of(&world, third.writer), [5, 6, 7, 8]);
    assert_eq!((own_packs(&third), third.publisher.stats().evicted_packs), (4, 9));
}

#[test]
fn a_step_removes_some_packs_of_earlier_opens_and_none_of_the_own_ones_meanwhile() {
    let mut world = World::new();
    let mut first = world.host(1);
    for block in (0..100).step_by(2) {
        assert!(first.publish(block));
    }
    world.pass(SILENT_AFTER);
    let mut again = world.host_of(1, 1);
    assert!(again.publish(200) && again.publish(210));
    let mut left = 50;
    while left > 0 {
        again.keep_up().unwrap();
        let now = packs_of(&world, first.writer).len();
        assert!((1..=8).contains(&(left - now)), "from {left} to {now}");
        assert!(now == 0 || packs_of(&world, again.writer).len() == 2);
        left = now;
    }
    again.keep_up().unwrap();
    assert_eq!(packs_of(&world, again.writer), [2]);
}

#[test]
fn nothing_is_evicted_from_the_folder_of_a_copy_of_the_store_that_lives() {
    let mut world = World::new();
    let (mut copy, mut b) = (world.host_of(1, 99), world.host_of(1, 1));
    assert!([10, 20, 30].into_iter().all(|block| copy.publish(block)));
    let mut live = |world: &World, copy: &mut Host, times: u32| {
        for _ in 0..times {
            copy.publisher.beat().unwrap();
            world.pass(Duration::from_secs(60));
            assert!(b.publish(100) && b.publish(110));
            b.keep_up().unwrap();
        }
        own_packs(&b)
    };
    assert_eq!(live(&world, &mut copy, 130), 1);
    assert_eq!(packs_of(&world, copy.writer), [1, 2, 3]);
    // It is silent for a while, and its folder is taken over. Before anything is evicted, it continues.
    let mut c = world.host_of(1, 8);
    world.pass(SILENT_AFTER);
    c.keep_up().unwrap();
    assert_eq!(own_packs(&c), 4, "those of both");
    copy.publisher.beat().unwrap();
    for block in (120..140).step_by(2) {
        assert!(c.publish(block));
    }
    for _ in 0..3 {
        c.keep_up().unwrap();
    }
    assert_eq!(packs_of(&world, copy.writer), [1, 2, 3]);
    assert_eq!(own_packs(&c), 8);
    // It is silent again, which an early search finds.
    world.pass(SILENT_AFTER);
    c.keep_up().unwrap();
    assert_eq!(packs_of(&world, copy.writer), [0; 0]);
    assert_eq!(own_packs(&c), 8);
}

#[test]
fn a_folder_that_was_too_young_at_the_open_is_taken_over_later() {
    let mut world = World::new();
    let mut first = world.host(1);
    assert!([10, 20, 30].into_iter().all(|block| first.publish(block)));
    first.keep_up().unwrap();
    let mut again = world.host_of(1, 2);
    again.keep_up().unwrap();
    assert_eq!(own_packs(&again), 0);
    world.pass(SILENT_AFTER);
    again.keep_up().unwrap();
    assert_eq!(own_packs(&again), 2);
    assert_eq!(packs_of(&world, first.writer), [2, 3]);
}

#[test]
fn a_location_without_space_costs_packs_of_earlier_opens_first() {
    let mut world = World::new();
    let mut first = world.host(1);
    assert!([10, 20].into_iter().all(|block| first.publish(block)));
    world.pass(SILENT_AFTER);
    let mut again = world.host(1);
    assert!([30, 40].into_iter().all(|block| again.publish(block)));
    for left in [(1, 2), (0, 2), (0, 1)] {
        world.location.set_full(true);
        assert!(!again.publish(50));
        world.location.set_full(false);
        again.keep_up().unwrap();
        let packs = [first.writer, again.writer].map(|writer| packs_of(&world, writer).len());
        assert_eq!((packs[0], packs[1]), left);
    }
}

#[test]
fn a_restart_every_day_leaves_few_folders_and_loses_nothing_within_the_bound() {
    let mut world = World::new();
    let mut b = world.host(2);
    assert!(b.publish(250));
    let mut most = 0;
    for day in 0..60_u8 {
        let mut store = world.host_of(1, 6);
        assert!(store.publish(4 * day) && store.publish(4 * day + 2));
        for _ in 0..2 {
            pass_half_a_day(&mut world, &mut [&mut store, &mut b]);
        }
        store.poll();
        let kept = 4 * day.saturating_sub(2)..4 * day + 4;
        assert!(kept.clone().all(|block| store.reads(block)), "day {day}: {kept:?}");
        assert!(own_packs(&store) <= 6);
        let names = world.location.objects().into_iter().map(|(name, _)| name.writer);
        most = most.max(names.collect::<BTreeSet<_>>().len());
    }
    assert!(most <= 7, "{most} folders");
}

/// A store is opened again with a small bound and killed after so many changes. Another host then finds what the
/// bound did not take, and collects everything when the store is dead. Whether it was killed.
fn history(changes: u64, mode: StopMode) -> bool {
    let (mut world, mut model) = (World::new(), Model::default());
    let (mut first, mut b) = (world.host(1), world.host(2));
    for block in [10, 20, 30] {
        model.publish(&mut first, block);
    }
    model.publish(&mut b, 40);
    first.keep_up().unwrap();
    b.poll();
    model.remove(&mut b, 21);
    world.pass(SILENT_AFTER);
    let mut again = world.host_of(1, 3);
    again.tier.stop_after(changes, mode);
    drop(again.keep_up());
    for block in [50, 60] {
        model.publish(&mut again, block);
    }
    let evicted = again.keep_up();
    // The two earliest packs of five leave. If the store is killed, they may stay.
    model.present.retain(|block, _| !(10..30).contains(block));
    model.check(&mut world);
    let packs = packs_of(&world, first.writer);
    assert!([1, 2, 3].ends_with(&packs) && packs.contains(&3), "{packs:?}");
    assert!(evicted.is_err() || packs == [3]);
    // The next open goes on.
    world.pass(SILENT_AFTER);
    let mut third = world.host_of(1, 3);
    third.keep_up().unwrap();
    third.poll();
    assert!(own_packs(&third) <= 3 && third.reads(31));
    model.check(&mut world);
    for _ in 0..4 {
        pass_half_a_day(&mut world, &mut [&mut third, &mut b]);
        model.check(&mut world);
    }
    let was_killed = again.tier.is_stopped();
    model.is_dead(third.writer);
    for _ in 0..3 {
        world.pass(DEAD_AFTER + HOUR);
        b.keep_up().unwrap();
        collect(&mut world, &mut [&mut b], &mut |world| model.check(world));
    }
    for host in [&first, &again, &third] {
        assert!(!world.has_folder(host.writer), "{:?}", world.objects(host.writer));
    }
    was_killed
}

#[test]
fn a_store_that_is_killed_while_it_evicts_from_an_earlier_folder_loses_nothing_else() {
    for mode in [StopMode::NotDone, StopMode::DoneUnanswered] {
        let points = (0..1000).take_while(|changes| history(*changes, mode)).count();
        assert!(points >= 10, "{points} operations change the location");
    }
}

/// The states of all writers, in the order of their names.
fn states(location: &Location) -> Vec<WriterState> {
    let found = survey(location, SurveyOptions::default(), &|_, _| ()).unwrap();
    found.writers.iter().map(|row| row.state).collect()
}

#[test]
fn a_look_at_the_location_shows_earlier_opens_and_prune_leaves_them_unless_they_are_named() {
    use WriterState::{Dead, Earlier, Live, Silent};
    let mut world = World::new();
    let clock = Arc::clone(&world.clock) as Arc<dyn Clock>;
    let location = Location::new(Arc::new(world.location.mount()), clock);
    let prune = |named: &[String]| {
        let report = prune(&location, named, true, &|_, _| ()).unwrap();
        report.writers.iter().map(|row| (row.writer.clone(), row.state)).collect::<Vec<_>>()
    };
    let hosts = [1, 1, 1, 2].map(|number| world.host(number));
    let names = hosts.each_ref().map(|host| host.writer.to_string());
    let [mut first, mut second, mut empty, mut b] = hosts;
    assert!(first.publish(10) && second.publish(20) && b.publish(30));
    first.keep_up().unwrap();
    b.keep_up().unwrap();
    empty.publisher.beat().unwrap();
    world.pass(HOUR);
    second.keep_up().unwrap();
    assert_eq!(states(&location), [Earlier, Live, Silent, Silent]);
    world.pass(DEAD_AFTER);
    assert_eq!(states(&location), [Dead; 4]);
    second.keep_up().unwrap();
    assert_eq!(states(&location), [Earlier, Live, Dead, Dead]);
    assert_eq!(prune(&[]), [(names[2].clone(), Dead), (names[3].clone(), Dead)]);
    assert_eq!(states(&location), [Earlier, Live]);
    // Its store is closed, and not dead.
    world.pass(HOUR);
    assert_eq!(states(&location), [Earlier, Silent]);
    assert_eq!(prune(&[]), []);
    assert_eq!(prune(&names[..1]), [(names[0].clone(), Earlier)]);
    assert_eq!(states(&location), [Silent]);
}

#[test]
fn prune_removes_all_opens_of_a_store_that_is_dead() {
    let mut world = World::new();
    let clock = Arc::clone(&world.clock) as Arc<dyn Clock>;
    let location = Location::new(Arc::new(world.location.mount()), clock);
    for block in [10, 20, 30] {
        let mut host = world.host(1);
        assert!(host.publish(block));
        host.publisher.beat().unwrap();
        world.pass(HOUR);
    }
    world.pass(DEAD_AFTER);
    let report = prune(&location, &[], true, &|_, _| ()).unwrap();
    assert_eq!((report.writers.len(), report.kept), (3, 0));
    assert!(world.location.objects().is_empty());
}
