//! An index that exceeded its share of the disk has forgotten the places of blocks, but their extents still name them.

use crate::dose::dose;
use crate::worlds::world;
use dalsegno_core::Durability;
use dalsegno_sim::{Action, Part, Style, World, chain_hashes};
use dalsegno_store::PutOutcome;

const BLOCKS: usize = 400;

fn part(chain: u64, first: usize, last: usize) -> Part {
    Part { namespace: 0, chain: chain_hashes(10 + 2 * chain, BLOCKS)[..=last].to_vec(), first }
}

/// A store whose index forgot something, and how many chains were put to it.
fn partial() -> (World, u64) {
    let roomy = Style::roomy(Durability::Batch).indexed_in_files();
    let style = Style { shapes: vec![(1, 512)], memtable_bytes: Some(64 << 10), ..roomy };
    let mut world = world(&style, 1);
    world.open().unwrap();
    // What is forgotten is a miss.
    world.expect_faults();
    for chain in 0..400 {
        world.put(&part(chain, 0, BLOCKS - 1), false).unwrap();
        if world.stats().index.unwrap().lsm.forgotten_tables > 0 {
            return (world, chain);
        }
    }
    panic!("the index has room for all of it");
}

/// The first block of a chain that is not found though the one before it is.
fn forgotten(world: &World, chain: u64) -> Option<usize> {
    let found: Vec<bool> =
        (0..BLOCKS).map(|at| world.get(&part(chain, at, at), false) == 1).collect();
    (1..BLOCKS).find(|at| found[at - 1] && !found[*at])
}

#[test]
fn forgotten_blocks_are_removed_as_well() {
    let ways = [(false, false), (true, false), (false, true), (true, true)];
    for (opens, puts_again) in ways.into_iter().step_by(dose(3, 1)) {
        let (mut world, chains) = partial();
        let mut removed = Vec::new();
        for chain in 0..chains {
            let Some(at) = forgotten(&world, chain) else { continue };
            if puts_again {
                world.act(&Action::Put(part(chain, at, at), false));
            }
            world.act(&Action::Remove(part(chain, at, at)));
            if opens && removed.is_empty() {
                world.open().unwrap();
            }
            world.act(&Action::Get(part(chain, at - 1, at), false));
            world.act(&Action::Probe(part(chain, at - 1, at)));
            world.act(&Action::Get(part(chain, 0, BLOCKS - 1), false));
            removed.push(part(chain, at, at));
        }
        assert!(removed.len() > 1, "something was forgotten");
        for part in removed {
            let outcomes = world.put(&part, false).unwrap().outcomes;
            assert_eq!(outcomes, [PutOutcome::Stored], "it counted as absent");
            assert_eq!(world.get(&part, false), 1);
        }
    }
}
