//! Reclaim on a device that fails, is slow or does not remove files.

use std::time::Duration;

use crate::worlds::{filled, part};
use dalsegno_core::Durability;
use dalsegno_io::BufferPool;
use dalsegno_sim::{Action, Blocks, DeviceOptions, Fault, Kind, Label, Outage, Rule, Style, World};

#[test]
fn a_damaged_segment_with_a_failed_removal_is_reclaimed_at_the_next_put() {
    for kind in [Kind::Remove, Kind::SyncNames] {
        let _label = Label(format!("{kind:?}"));
        let style = Style::crowded(Durability::Batch);
        let mut world = filled(&style, 1);
        for chain in 10..30 {
            world.put(&part(0, chain), false).unwrap();
        }
        world.expect_faults();
        world.forgive();
        let unreadable = Rule { times: 5, ..Rule::once(Kind::Read, Fault::Error, 0) };
        world.device.inject(unreadable.on("segment-0000000000000002"));
        world.act(&Action::Reopen);
        assert!(world.stats().open_faults > 0);
        world.device.heal();
        world.device.inject(Rule::once(kind, Fault::Error, 0));
        let fired = world.device.faults_fired();
        let mut refused = 0;
        for chain in 40..60 {
            let Ok(report) = world.put(&part(0, chain), false) else {
                assert_eq!(kind, Kind::SyncNames, "a failed sync stops all writing");
                world.open().unwrap();
                continue;
            };
            refused += u64::from(report.kept().contains(&false));
        }
        assert_eq!(world.device.faults_fired(), fired + 1);
        assert!(refused <= 1, "{refused} puts found no room");
    }
}

#[test]
fn regression_unreadable_extents_do_not_stop_reclaim() {
    for style in [Style::crowded(Durability::Batch), Style::crowded(Durability::Batch).compressed()]
    {
        let mut world = filled(&style, 31);
        for _ in 0..3 {
            for chain in 0..4 {
                world.get(&part(0, chain), false);
            }
        }
        world.expect_faults();
        world.forgive();
        let unreadable = Rule::always(Kind::Read, Fault::Error).on("segment-0000000000000001");
        world.device.inject(unreadable);
        for chain in 10..60 {
            let report = world.put(&part(0, chain), false).unwrap();
            assert!(!report.kept().contains(&false), "chain {chain}: {:?}", report.outcomes);
        }
        assert!(world.stats().log.segments_recycled > 0);
    }
}

#[test]
fn temporarily_unreadable_extents_are_not_dropped_for_space() {
    for style in [Style::crowded(Durability::Batch), Style::crowded(Durability::Batch).compressed()]
    {
        let mut world = filled(&style, 33);
        let hot = |world: &mut World| -> Vec<usize> {
            (0..4).map(|chain| world.get(&part(0, chain), false)).collect()
        };
        for _ in 0..3 {
            assert_eq!(hot(&mut world), [4; 4]);
        }
        world.expect_faults();
        world.forgive();
        world.device.inject(Rule::always(Kind::Read, Fault::Error));
        let mut is_refused = false;
        for chain in 10..80 {
            is_refused |= world.put(&part(0, chain), false).unwrap().kept().contains(&false);
        }
        assert!(is_refused, "there was room for all");
        world.device.heal();
        world.pass(Duration::from_secs(10));
        assert_eq!(hot(&mut world), [4; 4]);
        for chain in 80..150 {
            assert!(!world.put(&part(0, chain), false).unwrap().kept().contains(&false));
        }
    }
}

#[test]
fn a_put_stops_reclaiming_at_its_deadline_and_a_later_one_continues() {
    let style = Style::crowded(Durability::Batch);
    let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
    let latency = Duration::from_millis(100);
    let options = DeviceOptions { latency, ..DeviceOptions::default() };
    let mut world = World::new(&style, options, &Blocks::default(), &pool);
    world.open().unwrap();
    let (mut failed, mut stored, mut longest) = (0, 0, Duration::ZERO);
    for chain in 0..120 {
        let timed = chain > 40;
        let started = world.now();
        let report = world.put(&part(usize::from(chain % 3 == 0), chain), timed).unwrap();
        if timed {
            longest = longest.max(world.now().since(started));
            failed += u64::from(report.kept().contains(&false));
            stored += u64::from(!report.kept().contains(&false));
        }
        // Hit extents are relocated by a reclaim.
        world.get(&part(usize::from(chain % 3 == 0), chain), false);
    }
    assert!(failed > 0 && stored > 0, "{failed} failed, {stored} stored");
    // One second, and the step that was under way: the headers of a segment are looked for, or an extent is moved.
    assert!(longest < Duration::from_secs(4), "{longest:?}");
    world.check_all();
    assert_eq!(world.check_usable(0), 0);
    world.reboot(Outage::Power);
    world.open().unwrap();
    world.check_all();
}

#[test]
fn a_damaged_index_without_space_stops_writes_instead_of_dropping_blocks_for_nothing() {
    let style = Style::crowded(Durability::Batch).flushing_often();
    let mut world = filled(&style, 9);
    world.open().unwrap();
    world.expect_faults();
    for _ in 0..20 {
        world.device.rot("index-").unwrap();
        world.check_all();
    }
    let mut chains = 100..400;
    assert!(chains.any(|chain| world.put(&part(0, chain), false).is_err()));
    assert!(world.stats().poisoned);
    let evicted = world.stats().evicted_blocks;
    chains.for_each(|chain| world.act(&Action::Put(part(0, chain), false)));
    assert_eq!(world.stats().evicted_blocks, evicted);
    world.reboot(Outage::Process);
    world.expect_no_faults();
    world.open().unwrap();
    world.check_all();
    assert_eq!(world.check_usable(0), 0, "the index was rebuilt");
}

#[test]
fn a_bad_index_on_a_full_disk_stops_a_store_once() {
    let style = Style::crowded(Durability::Batch).flushing_often();
    let mut world = filled(&style, 1);
    for chain in 100..130 {
        world.put(&part(2, chain), false).unwrap();
    }
    world.expect_faults();
    let mut lives = Vec::new();
    for life in 0..6 {
        world.device.heal();
        world.device.inject(Rule::always(Kind::Create, Fault::NoSpace));
        world.open().unwrap();
        world.device.inject(Rule::always(Kind::Read, Fault::Error).on("index-"));
        let chains = (0..60).map(|chain| part(0, 200 + 100 * life + chain));
        let puts = chains.map(|part| world.put(&part, false).is_ok());
        lives.push(puts.take_while(|is_well| *is_well).count());
    }
    assert!(
        lives[0] < 60,
        "it stops instead of dropping extents that it cannot look up: {lives:?}"
    );
    let stops = lives.iter().filter(|puts| **puts == 0).count();
    assert!(stops < 2, "after a reopen it is healthy: {lives:?}");
}
