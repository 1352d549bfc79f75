//! Repeated SIGKILL under load: blocks acknowledged as durable are there, and no byte is wrong.
//!
//! The test runs itself as a child that puts, gets and removes from several threads and writes the name of each
//! chain to its standard output once the put has returned. The parent kills it at a random moment, opens the store and
//! reads everything that was acknowledged.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and reports to its parent"
)]

mod support;

use std::path::Path;
use std::time::Duration;

use dalsegno_store::{Config, Durability, IndexChoice, PutOutcome, Terms, verify};
use support::child::{Child, report};
use support::dose::dose;
use support::{Setup, chain, engines, get, has_index_files, named, namespace, next, open, put};

/// In the small dose and the full one. A fifth store has the index that moves.
const STORES: u64 = 5;
const FULL_STORES: u64 = 10;
/// Rounds for each directory: enough that stores are killed many times, few enough that no acknowledged block is
/// evicted.
const ROUNDS: u64 = 4;
const FULL_ROUNDS: u64 = 10;
const BLOCKS: usize = 5;
const BLOCK: usize = 2 * 6000;
const CHILD: &str = "DALSEGNO_KILL_CHILD";

/// What a store is opened with in a round, by the child and then by the parent.
#[derive(Clone, Copy)]
struct Round {
    durability: Durability,
    setup: Setup,
}

impl Round {
    /// The engine changes from round to round, the index from store to store; in every fifth store the index moves
    /// between disk and memory all the time.
    fn new(durability: Durability, store_number: u64, round: u64) -> Self {
        let in_files = if store_number % 5 == 4 { round / 2 } else { store_number };
        let index = if in_files.is_multiple_of(2) { IndexChoice::Memory } else { IndexChoice::Lsm };
        let engines = engines();
        let engine = engines[usize::try_from(round).unwrap() % engines.len()];
        Self { durability, setup: Setup { engine, index } }
    }

    fn config(self) -> Config {
        let Self { durability, setup } = self;
        Config { durability, segment: Some(8 << 20), ..setup.config(1 << 30) }
    }

    /// For the child's environment.
    fn encode(self) -> String {
        format!("{:?},{}", self.durability, self.setup.encode())
    }

    fn decode([durability, setup @ ..]: [&str; 3]) -> Self {
        let durability = named([Durability::None, Durability::Batch], durability);
        Self { durability, setup: Setup::decode(setup) }
    }
}

/// Bits of the number of a chain that a round leaves to its child.
const NUMBER_BITS: u32 = 32;
/// How long a child may take to its first acknowledgement. A test fails only if it hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// The work of the child until it is killed. Does nothing in an ordinary run of the tests.
#[test]
fn child() {
    let Ok(spec) = std::env::var(CHILD) else { return };
    let parts: Vec<&str> = spec.split(',').collect();
    let [dir, first, round @ ..] = &parts[..] else { panic!("{spec}") };
    let first: u64 = first.parse().unwrap();
    let store = open(Path::new(dir), &Round::decode(round.try_into().unwrap()).config());
    let ns = namespace(&store, 2, 6000, "kill");
    let victims = namespace(&store, 1, 4096, "removed");
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let store = store.clone();
            scope.spawn(move || {
                for turn in 0.. {
                    let name = first + turn * 3 + thread;
                    let outcome = put(&store, ns, &chain(name, BLOCKS), 0, BLOCK);
                    if outcome.kept().iter().all(|kept| *kept) {
                        report(&format!("put {name}"));
                    }
                    get(&store, ns, &chain(name / 2, BLOCKS), BLOCK, &Terms::default());
                    if turn % 16 == 0 {
                        put(&store, victims, &chain(name, 2), 0, 4096);
                        store.remove(victims, Some(&chain(name, 2)), &Terms::default()).unwrap();
                        report(&format!("removed {name}"));
                    }
                }
            });
        }
    });
}

/// Runs the child for a while and kills it; returns what it acknowledged. In every second round the time begins with
/// the first acknowledgement, so that there is some work on a slow machine, too.
fn run_and_kill(dir: &Path, round: Round, first: u64, life: Duration) -> (Vec<u64>, Vec<u64>) {
    let spec = format!("{},{first},{}", dir.display(), round.encode());
    let child = Child::spawn("child", CHILD, &spec);
    let mut lines = Vec::new();
    if (first >> NUMBER_BITS).is_multiple_of(2) {
        while !lines.last().is_some_and(|line: &String| line.starts_with("put ")) {
            lines.push(child.line(LIMIT).unwrap());
        }
    }
    std::thread::sleep(life);
    lines.extend(child.kill());
    let named = |verb: &str| {
        let of_verb = lines.iter().filter_map(|line| line.strip_prefix(verb)?.parse().ok());
        of_verb.collect::<Vec<u64>>()
    };
    (named("put "), named("removed "))
}

/// What was acknowledged and what of it was lost, over all stores.
#[derive(Default)]
struct Tally {
    puts: usize,
    removals: usize,
    lost_blocks: usize,
}

/// Kills the store of one directory repeatedly.
fn one_store(durability: Durability, store_number: u64, state: &mut u64, tally: &mut Tally) {
    let dir = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    let mut gone = Vec::new();
    for number in 0..dose(ROUNDS, FULL_ROUNDS) {
        *state = next(*state);
        let life = Duration::from_millis(60 + *state % 140);
        let round = Round::new(durability, store_number, number);
        let (put_names, removed_names) =
            run_and_kill(dir.path(), round, (store_number * 100 + number) << NUMBER_BITS, life);
        all.extend(put_names);
        gone.extend(removed_names);
        let store = open(dir.path(), &round.config());
        let ns = namespace(&store, 2, 6000, "kill");
        let victims = namespace(&store, 1, 4096, "removed");
        for chain_name in &all {
            // `get` compares every byte of every hit.
            let hits = get(&store, ns, &chain(*chain_name, BLOCKS), BLOCK, &Terms::default());
            tally.lost_blocks += BLOCKS - hits;
        }
        for chain_name in &gone {
            assert_eq!(store.probe(victims, &chain(*chain_name, 2)).unwrap(), 0, "came back");
        }
        let again = put(&store, ns, &chain(u64::MAX - number, 2), 0, BLOCK);
        assert_eq!(again.count(PutOutcome::Failed), 0, "the store takes puts after a crash");
        drop(store);
        let in_files = round.setup.index == IndexChoice::Lsm;
        assert_eq!(
            has_index_files(dir.path()),
            in_files,
            "{store_number}.{number}: {:?}",
            round.setup
        );
    }
    tally.puts += all.len();
    tally.removals += gone.len();
    assert_eq!(verify(dir.path(), &|_, _| {}).unwrap().findings, [], "{durability:?}");
}

fn rounds(durability: Durability) {
    let mut state = 0x5eed_u64;
    let mut tally = Tally::default();
    let stores = dose(STORES, FULL_STORES);
    for store_number in 0..stores {
        one_store(durability, store_number, &mut state, &mut tally);
    }
    let kills = stores * dose(ROUNDS, FULL_ROUNDS);
    let Tally { puts, removals, lost_blocks } = tally;
    let is_load = puts as u64 >= kills / 2 && removals > 0;
    assert!(is_load, "the load was no load: {puts} puts, {removals} removals");
    // A kill of the process loses nothing that the kernel has, so this holds without syncs as well.
    assert_eq!(
        lost_blocks, 0,
        "durability {durability:?}: {lost_blocks} blocks of {puts} acknowledged puts are lost"
    );
    println!(
        "durability {durability:?}: {kills} kills, {puts} puts acknowledged, {removals} removals, 0 lost, 0 wrong"
    );
}

#[test]
fn kills_lose_no_acknowledged_put_with_durability_batch() {
    rounds(Durability::Batch);
}

#[test]
fn kills_serve_no_wrong_byte_without_durability() {
    rounds(Durability::None);
}
