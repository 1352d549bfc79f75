//! Merges that an outage or a failed operation met, and the lives after them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/worlds.rs"]
mod worlds;

use dalsegno_core::Durability;
use dalsegno_io::Device;
use dalsegno_sim::{Action, Label, Outage, Part, Style, World};
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

fn check_twice(world: &mut World) {
    for outage in [Outage::Process, Outage::Power] {
        world.reboot(outage);
        world.open().unwrap();
        world.check_all();
    }
}

#[test]
fn a_merge_that_a_power_cut_met_is_believed_at_no_later_open() {
    for style in &styles() {
        for (seed, at) in (0..4).flat_map(|seed| (0..60).map(move |at| (seed, at))) {
            let _label = Label(format!("seed {seed}, outage at {at}"));
            let mut world = filled(style, seed);
            merge_until(&mut world, at);
            world.reboot(Outage::Power);
            world.open().unwrap();
            world.check_all();
            begin_segment(&world);
            check_twice(&mut world);
        }
    }
}

#[test]
fn what_a_header_told_of_numbers_that_a_power_cut_took_back_holds_of_no_later_merge() {
    for style in &styles() {
        for (seed, at) in (0..16).flat_map(|seed| (12..18).map(move |at| (seed, at))) {
            let _label = Label(format!("seed {seed}, outage at {at}"));
            let mut world = filled(style, seed);
            // The header is synced. The voids before it, whose numbers it counts, are not.
            begin_segment(&world);
            world.reboot(Outage::Power);
            world.open().unwrap();
            merge_until(&mut world, at);
            world.reboot(Outage::Power);
            world.open().unwrap();
            world.check_all();
            check_twice(&mut world);
        }
    }
}
