//! Where the leading blocks of a request are that several ranks have.
//!
//! 1. A block counts as in the farthest tier of any rank: all of them wait for the last one.

use std::iter::once;

use dalsegno_core::BlockTier;

/// Consecutive blocks of a request that one tier has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierRun {
    /// The tier.
    pub tier: BlockTier,
    /// How many blocks.
    pub blocks: usize,
}

/// The tiers of the first `found` blocks, given those of each rank. A block that a rank does not name has left since it
/// was found: it counts as read from the log.
#[must_use]
pub fn farthest_runs(ranks: &[Vec<TierRun>], found: usize) -> Vec<TierRun> {
    let gone = TierRun { tier: BlockTier::Log, blocks: found };
    let mut ranks: Vec<_> = ranks.iter().map(|runs| ends(runs, &gone).peekable()).collect();
    let mut merged: Vec<TierRun> = Vec::new();
    let mut at = 0;
    while at < found {
        let (mut end, mut tier) = (found, BlockTier::Dram);
        for runs in &mut ranks {
            while runs.next_if(|(run_end, _)| *run_end <= at).is_some() {}
            let (run_end, run_tier) = *runs.peek().expect("the last run ends behind all blocks");
            end = end.min(run_end);
            tier = if run_tier as usize > tier as usize { run_tier } else { tier };
        }
        match merged.last_mut().filter(|last| last.tier == tier) {
            Some(last) => last.blocks += end - at,
            None => merged.push(TierRun { tier, blocks: end - at }),
        }
        at = end;
    }
    merged
}

/// Where runs and a last one end, and their tiers.
fn ends<'a>(
    runs: &'a [TierRun],
    last: &'a TierRun,
) -> impl Iterator<Item = (usize, BlockTier)> + 'a {
    runs.iter().chain(once(last)).scan(0_usize, |end, run| {
        *end = end.saturating_add(run.blocks);
        Some((*end, run.tier))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run() -> impl Strategy<Value = TierRun> {
        let tier = (0..BlockTier::ALL.len()).prop_map(|at| BlockTier::ALL[at]);
        (tier, 0..6_usize).prop_map(|(tier, blocks)| TierRun { tier, blocks })
    }

    /// The tier of each block.
    fn each(runs: &[TierRun]) -> impl Iterator<Item = BlockTier> {
        runs.iter().flat_map(|run| std::iter::repeat_n(run.tier, run.blocks))
    }

    proptest! {
        #[test]
        fn each_block_is_in_the_farthest_tier_of_any_rank(
            ranks in prop::collection::vec(prop::collection::vec(run(), 0..6), 1..5),
            found in 0..30_usize,
        ) {
            let merged = farthest_runs(&ranks, found);
            let expected = (0..found).map(|at| {
                let tiers = ranks.iter().map(|runs| each(runs).nth(at).unwrap_or(BlockTier::Log));
                tiers.max_by_key(|tier| *tier as usize).unwrap()
            });
            prop_assert_eq!(each(&merged).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
            prop_assert!(merged.windows(2).all(|two| two[0].tier != two[1].tier));
            prop_assert!(merged.iter().all(|run| run.blocks > 0));
        }
    }
}
