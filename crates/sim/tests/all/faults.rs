//! A device that fails in every possible way: never a panic, never wrong bytes, and every miss has its cause.

use crate::dose::dose;
use crate::worlds::{filled, part, world};
use dalsegno_core::Durability;
use dalsegno_io::BufferPool;
use dalsegno_sim::{
    Action, Blocks, DeviceOptions, Fault, Kind, Label, Outage, Part, Random, Rule, Style, World,
    chain_hashes, history,
};

/// Every operation with every fault that makes sense for it.
const FAULTS: [(Kind, Fault); 13] = [
    (Kind::Open, Fault::Error),
    (Kind::Create, Fault::Error),
    (Kind::Create, Fault::NoSpace),
    (Kind::Read, Fault::Error),
    (Kind::Read, Fault::Short),
    (Kind::Read, Fault::Flip),
    (Kind::Write, Fault::Error),
    (Kind::Write, Fault::NoSpace),
    (Kind::Write, Fault::Short),
    (Kind::Write, Fault::Lost),
    (Kind::Sync, Fault::Error),
    (Kind::SyncNames, Fault::Error),
    (Kind::Remove, Fault::Error),
];

/// Whether it may lose acknowledged bytes.
fn destroys(fault: Fault) -> bool {
    matches!(fault, Fault::Flip | Fault::Lost)
}

/// A history during which some operations of a kind fail.
#[derive(Clone, Copy, Debug)]
struct Trial<'a> {
    seed: u64,
    style: &'a Style,
    kind: Kind,
    fault: Fault,
    /// The change of the device at which an outage comes; at the end if there is none.
    outage_at: Option<u64>,
}

/// Results of a trial.
struct Seen {
    /// Operations that failed.
    fired: u64,
    /// Changes of the device.
    changes: u64,
}

impl Trial<'_> {
    fn label(&self) -> Label {
        let Self { seed, style, kind, fault, outage_at } = self;
        let (durability, evicts) = (style.config.durability, style.evicts);
        let files = style.memtable_bytes.is_some();
        Label(format!(
            "seed {seed}, {kind:?} {fault:?}, {durability:?}, evicts {evicts}, index in files {files}, outage at \
             {outage_at:?}"
        ))
    }

    /// Runs the trial. Afterwards the device recovers and the store is reopened, after a power cut or not. Every answer
    /// is compared with what was put. A fault that destroys nothing costs nothing: all acknowledged blocks are there,
    /// removed ones are not, and every refused block can be put.
    fn run(&self) -> Seen {
        let Self { seed, style, kind, fault, outage_at } = *self;
        let _label = self.label();
        let mut random = Random::new(seed);
        let mut world = world(style, seed);
        world.open().unwrap();
        world.expect_faults();
        if let Some(at) = outage_at {
            world.device.fail_at(world.device.changes() + at);
        }
        for action in history(seed, style) {
            if random.percent(30) {
                if kind == Kind::Remove {
                    // Otherwise there is nothing to remove: a bad descriptor is rewritten.
                    world.device.rot("namespace");
                    world.forgive();
                }
                // One at a time: where everything else fails as well, a segment is abandoned.
                world.device.heal();
                world.device.inject(Rule::once(kind, fault, random.below(3) as u64));
                if destroys(fault) {
                    world.forgive();
                }
            }
            let fired = world.device.faults_fired();
            world.act(&action);
            if matches!(kind, Kind::Sync | Kind::SyncNames) && world.device.faults_fired() > fired {
                // What no put waited for is dropped with it.
                world.oracle.power_cut();
            }
            if !world.is_open() && !world.device.is_down() {
                world.device.heal();
                let opened = world.open();
                assert!(opened.is_ok() || world.device.is_down(), "{opened:?}");
            }
            if world.device.is_down() {
                break;
            }
        }
        let seen = Seen { fired: world.device.faults_fired(), changes: world.device.changes() };
        assert!(outage_at.is_none() || world.device.is_down(), "the outage never came");
        if outage_at.is_none() {
            world.device.heal();
            world.check_all();
        }
        if destroys(fault) {
            world.forgive();
        }
        world.reboot(*random.pick(&[Outage::Power, Outage::Process]));
        if !destroys(fault) && kind != Kind::Remove {
            world.expect_no_faults();
        }
        world.open().unwrap();
        world.check_all();
        let refused = world.check_usable(seed);
        assert!(refused == 0 || style.evicts, "{refused} blocks are refused though there is room");
        seen
    }
}

/// A trial without an outage before its end; returns how many operations failed.
fn fail_periodically(seed: u64, style: &Style, kind: Kind, fault: Fault) -> u64 {
    Trial { seed, style, kind, fault, outage_at: None }.run().fired
}

#[test]
fn no_fault_of_the_device_makes_the_store_panic_or_serve_a_wrong_byte() {
    for (kind, fault) in FAULTS {
        let mut fired = 0;
        for seed in 0..dose(2, 4) {
            for durability in [Durability::Batch, Durability::None] {
                fired += fail_periodically(seed, &Style::roomy(durability), kind, fault);
                fired += fail_periodically(seed, &Style::crowded(durability), kind, fault);
            }
        }
        assert!(fired > 0, "{kind:?} {fault:?} never happened");
    }
}

#[test]
fn no_fault_of_the_device_costs_a_store_with_an_on_disk_index_more() {
    for (kind, fault) in FAULTS {
        let mut fired = 0;
        for seed in 40..dose(42, 46) {
            for durability in [Durability::Batch, Durability::None] {
                let (roomy, crowded) = (Style::roomy(durability), Style::crowded(durability));
                fired += fail_periodically(seed, &roomy.flushing_often(), kind, fault);
                fired += fail_periodically(seed, &crowded.flushing_often(), kind, fault);
            }
        }
        assert!(fired > 0, "{kind:?} {fault:?} never happened");
    }
}

#[test]
fn no_fault_of_the_device_while_it_merges_makes_the_store_panic_or_serve_a_wrong_byte() {
    for (kind, fault) in FAULTS {
        let mut fired = 0;
        for seed in 20..dose(21, 23) {
            for durability in [Durability::Batch, Durability::None] {
                let roomy = Style::roomy(durability).merging_at_once();
                let crowded = Style::crowded(durability).merging_at_once();
                for style in [&roomy, &roomy.clone().indexed_in_files(), &crowded] {
                    fired += fail_periodically(seed, style, kind, fault);
                }
            }
        }
        assert!(fired > 0, "{kind:?} {fault:?} never happened");
    }
}

#[test]
fn an_outage_during_faults_costs_no_more_than_either_alone() {
    // Changes of the device from one outage to the next.
    let stride = dose(33, 11);
    let harmless = |(kind, fault): &(Kind, Fault)| !destroys(*fault) && *kind != Kind::Remove;
    for (kind, fault) in FAULTS.into_iter().filter(harmless) {
        for (seed, durability) in [(60, Durability::Batch), (61, Durability::None)] {
            let roomy = Style::roomy(durability);
            for style in [&roomy.clone().flushing_often(), &Style::crowded(durability), &roomy] {
                let trial = Trial { seed, style, kind, fault, outage_at: None };
                let changes = trial.run().changes;
                // The first few are those of the first open.
                for at in (1..changes.saturating_sub(20)).step_by(stride) {
                    Trial { outage_at: Some(at), ..trial }.run();
                }
            }
        }
    }
}

#[test]
fn a_permanently_failing_device_causes_only_misses_and_errors() {
    for (kind, fault) in FAULTS {
        let _label = Label(format!("{kind:?} {fault:?}"));
        let style = Style::roomy(Durability::Batch);
        // What is full creates nothing.
        let creates = matches!(kind, Kind::Create | Kind::SyncNames);
        let mut world = if creates { world(&style, 5) } else { filled(&style, 5) };
        world.open().unwrap();
        world.expect_faults();
        world.forgive();
        world.device.inject(Rule::always(kind, fault));
        for action in history(5, &style) {
            if action != Action::Reopen {
                world.act(&action);
            }
        }
        // Nothing is opened again, and nothing removed.
        let never = matches!(kind, Kind::Open | Kind::Remove);
        assert_eq!(world.device.faults_fired() == 0, never, "{kind:?} {fault:?}");
        world.check_all();
    }
}

#[test]
fn failed_reads_are_misses_with_their_cause() {
    let causes =
        [(Fault::Error, "device"), (Fault::Short, "truncated"), (Fault::Flip, "slice_checksum")];
    for (fault, cause) in causes {
        let style = Style::roomy(Durability::Batch);
        let mut world = filled(&style, 3);
        world.expect_faults();
        world.device.inject(Rule::always(Kind::Read, fault).on("segment"));
        assert!(world.get(&part(0, 0), false) < 4, "{fault:?}");
        let misses = world.stats().log.transfers.misses;
        assert!(misses[cause] > 0, "{fault:?}: {misses:?}");
        assert!(misses.iter().all(|(name, count)| *name == cause || *count == 0), "{misses:?}");
    }
}

/// Offsets of the writes to a file in a trace, in order.
fn writes_to(trace: &[String], file: &str) -> Vec<u64> {
    let words = trace.iter().map(|line| line.split([' ', ',']).filter(|word| !word.is_empty()));
    let words = words.map(Iterator::collect::<Vec<_>>);
    let writes = words.filter(|words| words[1] == "write" && words[2].starts_with(file));
    writes.map(|words| words[4].parse().unwrap()).collect()
}

#[test]
fn the_header_of_an_extent_of_several_requests_is_written_last() {
    let pool = BufferPool::new(1 << 20, 256 << 10).unwrap();
    let mut style = Style::crowded(Durability::Batch);
    style.config.io_request = Some(256 << 10);
    // A block fills a request, so that its header needs another.
    style.shapes = vec![(2, 128 << 10)];
    let mut world = World::new(&style, DeviceOptions::default(), &Blocks::default(), &pool);
    world.open().unwrap();
    world.device.start_trace();
    let one = Part { namespace: 0, chain: chain_hashes(10, 1), first: 0 };
    world.put(&one, false).unwrap();
    // The header of the segment, the payload, the header of the extent.
    assert_eq!(writes_to(&world.device.trace(), "segment-"), [0, 8192, 4096]);
    assert_eq!(world.get(&one, false), 1);
}

#[test]
fn merged_extents_are_synced_even_if_puts_are_not() {
    // At the next open it takes the place of its parts without being read.
    let style = Style::roomy(Durability::None).merging_at_once();
    let mut world = world(&style, 21);
    world.open().unwrap();
    world.device.start_trace();
    let chain = chain_hashes(10, 4);
    for first in 0..4 {
        let chain = chain[..=first].to_vec();
        world.put(&Part { namespace: 0, chain, first }, false).unwrap();
    }
    assert!(world.stats().merging.merges > 0);
    let trace = world.device.trace();
    let of_segments: Vec<_> = trace.iter().filter(|line| line.contains(" segment-")).collect();
    assert!(of_segments.last().unwrap().contains(" sync "), "{of_segments:#?}");
}

#[test]
fn a_short_write_is_never_a_success() {
    for fault in [Fault::Short, Fault::Error, Fault::NoSpace] {
        let style = Style::roomy(Durability::Batch);
        let mut world = filled(&style, 11);
        world.expect_faults();
        world.device.inject(Rule::once(Kind::Write, fault, 0).on("segment"));
        let report = world.put(&part(0, 50), false).unwrap();
        assert_eq!(report.kept(), [false; 4], "{fault:?}");
        assert_eq!(world.check_usable(0), 0, "the next put goes on");
        world.reboot(Outage::Power);
        world.open().unwrap();
        world.check_all();
    }
}

#[test]
fn a_lost_write_is_a_miss() {
    let style = Style::roomy(Durability::Batch);
    for seed in 0..10 {
        let mut world = filled(&style, seed);
        world.expect_faults();
        world.device.inject(Rule::once(Kind::Write, Fault::Lost, 0).on("segment"));
        world.put(&part(0, 50), false).unwrap();
        assert_eq!(world.get(&part(0, 50), false), 0, "nothing was stored");
        let misses: u64 = world.stats().log.transfers.misses.values().sum();
        assert_eq!(misses, 4);
        world.reboot(Outage::Power);
        world.open().unwrap();
        world.forgive();
        world.check_all();
    }
}

#[test]
fn a_full_file_system_refuses_puts_and_keeps_its_blocks() {
    let style = Style::roomy(Durability::Batch);
    let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
    let options = DeviceOptions { total_bytes: 3 << 20, ..DeviceOptions::default() };
    let mut world = World::new(&style, options, &Blocks::default(), &pool);
    world.open().unwrap();
    world.expect_faults();
    let mut hits = 0;
    for chain in 0..80 {
        world.put(&part(0, chain), false).unwrap();
        hits += world.get(&part(0, chain), false);
    }
    assert!(hits > 4 * 70, "earlier blocks make room, but for {hits} only");
    assert!(world.stats().log.creations_refused > 0 && world.stats().evicted_blocks > 0);
}

#[test]
fn a_flipped_stored_bit_is_a_miss_at_any_position() {
    let style = Style::roomy(Durability::Batch);
    for seed in 0..dose(50, 150) {
        let mut world = filled(&style, seed);
        let rotten = world.device.rot("").unwrap();
        let _label = Label(format!("seed {seed}: {rotten:?}"));
        world.expect_faults();
        world.forgive();
        world.check_all();
        world.act(&Action::Reopen);
        world.check_all();
        // What was lost can be put again, and stays.
        for namespace in 0..3 {
            world.put(&part(namespace, 0), false).unwrap();
            let hits = world.get(&part(namespace, 0), false);
            world.put(&part(namespace, 0), false).unwrap();
            assert_eq!(world.get(&part(namespace, 0), false), 4, "first {hits}");
        }
        world.act(&Action::Reopen);
        for namespace in 0..3 {
            assert_eq!(world.get(&part(namespace, 0), false), 4, "it was put again");
        }
    }
}

#[test]
fn regression_a_segment_unreadable_at_one_open_is_complete_at_the_next() {
    for kind in [Kind::Open, Kind::Read] {
        for skip in 0..4 {
            let _label = Label(format!("{kind:?}, skip {skip}"));
            let mut world = filled(&Style::roomy(Durability::Batch), 13);
            world.expect_faults();
            // Twice with and without what lies behind it, and once in between to see whether the device reads.
            let times = if kind == Kind::Open { 2 } else { 5 };
            let rule = Rule { times, ..Rule::once(kind, Fault::Error, skip) };
            world.device.inject(rule.on("segment"));
            world.act(&Action::Reopen);
            for chain in 20..23 {
                world.put(&part(0, chain), false).unwrap();
            }
            world.device.heal();
            // Sequence numbers of what could not be read must not have been given out again.
            world.open().unwrap();
            for chain in 20..23 {
                assert_eq!(world.get(&part(0, chain), false), 4);
            }
            world.check_all();
        }
    }
}

#[test]
fn a_device_that_is_too_slow_costs_misses_at_the_deadline() {
    let style = Style::roomy(Durability::None);
    let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
    let latency = std::time::Duration::from_millis(600);
    let options = DeviceOptions { latency, ..DeviceOptions::default() };
    let mut world = World::new(&style, options, &Blocks::default(), &pool);
    world.open().unwrap();
    world.expect_faults();
    for action in history(9, &style) {
        world.act(&action);
    }
    world.check_all();
    world.put(&part(0, 0), false).unwrap();
    world.put(&part(0, 1), false).unwrap();
    // One second is enough for one request, not for two: the chains lie in extents of their own.
    let both = [chain_hashes(10, 4), chain_hashes(12, 4)].concat();
    assert!(world.get(&Part { namespace: 0, chain: both, first: 0 }, true) < 8);
    assert!(world.stats().log.transfers.misses["deadline"] > 0);
}

#[test]
fn all_parts_of_a_removal_become_durable_on_a_device_that_is_slower_than_its_timeout() {
    for style in [Style::roomy(Durability::None), Style::roomy(Durability::None).indexed_in_files()]
    {
        let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
        let latency = std::time::Duration::from_millis(600);
        let options = DeviceOptions { latency, ..DeviceOptions::default() };
        let mut world = World::new(&style, options, &Blocks::default(), &pool);
        world.open().unwrap();
        let (one, other) = (part(0, 0), part(0, 1));
        world.put(&one, false).unwrap();
        world.put(&other, false).unwrap();
        // In a part of its own, behind blocks that were never put.
        let hashes = [one.chain, chain_hashes(1000, 4096), other.chain].concat();
        world.remove(0, Some(&hashes), true);
        world.reboot(Outage::Process);
        world.open().unwrap();
        world.check_all();
    }
}
