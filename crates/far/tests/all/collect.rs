//! Who is collected, and who is not.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, ManualClock, StoreId};
use dalsegno_far::format::{catalog_of, packs_of as packs_of_catalog};
use dalsegno_far::{
    Collector, DEAD_AFTER, DirectoryTier, DirectoryTierOptions, FarIndex, Member, Object, Tier,
    WATCHED, WriterId, wait_for,
};
use dalsegno_io::Memory;

use crate::hosts::{Host, LIMIT, NAMESPACE, RECORD_BYTES};
use crate::world::{HOUR, World, YEAR, collect};

const ALMOST_DEAD: Duration = DEAD_AFTER.checked_sub(HOUR).unwrap();

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
    world.pass(ALMOST_DEAD);
    b.publisher.beat().unwrap();
    collect(&mut world, &mut [&mut b], &mut |_| ());
    assert_eq!(world.objects(a.writer).len(), 6, "two packs and catalogs, a description, a beat");
    world.pass(HOUR);
    b.publisher.beat().unwrap();
    b.poll();
    assert!(b.reads(10));
    collect(&mut world, &mut [&mut b], &mut |_| ());
    assert!(!world.has_folder(a.writer));
    let stats = b.collector.stats();
    assert_eq!((stats.writers, stats.packs), (1, 2));
    assert!(!b.reads(10) && b.reads(30));
    let mut c = world.host(3);
    c.poll();
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
        [11, 12, 13, 14].map(|store| WriterId { store: StoreId([store; 16]), open: 1 });
    put(&world, empty, Object::Pack(1));
    remove(&world, empty, Object::Pack(1));
    put(&world, orphan, Object::Pack(4));
    put(&world, damaged, Object::Catalog(4));
    put(&world, only_described, Object::Namespace(NAMESPACE));
    let all = [empty, orphan, damaged, only_described];
    world.pass(ALMOST_DEAD);
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
        for _ in 0..3 {
            assert!(b.collect() && !b.collector.is_working());
        }
        world.pass(WATCHED);
        a.publisher.beat().unwrap();
        world.clock.advance(YEAR);
        assert!(b.collect());
    }
    assert_eq!(b.collector.stats().packs, 0);
    b.poll();
    assert!(b.reads(10));
}

#[test]
fn a_writer_that_continues_after_it_was_collected_has_misses_and_publishes_on() {
    let mut world = World::new();
    let (mut a, mut b) = (world.host(1), world.host(2));
    assert!(a.publish(10) && a.publish(20) && b.publish(30));
    a.publisher.beat().unwrap();
    b.poll();
    world.pass(DEAD_AFTER + HOUR);
    b.publisher.beat().unwrap();
    collect(&mut world, &mut [&mut b], &mut |_| ());
    b.poll();
    assert!(!world.has_folder(a.writer));
    // It still finds its packs, and a read of one is a miss.
    assert!(a.finds(10) && a.finds(20));
    assert!(!a.reads(10) && !a.finds(10));
    assert!(a.publish(40), "numbers continue");
    assert_eq!(a.publisher.stats().own_bytes, 3 * RECORD_BYTES);
    a.publisher.beat().unwrap();
    assert_eq!(a.publisher.stats().own_bytes, RECORD_BYTES, "it noticed");
    assert!(!a.finds(20) && !a.publisher.is_described(NAMESPACE));
    assert!(a.publish(50));
    let expected = [
        Object::Pack(packs_of_catalog(3).start),
        Object::Pack(packs_of_catalog(4).start),
        Object::Catalog(3),
        Object::Catalog(4),
        Object::Namespace(NAMESPACE),
        Object::Beat(2),
    ];
    assert_eq!(world.objects(a.writer), expected);
    b.poll();
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
    b.poll();
    let readable = b.readable();
    assert_eq!(readable.len() as u64, 200 - 2 * removed);
    assert_eq!(a.readable(), readable);
}

/// Files of a directory that look older than they are.
#[expect(clippy::disallowed_methods, reason = "changes the times of files")]
fn make_older(folder: &Path, by: Duration) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = std::fs::File::open(entry.unwrap().path()).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.set_modified(modified - by).unwrap();
    }
    let folder = std::fs::File::open(folder).unwrap();
    let modified = folder.metadata().unwrap().modified().unwrap();
    folder.set_modified(modified - by).unwrap();
}

#[test]
fn in_a_directory_the_times_of_its_file_system_count() {
    let home = tempfile::tempdir().unwrap();
    // The host's clock is decades away from that of the file system.
    let clock = Arc::new(ManualClock::default());
    let host_clock = Arc::clone(&clock) as Arc<dyn Clock>;
    let options = DirectoryTierOptions::default();
    let tier = DirectoryTier::open(home.path(), options, Arc::clone(&host_clock)).unwrap();
    let tier: Arc<dyn Tier> = Arc::new(tier);
    let writer = |store| WriterId { store: StoreId([store; 16]), open: 1 };
    let path = |store| home.path().join(writer(store).to_string());
    let publish = |store, object| {
        let bytes = vec![Memory::owned(vec![7; 4096], ())];
        wait_for(&host_clock, LIMIT, |ask| tier.publish(writer(store).object(object), bytes, ask))
            .unwrap();
    };
    for store in 1..=4 {
        publish(store, Object::Pack(1));
        publish(store, Object::Namespace(NAMESPACE));
        publish(store, Object::Beat(1));
        make_older(&path(store), ALMOST_DEAD);
    }
    make_older(&path(2), HOUR);
    make_older(&path(3), HOUR);
    // One of the old ones beats again, and a crash left a file under a temporary name in the other one.
    publish(3, Object::Beat(2));
    #[expect(clippy::disallowed_methods, reason = "what a crash leaves")]
    std::fs::write(path(2).join(".0000000000000002.pack.0123456789abcdef.tmp"), b"x").unwrap();
    #[expect(clippy::disallowed_methods, reason = "an empty folder, which is old")]
    std::fs::create_dir(path(5)).unwrap();
    make_older(&path(5), DEAD_AFTER);
    let mut collector = {
        let index = Arc::new(FarIndex::new(1 << 20));
        let (tier, clock) = (Arc::clone(&tier), Arc::clone(&host_clock));
        Collector::new(Member { tier, index, clock, writer: writer(9) })
    };
    for _ in 0..4 {
        for _ in 0..12 {
            collector.step(&|| false).unwrap();
        }
        clock.advance(WATCHED);
    }
    let left = wait_for(&host_clock, LIMIT, |ask| tier.writers(ask)).unwrap();
    assert_eq!(left, [1, 3, 4].map(writer));
    #[expect(clippy::disallowed_methods, reason = "looks at a directory from outside")]
    let is_left = [2, 5].map(|store| path(store).exists());
    assert_eq!(is_left, [false; 2]);
    assert_eq!((collector.stats().writers, collector.stats().packs), (2, 1));
}

#[test]
fn a_step_ends_between_two_calls_when_the_store_is_closed() {
    let mut world = World::new();
    let (mut a, mut b) = (world.host(1), world.host(2));
    for first in [10, 20, 30] {
        assert!(a.publish(first));
    }
    a.publisher.beat().unwrap();
    world.pass(DEAD_AFTER);
    assert!(b.collect());
    world.pass(WATCHED);
    assert!(b.collect() && b.collector.is_working());
    let calls = std::cell::Cell::new(0);
    let is_closing = || {
        calls.set(calls.get() + 1);
        calls.get() > 1
    };
    b.collector.step(&is_closing).unwrap();
    assert_eq!((packs_of(&b), b.tier.changes()), (1, 1));
    b.collector.step(&|| true).unwrap();
    assert_eq!(b.tier.changes(), 1);
}

/// The catalogs of the packs of a host, and its catalogs.
fn numbers(world: &World, host: &Host) -> (Vec<u64>, Vec<u64>) {
    let (mut packs, mut catalogs) = (Vec::new(), Vec::new());
    for object in world.objects(host.writer) {
        match object {
            Object::Pack(number) => packs.push(catalog_of(number)),
            Object::Catalog(number) => catalogs.push(number),
            _ => {}
        }
    }
    (packs, catalogs)
}

#[test]
fn a_pack_whose_publication_failed_is_removed_by_its_writer() {
    let mut world = World::new();
    let mut a = world.host(1);
    assert!(a.publish(10) && a.publish(20));
    // The pack is published, its catalog is not.
    assert!(a.begin(30));
    world.location.set_full(true);
    assert!(!a.complete());
    assert_eq!(numbers(&world, &a), (vec![1, 2, 3], vec![1, 2]));
    world.location.set_full(false);
    a.publisher.evict().unwrap();
    assert_eq!(numbers(&world, &a), (vec![2], vec![2]), "the oldest one makes space");
    assert_eq!(a.publisher.stats().evicted_packs, 1);
    assert!(a.publish(40) && a.reads(20));
    assert_eq!(numbers(&world, &a), (vec![2, 4], vec![2, 4]));
}
