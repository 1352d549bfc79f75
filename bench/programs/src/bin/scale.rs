//! The index with a hundred times more blocks: what it takes of memory and files, how long it needs to open after its
//! process was killed, and what a probe of 512 blocks costs beside one in a small index.
//!
//! Both indexes live in processes of their own and are probed in turn, with the same memory for blocks of tables; what
//! that does not hold is in the kernel's page cache. Prints one JSON object as its last line.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use serde::Serialize;

use dalsegno_bench_index::child::{Child, serve};
use dalsegno_bench_index::ours::Dalsegno;
use dalsegno_bench_index::workload::{CHAIN_BLOCKS, load, percentile};

/// What is put between two lines of progress.
const PART: u64 = 2_000 * CHAIN_BLOCKS;
/// Put last, and in memory when the process is killed: about a memtable.
const UNSETTLED: u64 = 400 * CHAIN_BLOCKS;
const PROBES: u64 = 2_000;
/// Chains that are looked for after the index was opened again.
const CHECKED: u64 = 5_000;

#[derive(Parser)]
#[command(about = "Puts very many blocks into the index in files, kills it, and probes it")]
struct Args {
    /// How many blocks to put.
    #[arg(long, default_value_t = 100_000_000)]
    blocks: u64,
    /// How many blocks the small index has.
    #[arg(long, default_value_t = 1_000_000)]
    small: u64,
    /// Bytes of memory for blocks of tables, of each index.
    #[arg(long, default_value_t = 64 << 20)]
    cache: u64,
    /// How often the two are probed in turn.
    #[arg(long, default_value_t = 9)]
    rounds: u64,
    /// Where the files go; a new folder in it is used and removed.
    #[arg(long, default_value = "/tmp")]
    dir: PathBuf,
    /// For the indexes' own processes.
    #[arg(long, hide = true)]
    engine: Option<String>,
}

#[derive(Debug, Serialize)]
struct Figures {
    bench: &'static str,
    blocks: u64,
    rss_mb: f64,
    peak_mb: f64,
    open_s: f64,
    replay_s: f64,
    replay_blocks: u64,
    probe512_p99_us: f64,
    probe512_p99_us_small: f64,
    probe512_p99_ratio: f64,
    files: usize,
    disk_mb: f64,
    fill_s: f64,
    settle_s: f64,
    warm_s: f64,
    cpu_s: f64,
    load: [f64; 2],
}

fn main() {
    let args = Args::parse();
    if let Some(cache) = &args.engine {
        let cache_bytes = cache.parse().expect("bytes of cache");
        serve(Box::new(Dalsegno::open(&args.dir, cache_bytes)));
        return;
    }
    let dir = args.dir.join(format!("dalsegno-bench-index-scale-{}", std::process::id()));
    let figures = run(&args, &dir);
    let _ = std::fs::remove_dir_all(&dir);
    let output = serde_json::to_value(&figures).expect("plain numbers");
    for (name, value) in output.as_object().into_iter().flatten() {
        println!("{name:<24}{value:>20}");
    }
    println!("{output}");
}

fn run(args: &Args, dir: &Path) -> Figures {
    let load_start = load();
    let whole = |blocks: u64| blocks / CHAIN_BLOCKS * CHAIN_BLOCKS;
    let (blocks, small_blocks) = (whole(args.blocks), whole(args.small));
    let start = |name: &str| Child::start(&args.cache.to_string(), &dir.join(name));
    let mut small = start("small");
    small.ask(&format!("put 0 {small_blocks}"));
    small.ask("settle");
    let mut large = start("large");
    let (fill_s, most_files) = fill(&mut large, blocks);
    let settle_s = large.ask("settle");
    let warm_s = warm(&dir.join("large")) + warm(&dir.join("small"));
    let (mut p99, mut p99_small) = (Vec::new(), Vec::new());
    for round in 0..args.rounds {
        p99.push(large.ask(&format!("scan_p99 {round} {PROBES} {blocks}")));
        p99_small.push(small.ask(&format!("scan_p99 {round} {PROBES} {small_blocks}")));
        eprintln!("probed {} of {} rounds", round + 1, args.rounds);
    }
    let [p99, p99_small] = [p99, p99_small].map(|values| percentile(values, 0.5) * 1e6);
    let usage = large.usage();
    drop(small.end());
    large.ask(&format!("put {blocks} {UNSETTLED}"));
    large.kill();
    let mut large = start("large");
    let open_s = large.ask("opened_s");
    let covered = large.ask("covered") as u64;
    let replay_blocks = blocks + UNSETTLED - covered;
    let replay_s = large.ask(&format!("put {covered} {replay_blocks}"));
    large.ask(&format!("scan 99 {CHECKED} {}", blocks + UNSETTLED));
    drop(large.end());
    Figures {
        bench: "index-scale",
        blocks,
        rss_mb: usage.rss_mb,
        peak_mb: usage.peak_mb,
        open_s,
        replay_s,
        replay_blocks,
        probe512_p99_us: p99,
        probe512_p99_us_small: p99_small,
        probe512_p99_ratio: p99 / p99_small,
        files: usage.files.max(most_files),
        disk_mb: usage.disk_mb,
        fill_s,
        settle_s,
        warm_s,
        cpu_s: usage.cpu_s,
        load: [load_start, load()],
    }
}

/// Reads all files once, so that probes find them in the kernel's page cache as far as that has room; returns seconds.
fn warm(dir: &Path) -> f64 {
    let start = Instant::now();
    for entry in std::fs::read_dir(dir).expect("the folder is there") {
        let mut file = std::fs::File::open(entry.expect("a file").path()).expect("a file");
        std::io::copy(&mut file, &mut std::io::sink()).expect("a file that can be read");
    }
    start.elapsed().as_secs_f64()
}

/// Puts the blocks; returns the seconds and the most files that were there.
fn fill(child: &mut Child, blocks: u64) -> (f64, usize) {
    let (start, mut most_files) = (Instant::now(), 0);
    let mut seconds = 0.0;
    for first in (0..blocks).step_by(PART as usize) {
        let count = PART.min(blocks - first);
        seconds += child.ask(&format!("put {first} {count}"));
        let usage = child.usage();
        most_files = most_files.max(usage.files);
        let (done, elapsed) = ((first + count) as f64, start.elapsed().as_secs_f64());
        eprintln!(
            "put {:.1} of {:.1} million blocks in {elapsed:.0} s, {:.0} s to go; {} files, {:.0} MB of memory",
            done / 1e6,
            blocks as f64 / 1e6,
            elapsed / done * (blocks as f64 - done),
            usage.files,
            usage.rss_mb,
        );
    }
    (seconds, most_files)
}
