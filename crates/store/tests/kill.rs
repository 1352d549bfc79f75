//! SIGKILL under load, again and again: what was acknowledged as durable is there, and nothing is ever wrong.
//!
//! The test runs itself as a child that puts, gets, removes and evicts from several threads and writes the name of each
//! chain to its standard output once the put has returned. The parent kills it at a random moment, opens the store and
//! reads everything that was acknowledged.
#![allow(clippy::disallowed_methods, reason = "plays the world outside of the store")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and tells"
)]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use dalsegno_store::{Config, Durability, PutOutcome, Terms, verify};
use support::{chain, config, get, namespace, next, open, put};

const ROUNDS: u64 = 100;
/// A new directory every so many rounds: long enough that stores are killed many times, short enough that nothing
/// acknowledged has to be evicted.
const ROUNDS_PER_STORE: u64 = 10;
const BLOCKS: usize = 5;
const BLOCK: usize = 2 * 6000;
const CHILD: &str = "DALSEGNO_KILL_CHILD";

fn load_config(durability: Durability) -> Config {
    Config { durability, segment: Some(8 << 20), ..config(1 << 30) }
}

fn durability(name: &str) -> Durability {
    if name == "batch" { Durability::Batch } else { Durability::None }
}

/// What the child does until it is killed. Does nothing in an ordinary run of the tests.
#[test]
fn child() {
    let Ok(spec) = std::env::var(CHILD) else { return };
    let mut parts = spec.split(',');
    let mut part = || parts.next().unwrap().to_owned();
    let (dir, name, first) = (part(), part(), part().parse::<u64>().unwrap());
    let store = open(Path::new(&dir), &load_config(durability(&name)));
    let ns = namespace(&store, 2, 6000, "kill");
    let victims = namespace(&store, 1, 4096, "removed");
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let store = store.clone();
            scope.spawn(move || {
                for turn in 0.. {
                    let name = first + turn * 3 + thread;
                    let report = put(&store, ns, &chain(name, BLOCKS), 0, BLOCK);
                    if report.kept().iter().all(|kept| *kept) {
                        // One write call per line: lines of threads never mix, and a killed child leaves whole ones.
                        let line = format!("put {name}\n");
                        std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                    }
                    get(&store, ns, &chain(name / 2, BLOCKS), BLOCK, &Terms::default());
                    if turn % 16 == 0 {
                        put(&store, victims, &chain(name, 2), 0, 4096);
                        store.remove(victims, Some(&chain(name, 2))).unwrap();
                        let line = format!("removed {name}\n");
                        std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                    }
                }
            });
        }
    });
}

/// Runs the child for a while and kills it; returns what it acknowledged.
fn run_and_kill(dir: &Path, name: &str, first: u64, life: Duration) -> (Vec<u64>, Vec<u64>) {
    let spec = format!("{},{name},{first}", dir.display());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads", "1"])
        .env(CHILD, spec)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
        lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect::<Vec<_>>()
    });
    std::thread::sleep(life);
    child.kill().unwrap();
    child.wait().unwrap();
    let lines = reader.join().unwrap();
    let named = |verb: &str| {
        let of_verb = lines.iter().filter_map(|line| line.split_once(verb)?.1.trim().parse().ok());
        of_verb.collect::<Vec<u64>>()
    };
    (named("put "), named("removed "))
}

fn rounds(name: &str) {
    let mut state = 0x5eed_u64;
    let (mut acknowledged, mut removed, mut lost) = (0_usize, 0_usize, 0_usize);
    for store_number in 0..ROUNDS / ROUNDS_PER_STORE {
        let dir = tempfile::tempdir().unwrap();
        let mut all = Vec::new();
        let mut gone = Vec::new();
        for round in 0..ROUNDS_PER_STORE {
            state = next(state);
            let life = Duration::from_millis(60 + state % 140);
            let (put_names, removed_names) =
                run_and_kill(dir.path(), name, (store_number * 100 + round) << 32, life);
            all.extend(put_names);
            gone.extend(removed_names);
            let store = open(dir.path(), &load_config(durability(name)));
            let ns = namespace(&store, 2, 6000, "kill");
            let victims = namespace(&store, 1, 4096, "removed");
            for chain_name in &all {
                // `get` compares every byte of every hit.
                let hits = get(&store, ns, &chain(*chain_name, BLOCKS), BLOCK, &Terms::default());
                lost += BLOCKS - hits;
            }
            for chain_name in &gone {
                assert_eq!(store.probe(victims, &chain(*chain_name, 2)).unwrap(), 0, "came back");
            }
            let again = put(&store, ns, &chain(u64::MAX - round, 2), 0, BLOCK);
            assert_eq!(again.count(PutOutcome::Failed), 0, "the store takes puts after a crash");
        }
        acknowledged += all.len();
        removed += gone.len();
        assert_eq!(verify(dir.path(), &|_, _| {}).unwrap().findings, [], "{name}");
    }
    assert!(
        acknowledged > 500 && removed > 50,
        "the load was no load: {acknowledged} puts, {removed} removals"
    );
    // A kill of the process loses nothing that the kernel has, so this holds without syncs as well.
    assert_eq!(
        lost, 0,
        "durability {name}: {lost} blocks of {acknowledged} acknowledged puts are lost"
    );
    println!(
        "durability {name}: {ROUNDS} kills, {acknowledged} puts acknowledged, {removed} removals, 0 lost, 0 wrong"
    );
}

#[test]
fn a_hundred_kills_lose_no_acknowledged_put_with_durability_batch() {
    rounds("batch");
}

#[test]
fn a_hundred_kills_serve_no_wrong_byte_without_durability() {
    rounds("none");
}
