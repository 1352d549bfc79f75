//! The shape of an on-disk index: it follows the workload, is pinned, or stays, and its reason is reported.

use std::path::Path;

use crate::support::{Setup, chain, namespace, open, put};
use dalsegno_store::{Config, EngineChoice, IndexChoice, IndexStats, IndexTuning, Store, info};

const BLOCK: usize = 64;
const BLOCKS: usize = 256;

fn config(tuning: &str) -> Config {
    let setup = Setup { engine: EngineChoice::Psync, index: IndexChoice::Lsm };
    let index_tuning: IndexTuning = tuning.parse().unwrap();
    Config { index_memory: Some(1 << 20), index_tuning, ..setup.config(256 << 20) }
}

/// Puts some windows of operations, so that a decision is due however far the thread is behind.
fn fill(dir: &Path, config: &Config) -> Store {
    let store = open(dir, config);
    let namespace = namespace(&store, 1, 64, "filled");
    for name in 0..400 {
        put(&store, namespace, &chain(name, BLOCKS), 0, BLOCK);
    }
    store
}

fn index(store: &Store) -> IndexStats {
    store.stats().index.expect("the index is on disk")
}

#[test]
fn the_shape_follows_the_workload_and_its_reason_survives_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let store = fill(dir.path(), &config("auto"));
    store.close();
    let stats = index(&store);
    assert_eq!(stats.tuning, IndexTuning::Auto);
    let asked = stats.lsm.asked;
    assert!(asked.written_entries > 102_400 && asked.point_misses > 102_400, "{asked:?}");
    let last = stats.decisions.last().expect("filling needs another shape than the default");
    assert!(last.reason.contains("I/O per operation)"), "{last:?}");
    assert_eq!(Some(last.to.clone()), stats.lsm.shape.map(|shape| shape.to_string()));

    let row = info(dir.path()).unwrap().index.expect("the index is on disk");
    assert_eq!((row.decisions, row.shape), (stats.decisions.clone(), last.to.clone()));
    let reopened = open(dir.path(), &config("auto"));
    assert_eq!(index(&reopened).decisions, stats.decisions);
}

#[test]
fn a_pinned_or_disabled_shape_stays() {
    let dir = tempfile::tempdir().unwrap();
    let shape = |store: &Store| index(store).lsm.shape.unwrap().to_string();
    let store = fill(dir.path(), &config("T=5,K=2,Z=2"));
    assert_eq!(shape(&store), "T=5 K=2 Z=2");
    assert!(index(&store).decisions.is_empty());
    store.close();
    let store = fill(dir.path(), &config("off"));
    assert_eq!(shape(&store), "T=5 K=2 Z=2", "the one it had");
    assert!(index(&store).decisions.is_empty());
}

#[test]
fn invalid_notes_do_not_fail_an_open() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), &config("auto")).close();
    let notes = dir.path().join("index.notes");
    std::fs::write(notes, b"{\"operations\": 1}\n\xff\x00").unwrap();
    assert_eq!(info(dir.path()).unwrap().index.unwrap().decisions, []);
    assert!(index(&open(dir.path(), &config("auto"))).decisions.is_empty());
}

#[test]
fn an_index_in_memory_has_no_shape() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), &config("auto")).close();
    let store = open(dir.path(), &Config { index: IndexChoice::Memory, ..config("auto") });
    assert!(store.stats().index.is_none());
    store.close();
    assert!(info(dir.path()).unwrap().index.is_none(), "its files are gone");
}
