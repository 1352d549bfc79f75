//! Scrubbing: bad bytes are found before a get meets them.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{Setup, chain, files, get, namespace, open, open_by, put, setups};
use dalsegno_store::testing::{MergeRules, ScrubRules};
use dalsegno_store::{Config, NamespaceId, Store, Terms};

const BYTES: usize = 64 << 10;
const CHAINS: u64 = 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn settings(setup: Setup, scrub_rate: u64) -> Config {
    Config { scrub_rate: Some(scrub_rate), merge_rate: Some(0), ..setup.config(64 << 20) }
}

fn space(store: &Store) -> NamespaceId {
    namespace(store, 2, 32 << 10, "scrub")
}

/// A store whose first round starts immediately.
fn open_soon(dir: &Path, config: &Config) -> Store {
    let rules = ScrubRules { first: Duration::ZERO, ..ScrubRules::default() };
    open_by(dir, config, MergeRules::default(), rules)
}

fn fill(dir: &Path, config: &Config) {
    let store = open(dir, config);
    let ns = space(&store);
    for name in 0..CHAINS {
        put(&store, ns, &chain(name, 4), 0, BYTES);
    }
}

/// Inverts a byte in the middle of the written log.
fn spoil(dir: &Path) {
    let is_segment =
        |file: &&std::path::PathBuf| file.to_str().is_some_and(|name| name.contains("segment-"));
    let all = files(dir);
    let segment = all.iter().find(is_segment).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(segment).unwrap();
    let mut byte = [0];
    // Inside of a block, beyond the header of the second extent.
    let at = 4096 + (4 * BYTES as u64 + 4096) + 4096 + 100;
    file.read_exact_at(&mut byte, at).unwrap();
    byte[0] ^= 0x10;
    file.write_all_at(&byte, at).unwrap();
}

fn wait_for_a_round(store: &Store) {
    let started = Instant::now();
    while store.stats().scrubbing.rounds == 0 {
        assert!(started.elapsed() < PATIENCE, "{:?}", store.stats().scrubbing);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn damage_is_found_before_a_get_meets_it() {
    for setup in setups() {
        let dir = tempfile::tempdir().unwrap();
        let config = settings(setup, 1 << 30);
        fill(dir.path(), &config);
        spoil(dir.path());
        let store = open_soon(dir.path(), &config);
        let ns = space(&store);
        wait_for_a_round(&store);
        let stats = store.stats();
        assert_eq!(stats.scrubbing.damaged_blocks, 1, "{setup:?}: {:?}", stats.scrubbing);
        assert_eq!(stats.scrubbing.extents, CHAINS);
        assert_eq!((stats.quarantined_blocks, stats.blocks), (1, CHAINS * 4 - 1));
        assert!(
            stats.log.transfers.misses["slice_checksum"] > 0,
            "the cause is counted: {:?}",
            stats.log.transfers.misses
        );
        let listed = (0..CHAINS).map(|name| store.probe(ns, &chain(name, 4)).unwrap());
        assert_eq!(listed.filter(|count| *count == 4).count() as u64, CHAINS - 1);
        // Bad blocks can be put again, and nothing else was lost.
        for name in 0..CHAINS {
            put(&store, ns, &chain(name, 4), 0, BYTES);
            assert_eq!(get(&store, ns, &chain(name, 4), BYTES, &Terms::default()), 4);
        }
    }
}

#[test]
fn sound_blocks_are_read_once_and_stay() {
    let setup = Setup::SIMPLEST;
    let dir = tempfile::tempdir().unwrap();
    let config = settings(setup, 1 << 30);
    fill(dir.path(), &config);
    let store = open_soon(dir.path(), &config);
    wait_for_a_round(&store);
    let scrubbed = store.stats().scrubbing;
    assert_eq!((scrubbed.extents, scrubbed.damaged_blocks), (CHAINS, 0));
    assert_eq!(scrubbed.bytes, CHAINS * 4 * BYTES as u64);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(store.stats().scrubbing, scrubbed, "the next round comes a day later");
    assert_eq!(store.stats().blocks, CHAINS * 4);
}

#[test]
fn scrubbing_keeps_to_its_rate_and_can_be_switched_off() {
    let setup = Setup::SIMPLEST;
    let dir = tempfile::tempdir().unwrap();
    let config = settings(setup, 0);
    fill(dir.path(), &config);
    let store = open_soon(dir.path(), &config);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(store.stats().scrubbing.bytes, 0);
    store.close();
    let rate = 512 << 10;
    let store = open_soon(dir.path(), &settings(setup, rate));
    let started = Instant::now();
    std::thread::sleep(Duration::from_millis(1500));
    while store.stats().scrubbing.bytes == 0 {
        assert!(started.elapsed() < PATIENCE, "{:?}", store.stats().scrubbing);
        std::thread::sleep(Duration::from_millis(10));
    }
    let bytes = store.stats().scrubbing.bytes;
    // A second's worth at once, and an extent that is under way.
    let most = rate * (2 + started.elapsed().as_secs()) + 4 * BYTES as u64;
    assert!(bytes <= most, "{bytes} of {most}");
    // It waits for its rate, which does not delay closing the store.
    let closing = Instant::now();
    store.close();
    assert!(closing.elapsed() < Duration::from_secs(20), "{:?}", closing.elapsed());
}
