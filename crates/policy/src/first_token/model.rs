//! What is known of one engine and its store: how fast it computes, and how fast each tier loads.
//!
//! 1. The memory of a model does not grow.

use dalsegno_core::BlockTier;

use super::choice::{LoadChoice, Question, Run, choose, load_all, number};
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
    /// The rest, whose `runs` are not used.
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
        choose(&Question { runs: &self.timed(situation), ..situation.question }, &self.compute)
    }

    /// Chooses the way of loading all blocks of a request, whatever that costs.
    #[must_use]
    pub fn load_all(&self, situation: &Situation<'_>) -> LoadChoice {
        load_all(&Question { runs: &self.timed(situation), ..situation.question }, &self.compute)
    }

    /// The runs with the times of their tiers. All runs of a tier are one load: the first one waits for what is queued
    /// and for the tier, and they are large together.
    fn timed(&self, situation: &Situation<'_>) -> Vec<Run> {
        let mut queued = situation.queued;
        let mut begun = [false; 3];
        let timed = |run: &TierRun| {
            let (at, bytes) = (run.tier as usize, situation.block_bytes);
            let before = queued[at];
            queued[at] += number(run.blocks) * bytes;
            let is_first = !std::mem::replace(&mut begun[at], true);
            let tier = self.tier(run.tier);
            let latency_s = if is_first { tier.usual_s(before) } else { 0.0 };
            let block_s = tier.more_s(before, bytes);
            let large = tier.large().map(|large| LargeLoads {
                least: large.least / bytes,
                seen: large.seen / bytes,
                before: before / bytes,
                counted_s: if is_first { 0.0 } else { large.late_s(before) },
                late_s: large.late_s,
            });
            Run { blocks: run.blocks, latency_s, block_s, large }
        };
        situation.runs.iter().map(timed).collect()
    }
}
