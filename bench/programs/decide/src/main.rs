//! What a decision of how many blocks to load costs: `CostModel::choose`, without a border to Python.
//!
//! Prints one JSON object: for each number of runs in which the tiers alternate, the median and the 99th percentile of
//! one decision in microseconds.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use clap::Parser;
use dalsegno_core::BlockTier;
use dalsegno_policy::first_token::{
    Ahead, ComputePrior, CostModel, Others, Overlap, Question, Situation, StepWork, StoredRuns,
    TierRun, TransferPrior,
};
use serde::Serialize;

const BLOCK_TOKENS: f64 = 16.0;
const BLOCK_BYTES: f64 = 2_097_152.0;
const CHUNK: f64 = 8192.0;

#[derive(Parser)]
#[command(about = "Times decisions of how many blocks to load")]
struct Args {
    /// Blocks of a request.
    #[arg(long, default_value_t = 4000)]
    blocks: usize,
    /// Runs into which they fall.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64")]
    runs: Vec<usize>,
    /// Decisions of each number of runs.
    #[arg(long, default_value_t = 20_000)]
    calls: usize,
}

#[derive(Serialize)]
struct Figure {
    p50_us: f64,
    p99_us: f64,
}

/// A model that has measured steps and loads of an engine.
fn learned() -> CostModel {
    let compute = ComputePrior { step_s: 9.6e-3, token_s: 4.3e-5, pair_s: 1.75e-9, read_s: 6.6e-8 };
    let tier = |bytes_per_s| TransferPrior { latency_s: 2e-3, bytes_per_s };
    let mut model = CostModel::new(compute, [tier(1e10), tier(2e9), tier(1e9)]);
    for at in 1_u32..=40 {
        let work = StepWork::of_request(f64::from(200 * at), f64::from(1000 * (at % 7)));
        model.note_step(work, 1e-2 + 5e-5 * work.tokens + 2e-9 * work.pairs);
        model.note_load(BlockTier::Dram, f64::from(at) * 1e8, 1e-3 + f64::from(at) * 1e-2);
        model.note_load(BlockTier::Log, f64::from(at) * 1e8, 2e-3 + f64::from(at) * 5e-2);
    }
    model
}

#[expect(clippy::cast_precision_loss, reason = "far fewer blocks than 2^52")]
fn figure(blocks: usize, runs: usize, calls: usize) -> Figure {
    let model = learned();
    let tier = |at: usize| if at % 2 == 0 { BlockTier::Dram } else { BlockTier::Log };
    let count = |at: usize| blocks * (at + 1) / runs - blocks * at / runs;
    let runs: Vec<TierRun> =
        (0..runs).map(|at| TierRun { tier: tier(at), blocks: count(at) }).collect();
    let question = Question {
        found: StoredRuns::default(),
        block_tokens: BLOCK_TOKENS,
        computed: 0.0,
        prompt: blocks as f64 * BLOCK_TOKENS + 1.0,
        chunk: CHUNK,
        layers: 32.0,
        overlap: Overlap { most_blocks: blocks, most_copied: blocks / 8, most_wait_s: 0.05 },
        ahead: Ahead { notice_s: 0.01, most_s: 10.0 },
        others: Others { backlog_s: 0.0, waiting: 0.0, are_delayed: false },
        guard_s: 0.005,
    };
    let situation = Situation {
        runs: &runs,
        block_bytes: BLOCK_BYTES,
        queued: [0.0; 3],
        both_ends: true,
        question,
    };
    let mut spent: Vec<u128> = (0..2 * calls)
        .map(|_| {
            let started = Instant::now();
            black_box(model.choose(black_box(&situation)));
            started.elapsed().as_nanos()
        })
        .skip(calls)
        .collect();
    spent.sort_unstable();
    let us = |at: usize| spent[at.min(calls - 1)] as f64 / 1e3;
    Figure { p50_us: us(calls / 2), p99_us: us(calls * 99 / 100) }
}

fn main() {
    let args = Args::parse();
    let figures: BTreeMap<usize, Figure> =
        args.runs.iter().map(|runs| (*runs, figure(args.blocks, *runs, args.calls))).collect();
    println!("{}", serde_json::to_string(&figures).expect("plain fields"));
}
