//! Removals while the device hangs: each one continues or removes nothing, and its error says which.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::MAX_EXTENT_BLOCKS;

use crate::support::hanging::{Hanging, Hung, hanging};
use crate::support::{Setup, chain, get, namespace, open, put};
use dalsegno_store::{
    ChainHash, Config, EngineChoice, ErrorKind, IndexChoice, NamespaceId, PutOutcome, Store, Terms,
};

/// Bytes of a slice: each block has one.
const SLICE: u32 = 512;
const BYTES: usize = SLICE as usize;
/// The timeout of a call. The device responds only when the test lets it.
const TIMEOUT: Duration = Duration::from_millis(500);
/// The timeout where there are many calls.
const SHORT: Duration = Duration::from_millis(30);
/// More removals than wait for the device.
const MANY: usize = 80;

fn settings() -> [Config; 2] {
    [IndexChoice::Memory, IndexChoice::Lsm].map(|index| {
        let setup = Setup { engine: EngineChoice::Psync, index };
        // So blocks are in DRAM, too.
        Config { dram: Some(16 << 20), ..setup.config(64 << 20) }
    })
}

fn filled(dir: &Path, config: &Config, chain: &[ChainHash]) -> (Arc<Hanging>, Store, NamespaceId) {
    let (device, store) = hanging(dir, config);
    let ns = namespace(&store, 1, SLICE, "hanging removals");
    for part in chain.chunks(1000) {
        let report = put(&store, ns, part, 0, BYTES);
        assert_eq!(report.count(PutOutcome::Stored), part.len() as u64);
    }
    (device, store, ns)
}

/// How many of these blocks are found, each for itself.
fn found(store: &Store, ns: NamespaceId, hashes: &[ChainHash]) -> usize {
    let found = store.contains(ns, hashes).unwrap();
    for (hash, is_found) in hashes.iter().zip(&found).step_by(97) {
        let loaded = get(store, ns, &[*hash], BYTES, &Terms::within(TIMEOUT));
        assert!(*is_found || loaded == 0);
    }
    found.into_iter().filter(|is_found| *is_found).count()
}

/// Removes blocks within a timeout that passes; whether the removal continues.
fn continues(
    store: &Store,
    ns: NamespaceId,
    hashes: Option<&[ChainHash]>,
    timeout: Duration,
) -> bool {
    let error = store.remove(ns, hashes, &Terms::within(timeout)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let message = error.to_string();
    let continues = message.starts_with("the removal continues");
    assert!(continues || message.starts_with("nothing was removed"), "{message}");
    continues
}

#[test]
fn all_parts_of_a_removal_that_timed_out_become_durable_when_the_device_resumes() {
    for config in settings() {
        let dir = tempfile::tempdir().unwrap();
        let chain = chain(1, 2 * MAX_EXTENT_BLOCKS as usize + 100);
        let (device, store, ns) = filled(dir.path(), &config, &chain);
        let (gone, kept) = chain.split_at(chain.len() - 10);
        device.hang(Hung::Syncs);
        assert!(continues(&store, ns, Some(gone), TIMEOUT));
        assert_eq!(found(&store, ns, gone), 0, "{:?}", config.index);
        device.go_on();
        store.close();
        let store = open(dir.path(), &config);
        assert_eq!(found(&store, ns, gone), 0, "{:?}", config.index);
        assert_eq!(found(&store, ns, kept), kept.len());
    }
}

#[test]
fn a_removal_that_finds_too_many_before_it_removes_nothing_and_says_so() {
    for config in settings() {
        let dir = tempfile::tempdir().unwrap();
        let chain = chain(1, MANY);
        let (device, store, ns) = filled(dir.path(), &config, &chain);
        device.hang(Hung::Syncs);
        let (gone, kept): (Vec<ChainHash>, Vec<ChainHash>) = chain
            .iter()
            .partition(|hash| continues(&store, ns, Some(std::slice::from_ref(*hash)), SHORT));
        assert!(!gone.is_empty() && !kept.is_empty(), "{} of {MANY} continue", gone.len());
        assert!(!continues(&store, ns, None, SHORT), "of the namespace");
        let seen = |store: &Store| (found(store, ns, &gone), found(store, ns, &kept));
        assert_eq!(seen(&store), (0, kept.len()), "{:?}", config.index);
        device.go_on();
        store.close();
        let store = open(dir.path(), &config);
        assert_eq!(seen(&store), (0, kept.len()), "{:?}", config.index);
        assert_eq!(store.remove(ns, Some(&kept), &Terms::default()).unwrap(), kept.len() as u64);
    }
}

#[test]
fn blocks_are_not_found_while_their_removal_waits_for_another_one() {
    for config in settings() {
        let dir = tempfile::tempdir().unwrap();
        let chain = chain(1, 5);
        let (device, store, ns) = filled(dir.path(), &config, &chain);
        let other = namespace(&store, 1, SLICE, "another");
        put(&store, other, &chain, 0, BYTES);
        device.hang(Hung::Syncs);
        assert!(continues(&store, ns, Some(&chain[4..]), TIMEOUT));
        assert!(continues(&store, ns, Some(&chain[2..3]), TIMEOUT));
        assert!(continues(&store, other, None, TIMEOUT));
        assert_eq!(store.contains(ns, &chain).unwrap(), [true, true, false, true, false]);
        assert_eq!(store.peek(ns, &chain).unwrap(), [true, true, false, true, false]);
        assert_eq!(store.probe(ns, &chain).unwrap(), 2);
        assert_eq!(store.touch(ns, &chain).unwrap(), 2);
        assert_eq!(get(&store, ns, &chain, BYTES, &Terms::within(TIMEOUT)), 2);
        assert_eq!(store.lease(ns, &chain, &Terms::within(TIMEOUT)).unwrap().len(), 2);
        assert_eq!(store.probe(other, &chain).unwrap(), 0);
        device.go_on();
        store.close();
        let store = open(dir.path(), &config);
        assert_eq!(store.contains(ns, &chain).unwrap(), [true, true, false, true, false]);
        assert_eq!(store.probe(other, &chain).unwrap(), 0);
    }
}

#[test]
fn regression_a_put_does_not_succeed_while_a_removal_of_its_block_waits() {
    for config in settings() {
        for is_present in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let old = chain(1, 4);
            let wanted = if is_present { old[2..3].to_vec() } else { chain(2, 1) };
            let (device, store, ns) = filled(dir.path(), &config, &old);
            device.hang(Hung::Syncs);
            assert!(continues(&store, ns, Some(&old[..1]), TIMEOUT));
            assert!(continues(&store, ns, Some(&wanted), TIMEOUT));
            let report = put(&store, ns, &wanted, 0, BYTES);
            let stored = report.count(PutOutcome::Stored) == 1;
            // An on-disk index cannot keep it, and says so.
            assert_eq!(stored, config.index == IndexChoice::Memory, "{report:?}");
            assert_eq!(report.count(PutOutcome::Failed), u64::from(!stored));
            assert_eq!(found(&store, ns, &wanted), usize::from(stored));
            device.go_on();
            store.close();
            let store = open(dir.path(), &config);
            assert_eq!(found(&store, ns, &wanted), usize::from(stored));
            // When the removal has ended, it can be put.
            put(&store, ns, &wanted, 0, BYTES);
            assert_eq!(found(&store, ns, &wanted), 1);
        }
    }
}
