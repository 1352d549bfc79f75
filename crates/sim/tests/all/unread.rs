//! Temporarily unreadable extents count neither as dead nor as absent.

use std::time::Duration;

use crate::dose::dose;
use crate::worlds::{filled, part};
use dalsegno_core::{ChainHash, Durability};
use dalsegno_io::Device;
use dalsegno_sim::{Action, Fault, Kind, Label, Outage, Part, Rule, Style, World, chain_hashes};
use dalsegno_store::PutOutcome;

/// One block of a chain.
fn one(chain: u64, at: usize) -> Part {
    Part { first: at, ..beginning(chain, at) }
}

/// The blocks of a chain up to one.
fn beginning(chain: u64, last: usize) -> Part {
    Part { namespace: 0, chain: chain_hashes(10 + 2 * chain, last + 1), first: 0 }
}

/// A store that needs several segments.
fn large(style: &Style, chains: u64) -> World {
    let mut world = filled(style, 1);
    for chain in 40..40 + chains {
        world.put(&part(0, chain), false).unwrap();
    }
    world
}

/// Merges something, and has dead segments recycled.
fn merge_some(world: &mut World) {
    world.pass(Duration::from_secs(1000));
    for (chain, at) in (300..303).flat_map(|chain| (0..3).map(move |at| (chain, at))) {
        world.act(&Action::Put(one(chain, at), false));
        world.pass(Duration::from_secs(100));
    }
    for _ in 0..400 {
        world.act(&Action::Put(one(300, 0), false));
        world.pass(Duration::from_secs(100));
    }
}

fn check_kept(world: &World, kept: Vec<ChainHash>) {
    let count = kept.len();
    assert_eq!(world.get(&Part { namespace: 0, chain: kept, first: 0 }, false), count);
}

#[test]
fn a_block_put_again_while_its_index_is_unreadable_is_removed_with_all_copies() {
    let style = Style::roomy(Durability::Batch).flushing_often();
    for times in 1..12 {
        for opens in [false, true] {
            let _label = Label(format!("{times} reads fail, then a reopen: {opens}"));
            let mut world = filled(&style, 1);
            world.put(&one(30, 0), false).unwrap();
            world.put(&one(30, 1), false).unwrap();
            // What lies in tables.
            world.open().unwrap();
            world.expect_faults();
            let fails = Rule { times, ..Rule::always(Kind::Read, Fault::Error) };
            world.device.inject(fails.on("index-"));
            world.act(&Action::Put(one(30, 1), false));
            world.expect_no_faults();
            world.pass(Duration::from_secs(1000));
            world.act(&Action::Remove(one(30, 1)));
            if opens {
                world.open().unwrap();
            }
            world.act(&Action::Get(beginning(30, 1), false));
            world.act(&Action::Probe(beginning(30, 1)));
            // Nothing that was removed counts as present.
            world.act(&Action::Put(beginning(30, 1), false));
            world.close();
            world.device.lose("index-").unwrap();
            world.open().unwrap();
            assert_eq!(world.get(&beginning(30, 1), false), 2, "it was put again");
        }
    }
}

#[test]
fn an_unreadable_segment_does_not_count_as_dead() {
    let base = Style::roomy(Durability::Batch).merging_at_once();
    for (index, style) in [("in memory", base.clone()), ("in files", base.indexed_in_files())] {
        let _label = Label(index.to_owned());
        let mut world = large(&style, 60);
        world.reboot(Outage::Process);
        let kept = world.oracle.kept(0);
        world.expect_faults();
        // Nothing but the header.
        let fails = Rule { skip: 1, ..Rule::always(Kind::Read, Fault::Error) };
        world.device.inject(fails.on("segment-0000000000000002"));
        world.open().unwrap();
        world.device.heal();
        merge_some(&mut world);
        world.close();
        world.expect_no_faults();
        world.open().unwrap();
        check_kept(&world, kept);
    }
}

#[test]
fn a_store_whose_index_cannot_be_rebuilt_reclaims_nothing() {
    let style = Style::roomy(Durability::Batch).merging_at_once().flushing_often();
    for (first, ahead) in [2, 14].into_iter().flat_map(|first| (8..36).map(move |at| (first, at))) {
        let _label = Label(format!("skip {first}, table {ahead} behind the newest"));
        let mut world = large(&style, 100);
        world.act(&Action::Remove(one(41, 3)));
        world.act(&Action::Remove(one(42, 3)));
        world.reboot(Outage::Process);
        let files = world.device.list().unwrap();
        let numbers = files.iter().filter_map(|file| {
            u64::from_str_radix(file.name.strip_prefix("index-")?.split('.').next()?, 16).ok()
        });
        let table = format!("index-{:016x}.table", numbers.max().unwrap() + ahead);
        let kept = world.oracle.kept(0);
        world.expect_faults();
        world.device.inject(Rule::once(Kind::Read, Fault::Error, first).on("index-"));
        world.device.inject(Rule::always(Kind::Read, Fault::Error).on(table.leak()));
        world.act(&Action::Reopen);
        world.device.heal();
        if world.is_open() {
            merge_some(&mut world);
        }
        world.reboot(Outage::Process);
        world.expect_no_faults();
        world.open().unwrap();
        check_kept(&world, kept);
    }
}

#[test]
fn an_index_that_could_not_be_written_while_rebuilt_has_no_checkpoint() {
    let style = Style::roomy(Durability::Batch).flushing_often();
    let mut world = large(&style, 100);
    world.close();
    world.device.lose("index-").unwrap();
    let kept = world.oracle.kept(0);
    world.expect_faults();
    world.device.inject(Rule::always(Kind::Write, Fault::Error).on("index-"));
    world.act(&Action::Reopen);
    world.device.heal();
    if world.is_open() {
        for chain in 300..340 {
            world.act(&Action::Put(part(0, chain), false));
            world.pass(Duration::from_secs(10));
        }
    }
    world.close();
    world.expect_no_faults();
    world.open().unwrap();
    check_kept(&world, kept);
}

/// A store whose blocks are in use, and lie in tables; and how many of them there are.
fn in_use(style: &Style) -> (World, usize) {
    let mut world = filled(style, 1);
    for chain in 100..130 {
        world.put(&part(2, chain), false).unwrap();
    }
    world.open().unwrap();
    use_all(&world);
    let count = use_all(&world);
    (world, count)
}

fn use_all(world: &World) -> usize {
    (100..130).map(|chain| world.get(&part(2, chain), false)).sum()
}

/// Puts more than there is space for, while a device fails as `fault` says in the put of one chain.
fn put_more(world: &mut World, mut fault: Option<(u64, Rule)>) {
    for chain in 10..34 {
        if let Some((_, rule)) = fault.take_if(|(at, _)| *at == chain) {
            world.device.inject(rule);
        }
        world.act(&Action::Put(part(0, chain), false));
        world.device.heal();
        if chain % 3 == 0 {
            use_all(world);
        }
    }
}

#[test]
fn used_extents_are_relocated_even_if_the_index_is_unreadable_during_reclaim() {
    let style = Style::crowded(Durability::Batch).flushing_often();
    let (mut world, all) = in_use(&style);
    put_more(&mut world, None);
    assert!(world.stats().log.segments_recycled > 1, "room was made");
    assert_eq!(use_all(&world), all);
    // Once; for as long as a put takes; and from the second read on, which is not detected immediately.
    for (times, skips) in [(1, &[2, 5, 8, 12, 16, 20, 25, 30, 40][..]), (u64::MAX, &[0, 1, 3, 7])] {
        for (at, skip) in
            (14..32).step_by(dose(3, 1)).flat_map(|at| skips.iter().map(move |skip| (at, *skip)))
        {
            let _label = Label(format!("read {skip} of chain {at} fails, {times} times"));
            let (mut world, _) = in_use(&style);
            world.expect_faults();
            let rule = Rule { times, ..Rule::once(Kind::Read, Fault::Error, skip) };
            put_more(&mut world, Some((at, rule.on("index-"))));
            world.expect_no_faults();
            world.open().unwrap();
            assert_eq!(use_all(&world), all);
        }
    }
}

#[test]
fn a_removal_with_an_unreadable_index_costs_nothing_else() {
    let style = Style::crowded(Durability::Batch).flushing_often();
    let one = part(1, 0);
    for (times, removal) in [1, 2, u64::MAX]
        .into_iter()
        .flat_map(|times| [Action::Remove(one.clone()), Action::RemoveAll(1)].map(|r| (times, r)))
    {
        let _label = Label(format!("{times} reads fail, {removal:?}"));
        let (mut world, all) = in_use(&style);
        world.expect_faults();
        let fails = Rule { times, ..Rule::always(Kind::Read, Fault::Error) };
        world.device.inject(fails.on("index-"));
        world.act(&removal);
        world.device.heal();
        if times == 1 {
            assert_eq!(use_all(&world), all, "it was asked once more");
        }
        put_more(&mut world, None);
        world.expect_no_faults();
        world.open().unwrap();
        assert_eq!(use_all(&world), all);
        assert_eq!(world.get(&one, false), 0);
    }
}

#[test]
fn blocks_removed_by_resetting_the_index_are_not_served_behind_their_prefix() {
    let style = Style::roomy(Durability::Batch).indexed_in_files();
    let from = |first: usize, last: usize| Part { first, ..beginning(30, last) };
    let mut world = large(&style, 60);
    world.put(&from(0, 0), false).unwrap();
    for (first, last) in [(1, 2), (3, 20), (21, 40)] {
        world.put(&from(first, last), false).unwrap();
    }
    world.open().unwrap();
    // Of the second extent's first block its record is in memory now, but what leads to it is not; of the first extent
    // both are.
    world.act(&Action::Remove(from(2, 2)));
    world.act(&Action::Remove(from(0, 0)));
    world.put(&from(0, 0), false).unwrap();
    world.expect_faults();
    world.device.inject(Rule::always(Kind::Read, Fault::Error).on("index-"));
    world.act(&Action::Remove(from(1, 40)));
    world.device.heal();
    world.act(&Action::Probe(from(0, 1)));
    world.act(&Action::Get(from(0, 1), false));
    world.expect_no_faults();
    world.open().unwrap();
    world.act(&Action::Get(from(0, 1), false));
    world.check_all();
}

/// Both places of the index.
fn indexes() -> [(&'static str, Style); 2] {
    let roomy = Style::roomy(Durability::Batch);
    [("in memory", roomy.clone()), ("in files", roomy.flushing_often())]
}

/// All reads of the log fail, so nothing shows that these bytes are bad: they stay in the index.
#[test]
fn regression_a_put_does_not_report_present_for_a_block_that_a_get_failed_to_read() {
    for (index, style) in indexes() {
        let _label = Label(index.to_owned());
        let mut world = filled(&style, 1);
        // Headers that were checked are not read again.
        world.open().unwrap();
        let lost = part(0, 1);
        world.expect_faults();
        world.device.inject(Rule::always(Kind::Read, Fault::Error).on("segment-"));
        assert_eq!(world.get(&lost, false), 0);
        assert_eq!(world.stats().quarantined_blocks, 0, "it is the device that fails");
        let report = world.put(&lost, false).unwrap();
        assert_eq!(report.count(PutOutcome::Present), 0);
        assert_eq!(report.count(PutOutcome::Stored), 4);
        world.expect_no_faults();
        assert_eq!(world.get(&lost, false), 4);
        assert_eq!(world.put(&lost, false).unwrap().count(PutOutcome::Present), 4, "it was read");
        world.check_all();
        // A removal removes both copies.
        world.act(&Action::Remove(lost));
        for outage in [Outage::Process, Outage::Power] {
            world.reboot(outage);
            world.open().unwrap();
            world.check_all();
        }
    }
}

/// What is written while nothing can be read takes the room of others for nothing.
#[test]
fn a_put_of_an_unreadable_block_waits_until_reads_work_and_drops_nothing() {
    for (index, style) in indexes() {
        let _label = Label(index.to_owned());
        let mut world = filled(&style, 1);
        world.open().unwrap();
        world.expect_faults();
        world.device.inject(Rule::always(Kind::Read, Fault::Error));
        let lost = part(0, 1);
        for _ in 0..20 {
            assert_eq!(world.get(&lost, false), 0);
        }
        assert_ne!(world.stats().device.reads, "working");
        let before = world.stats().put_stored_blocks;
        let report = world.put(&lost, false).unwrap();
        assert_eq!(report.count(PutOutcome::Failed), 4);
        assert_eq!(world.stats().put_stored_blocks, before);
        world.expect_no_faults();
        world.pass(Duration::from_secs(60));
        assert_eq!(world.get(&lost, false), 4);
        assert_eq!(world.put(&lost, false).unwrap().count(PutOutcome::Present), 4);
        world.check_all();
    }
}
