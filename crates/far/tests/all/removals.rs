//! What a removal covers: everything that any store put before it, on every host, and nothing that was put after it.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Clock;
use dalsegno_far::format::packs_of;
use dalsegno_far::offline::{FarVerifyReport, Location, SurveyOptions, prune, survey, verify};
use dalsegno_far::{DEAD_AFTER, LIST_EXPIRES, Object, StopMode, Tier, wait_for};
use dalsegno_io::Memory;

use crate::hosts::{Host, LIMIT, RECORD_BYTES};
use crate::world::{HOUR, World, collect};

/// Whether a host that starts now finds these blocks.
fn found_by_a_new_host(world: &mut World, blocks: &[u8]) -> Vec<bool> {
    let mut fresh = world.host(77);
    fresh.poll();
    blocks.iter().map(|block| fresh.reads(*block)).collect()
}

#[test]
fn a_removal_right_after_the_open_covers_what_others_published() {
    let mut world = World::new();
    let (mut a, mut b, mut c) = (world.host(1), world.host(2), world.host(3));
    assert!(a.publish(10));
    c.poll();
    // B has not polled yet.
    assert!(b.remove(10));
    c.poll();
    a.poll();
    assert!(!c.finds(10) && c.reads(11) && !a.finds(10));
    assert_eq!(found_by_a_new_host(&mut world, &[10, 11]), [false, true]);
}

#[test]
fn what_a_host_published_before_it_applied_a_removal_is_covered_and_what_it_publishes_later_is_not()
{
    let mut world = World::new();
    let (mut a, mut b) = (world.host(1), world.host(2));
    assert!(a.remove(10));
    assert!(b.publish(10), "B has not polled");
    assert!(a.publish(20), "the host that removed puts other blocks");
    a.poll();
    assert!(!a.finds(10) && found_by_a_new_host(&mut world, &[10, 11, 20]) == [false, true, true]);
    b.poll();
    assert!(!b.finds(10), "it covers the packs of one's own, too");
    assert!(b.publish(10));
    a.poll();
    assert!(a.reads(10) && b.reads(10));
    assert_eq!(found_by_a_new_host(&mut world, &[10]), [true]);
}

#[test]
fn a_pack_that_is_being_filled_or_written_when_a_removal_is_applied_is_covered() {
    for is_written in [true, false] {
        let mut world = World::new();
        let (mut a, mut b) = (world.host(1), world.host(2));
        assert!(a.remove(10));
        if is_written {
            // The pack is closed, and its catalog is not written.
            assert!(b.begin(10));
            b.poll();
        } else {
            // The pack is filled half.
            b.use_large_packs();
            assert!(b.begin(10));
            b.poll();
            assert!(b.begin(20));
        }
        assert!(b.complete());
        b.publisher.finish(dalsegno_core::Deadline::Never);
        assert!(!b.finds(10) && b.finds(11));
        assert_eq!(found_by_a_new_host(&mut world, &[10, 11]), [false, true]);
    }
}

#[test]
fn earlier_opens_and_copies_of_a_store_follow_the_same_rule() {
    let mut world = World::new();
    let (mut first, mut b) = (world.host(1), world.host(2));
    assert!(first.publish(10) && first.publish(20) && b.publish(30));
    // The same store is opened again, and a copy of it is used elsewhere.
    let (mut again, mut copy) = (world.host(1), world.host(1));
    assert!(copy.publish(40));
    assert!(again.remove_all(&[10, 30, 40]));
    for host in [&mut b, &mut copy] {
        host.poll();
        assert!(![10, 30, 40].iter().any(|block| host.finds(*block)));
    }
    assert!(copy.finds(20) && b.finds(41));
    assert!(copy.publish(40));
    again.poll();
    assert!(again.reads(40));
    // A removal of an earlier open covers what a later one did not know.
    assert!(first.remove(20));
    assert_eq!(found_by_a_new_host(&mut world, &[10, 20, 30, 40]), [false, false, false, true]);
}

#[test]
fn a_removal_of_a_namespace_covers_all_that_was_put_before() {
    let mut world = World::new();
    let (mut a, mut b) = (world.host(1), world.host(2));
    assert!(a.publish(10) && b.publish(20));
    assert!(b.remove_all(&[]));
    assert!(b.publish(30) && !b.finds(20));
    assert!(a.publish(40));
    assert_eq!(found_by_a_new_host(&mut world, &[10, 20, 30, 40]), [false, false, true, false]);
}

#[test]
fn lists_repeat_what_was_removed_and_leave_ten_seconds_after_a_newer_one() {
    let mut world = World::new();
    let (mut a, mut b) = (world.host(1), world.host(2));
    assert!(b.publish(10) && b.publish(20));
    assert!(a.remove(10) && a.remove(20));
    a.keep_up().unwrap();
    let lists = [(a.writer, 1), (a.writer, 2)];
    assert_eq!(world.lists(), lists, "a slow reader may still fetch the older one");
    world.pass(Duration::from_secs(10));
    a.keep_up().unwrap();
    assert_eq!(world.lists(), lists[1..]);
    assert_eq!(found_by_a_new_host(&mut world, &[10, 11, 20, 21]), [false, true, false, true]);
}

#[test]
fn a_full_list_stays_and_the_next_one_begins_without_its_removals() {
    let mut world = World::new();
    let mut a = world.host(1);
    let removals = 800_u64;
    for number in 0..removals {
        assert!(a.remove(u8::try_from(number % 200).unwrap()));
        world.pass(Duration::from_secs(1));
        a.keep_up().unwrap();
    }
    world.pass(Duration::from_secs(10));
    a.keep_up().unwrap();
    // An entry has 88 bytes, so 745 of them fill a list of 64 KiB.
    assert_eq!(world.lists(), [(a.writer, 745), (a.writer, removals)]);
    let mut b = world.host(2);
    let polled = b.poll();
    assert_eq!(polled.removals.len(), 800);
    assert_eq!(b.applied.number(a.writer), removals);
}

#[test]
fn a_removal_that_could_not_be_published_is_published_later_under_the_same_name() {
    for mode in [StopMode::NotDone, StopMode::DoneUnanswered] {
        let mut world = World::new();
        let (mut a, mut b) = (world.host(1), world.host(2));
        assert!(b.publish(10));
        a.poll();
        a.tier.stop_after(0, mode);
        assert!(!a.remove(10) && !a.finds(10), "it is gone here even so");
        // The store is opened again, and publishes what was pending.
        let mut again = world.host(1);
        assert!(again.publish_for(&a));
        b.poll();
        assert!(!b.finds(10) && b.applied.contains(a.last_removal()));
        assert!(b.publish(10));
        assert_eq!(found_by_a_new_host(&mut world, &[10]), [true], "put after it was applied");
    }
}

#[test]
fn a_location_without_space_loses_a_pack_for_a_list() {
    let mut world = World::new();
    let (mut a, mut b) = (world.host(1), world.host(2));
    assert!(a.publish(10) && a.publish(20) && b.publish(30));
    let used = world.location.objects().iter().map(|(_, bytes)| bytes).sum();
    world.location.set_capacity(Some(used));
    assert!(a.remove(30), "the oldest pack of the own ones leaves");
    assert_eq!(a.publisher.stats().own_bytes, RECORD_BYTES);
    world.location.set_capacity(None);
    assert!(a.reads(20) && !a.finds(10));
    assert_eq!(found_by_a_new_host(&mut world, &[20, 30]), [true, false]);
}

/// Lets the hosts live for some days, and read everything.
fn pass_days(world: &mut World, hosts: &mut [&mut Host], days: u32) {
    for _ in 0..2 * days {
        world.pass(DEAD_AFTER / 2);
        for host in &mut *hosts {
            host.keep_up().unwrap();
            host.read_all();
            for _ in 0..4 {
                assert!(host.collect());
            }
        }
    }
}

#[test]
fn a_list_expires_after_a_week_if_no_pack_is_left_that_it_covers() {
    let mut world = World::new();
    let (mut a, mut b) = (world.host(1), world.host(2));
    assert!(b.publish(10));
    assert!(a.remove(10));
    b.poll();
    pass_days(&mut world, &mut [&mut a, &mut b], 10);
    assert_eq!(world.lists(), [(a.writer, 1)], "the pack of B is there");
    assert_eq!(found_by_a_new_host(&mut world, &[10, 11]), [false, true]);
    // The pack leaves.
    assert!(b.publish(20));
    let clock = Arc::clone(&world.clock) as Arc<dyn Clock>;
    for object in [Object::Pack(packs_of(1).start), Object::Catalog(1)] {
        let name = b.writer.object(object);
        wait_for(&clock, LIMIT, |ask| b.tier.remove(name, ask)).unwrap();
    }
    // Its writer does not look whether its own packs are there. A does.
    a.read_all();
    for _ in 0..4 {
        assert!(a.collect());
    }
    assert!(world.lists().is_empty());
    assert_eq!(a.collector.stats().lists, 1);
    assert_eq!(found_by_a_new_host(&mut world, &[10, 20]), [false, true]);
}

#[test]
fn a_list_does_not_expire_before_a_week_nor_when_the_location_was_not_read_recently() {
    let mut world = World::new();
    let (mut a, mut b) = (world.host(1), world.host(2));
    assert!(a.remove(10));
    world.pass(LIST_EXPIRES.checked_sub(HOUR).unwrap());
    b.read_all();
    for _ in 0..4 {
        assert!(b.collect());
    }
    assert_eq!(world.lists().len(), 1);
    world.pass(2 * HOUR);
    for _ in 0..4 {
        assert!(b.collect(), "it has not read everything in the last minutes");
    }
    assert_eq!(world.lists().len(), 1);
    b.read_all();
    assert!(b.collect());
    assert!(world.lists().is_empty());
    // Nobody issues the same removal again: the numbers continue.
    assert!(a.remove(20));
    b.poll();
    assert_eq!(b.applied.number(a.writer), 2);
}

#[test]
fn a_catalog_that_cannot_be_read_keeps_all_lists_and_a_damaged_list_stays() {
    let mut world = World::new();
    let (mut a, mut b) = (world.host(1), world.host(2));
    assert!(a.remove(10) && b.publish(20) && b.remove(30));
    let clock = Arc::clone(&world.clock) as Arc<dyn Clock>;
    let list = a.writer.object(Object::Removals(1));
    assert!(world.location.damage(list, 5000));
    let (name, bytes) =
        (b.writer.object(Object::Catalog(9)), vec![Memory::owned(vec![7; 4096], ())]);
    wait_for(&clock, LIMIT, |ask| b.tier.publish(name, bytes, ask)).unwrap();
    world.pass(LIST_EXPIRES);
    let mut c = world.host(3);
    b.publisher.beat().unwrap();
    c.read_all();
    for _ in 0..4 {
        assert!(c.collect());
    }
    let both = [(a.writer, 1), (b.writer, 1)];
    assert_eq!(world.lists(), both);
    wait_for(&clock, LIMIT, |ask| b.tier.remove(name, ask)).unwrap();
    c.read_all();
    c.read_all();
    for _ in 0..4 {
        assert!(c.collect());
    }
    assert_eq!(world.lists(), both, "B's pack had not applied its own removal");
    b.poll();
    assert!(b.publisher.stats().own_bytes > 0);
    // One bad read looks like damage.
    assert!(world.location.damage(list, 5000));
    assert_eq!(found_by_a_new_host(&mut world, &[10, 20]), [false, true]);
}

#[test]
fn tools_count_removed_blocks_by_the_same_rule_and_prune_leaves_lists() {
    let mut world = World::new();
    let (mut a, mut b) = (world.host(1), world.host(2));
    assert!(a.publish(10) && b.publish(20) && a.remove_all(&[11, 20]));
    b.poll();
    assert!(b.publish(20));
    let clock = Arc::clone(&world.clock) as Arc<dyn Clock>;
    let location = Location::new(Arc::new(world.location.mount()), clock);
    let found = survey(&location, SurveyOptions::default(), &|_, _| ()).unwrap();
    let rows: Vec<(u64, u64)> =
        found.writers.iter().map(|row| (row.blocks, row.removed_blocks)).collect();
    assert_eq!(rows, [(1, 1), (3, 1)]);
    let removals = found.removals;
    assert_eq!((removals.lists, removals.removals, removals.bytes), (1, 1, 8192));
    let checked: FarVerifyReport = verify(&location, &|_, _| ()).unwrap();
    assert_eq!(checked.lists, 1);
    world.pass(DEAD_AFTER);
    assert_eq!(prune(&location, &[], true, &|_, _| ()).unwrap().writers.len(), 2);
    assert_eq!(world.location.objects().len(), 1);
    assert_eq!(world.lists(), [(a.writer, 1)]);
    let mut c = world.host(3);
    collect(&mut world, &mut [&mut c], &mut |_| ());
    assert_eq!(world.lists().len(), 1);
    // A damaged list is a finding.
    assert!(world.location.damage(a.writer.object(Object::Removals(1)), 4100));
    let checked = verify(&location, &|_, _| ()).unwrap();
    assert_eq!((checked.lists, checked.findings.len()), (0, 1));
}
