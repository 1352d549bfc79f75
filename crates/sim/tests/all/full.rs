//! An on-disk index on a file system that other programs fill.

use crate::dose;
use crate::worlds;
use dalsegno_core::{DramAdmission, Durability, MIN_SEGMENTS};
use dalsegno_io::{BufferPool, Device as _};
use dalsegno_sim::{
    Action, Blocks, DeviceOptions, Fault, Kind, Label, Outage, Part, Rule, Style, World,
    chain_hashes,
};
use dalsegno_store::Stats;

/// Eight segments, and an index that writes a table after every few puts.
fn style(durability: Durability) -> Style {
    let mut style = Style::crowded(durability).flushing_often();
    style.config.capacity = Some(13 << 20);
    style
}

/// A chain of five blocks of 64 KiB.
fn large(name: u64) -> Part {
    Part { namespace: 1, chain: chain_hashes(2 * name, 5), first: 0 }
}

fn segments(world: &World) -> u64 {
    let entries = world.device.list().unwrap();
    entries.iter().filter(|entry| entry.name.starts_with("segment-")).count() as u64
}

/// Puts chains; how many of their blocks were not kept.
fn refused(world: &mut World, names: std::ops::Range<u64>) -> usize {
    let mut refused = 0;
    for name in names {
        let kept = world.put(&large(name), false).unwrap().kept();
        refused += kept.iter().filter(|kept| !**kept).count();
    }
    refused
}

#[test]
fn an_index_without_space_gets_that_of_a_segment() {
    for durability in [Durability::Batch, Durability::None] {
        let mut world = worlds::world(&style(durability), 1);
        world.open().unwrap();
        assert_eq!(refused(&mut world, 0..60), 0);
        let before = segments(&world);
        assert!(before > MIN_SEGMENTS + 1, "{before}");
        world.device.leave_free(0);
        let tables = |stats: Stats| stats.index.unwrap().lsm.flushes;
        let flushes = tables(world.stats());
        assert_eq!(refused(&mut world, 100..300), 0);
        let stats = world.stats();
        assert_eq!(stats.log.segments_given_back, 1, "room for all that it writes");
        assert_eq!(segments(&world), before - 1);
        assert!(tables(stats) > flushes + 10);
        world.check_all();
        world.act(&Action::Reopen);
        world.check_all();
        assert_eq!(refused(&mut world, 300..320), 0);
        // There is space again: the store grows as before.
        world.device.leave_free(1 << 30);
        assert_eq!(refused(&mut world, 400..600), 0);
        assert_eq!(segments(&world), before);
        world.check_all();
    }
}

#[test]
fn a_process_that_takes_all_freed_space_leaves_the_store_its_minimum_of_segments() {
    let mut world = worlds::world(&style(Durability::Batch), 2);
    world.open().unwrap();
    refused(&mut world, 0..60);
    for name in 100..400 {
        world.device.leave_free(0);
        refused(&mut world, name..name + 1);
    }
    assert_eq!(segments(&world), MIN_SEGMENTS);
    assert!(!world.stats().poisoned);
    world.device.leave_free(1 << 30);
    assert_eq!(refused(&mut world, 400..401), 0, "the index takes in again");
    assert_eq!(refused(&mut world, 401..600), 0);
    assert!(segments(&world) > MIN_SEGMENTS);
    world.check_all();
}

/// An index that is stalled inserts nothing, so what the put copied to DRAM is of no use there.
#[test]
fn regression_a_put_that_the_index_does_not_insert_leaves_nothing_in_dram() {
    let mut style = style(Durability::Batch);
    style.config.dram = Some(64 << 20);
    style.config.dram_admission = DramAdmission::Put;
    let mut world = worlds::world(&style, 3);
    world.open().unwrap();
    refused(&mut world, 0..10);
    let held = world.stats().dram_blocks;
    assert_eq!(held, 50, "what is stored is in DRAM");
    world.expect_faults();
    world.device.inject(Rule::always(Kind::Create, Fault::Error).on("index-"));
    let mut failed = 0;
    for name in 100..400 {
        let before = world.stats().dram_blocks;
        if refused(&mut world, name..name + 1) == 5 {
            failed += 1;
            let after = world.stats().dram_blocks;
            assert!(
                after <= before,
                "{after} blocks in DRAM after a put that failed, {before} before"
            );
        }
    }
    assert!(failed > 10, "{failed} puts failed");
}

#[test]
fn no_segment_is_released_if_space_is_available_by_then() {
    let mut world = worlds::world(&style(Durability::Batch), 4);
    world.open().unwrap();
    refused(&mut world, 0..60);
    let before = segments(&world);
    for at in 0..10 {
        world.device.inject(Rule::once(Kind::Create, Fault::NoSpace, 0).on("index"));
        world.expect_faults();
        let fired = world.device.faults_fired();
        assert_eq!(refused(&mut world, 100 + 20 * at..120 + 20 * at), 0);
        assert_eq!(world.device.faults_fired(), fired + 1);
    }
    assert_eq!((world.stats().log.segments_given_back, segments(&world)), (0, before));
    world.check_all();
}

#[test]
fn a_segment_is_not_created_in_space_reserved_for_the_index() {
    let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
    // Eight segments are wanted, and would fit beside the little that the index has at first.
    let options = DeviceOptions { total_bytes: (8 << 20) + (512 << 10), ..Default::default() };
    let mut world = World::new(&style(Durability::Batch), options, &Blocks::default(), &pool);
    world.open().unwrap();
    assert_eq!(refused(&mut world, 0..300), 0);
    let stats = world.stats();
    assert!(stats.log.creations_refused > 0 && stats.log.segments_given_back == 0, "{stats:?}");
    let free = world.device.space().unwrap().free_bytes;
    assert!(segments(&world) > MIN_SEGMENTS && free > 1 << 20, "{free} of {}", segments(&world));
    world.check_all();
}

/// Removals, before and after the disk is full, and puts of what was removed. Returns at which operation it was filled.
fn live_through_it(world: &mut World) -> u64 {
    if world.open().is_err() {
        return 0;
    }
    let removed = |name| Part { chain: chain_hashes(2 * name, 1), ..large(name) };
    for name in 0..30 {
        world.act(&Action::Put(large(name), false));
        if name % 7 == 0 {
            world.act(&Action::Remove(removed(name)));
        }
    }
    let filled_at = world.device.changes();
    world.device.leave_free(0);
    for name in 30..42 {
        world.act(&Action::Put(large(name), false));
        world.act(&Action::Get(large(28), false));
        if name % 5 == 0 {
            world.act(&Action::Remove(removed(name - 20)));
        }
    }
    filled_at
}

#[test]
fn a_crash_while_a_segment_is_released_loses_nothing_else() {
    for (seed, durability) in (0..).zip([Durability::Batch, Durability::None]) {
        let style = style(durability);
        let mut whole = worlds::world(&style, seed);
        let filled_at = live_through_it(&mut whole);
        assert_eq!(whole.stats().log.segments_given_back, 1);
        whole.check_all();
        for change in (filled_at + 1..=whole.device.changes()).step_by(dose::dose(9, 1)) {
            for outage in [Outage::Power, Outage::Process] {
                let _label = Label(format!("{durability:?}, {outage:?} at operation {change}"));
                let mut world = worlds::world(&style, change);
                world.device.fail_at(change);
                live_through_it(&mut world);
                world.reboot(outage);
                world.open().unwrap();
                world.check_all();
            }
        }
    }
}
