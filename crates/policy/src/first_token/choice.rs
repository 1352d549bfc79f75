//! How many leading blocks of a request to load, and how.
//!
//! 1. The chosen plan is predicted to give the first token no later than computing everything, and no later than
//!    loading everything, but for what a small gain is not worth.
//! 2. Of the plans that others wait for, the one is chosen after which all first tokens together come soonest, if the
//!    request's own one comes no later than behind those before it without us.
//! 3. The work of a decision is bounded, whatever the blocks are in.
//!
//! # Three ways to load
//!
//! *Ahead*: the request waits for its blocks, and the engine computes others. If it does, the request is computed after
//! the step in which its load ends.
//!
//! *Overlapped*: a step waits for each layer of the blocks before it computes that layer. With `L` layers, a load of
//! `r` seconds whose first layer arrives after `f`, and a step of `c` that is uniform over the layers, the step ends
//! after `max(r + c / L, f + c)`: either the last layer is computed after it has arrived, or the first one has arrived
//! before all are computed. `f` is the latency of the tier and a part `1 / L` of the rest.

use super::compute::ComputeModel;
use super::transfer::LargeLoads;

/// Positions that are tried in addition to the borders of runs.
const TRIED: usize = 24;
/// Positions that are tried around the best of these.
const CLOSER: usize = 16;
/// Runs whose borders are tried.
const MOST_RUNS: usize = 16;
/// A load may take so many times longer than predicted before it is given up: then everything is computed, far later
/// than without it.
const MARGIN: f64 = 1.25;
/// A plan must gain this part of the guard to be worth its trouble.
const LEAST_GAIN: f64 = 0.2;
/// The same of one that divides a prompt into more steps, compared with computing it.
const LEAST_GAIN_OF_STEPS: f64 = 2.0;
/// The part of reads inside a step that are late, after which everything is computed. Loads from the last block on have
/// no such risk.
const RISK: f64 = 0.05;

/// A step that delays nobody may wait so many times longer than others.
const PATIENT: f64 = 10.0;

/// Parts in which the back of a prompt is loaded, if it has that many blocks.
const PARTS: usize = 64;
/// Parts that are lost, or awaited, where both ends meet.
const LOST_PARTS: f64 = 1.0;

/// Blocks in a row that one tier has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// How many blocks.
    pub blocks: usize,
    /// Seconds before the first byte of the run arrives, with what is queued for its tier.
    pub latency_s: f64,
    /// Seconds that one more block takes.
    pub block_s: f64,
    /// From how many blocks on they take longer, if so; in blocks.
    pub large: Option<LargeLoads>,
}

impl Run {
    /// The seconds in which so many of its blocks arrive.
    fn load_s(&self, blocks: usize) -> f64 {
        let count = number(blocks);
        self.latency_s + count * self.block_s + self.large.map_or(0.0, |large| large.late_s(count))
    }

    /// The seconds in which the first of so many layers of these blocks arrives.
    fn first_layer_s(&self, blocks: usize, layers: f64) -> f64 {
        self.latency_s + (self.load_s(blocks) - self.latency_s) / layers
    }
}

/// A request whose leading blocks can be loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Question<'a> {
    /// Where its blocks are.
    pub found: StoredRuns<'a>,
    /// Tokens of a block.
    pub block_tokens: f64,
    /// Tokens that the engine has already.
    pub computed: f64,
    /// Tokens of the prompt.
    pub prompt: f64,
    /// Tokens of one request that a step computes at most.
    pub chunk: f64,
    /// Layers of the model.
    pub layers: f64,
    /// For which blocks a step may wait.
    pub overlap: Overlap,
    /// Loads for which the request waits.
    pub ahead: Ahead,
    /// Who else waits.
    pub others: Others,
    /// Seconds by which the first token may come later than the model predicts without anything being wrong.
    pub guard_s: f64,
}

/// The blocks of a request that a store has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StoredRuns<'a> {
    /// From the first one that is not computed.
    pub runs: &'a [Run],
    /// From the last one on; empty if blocks cannot be loaded from there.
    pub back: &'a [Run],
}

/// What is known of loads for which a request waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ahead {
    /// Seconds after its load until the request is computed: the rest of a step of others.
    pub notice_s: f64,
    /// Seconds after which a load is given up.
    pub most_s: f64,
}

/// Other requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Others {
    /// Seconds that the engine computes for requests before this one.
    pub backlog_s: f64,
    /// Requests that wait behind this one.
    pub waiting: f64,
    /// Whether a step that waits delays any.
    pub are_delayed: bool,
}

/// The blocks for which a step may wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// Leading blocks, if there are at most so many; 0 if no step may wait.
    pub most_blocks: usize,
    /// Of these, leading blocks that are copied and not read: what a step computes is not set against their load.
    pub most_copied: usize,
    /// Seconds for which a step may wait in all, while it computes nothing. One that delays nobody and reads
    /// may wait [`PATIENT`] times as long, if the first step that computes the blocks would take as long.
    pub most_wait_s: f64,
}

/// How blocks are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The request waits for them.
    Ahead,
    /// A step waits for each layer of them.
    Overlapped,
    /// The request computes while they are loaded, from the last one on.
    BothEnds {
        /// Leading blocks that are computed, as predicted.
        front: usize,
    },
}

/// What to load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadChoice {
    /// How many leading blocks.
    pub blocks: usize,
    /// How.
    pub way: Way,
    /// Seconds until the first token, as predicted.
    pub first_token_s: f64,
    /// The same if nothing is loaded.
    pub computed_s: f64,
    /// The same if everything is loaded, in the better way; infinite if that load might be given up.
    pub loaded_s: f64,
    /// Seconds that most such loads do not exceed.
    pub load_s: f64,
    /// Seconds of computing that the blocks save.
    pub saved_s: f64,
    /// Seconds that the step behind the blocks computes.
    pub step_s: f64,
    /// Seconds for which that may wait in all.
    pub wait_s: f64,
}

/// The predicted times of a plan.
#[derive(Clone, Copy, Debug)]
struct LoadPlan {
    blocks: usize,
    way: Way,
    first_token_s: f64,
    /// In which the engine computes, or waits, for this request.
    engine_s: f64,
}

/// The blocks of one part of the back of a prompt, of which `blocks` could be loaded.
#[must_use]
pub fn part_of(blocks: usize) -> usize {
    blocks.div_ceil(PARTS)
}

/// Chooses how many leading blocks to load.
#[must_use]
pub fn choose(question: &Question<'_>, compute: &ComputeModel) -> LoadChoice {
    question.choice(compute, question.best(compute))
}

/// Chooses the way of loading all blocks, whatever that costs.
#[must_use]
pub fn load_all(question: &Question<'_>, compute: &ComputeModel) -> LoadChoice {
    question.choice(compute, question.better(compute, question.total()))
}

/// Numbers of blocks around one of [`Question::positions`], as far as its neighbours.
fn between(best: usize, total: usize) -> impl Iterator<Item = usize> {
    let distance = total / TRIED;
    let first = best.saturating_sub(distance);
    let last = (best + distance).min(total);
    (1..CLOSER).map(move |at| first + (last - first) * at / CLOSER).filter(|blocks| *blocks > 0)
}

impl Question<'_> {
    /// The numbers of blocks to try: the borders of runs, and others at equal distances.
    fn positions(&self, total: usize) -> impl Iterator<Item = usize> {
        let ends = self.found.runs.iter().take(MOST_RUNS).scan(0, |end, run| {
            *end += run.blocks;
            Some(*end)
        });
        let between = (1..=TRIED).map(move |at| total * at / TRIED);
        ends.chain(between).filter(|blocks| *blocks > 0)
    }

    fn total(&self) -> usize {
        self.found.runs.iter().map(|run| run.blocks).sum()
    }

    /// A plan with its times, and those of its two ends.
    fn choice(&self, compute: &ComputeModel, plan: LoadPlan) -> LoadChoice {
        let (load_s, front) = match plan.way {
            Way::BothEnds { front } => (self.back_s(plan.blocks - front), front),
            Way::Ahead | Way::Overlapped => (self.load_s(plan.blocks), 0),
        };
        LoadChoice {
            blocks: plan.blocks,
            way: plan.way,
            first_token_s: plan.first_token_s,
            computed_s: self.better(compute, 0).first_token_s,
            loaded_s: self.better(compute, self.total()).first_token_s,
            load_s,
            saved_s: self.saved_s(compute, plan.blocks) - self.front_s(compute, front),
            step_s: self.step_s(compute, self.end_of(plan.blocks)),
            wait_s: self.most_wait_s(compute, plan.blocks),
        }
    }

    /// The plan after which all first tokens together come soonest, of those that do not delay the request's own one.
    fn best(&self, compute: &ComputeModel) -> LoadPlan {
        let (nothing, total) = (self.better(compute, 0), self.total());
        let latest_s = nothing.first_token_s + self.others.backlog_s;
        let cost = |plan: &LoadPlan| plan.first_token_s + self.others.waiting * plan.engine_s;
        let mut best = nothing;
        let compare = |blocks: usize, best: &mut LoadPlan| {
            let plan = self.better(compute, blocks);
            if plan.first_token_s <= latest_s && cost(&plan) < cost(best) {
                *best = plan;
            }
        };
        for blocks in self.positions(total) {
            compare(blocks, &mut best);
        }
        for blocks in between(best.blocks, total) {
            compare(blocks, &mut best);
        }
        let is_worth = |plan: &LoadPlan| {
            plan.first_token_s <= latest_s
                && cost(&best) - cost(plan) >= LEAST_GAIN * self.guard_s
                && cost(&nothing) - cost(plan) >= LEAST_GAIN_OF_STEPS * self.guard_s
        };
        if let Some(plan) = self.both_ends(compute).filter(is_worth) {
            best = plan;
        }
        let gain_s = cost(&nothing) - cost(&best);
        if gain_s < LEAST_GAIN * self.guard_s { nothing } else { best }
    }

    /// The way of loading so many blocks after which the first token comes sooner.
    fn better(&self, compute: &ComputeModel, blocks: usize) -> LoadPlan {
        let layers = self.layers.max(1.0);
        let load_s = self.load_s(blocks);
        let from = self.end_of(blocks);
        let rest_s = compute.request_s(from, self.prompt, self.chunk);
        let first_token_s = self.ahead_s(blocks, load_s) + rest_s;
        let ahead = LoadPlan { blocks, way: Way::Ahead, first_token_s, engine_s: rest_s };
        if blocks == 0 || blocks > self.overlap.most_blocks {
            return ahead;
        }
        let step_s = self.step_s(compute, from);
        let first_s = sum(self.found.runs, blocks, |run, count| run.first_layer_s(count, layers));
        let waited_s = |part: f64, step_s: f64| {
            (part * first_s).max(part * load_s - step_s * (layers - 1.0) / layers)
        };
        let beside_s = if blocks <= self.overlap.most_copied { 0.0 } else { step_s };
        if waited_s(MARGIN, beside_s) > self.most_wait_s(compute, blocks) {
            return ahead;
        }
        let overlapped_s = step_s + waited_s(1.0, step_s);
        let is_risk = !self.found.back.is_empty() && blocks > self.overlap.most_copied;
        let risk_s = if is_risk { RISK * self.front_s(compute, blocks) } else { 0.0 };
        let all_s = overlapped_s + rest_s - step_s + risk_s;
        if all_s > ahead.first_token_s {
            return ahead;
        }
        LoadPlan { blocks, way: Way::Overlapped, first_token_s: all_s, engine_s: all_s }
    }

    /// The plan that loads blocks from the last one on while it computes those before; `None` if that is no way here.
    fn both_ends(&self, compute: &ComputeModel) -> Option<LoadPlan> {
        let total = self.total();
        if self.found.back.is_empty() || total < 2 {
            return None;
        }
        let times = |front| (self.front_s(compute, front), self.back_s(total - front));
        let (mut least, mut most) = (1, total - 1);
        while least < most {
            let middle = usize::midpoint(least, most);
            let (front_s, back_s) = times(middle);
            if front_s < back_s {
                least = middle + 1;
            } else {
                most = middle;
            }
        }
        let met_s = |front| {
            let (front_s, back_s) = times(front);
            front_s.max(back_s)
        };
        let before = (least - 1).max(1);
        let front = if met_s(before) < met_s(least) { before } else { least };
        let lost_s = LOST_PARTS * self.back_s(total) * number(part_of(total)) / number(total);
        let rest_s = compute.request_s(self.end_of(total), self.prompt, self.chunk);
        let first_token_s = met_s(front) + lost_s + rest_s;
        let engine_s = self.front_s(compute, front) + rest_s;
        Some(LoadPlan { blocks: total, way: Way::BothEnds { front }, first_token_s, engine_s })
    }

    /// The seconds for which a request waits for so many blocks; infinite if their load might be given up.
    fn ahead_s(&self, blocks: usize, load_s: f64) -> f64 {
        match blocks {
            0 => 0.0,
            _ if MARGIN * load_s > self.ahead.most_s => f64::INFINITY,
            _ => load_s + self.ahead.notice_s,
        }
    }

    /// The seconds for which a step may wait for so many blocks.
    fn most_wait_s(&self, compute: &ComputeModel, blocks: usize) -> f64 {
        let most_s = self.overlap.most_wait_s;
        if self.others.are_delayed || blocks <= self.overlap.most_copied {
            return most_s;
        }
        let own_s = self.front_s(compute, blocks).min(self.step_s(compute, self.computed));
        own_s.min(self.ahead.most_s).min(PATIENT * most_s).max(most_s)
    }

    /// The first token behind so many leading blocks. The last token is computed in any case.
    fn end_of(&self, blocks: usize) -> f64 {
        let end = self.computed + number(blocks) * self.block_tokens;
        end.min(self.prompt - 1.0).max(0.0)
    }

    /// The seconds of the first step from a token on.
    fn step_s(&self, compute: &ComputeModel, from: f64) -> f64 {
        let end = (from + self.chunk).min(self.prompt);
        compute.request_s(from, end, self.chunk)
    }

    /// The seconds of computing that so many leading blocks save.
    fn saved_s(&self, compute: &ComputeModel, blocks: usize) -> f64 {
        let end = self.computed + number(blocks) * self.block_tokens;
        compute.request_s(self.computed, end, self.chunk)
    }

    /// The seconds in which so many leading blocks are computed.
    fn front_s(&self, compute: &ComputeModel, blocks: usize) -> f64 {
        compute.request_s(self.computed, self.end_of(blocks), self.chunk)
    }

    /// The seconds in which so many blocks arrive, the last ones first.
    fn back_s(&self, blocks: usize) -> f64 {
        sum(self.found.back, blocks, Run::load_s)
    }

    /// The seconds in which so many leading blocks arrive.
    fn load_s(&self, blocks: usize) -> f64 {
        sum(self.found.runs, blocks, Run::load_s)
    }
}

/// The sum of the times of runs, one after the other, for the first `blocks` blocks.
fn sum(runs: &[Run], blocks: usize, time: impl Fn(&Run, usize) -> f64) -> f64 {
    let (mut left, mut sum_s) = (blocks, 0.0);
    for run in runs {
        let count = run.blocks.min(left);
        if count == 0 {
            break;
        }
        sum_s += time(run, count);
        left -= count;
    }
    sum_s
}

#[expect(clippy::cast_precision_loss, reason = "far fewer blocks than 2^52")]
pub(super) fn number(blocks: usize) -> f64 {
    blocks as f64
}
