//! A device that hangs and completes requests after their callers left: operations in progress fail, and no other block
//! is lost, returns or is overwritten.

use crate::worlds::{filled, part, world};
use dalsegno_core::Durability;
use dalsegno_sim::{Action, Fault, Kind, Label, Outage, Random, Rule, Style, history};

/// More requests than this would have all staging memory.
const MOST_HELD: usize = 8;

/// A history during which some requests of a kind hang, and are executed later, in any order. Afterwards the store is
/// reopened: all acknowledged blocks are there, removed ones are not. Returns how many requests hung.
fn hang_periodically(seed: u64, style: &Style, kind: Kind) -> u64 {
    let files = style.memtable_bytes.is_some();
    let _label = Label(format!("seed {seed}, {kind:?}, index in files {files}"));
    let mut random = Random::new(seed);
    let mut world = world(style, seed);
    world.open().unwrap();
    world.expect_faults();
    for action in history(seed, style) {
        if random.percent(30) {
            let times = 1 + random.below(3) as u64;
            let rule = Rule { times, ..Rule::once(kind, Fault::Hang, random.below(3) as u64) };
            world.device.inject(rule);
        }
        if action == Action::Reopen || world.device.held() > MOST_HELD || random.percent(20) {
            world.device.heal();
        }
        let fired = world.device.faults_fired();
        world.act(&action);
        if kind == Kind::Sync && world.device.faults_fired() > fired {
            // It took so long that it counts as failed: what no put waited for may be gone.
            world.oracle.power_cut();
        }
        if !world.is_open() {
            world.open().unwrap();
        }
    }
    let fired = world.device.faults_fired();
    if random.percent(50) {
        world.device.heal();
        world.check_all();
    }
    world.reboot(*random.pick(&[Outage::Power, Outage::Process]));
    world.expect_no_faults();
    world.open().unwrap();
    world.check_all();
    let refused = world.check_usable(seed);
    assert!(refused == 0 || style.evicts, "{refused} blocks are refused though there is room");
    fired
}

#[test]
fn a_device_that_hangs_costs_only_operations_in_progress() {
    for kind in [Kind::Read, Kind::Write, Kind::Sync] {
        let mut fired = 0;
        for seed in 0..4 {
            for durability in [Durability::Batch, Durability::None] {
                let (roomy, crowded) = (Style::roomy(durability), Style::crowded(durability));
                let merging = [roomy.clone().merging_at_once(), crowded.clone().merging_at_once()];
                let in_files = [roomy.clone().flushing_often(), crowded.clone().flushing_often()];
                for style in [[roomy, crowded], merging, in_files].iter().flatten() {
                    fired += hang_periodically(seed, style, kind);
                }
            }
        }
        assert!(fired > 80, "{kind:?} hung {fired} times");
    }
}

#[test]
fn a_late_write_is_not_a_block_and_overwrites_no_other() {
    let style = Style::roomy(Durability::Batch);
    for seed in 0..20 {
        let _label = Label(format!("seed {seed}"));
        let mut world = filled(&style, seed);
        world.device.inject(Rule { times: 2, ..Rule::once(Kind::Write, Fault::Hang, 0) });
        world.expect_faults();
        let late = part(0, 50);
        let report = world.put(&late, true).unwrap();
        assert_eq!(report.kept(), [false; 4]);
        assert!(world.device.held() > 0);
        // Its space is abandoned: others are written after it, and it arrives among them.
        for chain in 51..55 {
            world.put(&part(0, chain), false).unwrap();
        }
        world.device.heal();
        assert_eq!(world.device.held(), 0);
        assert_eq!(world.get(&late, false), 0, "it was never acknowledged");
        assert!(world.put(&late, false).unwrap().kept().iter().all(|kept| *kept));
        world.reboot(Outage::Power);
        world.expect_no_faults();
        world.open().unwrap();
        world.check_all();
        assert_eq!(world.get(&late, false), 4);
    }
}
