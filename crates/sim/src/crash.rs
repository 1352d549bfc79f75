//! Runs that end in an outage, and what must hold afterwards.

use dalsegno_io::BufferPool;

use crate::blocks::Blocks;
use crate::device::{DeviceOptions, Outage};
use crate::disk::SECTOR;
use crate::history::{Action, Style};
use crate::random::Random;
use crate::world::World;

/// What the worlds of one thread share. Creating it takes longer than most runs.
#[derive(Clone, Debug)]
pub struct Common {
    /// Staging memory, for one thread: which buffers are free must not depend on other threads.
    pub pool: BufferPool,
    /// Contents of blocks.
    pub blocks: Blocks,
}

impl Common {
    /// Memory for one world at a time.
    ///
    /// # Panics
    ///
    /// If the system has no memory.
    #[must_use]
    pub fn new(blocks: Blocks) -> Self {
        Self { pool: BufferPool::new(16 << 20, 1 << 20).expect("memory for staging"), blocks }
    }

    /// A world with an empty device. `chance` decides what `seed` does not: which bytes survive.
    #[must_use]
    pub fn world(&self, style: &Style, seed: u64, chance: u64) -> World {
        let mut random = Random::new(seed);
        let options = DeviceOptions {
            seed: seed << 32 ^ chance,
            atom_bytes: *random.pick(&[SECTOR, 512]),
            memory_align: *random.pick(&[1, 512, 4096]),
            ..DeviceOptions::default()
        };
        World::new(style, options, &self.blocks, &self.pool)
    }
}

/// Opens the store and runs a history until the device goes down. Returns how many actions ended.
///
/// # Panics
///
/// If the store cannot be opened although no outage came.
pub fn live(world: &mut World, actions: &[Action]) -> usize {
    if open(world) { act(world, actions) } else { 0 }
}

fn act(world: &mut World, actions: &[Action]) -> usize {
    for (number, action) in actions.iter().enumerate() {
        world.act(action);
        if world.device.is_down() {
            return number;
        }
    }
    actions.len()
}

/// Reboots after an outage and checks the store, with a second outage during an open.
///
/// # Panics
///
/// If a check fails.
pub fn recover(world: &mut World, outage: Outage, chance: &mut Random) {
    world.reboot(outage);
    world.verify();
    world.device.fail_at(1 + chance.below(6) as u64);
    if open(world) {
        world.check_all();
        world.check_bounds();
    }
    world.reboot(Outage::Power);
    check_whole(world, 0);
}

/// Opens the store. Returns `false` if an outage came meanwhile.
fn open(world: &mut World) -> bool {
    let opened = world.open();
    assert!(opened.is_ok() || world.device.is_down(), "an open failed: {opened:?}");
    opened.is_ok()
}

/// Opens a store on a healthy device, checks everything, and puts blocks.
fn check_whole(world: &mut World, turn: u64) {
    let opened = world.open();
    assert!(opened.is_ok(), "an open failed: {opened:?}");
    world.check_all();
    world.check_bounds();
    let refused = world.check_usable(turn);
    assert_eq!(refused, 0, "the store has no space for {refused} blocks");
    world.check_bounds();
    world.close();
    world.verify();
}

/// Runs a history that ends at one operation, checks what is left, and continues with a part of another run.
///
/// # Panics
///
/// If a check fails.
pub fn crash_at(world: &mut World, actions: &[Action], at: u64, chance: &mut Random) {
    world.device.fail_at(at);
    let lived = live(world, actions);
    assert!(world.device.is_down(), "this history had an operation {at} when it was counted");
    let mut outage = if chance.percent(30) { Outage::Process } else { Outage::Power };
    if outage == Outage::Process && chance.percent(50) {
        // The last writes of a killed process are there, but perhaps not durable, and later ones depend on them.
        world.reboot(outage);
        live_on(world, actions, lived, chance);
        outage = Outage::Power;
    }
    recover(world, outage, chance);
    live_on(world, actions, lived, chance);
    world.reboot(Outage::Power);
    world.verify();
    check_whole(world, 1);
}

/// Runs a part of a history until an outage comes: any part, or the one around the last outage. Half of the callers
/// first read everything, and so find what that outage tore.
fn live_on(world: &mut World, actions: &[Action], lived: usize, chance: &mut Random) {
    let first = if chance.percent(50) {
        lived.saturating_sub(chance.below(3))
    } else {
        chance.below(actions.len())
    };
    let reads = chance.percent(50);
    world.device.fail_at(world.device.changes() + 1 + chance.below(40) as u64);
    if !open(world) {
        return;
    }
    if reads {
        world.check_all();
    }
    act(world, &actions[first..actions.len().min(first + 12)]);
}

/// Runs every history of a style with an outage at every `step`th operation; the seed decides which is the first.
/// Returns the number of outages.
///
/// # Panics
///
/// If a check fails.
pub fn crash_everywhere(seeds: std::ops::Range<u64>, step: usize, style: &Style) -> u64 {
    let mut outages = 0;
    for seed in seeds {
        let actions = crate::history::history(seed, style);
        let common = Common::new(Blocks::default());
        let mut whole = common.world(style, seed, 0);
        live(&mut whole, &actions);
        whole.check_all();
        for change in (1 + seed % step as u64..=whole.device.changes()).step_by(step) {
            let _label = crate::label::Label(format!("seed {seed}, operation {change}"));
            let mut world = common.world(style, seed, change);
            world.device.fail_at(change);
            live(&mut world, &actions);
            recover(&mut world, Outage::Power, &mut Random::new(seed ^ change << 20));
            outages += 1;
        }
    }
    outages
}
