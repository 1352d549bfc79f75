//! Histories of callers with a habit, which reach states that random ones seldom do.

use crate::blocks::chain_hashes;
use crate::history::{Action, Part, Style, history};
use crate::random::Random;

/// Chains that grow at the same time.
const GROWING_CHAINS: usize = 3;
/// A growing chain restarts at this length.
const GROWN_BLOCKS: usize = 10;
/// Blocks of each chain of a caller that always puts new chains.
const NEW_BLOCKS: usize = 5;

/// The habit of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// A bit of everything, with chains that overlap.
    Mixed,
    /// Chains that grow block by block in turn, as in decoding. There is always something to merge.
    Growing,
    /// New chains all the time, with removals between them. Segments with tombstones are reclaimed all the time.
    Churning,
}

impl Habit {
    /// The actions of such callers. Equal seeds give equal actions.
    #[must_use]
    pub fn history(self, seed: u64, style: &Style) -> Vec<Action> {
        let mut random = Random::new(seed);
        match self {
            Self::Mixed => history(seed, style),
            Self::Growing => growing(&mut random, style),
            Self::Churning => churning(&mut random, style),
        }
    }
}

/// A chain of so many blocks from block `first` on. Chains with other names share no block.
fn part(namespace: usize, name: usize, blocks: usize, first: usize) -> Part {
    Part { namespace, chain: chain_hashes(2 * name as u64, blocks), first }
}

fn growing(random: &mut Random, style: &Style) -> Vec<Action> {
    let namespace = random.below(style.shapes.len());
    let part = |name, blocks, first| part(namespace, name, blocks, first);
    let mut lengths = [0; GROWING_CHAINS];
    let mut actions = Vec::new();
    while actions.len() < style.actions {
        let name = random.below(GROWING_CHAINS);
        let length = lengths[name] % GROWN_BLOCKS + 1;
        lengths[name] = length;
        actions.push(Action::Put(part(name, length, length - 1), random.percent(30)));
        if random.percent(15) {
            actions.push(Action::Remove(part(name, length, random.below(length))));
        }
        if random.percent(10) {
            actions.push(Action::Get(part(name, length, 0), random.percent(30)));
        }
        if random.percent(5) {
            actions.push(Action::Reopen);
        }
    }
    actions
}

fn churning(random: &mut Random, style: &Style) -> Vec<Action> {
    let bytes = |shape: &(u32, u32)| shape.0 * shape.1;
    let largest = (0..style.shapes.len()).max_by_key(|at| bytes(&style.shapes[*at]));
    let namespace = largest.expect("a style has shapes");
    let part = |name, blocks, first| part(namespace, name, blocks, first);
    let mut actions = Vec::new();
    for turn in 0..style.actions {
        actions.push(Action::Put(part(turn, NEW_BLOCKS, 0), random.percent(30)));
        let recent = turn - random.below(turn.min(6) + 1);
        let any = random.below(turn + 1);
        let first = random.below(NEW_BLOCKS);
        match random.below(100) {
            0..20 => actions.push(Action::Remove(part(recent, first + 1, first))),
            20..30 => actions.push(Action::Remove(part(any, NEW_BLOCKS, first))),
            30..35 => actions.push(Action::Put(part(any, NEW_BLOCKS, 0), false)),
            35..75 => actions.push(Action::Get(part(recent, NEW_BLOCKS, 0), false)),
            75..79 => actions.push(Action::Reopen),
            79..80 => actions.push(Action::RemoveAll(namespace)),
            _ => {}
        }
    }
    actions
}
