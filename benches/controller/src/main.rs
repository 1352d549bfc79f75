//! The index with a shape that follows what is asked of it, against every shape of a grid that stays.
//!
//! Prints tables, and as its last line one JSON object.

mod report;
mod run;
mod workload;

use std::path::{Path, PathBuf};

use clap::Parser;
use dalsegno_core::fluid::{IndexTuning, Shape};
use report::Scenario;
use run::{Sizes, Trace};
use workload::HIT_RATES;

#[derive(Parser)]
#[command(about = "Compares the adaptive shape of the index with fixed ones")]
struct Args {
    /// Prompts of a stage with pages of 64 tokens; with pages of one token there are 64 times fewer.
    #[arg(long, default_value_t = 288)]
    prompts: u64,
    /// Tokens of a page.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1])]
    pages: Vec<u64>,
    /// KiB of memory before a table is written.
    #[arg(long, default_value_t = 48)]
    memtable_kib: u64,
    /// KiB of memory for blocks of tables.
    #[arg(long, default_value_t = 128)]
    cache_kib: u64,
    /// Where the files go; a new folder in it is used and removed.
    #[arg(long, default_value = "/tmp")]
    dir: PathBuf,
    /// Only the adaptive run, and what it counted.
    #[arg(long)]
    adaptive_only: bool,
}

/// Leveled, halfway, tiered above one run, tiered everywhere.
fn grid() -> Vec<Shape> {
    let shapes = [2, 4, 6, 8, 10, 12, 16].into_iter().flat_map(|ratio| {
        let runs = [1, ratio / 2, ratio - 1].into_iter();
        runs.flat_map(move |runs| [1, runs].map(|last| Shape::nearest(ratio, runs, last)))
    });
    let mut shapes: Vec<Shape> = shapes.collect();
    shapes.sort_unstable();
    shapes.dedup();
    shapes
}

fn sizes(args: &Args, page_tokens: u64) -> Sizes {
    let stage_prompts = (args.prompts * page_tokens / 64).max(6).next_multiple_of(3);
    Sizes {
        page_tokens,
        stage_prompts,
        // As in the paper: twice what the stages put.
        warm_prompts: stage_prompts * 12,
        memtable_bytes: args.memtable_kib << 10,
        cache_bytes: args.cache_kib << 10,
        extent_blocks: if page_tokens == 1 { 256 } else { 64 },
    }
}

fn go(dir: &Path, sizes: Sizes, tuning: IndexTuning) -> Trace {
    let trace = run::run(dir, sizes, tuning);
    let _ = std::fs::remove_dir_all(dir);
    trace
}

fn scenario(args: &Args, dir: &Path, page_tokens: u64) -> Scenario {
    let sizes = sizes(args, page_tokens);
    let adaptive = go(&dir.join("adaptive"), sizes, IndexTuning::Auto);
    eprintln!(
        "pages of {page_tokens} tokens: {} prompts a stage, {} entries in {} KiB, adaptive {:.1} s",
        sizes.stage_prompts,
        adaptive.entries,
        adaptive.table_bytes >> 10,
        adaptive.spent.last().expect("it ran").seconds
    );
    for reason in &adaptive.reasons {
        eprintln!("  {reason}");
    }
    if args.adaptive_only {
        eprintln!("  {:?}", adaptive.asked);
        let spent = adaptive.spent.last().expect("it ran").since(&adaptive.spent[0]);
        eprintln!("  {spent:?}, {:.0} pages", spent.pages());
        return Scenario::new(sizes, adaptive, Vec::new());
    }
    let mut statics = Vec::new();
    let mut shapes = grid();
    let in_grid = shapes.len();
    // What the adaptive run rewrote because of a change is what it wrote more than these.
    shapes.extend(adaptive.shapes.iter().map(|(_, shape)| *shape));
    for (at, shape) in shapes.iter().enumerate() {
        if shapes[..at].contains(shape) {
            continue;
        }
        let trace = go(&dir.join("static"), sizes, IndexTuning::Pinned(*shape));
        let spent = trace.spent.last().expect("it ran").since(&trace.spent[0]);
        eprintln!(
            "{shape}: {:.0} pages read, {:.0} written, {:.1} s",
            spent.pages_read, spent.pages_written, spent.seconds
        );
        statics.push((*shape, at < in_grid, trace));
    }
    Scenario::new(sizes, adaptive, statics)
}

fn main() {
    let args = Args::parse();
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
    told["load"] = serde_json::json!([before, load()]);
    println!("{told}");
}

fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}
