//! The index with a shape that follows what is asked of it, against every shape of a grid that stays.
//!
//! Prints tables, and as its last line one JSON object.
//!
//! What counts is pages of 4 KiB: those that look-ups read, those of flushes, those that merges read and write. A large
//! merge falls into one stage and works for many, in every shape at another time. So a stage is charged not what was
//! merged in it but its part of what the run merged in all: by how much of that its flushes caused according to the
//! model of the tree, in the shape that each of them met. The rule is the same for the shape that follows and for those
//! that stay, and the sum over a run is what was counted.

mod prompts;
mod report;
mod run;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Parser;
use dalsegno_bench_index::workload::load;
use dalsegno_core::fluid::{IndexTuning, Shape};
use prompts::HIT_RATES;
use report::{Contender, Scenario};
use run::{Sizes, Trace};

#[derive(Parser)]
#[command(about = "Compares the adaptive shape of the index with fixed ones")]
struct Args {
    /// Prompts of a stage with pages of 64 tokens; with pages of one token there are 24 times fewer.
    #[arg(long, default_value_t = 288)]
    prompts: u64,
    /// Tokens of a page.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1])]
    pages: Vec<u64>,
    /// Seeds of the prompts; figures are sums over them.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    seeds: Vec<u64>,
    /// KiB of memory before a table is written with pages of 64 tokens; with pages of one token it is four times this.
    #[arg(long, default_value_t = 48)]
    memtable_kib: u64,
    /// KiB of memory for blocks of tables.
    #[arg(long, default_value_t = 128)]
    cache_kib: u64,
    /// Bits of filter per entry.
    #[arg(long, default_value_t = 4.0)]
    filter_bits: f64,
    /// Runs at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Where the files go; a new folder in it is used and removed.
    #[arg(long, default_value = "/tmp")]
    dir: PathBuf,
    /// A smoke test: few prompts, one seed, few shapes.
    #[arg(long)]
    quick: bool,
    /// Only the adaptive runs, and what they counted.
    #[arg(long)]
    adaptive_only: bool,
}

/// Leveled, halfway, tiered above one run, tiered everywhere.
fn grid(quick: bool) -> Vec<Shape> {
    let ratios: &[u32] = if quick { &[2, 8] } else { &[2, 4, 6, 8, 12, 16] };
    let shapes = ratios.iter().flat_map(|&ratio| {
        let runs = [1, ratio / 2, ratio - 1].into_iter();
        runs.flat_map(move |runs| [1, runs].map(|last| Shape::nearest(ratio, runs, last)))
    });
    let mut shapes: Vec<Shape> = shapes.collect();
    shapes.sort_unstable();
    shapes.dedup();
    shapes
}

fn sizes(args: &Args, page_tokens: u64) -> Sizes {
    // With pages of one token a prompt is 64 times longer. A quarter of that goes into more blocks a stage, another
    // into larger memtables; the rest into fewer prompts.
    let larger = if page_tokens == 1 { 4 } else { 1 };
    let prompts = args.prompts * page_tokens.min(64) / 64 * larger;
    let prompts = if page_tokens == 1 { args.prompts / 24 } else { prompts };
    let stage_prompts = prompts.max(6).next_multiple_of(3);
    Sizes {
        page_tokens,
        stage_prompts,
        // As in the paper: twice what the stages put.
        warm_prompts: stage_prompts * 12,
        memtable_bytes: (args.memtable_kib << 10) * larger,
        cache_bytes: (args.cache_kib << 10) * larger,
        extent_blocks: if page_tokens == 1 { 256 } else { 64 },
        filter_bits: args.filter_bits,
    }
}

/// Runs every shape with every seed, some at a time; `None` stands for the adaptive one.
fn run_all(args: &Args, dir: &Path, sizes: Sizes, shapes: &[Option<Shape>]) -> Vec<Vec<Trace>> {
    let count = shapes.len() * args.seeds.len();
    let next = AtomicUsize::new(0);
    let traces: Mutex<Vec<Option<Trace>>> = Mutex::new((0..count).map(|_| None).collect());
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return;
            }
            let (shape, seed) = (shapes[at / args.seeds.len()], args.seeds[at % args.seeds.len()]);
            let tuning = shape.map_or(IndexTuning::Auto, IndexTuning::Pinned);
            let dir = dir.join(at.to_string());
            let trace = run::run(&dir, sizes, tuning, seed);
            let _ = std::fs::remove_dir_all(&dir);
            let name = shape.map_or("adaptive".to_owned(), |shape| shape.to_string());
            eprintln!("{name}, seed {seed}: {}", report::line(&trace));
            traces.lock().expect("nobody panics")[at] = Some(trace);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(work);
        }
    });
    let mut traces = traces.into_inner().expect("nobody panics").into_iter();
    let mut of_shape = || {
        let of_seeds = traces.by_ref().take(args.seeds.len());
        of_seeds.map(|trace| trace.expect("all ran")).collect()
    };
    shapes.iter().map(|_| of_shape()).collect()
}

fn scenario(args: &Args, dir: &Path, page_tokens: u64) -> Scenario {
    let sizes = sizes(args, page_tokens);
    let adaptive = run_all(args, dir, sizes, &[None]).remove(0);
    for reason in adaptive.iter().flat_map(|trace| &trace.reasons) {
        eprintln!("  {reason}");
    }
    let mut shapes = if args.adaptive_only { Vec::new() } else { grid(args.quick) };
    let in_grid = shapes.len();
    // What a change of shape cost is what was merged more than in these.
    if !args.adaptive_only {
        for (shape, _) in adaptive.iter().flat_map(|trace| &trace.debts) {
            if !shapes.contains(shape) {
                shapes.push(*shape);
            }
        }
    }
    let asked: Vec<Option<Shape>> = shapes.iter().copied().map(Some).collect();
    let traces = run_all(args, dir, sizes, &asked).into_iter().enumerate();
    let statics = traces.zip(shapes).map(|((at, traces), shape)| Contender {
        shape,
        in_grid: at < in_grid,
        traces,
    });
    Scenario { sizes, statics: statics.collect(), adaptive }
}

fn main() {
    let mut args = Args::parse();
    if args.quick {
        args.prompts = args.prompts.min(48);
        args.seeds.truncate(1);
    }
    let dir = args.dir.join(format!("dalsegno-bench-controller-{}", std::process::id()));
    let before = load();
    let scenarios: Vec<Scenario> =
        args.pages.iter().map(|page_tokens| scenario(&args, &dir, *page_tokens)).collect();
    let _ = std::fs::remove_dir_all(&dir);
    if args.adaptive_only {
        return;
    }
    for scenario in &scenarios {
        scenario.print();
    }
    let mut told = report::summary(&scenarios);
    told["hit_rates"] = HIT_RATES.to_vec().into();
    told["seeds"] = args.seeds.clone().into();
    told["load"] = serde_json::json!([before, load()]);
    println!("{told}");
}
