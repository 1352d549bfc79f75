//! Merges that an outage or a failed operation interrupts, and later opens.

use std::ops::Range;

use crate::dose::dose;
use crate::worlds::{filled, part};
use dalsegno_core::Durability;
use dalsegno_io::Device;
use dalsegno_sim::{Action, Fault, Kind, Label, Outage, Part, Rule, Style, World};

fn segments(world: &World) -> usize {
    let files = world.device.list().unwrap();
    files.iter().filter(|file| file.name.starts_with("segment-")).count()
}

/// The first blocks of a chain; what was put of it before is merged with the last one.
fn beginning(chain: u64, last: usize) -> Action {
    let whole = part(0, chain);
    Action::Put(Part { first: last, chain: whole.chain[..=last].to_vec(), ..whole }, false)
}

/// Puts blocks one at a time, which are merged, until the outage at a change of the device.
fn merge_until(world: &mut World, at: u64) {
    world.device.fail_at(world.device.changes() + at);
    for (chain, last) in (20..23).flat_map(|chain| (0..4).map(move |last| (chain, last))) {
        if !world.device.is_down() {
            world.act(&beginning(chain, last));
        }
    }
}

/// Uses space without a put, so nothing is merged.
fn take_room(world: &World, chain: u64) {
    drop(world.hold_space(&part(1, chain)));
}

/// Uses space in another segment, whose header says what is durable.
fn begin_segment(world: &World) {
    let (before, mut chains) = (segments(world), 100..300);
    while segments(world) == before {
        take_room(world, chains.next().unwrap());
    }
}

fn styles() -> [Style; 2] {
    let roomy = Style::roomy(Durability::Batch).merging_at_once();
    [roomy.clone(), roomy.indexed_in_files()]
}

/// Ends what runs and opens the store again.
fn begin_life(world: &mut World, outage: Outage) {
    world.reboot(outage);
    world.open().unwrap();
    world.check_all();
}

/// What happens to a new world of each style, with some seeds and an outage at some changes of the device.
fn each(seeds: u64, changes: Range<u64>, happens: impl Fn(&mut World, u64)) {
    for style in &styles() {
        for (seed, at) in (0..seeds).flat_map(|seed| changes.clone().map(move |at| (seed, at))) {
            let _label = Label(format!("seed {seed}, outage at {at}"));
            let mut world = filled(style, seed);
            happens(&mut world, at);
            begin_life(&mut world, Outage::Process);
            begin_life(&mut world, Outage::Power);
        }
    }
}

#[test]
fn a_merge_torn_by_a_power_cut_is_never_trusted() {
    each(dose(2, 4), 0..60, |world, at| {
        merge_until(world, at);
        begin_life(world, Outage::Power);
        begin_segment(world);
    });
}

#[test]
fn sequence_numbers_lost_in_a_power_cut_do_not_vouch_for_later_merges() {
    each(dose(8, 16), 12..18, |world, at| {
        // The header is synced. The voids before it, whose numbers it counts, are not.
        begin_segment(world);
        begin_life(world, Outage::Power);
        merge_until(world, at);
        begin_life(world, Outage::Power);
    });
}

#[test]
fn a_merge_that_could_not_be_voided_is_not_trusted_by_a_rebuilt_index() {
    each(dose(2, 4), 0..60, |world, at| {
        merge_until(world, at);
        world.reboot(Outage::Power);
        for chain in [50, 51] {
            world.expect_faults();
            world.device.inject(Rule::always(Kind::Write, Fault::Error).on("segment-"));
            world.open().unwrap();
            world.expect_no_faults();
            // An on-disk index applies the records of that run, and the next run looks them up.
            world.act(&Action::Put(part(2, chain), false));
            begin_segment(world);
        }
        world.close();
        world.device.lose("index-").unwrap();
    });
}

#[test]
fn a_merge_in_an_unreadable_segment_is_not_trusted_by_a_later_open() {
    each(4, 0..12, |world, at| {
        world.act(&beginning(20, 0));
        begin_segment(world);
        world.device.fail_at(world.device.changes() + at);
        world.act(&beginning(20, 1));
        world.reboot(Outage::Power);
        world.expect_faults();
        let second = "segment-0000000000000002";
        world.device.inject(Rule::always(Kind::Read, Fault::Error).on(second));
        world.open().unwrap();
        begin_segment(world);
        world.expect_no_faults();
    });
}

#[test]
fn a_void_is_durable_before_a_later_header_marks_merges_as_durable() {
    each(dose(8, 24), 8..12, |world, at| {
        world.act(&beginning(20, 0));
        // A new segment, but for what is given up.
        (100..131).for_each(|chain| take_room(world, chain));
        world.device.fail_at(world.device.changes() + at);
        world.act(&beginning(20, 1));
        world.reboot(Outage::Power);
        // The void is written, and not synced.
        world.device.fail_at(world.device.changes() + 5);
        drop(world.open());
        begin_life(world, Outage::Process);
        begin_segment(world);
        begin_life(world, Outage::Power);
    });
}

#[test]
fn a_merge_hides_no_block_that_its_index_missed_temporarily() {
    for skip in 3..7 {
        each(4, 4..9, |world, at| {
            let _label = Label(format!("{skip} reads pass"));
            world.act(&beginning(20, 0));
            // What is to be merged lies in tables.
            world.open().unwrap();
            world.device.fail_at(world.device.changes() + at);
            world.act(&beginning(20, 1));
            world.reboot(Outage::Power);
            world.expect_faults();
            let fails = Rule { skip, ..Rule::always(Kind::Read, Fault::Error) };
            world.device.inject(fails.on("index-"));
            world.act(&Action::Reopen);
            world.expect_no_faults();
            // What its index took in is flushed.
            world.open().unwrap();
            world.check_all();
        });
    }
}
