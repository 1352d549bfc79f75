//! The shape of an index in files: it follows what is asked, is pinned, or stays; and says why.
#![expect(clippy::disallowed_methods, reason = "plays the world outside of the store")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;

use dalsegno_store::{Config, EngineChoice, IndexChoice, IndexStats, IndexTuning, Store, info};
use support::{Setup, chain, namespace, open, put};

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
    store.stats().index.expect("the index lives in files")
}

#[test]
fn the_shape_follows_what_is_asked_and_the_reason_outlives_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = fill(dir.path(), &config("auto"));
    store.close();
    let told = index(&store);
    assert_eq!(told.tuning, IndexTuning::Auto);
    let asked = told.lsm.asked;
    assert!(asked.written_entries > 102_400 && asked.point_misses > 102_400, "{asked:?}");
    let last = told.decisions.last().expect("filling asks for another shape than the default");
    assert!(last.reason.contains("I/O per operation)"), "{last:?}");
    assert_eq!(Some(last.to.clone()), told.lsm.shape.map(|shape| shape.to_string()));

    let row = info(dir.path()).unwrap().index.expect("the index lives in files");
    assert_eq!((row.decisions, row.shape), (told.decisions.clone(), last.to.clone()));
    let reopened = open(dir.path(), &config("auto"));
    assert_eq!(index(&reopened).decisions, told.decisions);
}

#[test]
fn a_shape_that_is_pinned_or_left_alone_stays() {
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
fn notes_that_make_no_sense_are_no_reason_to_fail() {
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
