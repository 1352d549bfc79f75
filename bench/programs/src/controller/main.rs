//! The index with a shape that follows what is asked of it, against every shape of a grid that stays.
//!
//! Prints tables, and as its last line one JSON object.
//!
//! When the large merges come decides what a run of one length costs: who joined all just before it begins has won. So
//! every shape has several runs with other warm-ups, and only sums over them are compared.
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
use dalsegno_core::{IndexTuning, Shape};
use prompts::HIT_RATES;
use report::{Contender, Scenario};
use run::{Sizes, Trace};

#[derive(Parser)]
#[command(about = "Compares the adaptive shape of the index with fixed ones")]
struct Args {
    /// Prompts of a stage with pages of 64 tokens; with pages of one token there are 32 times fewer.
    #[arg(long, default_value_t = 192)]
    prompts: u64,
    /// Tokens of a page.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1])]
    pages: Vec<u64>,
    /// Runs of each shape, each with prompts of its own; figures are sums over them.
    #[arg(long, default_value_t = 6)]
    runs: u64,
    /// KiB of memory before a table is written with pages of 64 tokens; with pages of one token it is twice this.
    #[arg(long, default_value_t = 32)]
    memtable_kib: u64,
    /// KiB of memory for blocks of tables, likewise.
    #[arg(long, default_value_t = 96)]
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
    /// A smoke test: few prompts, one run, few shapes.
    #[arg(long)]
    quick: bool,
    /// Only the adaptive runs, and what they counted.
    #[arg(long)]
    adaptive_only: bool,
}

/// Leveled, halfway and lazy above one run, tiered.
fn grid(quick: bool) -> Vec<Shape> {
    let ratios: &[u32] = if quick { &[2, 8] } else { &[2, 4, 6, 8, 12, 16] };
    let shapes = ratios.iter().flat_map(|&ratio| {
        let most = ratio - 1;
        [(1, 1), (ratio / 2, 1), (most, 1), (most, most)]
            .map(|(runs, last)| Shape::nearest(ratio, runs, last))
    });
    let mut shapes: Vec<Shape> = shapes.collect();
    shapes.sort_unstable();
    shapes.dedup();
    shapes
}

fn sizes(args: &Args, page_tokens: u64) -> Sizes {
    // With pages of one token a prompt is 64 times longer: there are fewer prompts, and memtables are larger.
    let (fewer, larger) = if page_tokens == 1 { (32, 2) } else { (1, 1) };
    let stage_prompts = (args.prompts / fewer).max(6).next_multiple_of(3);
    Sizes {
        page_tokens,
        stage_prompts,
        memtable_bytes: (args.memtable_kib << 10) * larger,
        cache_bytes: (args.cache_kib << 10) * larger,
        extent_blocks: if page_tokens == 1 { 256 } else { 64 },
        filter_bits: args.filter_bits,
    }
}

/// Prompts before the stages of a run: as in the paper twice what the stages put, on average; half to one and a half
/// times that.
fn warm_prompts(sizes: Sizes, run: u64, runs: u64) -> u64 {
    sizes.stage_prompts * 6 + sizes.stage_prompts * 6 * (2 * run + 1) / runs
}

/// Carries out all runs of every shape, some at a time and the shapes in turn; `None` stands for the adaptive one.
fn run_all(args: &Args, dir: &Path, sizes: Sizes, shapes: &[Option<Shape>]) -> Vec<Vec<Trace>> {
    let runs = args.runs as usize;
    let count = shapes.len() * runs;
    let next = AtomicUsize::new(0);
    let traces: Mutex<Vec<Option<Trace>>> = Mutex::new((0..count).map(|_| None).collect());
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return;
            }
            let (run, of) = ((at / shapes.len()) as u64, at % shapes.len());
            let warm_prompts = warm_prompts(sizes, run, args.runs);
            let tuning = shapes[of].map_or(IndexTuning::Auto, IndexTuning::Pinned);
            let dir = dir.join(at.to_string());
            let trace = run::run(&dir, sizes, warm_prompts, tuning, run + 1);
            let _ = std::fs::remove_dir_all(&dir);
            let name = shapes[of].map_or("adaptive".to_owned(), |shape| shape.to_string());
            eprintln!("{} of {count}: {name}, run {run}: {}", at + 1, report::line(&trace));
            traces.lock().expect("nobody panics")[of * runs + run as usize] = Some(trace);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(work);
        }
    });
    let mut traces = traces.into_inner().expect("nobody panics").into_iter();
    let mut next = || {
        let of_shape = traces.by_ref().take(runs);
        of_shape.map(|trace| trace.expect("all ran")).collect()
    };
    shapes.iter().map(|_| next()).collect()
}

fn scenario(args: &Args, dir: &Path, page_tokens: u64) -> Scenario {
    let sizes = sizes(args, page_tokens);
    let shapes = if args.adaptive_only { Vec::new() } else { grid(args.quick) };
    let asked = std::iter::once(None).chain(shapes.iter().copied().map(Some));
    let mut traces = run_all(args, dir, sizes, &asked.collect::<Vec<_>>());
    let adaptive = traces.remove(0);
    for reason in adaptive.iter().flat_map(|trace| &trace.reasons) {
        eprintln!("  {reason}");
    }
    let statics = traces.into_iter().zip(shapes);
    let statics = statics.map(|(traces, shape)| Contender { shape, traces });
    Scenario { sizes, statics: statics.collect(), adaptive }
}

fn main() {
    let mut args = Args::parse();
    if args.quick {
        args.prompts = args.prompts.min(48);
        args.runs = 1;
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
    let mut output = report::summary(&scenarios);
    output["hit_rates"] = HIT_RATES.to_vec().into();
    output["runs_of_each"] = args.runs.into();
    output["load"] = serde_json::json!([before, load()]);
    println!("{output}");
}
