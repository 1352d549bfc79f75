//! Who is collected, and who is not.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/hosts.rs"]
mod hosts;
#[path = "common/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_core::Clock;
use dalsegno_far::{DEAD_AFTER, Object, Tier, WATCHED, WriterId, wait_for};
use dalsegno_io::Memory;
use hosts::{Host, LIMIT, NAMESPACE};
use world::{HOUR, World, YEAR, collect};

fn packs_of(host: &Host) -> u64 {
    host.collector.stats().packs
}

#[test]
fn a_writer_is_collected_a_day_after_its_last_beat_and_not_before() {
    let mut world = World::new();
    let (mut a, mut b) = (world.host(1), world.host(2));
    assert!(a.publish(10) && a.publish(20) && b.publish(30));
    a.publisher.beat().unwrap();
    a.publisher.beat().unwrap();
    world.pass(DEAD_AFTER - HOUR);
    b.publisher.beat().unwrap();
    collect(&mut world, &mut [&mut b], &mut |_| ());
    assert_eq!(world.objects(a.writer).len(), 6, "two packs and catalogs, a description, a beat");
    world.pass(HOUR);
    b.publisher.beat().unwrap();
    b.follower.poll().unwrap();
    assert!(b.reads(10));
    collect(&mut world, &mut [&mut b], &mut |_| ());
    assert!(!world.has_folder(a.writer));
    let stats = b.collector.stats();
    assert_eq!((stats.writers, stats.packs), (1, 2));
    assert!(!b.reads(10) && b.reads(30));
    let mut c = world.host(3);
    c.follower.poll().unwrap();
    assert_eq!(c.readable(), BTreeSet::from([30, 31]));
}

#[test]
fn what_is_left_of_a_writer_that_never_beat_is_collected_too() {
    let mut world = World::new();
    let mut b = world.host(9);
    let put = |world: &World, writer: WriterId, object: Object| {
        let (clock, tier) = (Arc::clone(&world.clock) as Arc<dyn Clock>, world.location.mount());
        let bytes = vec![Memory::owned(vec![7; 4096], ())];
        wait_for(&clock, LIMIT, |ask| tier.publish(writer.object(object), bytes, ask)).unwrap();
    };
    let remove = |world: &World, writer: WriterId, object: Object| {
        let (clock, tier) = (Arc::clone(&world.clock) as Arc<dyn Clock>, world.location.mount());
        wait_for(&clock, LIMIT, |ask| tier.remove(writer.object(object), ask)).unwrap();
    };
    let [empty, orphan, damaged, only_described] =
        [11, 12, 13, 14].map(|open| WriterId { open, ..b.writer });
    put(&world, empty, Object::Pack(1));
    remove(&world, empty, Object::Pack(1));
    put(&world, orphan, Object::Pack(4));
    put(&world, damaged, Object::Catalog(4));
    put(&world, only_described, Object::Namespace(NAMESPACE));
    let all = [empty, orphan, damaged, only_described];
    world.pass(DEAD_AFTER - HOUR);
    // Something new in a folder shows that its writer runs.
    put(&world, orphan, Object::Catalog(3));
    put(&world, empty, Object::Pack(2));
    remove(&world, empty, Object::Pack(2));
    world.pass(HOUR);
    b.publisher.beat().unwrap();
    collect(&mut world, &mut [&mut b], &mut |_| ());
    let left: Vec<WriterId> = all.into_iter().filter(|one| world.has_folder(*one)).collect();
    assert_eq!(left, [empty, orphan]);
    world.pass(DEAD_AFTER);
    collect(&mut world, &mut [&mut b], &mut |_| ());
    assert!(!all.iter().any(|writer| world.has_folder(*writer)));
    assert_eq!((b.collector.stats().writers, packs_of(&b)), (4, 1));
}

#[test]
fn a_writer_whose_beats_look_a_year_old_is_not_collected() {
    let mut world = World::new();
    let (mut a, mut b) = (world.host(1), world.host(2));
    assert!(a.publish(10));
    for _ in 0..20 {
        a.publisher.beat().unwrap();
        // The clock of the location jumps.
        world.clock.advance(YEAR);
        assert!(b.collect());
        world.pass(WATCHED);
        a.publisher.beat().unwrap();
        world.clock.advance(YEAR);
        assert!(b.collect());
    }
    assert_eq!(b.collector.stats().packs, 0);
    b.follower.poll().unwrap();
    assert!(b.reads(10));
}

#[test]
fn a_writer_that_continues_after_it_was_collected_has_misses_and_publishes_on() {
    let mut world = World::new();
    let (mut a, mut b) = (world.host(1), world.host(2));
    assert!(a.publish(10) && a.publish(20) && b.publish(30));
    a.publisher.beat().unwrap();
    b.follower.poll().unwrap();
    world.pass(DEAD_AFTER + HOUR);
    b.publisher.beat().unwrap();
    collect(&mut world, &mut [&mut b], &mut |_| ());
    b.follower.poll().unwrap();
    assert!(!world.has_folder(a.writer));
    // It still finds its packs, and a read of one is a miss.
    assert!(a.finds(10) && a.finds(20));
    assert!(!a.reads(10) && !a.finds(10));
    assert!(a.publish(40), "numbers continue");
    assert_eq!(a.publisher.stats().own_bytes, 3 * hosts::RECORD_BYTES);
    a.publisher.beat().unwrap();
    assert_eq!(a.publisher.stats().own_bytes, hosts::RECORD_BYTES, "it noticed");
    assert!(!a.finds(20) && !a.publisher.is_described(NAMESPACE));
    assert!(a.publish(50));
    let expected = [
        Object::Pack(3),
        Object::Pack(4),
        Object::Catalog(3),
        Object::Catalog(4),
        Object::Namespace(NAMESPACE),
        Object::Beat(2),
    ];
    assert_eq!(world.objects(a.writer), expected);
    b.follower.poll().unwrap();
    for host in [&a, &b] {
        assert!([40, 41, 50, 51].into_iter().all(|block| host.reads(block)));
        assert!(!host.reads(11) && !host.reads(21));
    }
}

#[test]
fn a_writer_that_continues_while_it_is_collected_keeps_the_rest() {
    let mut world = World::new();
    let (mut a, mut b) = (world.host(1), world.host(2));
    for first in (0..200).step_by(2) {
        assert!(a.publish(first));
    }
    a.publisher.beat().unwrap();
    world.pass(DEAD_AFTER);
    assert!(b.collect());
    world.pass(WATCHED);
    for _ in 0..2 {
        assert!(b.collect() && b.collector.is_working());
    }
    let removed = packs_of(&b);
    assert!((1..100).contains(&removed), "a step is bounded: {removed}");
    a.publisher.beat().unwrap();
    for _ in 0..10 {
        assert!(b.collect());
        world.pass(WATCHED);
    }
    assert_eq!(packs_of(&b), removed);
    b.follower.poll().unwrap();
    let readable = b.readable();
    assert_eq!(readable.len() as u64, 200 - 2 * removed);
    assert_eq!(a.readable(), readable);
}

#[test]
fn a_catalog_of_a_newer_version_stays() {
    let mut world = World::new();
    let (mut a, mut b, mut c) = (world.host(1), world.host(2), world.host(3));
    assert!(a.publish(10) && c.publish(20));
    let mut newer = vec![0; 8192];
    newer[..12].copy_from_slice(b"DSGNCATL\x02\0\0\0");
    let crc = crc32c::crc32c(&newer[..4092]);
    newer[4092..4096].copy_from_slice(&crc.to_le_bytes());
    let clock = Arc::clone(&world.clock) as Arc<dyn Clock>;
    let name = a.writer.object(Object::Catalog(7));
    let bytes = vec![Memory::owned(newer, ())];
    wait_for(&clock, LIMIT, |ask| a.tier.publish(name, bytes, ask)).unwrap();
    a.publisher.beat().unwrap();
    c.publisher.beat().unwrap();
    world.pass(DEAD_AFTER);
    collect(&mut world, &mut [&mut b], &mut |_| ());
    let left = [Object::Catalog(7), Object::Namespace(NAMESPACE), Object::Beat(1)];
    assert_eq!(world.objects(a.writer), left);
    assert!(!world.has_folder(c.writer));
}
