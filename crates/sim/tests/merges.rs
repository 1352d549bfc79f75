//! Merges that an outage or a failed operation met, and the lives after them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/worlds.rs"]
mod worlds;

use std::ops::Range;

use dalsegno_core::Durability;
use dalsegno_io::Device;
use dalsegno_sim::{Action, Fault, Kind, Label, Outage, Part, Rule, Style, World};
use worlds::{filled, part};

fn segments(world: &World) -> usize {
    let files = world.device.list().unwrap();
    files.iter().filter(|file| file.name.starts_with("segment-")).count()
}

/// Puts blocks one at a time, which are merged, until the outage at a change of the device.
fn merge_until(world: &mut World, at: u64) {
    world.device.fail_at(world.device.changes() + at);
    for (chain, first) in (20..23).flat_map(|chain| (0..4).map(move |first| (chain, first))) {
        let whole = part(0, chain);
        let one = Part { first, chain: whole.chain[..=first].to_vec(), ..whole };
        if !world.device.is_down() {
            world.act(&Action::Put(one, false));
        }
    }
}

/// Takes room in another segment, whose header tells what is durable; no put, so nothing is merged.
fn begin_segment(world: &World) {
    let mut chains = 100..300;
    while segments(world) < 2 {
        drop(world.begin_layers(&part(1, chains.next().unwrap())));
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
fn a_merge_that_a_power_cut_met_is_believed_at_no_later_open() {
    each(4, 0..60, |world, at| {
        merge_until(world, at);
        begin_life(world, Outage::Power);
        begin_segment(world);
    });
}

#[test]
fn what_a_header_told_of_numbers_that_a_power_cut_took_back_holds_of_no_later_merge() {
    each(16, 12..18, |world, at| {
        // The header is synced. The voids before it, whose numbers it counts, are not.
        begin_segment(world);
        begin_life(world, Outage::Power);
        merge_until(world, at);
        begin_life(world, Outage::Power);
    });
}

#[test]
fn a_merge_that_could_not_be_made_void_is_believed_by_no_index_that_is_made_anew() {
    each(4, 0..60, |world, at| {
        merge_until(world, at);
        world.reboot(Outage::Power);
        world.expect_faults();
        world.device.inject(Rule::always(Kind::Write, Fault::Error).on("segment-"));
        world.open().unwrap();
        world.expect_no_faults();
        // An index in files takes that life in, and is asked for it by the next.
        world.act(&Action::Put(part(2, 50), false));
        world.open().unwrap();
        world.check_all();
        begin_segment(world);
        world.close();
        for file in world.device.list().unwrap() {
            if file.name.starts_with("index-") {
                world.device.remove(&file.name).unwrap();
            }
        }
    });
}
