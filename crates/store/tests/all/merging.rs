//! Merging of small extents: blocks that were put one at a time end in few extents, and every byte stays what it was.

use crate::support;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{Setup, block, chain, get, namespace, open_with, put, setups, soon};
use dalsegno_store::testing::MergeRules;
use dalsegno_store::{
    Config, Durability, MergeStats, NamespaceId, Scope, Store, Terms, lend, list,
};

const LAYERS: u32 = 2;
const SLICE: u32 = 4096;
const BLOCK: usize = (LAYERS * SLICE) as usize;

fn config(setup: Setup, capacity: u64) -> Config {
    Config { segment: Some(1 << 20), ..setup.config(capacity) }
}

/// Puts chains block by block, in turn.
fn grow(store: &Store, ns: NamespaceId, names: std::ops::Range<u64>, blocks: usize) {
    for count in 1..=blocks {
        for name in names.clone() {
            put(store, ns, &chain(name, count), count - 1, BLOCK);
        }
    }
}

/// Waits until nothing is left to merge.
fn settle(store: &Store) -> MergeStats {
    for _ in 0..400 {
        std::thread::sleep(Duration::from_millis(50));
        let merging = store.stats().merging;
        if merging.waiting_lineages == 0 {
            return merging;
        }
    }
    panic!("merging does not end: {:?}", store.stats().merging);
}

fn check_all(store: &Store, ns: NamespaceId, names: std::ops::Range<u64>, blocks: usize) {
    for name in names {
        let hashes = chain(name, blocks);
        assert_eq!(get(store, ns, &hashes, BLOCK, &Terms::default()), blocks);
        let middle = &hashes[blocks / 3..blocks / 2];
        let terms = Terms::within(Duration::from_secs(20));
        assert_eq!(get(store, ns, middle, BLOCK, &terms), middle.len());
    }
}

#[test]
fn single_blocks_merge_into_few_extents_and_survive_reopening() {
    // On a slow machine the puts pause, so smaller piles are merged, until the budget of writes is spent.
    const MOST: u64 = 20 * 8;
    for setup in setups() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(setup, 64 << 20);
        let store = open_with(dir.path(), &config, soon());
        let ns = namespace(&store, LAYERS, SLICE, "merge");
        grow(&store, ns, 0..20, 50);
        let merging = settle(&store);
        let stats = store.stats();
        assert!(stats.extents <= MOST, "{setup:?}: {stats:?}");
        assert_eq!(stats.blocks, 20 * 50);
        assert!(merging.merged_bytes * 10 <= stats.put_bytes * 13, "{merging:?}");
        // A slow device may leave some of them to the next merge.
        let more = (100..120).find(|name| {
            grow(&store, ns, *name..name + 1, 10);
            settle(&store);
            store.stats().log.segments_recycled > 2
        });
        assert!(more.is_some(), "dead segments are free again: {:?}", store.stats());
        check_all(&store, ns, 0..20, 50);
        drop(store);
        let extents = list(dir.path()).unwrap().1.len();
        assert!(extents as u64 <= MOST, "{setup:?}: what was merged stays merged: {extents}");
        let store = open_with(dir.path(), &config, soon());
        assert!(store.stats().extents <= MOST, "{setup:?}: {:?}", store.stats());
        let ns = namespace(&store, LAYERS, SLICE, "merge");
        check_all(&store, ns, 0..20, 50);
    }
}

#[test]
fn extents_of_an_earlier_session_are_found_and_merged() {
    for setup in setups() {
        let dir = tempfile::tempdir().unwrap();
        let off = Config { merge_rate: Some(0), ..config(setup, 64 << 20) };
        let store = open_with(dir.path(), &off, soon());
        let ns = namespace(&store, LAYERS, SLICE, "merge");
        grow(&store, ns, 0..15, 40);
        assert_eq!(settle(&store), MergeStats::default(), "a rate of zero switches it off");
        assert_eq!(store.stats().extents, 600);
        drop(store);
        let store = open_with(dir.path(), &config(setup, 64 << 20), soon());
        let ns = namespace(&store, LAYERS, SLICE, "merge");
        for _ in 0..400 {
            if store.stats().extents <= 15 * 4 {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(store.stats().extents <= 15 * 4, "{:?}", store.stats());
        check_all(&store, ns, 0..15, 40);
    }
}

#[test]
fn removed_blocks_stay_removed_during_merging() {
    for setup in setups() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(setup, 64 << 20);
        let rules = MergeRules { quiet: Duration::from_millis(1), pile_extents: 2, ..soon() };
        let store = open_with(dir.path(), &config, rules);
        let ns = namespace(&store, LAYERS, SLICE, "merge");
        let hashes = chain(1, 120);
        for count in 1..=120 {
            put(&store, ns, &hashes[..count], count - 1, BLOCK);
            if count % 10 == 0 {
                store.remove(ns, Some(&hashes[count - 4..count - 2]), &Terms::default()).unwrap();
            }
        }
        settle(&store);
        let check = |store: &Store| {
            let present = store.contains(ns, &hashes).unwrap();
            for (at, present) in present.into_iter().enumerate() {
                assert_eq!(present, !matches!(at % 10, 6 | 7), "{setup:?}: block {at}");
                let hit = get(store, ns, &hashes[at..=at], BLOCK, &Terms::default());
                assert_eq!(hit, usize::from(present));
            }
        };
        check(&store);
        drop(store);
        check(&{
            let store = open_with(dir.path(), &config, rules);
            namespace(&store, LAYERS, SLICE, "merge");
            store
        });
    }
}

#[test]
fn branches_of_merged_extents_are_found_and_grow() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), &config(Setup::SIMPLEST, 64 << 20), soon());
    let ns = namespace(&store, LAYERS, SLICE, "merge");
    grow(&store, ns, 0..1, 40);
    settle(&store);
    let mut branch = chain(0, 25);
    branch.extend(chain(9, 30));
    for count in 26..=55 {
        put(&store, ns, &branch[..count], count - 1, BLOCK);
    }
    let long = chain(0, 60);
    for count in 41..=60 {
        put(&store, ns, &long[..count], count - 1, BLOCK);
    }
    settle(&store);
    assert_eq!(get(&store, ns, &branch, BLOCK, &Terms::default()), 55);
    assert_eq!(get(&store, ns, &long, BLOCK, &Terms::default()), 60);
    assert!(store.stats().extents <= 12, "{:?}", store.stats());
}

#[test]
fn a_full_store_evicts_nothing_for_a_merge() {
    for setup in setups() {
        let dir = tempfile::tempdir().unwrap();
        // Four segments: one open, one in reserve.
        let config = config(setup, 5 << 20);
        let rules = MergeRules { quiet: Duration::from_secs(600), pile_extents: 999, ..soon() };
        let store = open_with(dir.path(), &config, rules);
        let ns = namespace(&store, LAYERS, SLICE, "merge");
        let mut names = 0;
        while store.stats().log.segments_created < 3 || store.stats().evicted_blocks == 0 {
            grow(&store, ns, names..names + 2, 8);
            names += 2;
        }
        let present = |store: &Store| -> Vec<bool> {
            (0..names).flat_map(|name| store.contains(ns, &chain(name, 8)).unwrap()).collect()
        };
        let (before, evicted) = (present(&store), store.stats().evicted_blocks);
        drop(store);
        let store = open_with(dir.path(), &config, soon());
        namespace(&store, LAYERS, SLICE, "merge");
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(store.stats().evicted_blocks, 0, "{:?}", store.stats());
        // What was dropped with its prefix may be back, as its segment was not recycled.
        let mut kept = before.iter().zip(present(&store));
        assert!(kept.all(|(before, now)| now || !before), "{setup:?}, {evicted} evicted before");
        let next = chain(1_000_000, 8);
        put(&store, ns, &next, 0, BLOCK);
        assert_eq!(get(&store, ns, &next, BLOCK, &Terms::default()), 8);
    }
}

#[test]
fn concurrent_gets_removals_and_merges_return_no_wrong_bytes() {
    for setup in setups() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { durability: Durability::Batch, ..config(setup, 24 << 20) };
        let rules = MergeRules { quiet: Duration::from_millis(1), pile_extents: 4, ..soon() };
        let store = open_with(dir.path(), &config, rules);
        let ns = namespace(&store, LAYERS, SLICE, "merge");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for reader in 0..2_u64 {
                let (store, done) = (&store, &done);
                scope.spawn(move || {
                    let mut turn = reader;
                    while !done.load(Ordering::Relaxed) {
                        turn = support::next(turn + 1);
                        let hashes = chain(turn % 12, 60);
                        let first = usize::try_from(turn >> 32).unwrap() % 60;
                        let mut out = vec![vec![0_u8; BLOCK]; 60 - first];
                        let report = lend(|lender| {
                            let out = out.iter_mut().map(|b| vec![lender.exclusive(b)]).collect();
                            let terms = Terms::default();
                            store.get_batch(ns, &hashes[first..], out, Scope::Each, &terms).unwrap()
                        });
                        for (at, outcome) in report.outcomes.iter().enumerate() {
                            let hash = hashes[first + at];
                            assert!(!outcome.is_hit() || out[at] == block(hash, BLOCK), "{hash}");
                        }
                    }
                });
            }
            for round in 0..6 {
                grow(&store, ns, 0..12, 60);
                for name in 0..12 {
                    let hashes = chain(name, 60);
                    let part = &hashes[round * 7..round * 7 + 5];
                    store.remove(ns, Some(part), &Terms::default()).unwrap();
                    assert_eq!(store.contains(ns, part).unwrap(), [false; 5]);
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        let stats = store.stats();
        assert!(stats.merging.merges > 0 && stats.quarantined_blocks == 0, "{stats:?}");
        assert!(
            stats
                .log
                .transfers
                .misses
                .iter()
                .all(|(cause, count)| *cause == "recycled" || *count == 0)
        );
    }
}
