//! What is known of one engine and its store: how fast it computes, and how fast each tier loads.
//!
//! 1. The memory of a model does not grow.

use dalsegno_core::BlockTier;

use super::choice::{LoadChoice, Question, Run, StoredRuns, choose, load_all, number};
use super::compute::{ComputeModel, ComputePrior, StepWork};
use super::learned::Shown;
use super::runs::TierRun;
use super::transfer::{LargeLoads, TransferModel, TransferPrior};

/// The part of its first token by which that of a request may come later.
const GUARD_PART: f64 = 0.02;

/// A request, and the state of the engine and its store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Situation<'a> {
    /// Where its blocks are, from the first one that is not computed.
    pub runs: &'a [TierRun],
    /// Bytes of a block.
    pub block_bytes: f64,
    /// Bytes that are queued for each tier, as in [`BlockTier::ALL`].
    pub queued: [f64; 3],
    /// Whether blocks can be loaded from the last one on.
    pub both_ends: bool,
    /// The rest, whose `found` is not used.
    pub question: Question<'a>,
}

/// The model of one engine.
#[derive(Clone, Debug)]
pub struct CostModel {
    compute: ComputeModel,
    tiers: [TransferModel; 3],
}

impl CostModel {
    /// Starts with what is assumed.
    #[must_use]
    pub fn new(compute: ComputePrior, tiers: [TransferPrior; 3]) -> Self {
        Self { compute: ComputeModel::new(compute), tiers: tiers.map(TransferModel::new) }
    }

    /// Learns that a step took so many seconds. A step that waited for a load says nothing about computing.
    pub fn note_step(&mut self, work: StepWork, seconds: f64) {
        self.compute.note(work, seconds);
    }

    /// Learns that a load from one tier took so many seconds; see [`TransferModel::note`].
    pub fn note_load(&mut self, tier: BlockTier, bytes: f64, seconds: f64) -> Shown {
        self.tiers[tier as usize].note(bytes, seconds)
    }

    /// Learns that a read for which nobody waited took `seconds`, or more; see [`TransferModel::note_read`].
    pub fn note_read(
        &mut self,
        tier: BlockTier,
        bytes: f64,
        seconds: f64,
        is_whole: bool,
    ) -> Shown {
        self.tiers[tier as usize].note_read(bytes, seconds, is_whole)
    }

    /// Learns that a sample of a tier was early; see [`TransferModel::note_early_sample`].
    pub fn note_early_sample(&mut self, tier: BlockTier, bytes: f64) {
        self.tiers[tier as usize].note_early_sample(bytes);
    }

    /// Learns that a load from one tier was late for its step; see [`TransferModel::note_late_in_step`].
    pub fn note_late_in_step(&mut self, tier: BlockTier) {
        self.tiers[tier as usize].note_late_in_step();
    }

    /// Learns that a load from one tier was given up; see [`TransferModel::note_given_up`].
    pub fn note_given_up(&mut self, tier: BlockTier, bytes: f64) {
        self.tiers[tier as usize].note_given_up(bytes);
    }

    /// What is known of steps.
    #[must_use]
    pub fn compute(&self) -> &ComputeModel {
        &self.compute
    }

    /// What is known of a tier.
    #[must_use]
    pub fn tier(&self, tier: BlockTier) -> &TransferModel {
        &self.tiers[tier as usize]
    }

    /// The seconds by which the first token of a request may come later than without us.
    #[must_use]
    pub fn guard_s(&self, least_s: f64, computed: f64, prompt: f64, chunk: f64) -> f64 {
        least_s.max(GUARD_PART * self.compute.request_s(computed, prompt, chunk))
    }

    /// Chooses how many leading blocks of a request to load.
    #[must_use]
    pub fn choose(&self, situation: &Situation<'_>) -> LoadChoice {
        let (runs, back) = (self.timed(situation), self.timed_back(situation));
        let found = StoredRuns { runs: &runs, back: &back };
        choose(&Question { found, ..situation.question }, &self.compute)
    }

    /// Chooses the way of loading all blocks of a request, whatever that costs.
    #[must_use]
    pub fn load_all(&self, situation: &Situation<'_>) -> LoadChoice {
        let runs = self.timed(situation);
        let found = StoredRuns { runs: &runs, back: &[] };
        load_all(&Question { found, ..situation.question }, &self.compute)
    }

    /// The runs with the times of their tiers, which most loads do not exceed.
    fn timed(&self, situation: &Situation<'_>) -> Vec<Run> {
        let block = situation.block_bytes;
        timed(situation, situation.runs.iter(), |run, before| Pace {
            first_s: self.tier(run.tier).usual_s(before),
            block_s: self.tier(run.tier).more_s(before, block),
            large: self.tier(run.tier).large(),
        })
    }

    /// The runs from the last block on, with the times that are expected: a late back costs nothing.
    fn timed_back(&self, situation: &Situation<'_>) -> Vec<Run> {
        let block = situation.block_bytes;
        let runs = situation.runs.iter().rev().filter(|_| situation.both_ends);
        timed(situation, runs, |run, before| {
            let tier = self.tier(run.tier);
            let first_s = tier.expected_s(before);
            Pace {
                first_s,
                block_s: tier.expected_s(before + block) - first_s,
                large: tier.large(),
            }
        })
    }
}

/// How fast blocks of a tier arrive.
struct Pace {
    /// Seconds of what is queued before them.
    first_s: f64,
    /// Seconds of each.
    block_s: f64,
    large: Option<LargeLoads>,
}

/// Runs with times. All runs of a tier are one load: the first one waits for what is queued and for the tier, and they
/// are large together.
fn timed<'a>(
    situation: &Situation<'_>,
    runs: impl Iterator<Item = &'a TierRun>,
    pace: impl Fn(&TierRun, f64) -> Pace,
) -> Vec<Run> {
    let mut queued = situation.queued;
    let mut begun = [false; 3];
    let timed = |run: &TierRun| {
        let (at, bytes) = (run.tier as usize, situation.block_bytes);
        let before = queued[at];
        queued[at] += number(run.blocks) * bytes;
        let is_first = !std::mem::replace(&mut begun[at], true);
        let Pace { first_s, block_s, large } = pace(run, before);
        let latency_s = if is_first { first_s } else { 0.0 };
        let large = large.map(|large| LargeLoads {
            least: large.least / bytes,
            seen: large.seen / bytes,
            before: before / bytes,
            counted_s: if is_first { 0.0 } else { large.late_s(before) },
            late_s: large.late_s,
        });
        Run { blocks: run.blocks, latency_s, block_s, large }
    };
    runs.map(timed).collect()
}
