//! Crashes after every operation, and stores that live through many.

use std::ops::{Range, RangeInclusive};

use crate::dose::dose;
use dalsegno_core::Durability;
use dalsegno_sim::{
    Action, Blocks, Common, Label, Outage, Part, Random, Style, World, chain_hashes,
    crash_everywhere, history, live, recover,
};
use dalsegno_store::PutOutcome;

fn common() -> Common {
    Common::new(Blocks::default())
}

/// All seeds of a range in the full dose, the first quarter of them in the small one.
fn dosed(seeds: Range<u64>) -> Range<u64> {
    let few = (seeds.end - seeds.start).div_ceil(4);
    seeds.start..dose(seeds.start + few, seeds.end)
}

/// All operations of a history in the full dose, every third in the small one: which, `chance` decides.
fn operations(chance: u64, whole: &World) -> impl Iterator<Item = u64> {
    let step = dose(3, 1);
    (1 + chance % step..=whole.device.changes()).step_by(usize::try_from(step).unwrap())
}

/// Crashes after every operation of the histories of these seeds, or after every second one in the small dose.
fn crash_all(seeds: Range<u64>, style: &Style) {
    let (seeds, step) = (dosed(seeds), dose(2, 1));
    let histories = seeds.end - seeds.start;
    let outages = crash_everywhere(seeds, step, style);
    assert!(outages * step as u64 > 20 * histories, "{outages} outages in {histories} histories");
}

#[test]
fn a_crash_after_any_operation_loses_nothing_that_was_acknowledged_as_durable() {
    crash_all(0..16, &Style::roomy(Durability::Batch));
}

#[test]
fn a_crash_after_any_operation_without_durability_serves_no_wrong_byte() {
    crash_all(100..108, &Style::roomy(Durability::None));
}

#[test]
fn a_crash_during_eviction_serves_no_wrong_byte() {
    crash_all(200..204, &Style::crowded(Durability::Batch));
}

#[test]
fn a_crash_during_eviction_without_durability_serves_no_wrong_byte() {
    crash_all(300..306, &Style::crowded(Durability::None));
}

/// Many lives: each ends with an outage at a random operation, and the next continues with what is left. Returns how
/// many blocks a store had no space for right after an open.
fn many_lives(seeds: Range<u64>, style: &Style) -> u64 {
    let mut refused = 0;
    for seed in dosed(seeds) {
        let common = common();
        let mut world = common.world(style, seed, 0);
        let mut random = Random::new(seed);
        for life in 0..8 {
            let _label = Label(format!("seed {seed}, life {life}"));
            world.device.fail_at(4 + random.below(60) as u64);
            live(&mut world, &history(seed << 8 | life, style));
            let outage = if random.percent(30) { Outage::Process } else { Outage::Power };
            world.reboot(outage);
            world.open().unwrap();
            world.check_all();
            refused += world.check_usable(life);
        }
        let _label = Label(format!("seed {seed}, after all lives"));
        world.close();
        world.verify();
    }
    refused
}

#[test]
fn a_store_survives_many_crashes() {
    assert_eq!(many_lives(400..430, &Style::roomy(Durability::Batch)), 0);
    assert_eq!(many_lives(500..510, &Style::roomy(Durability::None)), 0);
}

#[test]
fn a_store_that_evicts_survives_many_crashes() {
    assert_eq!(many_lives(600..610, &Style::crowded(Durability::Batch)), 0);
    assert_eq!(many_lives(700..720, &Style::crowded(Durability::None)), 0);
    // A power cut takes the free segment back while all others carry tombstones.
    assert_eq!(many_lives(716..717, &Style::crowded(Durability::None)), 0);
}

#[test]
fn regression_a_put_after_a_kill_survives_a_power_cut() {
    let style = Style::roomy(Durability::Batch);
    for change in 1..32 {
        let _label = Label(format!("operation {change}"));
        let common = common();
        let mut world = common.world(&style, 1, change);
        world.device.fail_at(change);
        if world.open().is_ok() {
            world.act(&Action::Put(
                Part { namespace: 0, chain: chain_hashes(2, 4), first: 0 },
                false,
            ));
        }
        world.reboot(Outage::Process);
        world.open().unwrap();
        assert_eq!(world.check_usable(0), 0);
        // A segment whose name the killed process had not synced holds acknowledged blocks now.
        world.reboot(Outage::Power);
        world.open().unwrap();
        world.check_all();
    }
}

#[test]
fn regression_a_block_found_present_after_a_kill_survives_a_power_cut() {
    let mut found = 0;
    for change in 1..32 {
        let _label = Label(format!("operation {change}"));
        let common = common();
        let mut world = common.world(&Style::roomy(Durability::Batch), 1, change);
        let part = Part { namespace: 0, chain: chain_hashes(2, 4), first: 0 };
        world.device.fail_at(change);
        if world.open().is_ok() {
            world.act(&Action::Put(part.clone(), false));
        }
        world.reboot(Outage::Process);
        world.open().unwrap();
        // The killed process may have written it, and not synced it.
        found += world.put(&part, false).unwrap().count(PutOutcome::Present);
        world.reboot(Outage::Power);
        world.open().unwrap();
        world.check_all();
    }
    assert!(found > 4);
}

#[test]
fn a_store_with_an_on_disk_index_survives_a_crash_after_any_operation() {
    let batch = Style::roomy(Durability::Batch).indexed_in_files();
    crash_all(800..806, &batch);
    crash_all(810..814, &Style::roomy(Durability::None).indexed_in_files());
    crash_all(820..822, &Style::crowded(Durability::Batch).indexed_in_files());
    crash_all(830..832, &Style::crowded(Durability::None).indexed_in_files());
}

#[test]
fn a_store_with_an_on_disk_index_survives_many_crashes() {
    for durability in [Durability::Batch, Durability::None] {
        assert_eq!(many_lives(900..915, &Style::roomy(durability).indexed_in_files()), 0);
        assert_eq!(many_lives(950..960, &Style::crowded(durability).indexed_in_files()), 0);
    }
}

#[test]
fn a_store_that_merges_survives_a_crash_after_any_operation() {
    let batch = Style::roomy(Durability::Batch).merging_at_once();
    crash_all(1000..1008, &batch);
    crash_all(1010..1014, &batch.clone().indexed_in_files());
    let none = Style::roomy(Durability::None).merging_at_once();
    crash_all(1020..1024, &none);
    crash_all(1030..1032, &none.clone().indexed_in_files());
}

#[test]
fn a_store_that_merges_and_evicts_survives_a_crash_after_any_operation() {
    for durability in [Durability::Batch, Durability::None] {
        let style = Style::crowded(durability).merging_at_once();
        crash_all(1040..1042, &style);
        crash_all(1050..1051, &style.indexed_in_files());
    }
}

#[test]
fn a_store_that_merges_survives_many_crashes() {
    for durability in [Durability::Batch, Durability::None] {
        let (roomy, crowded) = (Style::roomy(durability), Style::crowded(durability));
        assert_eq!(many_lives(1100..1115, &roomy.clone().merging_at_once()), 0);
        assert_eq!(many_lives(1120..1130, &roomy.merging_at_once().indexed_in_files()), 0);
        assert_eq!(many_lives(1140..1150, &crowded.clone().merging_at_once()), 0);
        assert_eq!(many_lives(1160..1165, &crowded.merging_at_once().indexed_in_files()), 0);
    }
}

#[test]
fn a_store_with_compressed_extents_survives_a_crash_after_any_operation() {
    let common = common();
    let style = Style::roomy(Durability::Batch).compressed();
    let mut world = common.world(&style, 1200, 0);
    world.open().unwrap();
    for name in 0..8 {
        world.act(&Action::Put(
            Part { namespace: 0, chain: chain_hashes(name, 8), first: 0 },
            false,
        ));
    }
    assert!(
        world.stats().log.transfers.codec.encoded_bytes > 0,
        "{:?}",
        world.stats().log.transfers.codec
    );
    crash_all(1200..1205, &style);
    crash_all(1210..1212, &style.merging_at_once().indexed_in_files());
    let crowded = Style::crowded(Durability::None).compressed();
    crash_all(1220..1222, &crowded);
    crash_all(1230..1231, &crowded.merging_at_once().indexed_in_files());
}

#[test]
fn a_store_with_compressed_extents_survives_many_crashes() {
    for durability in [Durability::Batch, Durability::None] {
        let (roomy, crowded) =
            (Style::roomy(durability).compressed(), Style::crowded(durability).compressed());
        assert_eq!(many_lives(1300..1308, &roomy), 0);
        assert_eq!(many_lives(1310..1318, &roomy.merging_at_once().indexed_in_files()), 0);
        assert_eq!(many_lives(1320..1326, &crowded), 0);
        assert_eq!(many_lives(1330..1334, &crowded.merging_at_once().indexed_in_files()), 0);
    }
}

/// Chains that grow block by block in turn, with removals between them, so that there is always something to merge.
fn growth_by_single_blocks() -> Vec<Action> {
    let part = |name: u64, blocks: usize, first: usize| Part {
        namespace: 0,
        chain: chain_hashes(2 * name, blocks),
        first,
    };
    let mut actions = Vec::new();
    for block in 0..12 {
        for name in 0..3 {
            actions.push(Action::Put(part(name, block + 1, block), false));
            if block % 5 == 4 {
                actions.push(Action::Remove(part(name, block - 1, block - 2)));
                actions.push(Action::Get(part(name, block + 1, 0), false));
            }
        }
    }
    actions.push(Action::Reopen);
    actions.extend((0..3).map(|name| Action::Get(part(name, 12, 0), false)));
    actions
}

#[test]
fn merging_survives_a_crash_at_any_moment_and_so_do_removals() {
    for index_in_files in [false, true] {
        for (chance, durability) in (0..).zip([Durability::Batch, Durability::None]) {
            let mut style = Style::roomy(durability).merging_at_once();
            if index_in_files {
                style = style.indexed_in_files();
            }
            let common = common();
            let mut whole = common.world(&style, chance, 0);
            whole.open().unwrap();
            let actions = growth_by_single_blocks();
            let before_reopening = actions.iter().position(|a| *a == Action::Reopen).unwrap();
            actions[..before_reopening].iter().for_each(|action| whole.act(action));
            assert!(whole.stats().merging.merges > 15, "{:?}", whole.stats().merging);
            let mut whole = common.world(&style, chance, 0);
            live(&mut whole, &actions);
            whole.check_all();
            for change in operations(chance, &whole) {
                let _label = Label(format!("{durability:?}, {index_in_files}, operation {change}"));
                let mut world = common.world(&style, chance, change);
                world.device.fail_at(change);
                live(&mut world, &actions);
                recover(&mut world, Outage::Power, &mut Random::new(chance ^ change << 20));
            }
        }
    }
}

/// Blocks of a namespace whose blocks have 64 KiB.
fn large(name: u64, blocks: usize) -> Part {
    Part { namespace: 1, chain: chain_hashes(2 * name, blocks), first: 0 }
}

/// A block is removed while its segment stays, as its neighbours are read again and again, and the segment of the
/// tombstone goes several times.
fn removal_that_moves() -> Vec<Action> {
    let mut actions: Vec<Action> = (0..4).map(|name| Action::Put(large(name, 5), false)).collect();
    actions.push(Action::Remove(large(0, 1)));
    for name in 4..30 {
        actions.push(Action::Put(large(name, 5), false));
        actions.extend((0..3).map(|name| Action::Get(large(name, 5), false)));
    }
    actions
}

/// The operations of recycling with tombstones: from the header that voids the old life to the sync of the one that
/// ends it.
fn carryings(trace: &[String]) -> Vec<RangeInclusive<u64>> {
    let headers: Vec<(u64, &str)> = trace
        .iter()
        .filter(|line| line.contains(" at 0, "))
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .map(|words| (words[0].parse().unwrap(), words[2]))
        .filter(|(_, file)| file.starts_with("segment-"))
        .collect();
    let pairs = headers.windows(2).filter(|pair| pair[0].1 == pair[1].1);
    pairs.map(|pair| pair[0].0..=pair[1].0 + 1).filter(|range| range.clone().count() < 9).collect()
}

#[test]
fn regression_overwritten_extents_of_an_earlier_epoch_are_not_present() {
    let style = Style::crowded(Durability::Batch).flushing_often();
    let common = common();
    let mut whole = common.world(&style, 1, 0);
    whole.device.start_trace();
    assert!(live_through_removal(&mut whole) > 4);
    let carryings = carryings(&whole.device.trace());
    assert!(carryings.len() > 1);
    for change in carryings.into_iter().flatten() {
        for outage in [Outage::Process, Outage::Power] {
            let _label = Label(format!("{outage:?} at operation {change}"));
            let mut world = common.world(&style, 1, change);
            world.device.fail_at(change);
            live_through_removal(&mut world);
            world.reboot(outage);
            world.open().unwrap();
            world.check_all();
            assert_eq!(world.stats().quarantined_blocks, 0);
        }
    }
}

/// Returns how often a segment was recycled.
fn live_through_removal(world: &mut World) -> u64 {
    if world.open().is_err() {
        return 0;
    }
    for action in removal_that_moves() {
        world.act(&action);
    }
    world.stats().log.segments_recycled
}

#[test]
fn a_removal_survives_a_crash_at_any_moment_of_a_reclaim() {
    for (chance, durability) in (0..).zip([Durability::Batch, Durability::None].repeat(2)) {
        let style = Style::crowded(durability);
        let common = common();
        let mut whole = common.world(&style, chance, 0);
        assert!(live_through_removal(&mut whole) > 4);
        for change in operations(chance, &whole) {
            let _label = Label(format!("{durability:?}, chance {chance}, operation {change}"));
            let mut world = common.world(&style, chance, change);
            world.device.fail_at(change);
            live_through_removal(&mut world);
            if chance >= 2 {
                // What the killed process wrote last is there, but not durable, and is built upon.
                world.reboot(Outage::Process);
                world.open().unwrap();
                (50..54).for_each(|name| world.act(&Action::Put(large(name, 5), false)));
            }
            world.reboot(Outage::Power);
            world.open().unwrap();
            world.check_all();
        }
    }
}

#[test]
fn a_removal_that_the_index_applied_holds_for_blocks_that_it_did_not_have() {
    let style = Style::roomy(Durability::Batch).flushing_often();
    let mut world = common().world(&style, 1, 0);
    world.open().unwrap();
    // What lies behind a put that is under way is not covered, and read at the next open.
    let under_way = world.hold_space(&large(90, 4));
    world.put(&large(0, 4), false).unwrap();
    // The tombstone goes to the next segment.
    for name in 1..60 {
        world.put(&large(name, 4), false).unwrap();
    }
    assert!(world.stats().log.segments_created > 1);
    let removed = large(0, 4);
    world.act(&Action::Remove(removed.clone()));
    for name in 60..90 {
        world.put(&large(name, 4), false).unwrap();
    }
    assert_eq!(world.get(&removed, false), 0);
    world.reboot(Outage::Process);
    drop(under_way);
    world.open().unwrap();
    assert_eq!(world.get(&removed, false), 0);
    world.check_all();
}

#[test]
fn a_seed_and_an_operation_are_the_same_run_every_time() {
    for seed in 1..=dose(8, 24) {
        let plan = dalsegno_sim::Plan::of(seed);
        for at in [10, 60] {
            let _label = Label(format!("seed {seed}, operation {at}: {}", plan.words));
            let (first, explored) = dalsegno_sim::replay(&plan, at);
            let (second, _) = dalsegno_sim::replay(&plan, at);
            assert!(explored.violations.is_empty(), "{:?}", explored.violations);
            let differs = first.iter().zip(&second).position(|(one, other)| one != other);
            if let Some(line) = differs {
                panic!("line {line}: {}\n{}", first[line], second[line]);
            }
            assert_eq!(first.len(), second.len());
        }
    }
}
