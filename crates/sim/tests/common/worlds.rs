//! Worlds that tests start with.

use dalsegno_io::BufferPool;
use dalsegno_sim::{Blocks, DeviceOptions, Part, Style, World, chain_hashes};

/// A store that is not open yet, and its device.
pub(crate) fn world(style: &Style, seed: u64) -> World {
    let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
    let options = DeviceOptions { seed, ..DeviceOptions::default() };
    World::new(style, options, &Blocks::default(), &pool)
}

/// An open store with a few chains in each namespace.
pub(crate) fn filled(style: &Style, seed: u64) -> World {
    let mut world = world(style, seed);
    world.open().unwrap();
    for chain in 0..4 {
        for namespace in 0..style.shapes.len() {
            world.put(&part(namespace, chain), false).unwrap();
        }
    }
    world
}

/// A chain of four blocks.
pub(crate) fn part(namespace: usize, chain: u64) -> Part {
    Part { namespace, chain: chain_hashes(10 + 2 * chain, 4), first: 0 }
}
