//! The index against RocksDB (leveled and universal) and LMDB, in one run: each engine in a process of its own, all
//! doing a part of the same work in turn.
//!
//! Prints a table, and as its last line one JSON object: engine -> figures.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Parser;
use serde::Serialize;

use dalsegno_bench_index::child::{Child, serve};
use dalsegno_bench_index::engines;
use dalsegno_bench_index::workload::{CHAIN_BLOCKS, KEY_BYTES, VALUE_BYTES, load, percentile};

const ENGINES: [&str; 4] = ["dalsegno", "rocksdb", "rocksdb_universal", "lmdb"];

#[derive(Parser)]
#[command(about = "Compares the index in files with RocksDB and LMDB")]
struct Args {
    /// How many blocks to put.
    #[arg(long, default_value_t = 5_000_000)]
    blocks: u64,
    /// In how many parts the engines take turns.
    #[arg(long, default_value_t = 10)]
    rounds: u64,
    /// Where the files go; a new folder in it is used and removed.
    #[arg(long, default_value = "/tmp")]
    dir: PathBuf,
    /// Only these engines, in this order.
    #[arg(long, value_delimiter = ',', default_values = ENGINES)]
    only: Vec<String>,
    /// For the engines' own processes.
    #[arg(long, hide = true)]
    engine: Option<String>,
}

/// The figures of an engine.
#[derive(Debug, Default, Serialize)]
struct Figures {
    insert_kps: f64,
    hit_us: f64,
    miss_us: f64,
    scan512_us: f64,
    rss_mb: f64,
    disk_mb: f64,
    write_amp: f64,
    cpu_s: f64,
}

fn main() {
    let args = Args::parse();
    if let Some(engine) = &args.engine {
        serve(engines::open(engine, &args.dir));
        return;
    }
    let dir = args.dir.join(format!("dalsegno-bench-index-{}", std::process::id()));
    let blocks = args.blocks / (CHAIN_BLOCKS * args.rounds) * CHAIN_BLOCKS * args.rounds;
    let chosen: Vec<&str> =
        ENGINES.into_iter().filter(|engine| args.only.iter().any(|name| name == engine)).collect();
    let load_start = load();
    let mut children: Vec<Child> =
        chosen.iter().map(|engine| Child::start(engine, &dir.join(engine))).collect();
    let mut samples: BTreeMap<(String, &str), Vec<f64>> = BTreeMap::new();
    let part = blocks / args.rounds;
    for round in 0..args.rounds {
        for child in &mut children {
            let took = child.ask(&format!("put {} {part}", round * part));
            samples.entry((child.name.clone(), "put")).or_default().push(took);
        }
        let took = |child: &Child| {
            format!("{} {:.1} s", child.name, samples[&(child.name.clone(), "put")][round as usize])
        };
        let took: Vec<String> = children.iter().map(took).collect();
        eprintln!("put {} of {blocks} blocks: {}", (round + 1) * part, took.join(", "));
    }
    for child in &mut children {
        let took = child.ask("settle");
        samples.entry((child.name.clone(), "settle")).or_default().push(took);
    }
    for round in 0..args.rounds {
        for child in &mut children {
            for (what, count) in [("hit", 20_000), ("miss", 50_000), ("scan", 500)] {
                let took = child.ask(&format!("{what} {round} {count} {blocks}"));
                samples.entry((child.name.clone(), what)).or_default().push(took / count as f64);
            }
        }
        eprintln!("read {} of {} rounds", round + 1, args.rounds);
    }
    let mut output = serde_json::Map::new();
    for child in children {
        let name = child.name.clone();
        let get = |what: &'static str| &samples[&(name.clone(), what)];
        let puts: f64 = get("put").iter().sum::<f64>() + get("settle")[0];
        let usage = child.end();
        let figures = Figures {
            insert_kps: blocks as f64 / puts / 1e3,
            hit_us: median(get("hit")) * 1e6,
            miss_us: median(get("miss")) * 1e6,
            scan512_us: median(get("scan")) * 1e6,
            rss_mb: usage.rss_mb,
            disk_mb: usage.disk_mb,
            write_amp: usage.written_bytes / (blocks as f64 * (KEY_BYTES + VALUE_BYTES) as f64),
            cpu_s: usage.cpu_s,
        };
        output.insert(name.clone(), serde_json::to_value(figures).expect("plain numbers"));
    }
    let _ = std::fs::remove_dir_all(&dir);
    print_table(&output);
    output.insert("bench".into(), "index".into());
    output.insert("blocks".into(), blocks.into());
    output.insert("load".into(), serde_json::json!([load_start, load()]));
    println!("{}", serde_json::Value::Object(output));
}

fn print_table(output: &serde_json::Map<String, serde_json::Value>) {
    let columns = [
        "insert_kps",
        "hit_us",
        "miss_us",
        "scan512_us",
        "rss_mb",
        "disk_mb",
        "write_amp",
        "cpu_s",
    ];
    println!("{:<18}{}", "engine", columns.map(|column| format!("{column:>12}")).concat());
    for engine in ENGINES.into_iter().filter(|engine| output.contains_key(*engine)) {
        let cell = |column: &str| output[engine][column].as_f64().unwrap_or(f64::NAN);
        let cells: String =
            columns.iter().map(|column| format!("{:>12.2}", cell(column))).collect();
        println!("{engine:<18}{cells}");
    }
}

fn median(values: &[f64]) -> f64 {
    percentile(values.to_vec(), 0.5)
}
