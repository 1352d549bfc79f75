//! A device that fails temporarily while a store is opened: no removed block returns, and acknowledged blocks are there
//! again when the device has recovered.

use crate::dose::dose;
use crate::worlds::{filled, part};
use dalsegno_core::Durability;
use dalsegno_io::{Device, OpenMode};
use dalsegno_sim::{Action, Fault, Kind, Label, Outage, Part, Rule, Style, World};

fn styles() -> [(&'static str, Style); 2] {
    let roomy = Style::roomy(Durability::Batch);
    [("in memory", roomy.clone()), ("in files", roomy.flushing_often())]
}

/// A chain without its first blocks: what is removed of it leaves others in the same extent.
fn tail(namespace: usize, chain: u64, first: usize) -> Part {
    Part { first, ..part(namespace, chain) }
}

/// Removes parts of some chains, and all of a namespace.
fn remove_some(world: &mut World) {
    for chain in 0..4 {
        world.act(&Action::Remove(tail(0, chain, 2)));
    }
    world.act(&Action::Remove(part(1, 1)));
    world.act(&Action::RemoveAll(2));
}

/// The device has recovered: after a reopen the store has all acknowledged blocks and no removed one, and accepts those
/// that it lacks.
fn check_well(world: &mut World) {
    world.expect_no_faults();
    for outage in [None, Some(Outage::Process), Some(Outage::Power)] {
        if let Some(outage) = outage {
            world.reboot(outage);
        }
        world.open().unwrap();
        world.check_all();
    }
    for namespace in 0..3 {
        for chain in 0..4 {
            world.put(&part(namespace, chain), false).unwrap();
            assert_eq!(world.get(&part(namespace, chain), false), 4, "it was put again");
        }
    }
    assert_eq!(world.check_usable(0), 0);
}

#[test]
fn a_removal_before_a_kill_holds_even_if_the_next_open_fails() {
    for (index, style) in styles() {
        for (kind, fault) in
            [(Kind::Read, Fault::Error), (Kind::Open, Fault::Error), (Kind::Read, Fault::Short)]
        {
            for file in ["index-", "segment-"] {
                for skip in (0..40).step_by(dose(2, 1)) {
                    let _label =
                        Label(format!("{index}, {kind:?} {fault:?} of {file}, skip {skip}"));
                    let mut world = filled(&style, skip);
                    // What lies in tables.
                    world.open().unwrap();
                    remove_some(&mut world);
                    world.reboot(Outage::Process);
                    world.expect_faults();
                    world.device.inject(Rule::once(kind, fault, skip).on(file));
                    world.act(&Action::Reopen);
                    if world.is_open() {
                        world.check_all();
                    }
                    check_well(&mut world);
                }
            }
        }
    }
}

#[test]
fn a_temporarily_missing_segment_restores_its_blocks_but_no_removed_one() {
    for (index, style) in styles() {
        for (kind, times) in [(Kind::Open, 2), (Kind::Read, 5)] {
            for skip in 0..24 {
                let _label = Label(format!("{index}, {kind:?}, skip {skip}"));
                let mut world = filled(&style, skip);
                world.open().unwrap();
                world.expect_faults();
                let rule = Rule { times, ..Rule::once(kind, Fault::Error, skip) };
                world.device.inject(rule.on("segment-"));
                world.act(&Action::Reopen);
                world.device.heal();
                if !world.is_open() {
                    world.open().unwrap();
                }
                remove_some(&mut world);
                world.put(&part(0, 20), false).unwrap();
                check_well(&mut world);
            }
        }
    }
}

/// Reopens the store while these files cannot be opened.
fn reopen_without(world: &mut World, away: &[&'static str]) {
    world.device.heal();
    for name in away {
        world.device.inject(Rule::always(Kind::Open, Fault::Error).on(name));
    }
    world.act(&Action::Reopen);
    assert!(world.is_open(), "a file that cannot be opened is no reason");
}

/// A store whose segments were reclaimed several times, so that the next write goes to one with a lower number.
fn turned_over(style: &Style, seed: u64) -> World {
    let mut world = filled(style, seed);
    for chain in 20.. {
        drop(world.put(&part(0, chain), false));
        if world.stats().log.segments_recycled > 1 {
            return world;
        }
    }
    unreachable!("there are chains enough");
}

#[test]
fn segments_that_return_one_by_one_restore_no_removed_block() {
    const SEGMENTS: [&str; 8] = [
        "segment-0000000000000001",
        "segment-0000000000000002",
        "segment-0000000000000003",
        "segment-0000000000000004",
        "segment-0000000000000005",
        "segment-0000000000000006",
        "segment-0000000000000007",
        "segment-0000000000000008",
    ];
    let crowded = Style::crowded(Durability::Batch);
    for (index, style) in [("in memory", crowded.clone()), ("in files", crowded.flushing_often())] {
        for seed in 0..6 {
            let created = turned_over(&style, seed).stats().log.segments_created;
            let there = &SEGMENTS[..usize::try_from(created).unwrap()];
            for (at, first) in there.iter().enumerate() {
                for last in &there[at + 1..] {
                    let _label =
                        Label(format!("{index}, seed {seed}, {first} and {last} are away"));
                    let mut world = turned_over(&style, seed);
                    world.expect_faults();
                    world.open().unwrap();
                    reopen_without(&mut world, &[*first, *last]);
                    // Not so much that it needs another segment.
                    for chain in 20..30 {
                        world.act(&Action::Remove(tail(0, chain, 2)));
                    }
                    reopen_without(&mut world, &[*last]);
                    world.check_all();
                    world.expect_no_faults();
                    world.open().unwrap();
                    world.check_all();
                    assert_eq!(world.check_usable(0), 0);
                }
            }
        }
    }
}

#[test]
fn unreadable_records_after_a_checkpoint_are_read_by_the_next_open() {
    let roomy = Style::roomy(Durability::Batch);
    for (index, style) in [("in memory", roomy.clone()), ("in files", roomy.indexed_in_files())] {
        for seed in 0..8 {
            let _label = Label(format!("{index}, seed {seed}"));
            let mut world = filled(&style, seed);
            world.open().unwrap();
            remove_some(&mut world);
            world.put(&part(2, 20), false).unwrap();
            world.reboot(Outage::Process);
            world.expect_faults();
            // Nothing but the header.
            let fails = Rule { skip: 1, ..Rule::always(Kind::Read, Fault::Error) };
            world.device.inject(fails.on("segment-0000000000000001"));
            world.open().unwrap();
            world.act(&Action::Put(part(2, 30), false));
            world.close();
            check_well(&mut world);
        }
    }
}

#[test]
fn a_store_without_readable_segments_is_not_treated_as_new() {
    for (index, style) in styles() {
        for fault in [Fault::Error, Fault::Short] {
            for is_damaged in [false, true] {
                let _label = Label(format!("{index}, {fault:?}, header damaged: {is_damaged}"));
                let mut world = filled(&style, 3);
                world.expect_faults();
                if is_damaged {
                    world.device.rot("store.meta").unwrap();
                    world.device.inject(Rule::always(Kind::Read, fault).on("segment-"));
                } else {
                    world.device.inject(Rule::always(Kind::Read, fault));
                }
                assert!(world.open().is_err(), "who knows what is in it");
                check_well(&mut world);
            }
        }
    }
}

#[test]
fn a_transient_error_during_an_open_costs_neither_index_nor_header() {
    let style = Style::roomy(Durability::Batch).flushing_often();
    for (file, kind) in [("index-", Kind::Open), ("index-", Kind::Read), ("store.meta", Kind::Read)]
    {
        for fault in [Fault::Error, Fault::Short] {
            for skip in 0..24 {
                let _label = Label(format!("{kind:?} {fault:?} of {file}, skip {skip}"));
                let mut world = filled(&style, 3);
                world.close();
                let (header, tables) = (bytes_of(&world, "store.meta"), tables(&world));
                assert!(!tables.is_empty());
                world.expect_faults();
                world.device.inject(Rule::once(kind, fault, skip).on(file));
                world.open().unwrap();
                world.device.heal();
                let left = self::tables(&world);
                assert!(tables.iter().all(|table| left.contains(table)), "{left:?} of {tables:?}");
                assert_eq!(bytes_of(&world, "store.meta"), header);
                world.close();
                check_well(&mut world);
            }
        }
    }
}

fn tables(world: &World) -> Vec<String> {
    let names = world.device.list().unwrap().into_iter().map(|entry| entry.name);
    names.filter(|name| name.contains(".table")).collect()
}

fn bytes_of(world: &World, name: &str) -> Vec<u8> {
    let opened = world.device.open_cached(name, OpenMode::Read).unwrap();
    let mut bytes = vec![0; usize::try_from(opened.bytes).unwrap()];
    world.device.read_at(opened.file, 0, &mut bytes).unwrap();
    world.device.close(opened.file);
    bytes
}
