//! Blocks that leave a store are reported to its watches.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::support::{Setup, chain, files, get, namespace, open, put, setups};
use dalsegno_core::ErrorKind;
use dalsegno_store::{
    ChainHash, Config, MAX_WATCHED_BLOCKS, NamespaceId, PutOutcome, RemovalWatch, Removals, Store,
    Terms,
};

const BYTES: usize = 64 << 10;
const BLOCKS: usize = 8;
const PLENTY: usize = 1 << 16;

type Key = (NamespaceId, ChainHash);

/// A store that neither merges nor scrubs, and a watch of it.
struct Stand {
    dir: tempfile::TempDir,
    store: Store,
    ns: NamespaceId,
    watch: RemovalWatch,
}

impl Stand {
    fn open(setup: Setup) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { merge_rate: Some(0), scrub_rate: Some(0), ..setup.config(16 << 20) };
        let store = open(dir.path(), &config);
        let ns = namespace(&store, 1, u32::try_from(BYTES).unwrap(), "watched");
        let watch = store.watch_removals(PLENTY).unwrap();
        Self { dir, store, ns, watch }
    }
}

/// Which of these blocks are in the store.
fn present(store: &Store, ns: NamespaceId, hashes: &[ChainHash]) -> BTreeSet<Key> {
    let there = store.peek(ns, hashes).unwrap();
    hashes.iter().zip(there).filter(|(_, there)| *there).map(|(hash, _)| (ns, *hash)).collect()
}

/// Overwrites a byte of every block of the first segment.
fn spoil_a_segment(dir: &Path) {
    let is_segment = |file: &&std::path::PathBuf| file.to_str().unwrap().contains("segment-");
    let all = files(dir);
    let path = all.iter().find(is_segment).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    for at in (10_000..file.metadata().unwrap().len()).step_by(16 << 10) {
        file.write_all_at(&[0xa5; 8], at).unwrap();
    }
}

#[test]
fn every_evicted_block_is_reported_and_no_other() {
    for setup in setups() {
        let Stand { dir: _dir, store, ns, watch } = Stand::open(setup);
        let (mut stored, mut gone) = (Vec::new(), BTreeSet::new());
        for name in 0..60 {
            let chain = chain(name, BLOCKS);
            let report = put(&store, ns, &chain, 0, BYTES);
            assert_eq!(report.count(PutOutcome::Stored), BLOCKS as u64);
            stored.extend(chain);
            let taken = watch.take(5);
            assert!(taken.is_complete && taken.blocks.len() <= 5, "{setup:?}: {taken:?}");
            gone.extend(taken.blocks);
        }
        while watch.waiting() > 0 {
            gone.extend(watch.take(100).blocks);
        }
        assert!(store.stats().evicted_blocks > 100, "{setup:?}: {:?}", store.stats());
        let all: BTreeSet<Key> = stored.iter().map(|hash| (ns, *hash)).collect();
        let left = present(&store, ns, &stored);
        assert_eq!(gone, all.difference(&left).copied().collect(), "{setup:?}");
    }
}

#[test]
fn a_block_that_was_stored_again_is_not_reported() {
    for setup in setups() {
        let Stand { dir: _dir, store, ns, watch } = Stand::open(setup);
        let chain = chain(1, BLOCKS);
        put(&store, ns, &chain, 0, BYTES);
        store.remove(ns, Some(&chain[2..]), &Terms::default()).unwrap();
        assert_eq!(watch.waiting(), BLOCKS - 2);
        put(&store, ns, &chain[..5], 2, BYTES);
        let taken = watch.take(PLENTY);
        let gone = chain[5..].iter().map(|hash| (ns, *hash)).collect();
        assert_eq!(taken, Removals { blocks: gone, is_complete: true }, "{setup:?}");
        assert_eq!(watch.waiting(), 0);
    }
}

#[test]
fn a_quarantined_block_is_reported() {
    for setup in setups() {
        let Stand { dir, store, ns, watch } = Stand::open(setup);
        let chain = chain(1, BLOCKS);
        put(&store, ns, &chain, 0, BYTES);
        spoil_a_segment(dir.path());
        assert_eq!(get(&store, ns, &chain, BYTES, &Terms::default()), 0);
        let left = present(&store, ns, &chain);
        let gone: BTreeSet<Key> = watch.take(PLENTY).blocks.into_iter().collect();
        assert!(!gone.is_empty(), "{setup:?}: the get found no damage");
        assert_eq!(gone.len() + left.len(), BLOCKS);
        assert!(gone.is_disjoint(&left));
    }
}

#[test]
fn blocks_that_do_not_fit_the_queue_leave_one_gap() {
    let Stand { dir: _dir, store, ns, watch: large } = Stand::open(Setup::SIMPLEST);
    let small = store.watch_removals(3).unwrap();
    let chain = chain(1, BLOCKS);
    put(&store, ns, &chain, 0, BYTES);
    store.remove(ns, Some(&chain), &Terms::default()).unwrap();
    assert_eq!((small.waiting(), large.waiting()), (4, BLOCKS));
    let taken = small.take(PLENTY);
    assert_eq!((taken.blocks.len(), taken.is_complete), (3, false));
    assert_eq!(small.take(PLENTY), Removals { blocks: Vec::new(), is_complete: true });
    let taken = large.take(PLENTY);
    assert_eq!((taken.blocks.len(), taken.is_complete), (BLOCKS, true));
}

#[test]
fn a_removed_namespace_leaves_a_gap() {
    for setup in setups() {
        let Stand { dir: _dir, store, ns, watch } = Stand::open(setup);
        put(&store, ns, &chain(1, BLOCKS), 0, BYTES);
        store.remove(ns, None, &Terms::default()).unwrap();
        assert_eq!(watch.waiting(), 1, "{setup:?}");
        assert_eq!(watch.take(1), Removals { blocks: Vec::new(), is_complete: false });
    }
}

#[test]
fn a_watch_outlives_its_store_and_a_dropped_one_takes_nothing() {
    let Stand { dir: _dir, store, ns, watch } = Stand::open(Setup::SIMPLEST);
    drop(store.watch_removals(1).unwrap());
    let chain = chain(1, BLOCKS);
    put(&store, ns, &chain, 0, BYTES);
    store.remove(ns, Some(&chain), &Terms::default()).unwrap();
    store.close();
    assert_eq!(watch.take(PLENTY), Removals { blocks: Vec::new(), is_complete: false });
    let error = store.watch_removals(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

#[test]
fn a_queue_without_bounds_or_places_is_refused() {
    let Stand { dir: _dir, store, .. } = Stand::open(Setup::SIMPLEST);
    for capacity in [0, MAX_WATCHED_BLOCKS + 1] {
        let error = store.watch_removals(capacity).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("1 to 16777216"), "{error}");
    }
}
