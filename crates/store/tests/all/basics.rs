//! Gets return what was put: shapes, engines, partial reads, reopening.

use crate::support;
use std::time::Duration;

use crate::support::{Setup, block, chain, config, get, namespace, open, put};
use dalsegno_store::testing::hold_space;
use dalsegno_store::{
    Admission, Config, DramAdmission, Durability, EngineChoice, ErrorKind, IndexChoice, Keep,
    LayerSpan, PutOutcome, Scope, Terms, lend,
};

const SHAPES: [(u32, u32); 6] =
    [(1, 1), (1, 4096), (2, 6000), (30, 768), (3, 128 << 10), (1, 3 << 20)];

#[test]
fn every_shape_is_returned_exactly_by_both_engines_before_and_after_reopening() {
    for engine in [EngineChoice::Psync, EngineChoice::Auto] {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { io_engine: engine, ..config(256 << 20) };
        let store = open(dir.path(), &config);
        for (layers, slice) in SHAPES {
            let bytes = (layers * slice) as usize;
            let ns = namespace(&store, layers, slice, "shape");
            let chain = chain(u64::from(slice), 7);
            assert_eq!(put(&store, ns, &chain, 0, bytes).count(PutOutcome::Stored), 7);
            assert_eq!(put(&store, ns, &chain, 0, bytes).count(PutOutcome::Present), 7);
            for terms in [Terms::default(), Terms::within(Duration::from_secs(20))] {
                for first in 0..7 {
                    assert_eq!(get(&store, ns, &chain[first..], bytes, &terms), 7 - first);
                }
                assert_eq!(get(&store, ns, &chain[..3], bytes, &terms), 3);
            }
        }
        drop(store);
        let store = open(dir.path(), &config);
        assert_eq!(store.stats().open_faults, 0);
        for (layers, slice) in SHAPES {
            let bytes = (layers * slice) as usize;
            let ns = namespace(&store, layers, slice, "shape");
            let chain = chain(u64::from(slice), 7);
            assert_eq!(store.probe(ns, &chain[2..]).unwrap(), 5);
            assert_eq!(get(&store, ns, &chain[2..], bytes, &Terms::default()), 5);
        }
    }
}

#[test]
fn a_prefix_that_grows_and_forks_is_found_from_any_block() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &config(64 << 20));
    let ns = namespace(&store, 2, 4096, "prefix");
    let mut long = chain(1, 10);
    put(&store, ns, &long[..4], 0, 8192);
    put(&store, ns, &long, 4, 8192);
    let mut fork = long[..6].to_vec();
    fork.extend(chain(2, 4));
    put(&store, ns, &fork, 6, 8192);
    assert_eq!(get(&store, ns, &long, 8192, &Terms::default()), 10);
    assert_eq!(get(&store, ns, &fork, 8192, &Terms::default()), 10);
    assert_eq!(store.probe(ns, &fork[5..]).unwrap(), 5);
    long.insert(3, support::hash(99, 0));
    assert_eq!(get(&store, ns, &long, 8192, &Terms::default()), 3);
    assert_eq!(store.contains(ns, &long[2..5]).unwrap(), [true, false, true]);
}

#[test]
fn namespaces_never_share_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &config(64 << 20));
    let (one, two) = (namespace(&store, 1, 4096, "one"), namespace(&store, 1, 4096, "two"));
    let chain = chain(5, 3);
    put(&store, one, &chain, 0, 4096);
    assert_eq!(store.probe(two, &chain).unwrap(), 0);
    assert_eq!(get(&store, two, &chain, 4096, &Terms::default()), 0);
}

#[test]
fn regression_a_put_in_one_namespace_admits_no_block_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { admission: Admission::SecondPut, ..config(64 << 20) };
    let store = open(dir.path(), &config);
    let (one, two) = (namespace(&store, 1, 4096, "one"), namespace(&store, 1, 4096, "two"));
    let chain = chain(5, 3);
    for ns in [one, two] {
        assert_eq!(put(&store, ns, &chain, 0, 4096).count(PutOutcome::Declined), 3, "first put");
    }
    for ns in [one, two] {
        assert_eq!(put(&store, ns, &chain, 0, 4096).count(PutOutcome::Stored), 3, "second put");
    }
}

#[test]
fn each_layer_can_be_written_and_read_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &config(64 << 20));
    for slice in [4096_u32, 1000] {
        let ns = namespace(&store, 4, slice, "layers");
        let chain = chain(u64::from(slice), 5);
        let bytes = slice as usize;
        let blocks: Vec<Vec<u8>> = chain.iter().map(|h| block(*h, 4 * bytes)).collect();
        let writer = store
            .layer_writer(ns, LayerSpan { chain: &chain, first: 0, count: 5 }, &Terms::default())
            .unwrap();
        assert_eq!(store.probe(ns, &chain).unwrap(), 0);
        for layer in [2_u32, 0, 3, 1] {
            lend(|lender| {
                let at = layer as usize * bytes;
                let slices =
                    blocks.iter().map(|b| vec![lender.shared(&b[at..at + bytes])]).collect();
                writer.store_layer(layer, slices, &Terms::default()).unwrap();
            });
        }
        assert_eq!(writer.commit(Keep::Stored, &Terms::default()).unwrap(), 5);
        assert_eq!(get(&store, ns, &chain, 4 * bytes, &Terms::default()), 5);
        let again = store
            .layer_writer(ns, LayerSpan { chain: &chain, first: 0, count: 5 }, &Terms::default())
            .unwrap();
        assert_eq!((again.first(), again.count()), (5, 0));
    }
}

#[test]
fn a_layer_put_without_commit_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(64 << 20);
    let store = open(dir.path(), &config);
    let ns = namespace(&store, 2, 4096, "abandoned");
    let chain = chain(3, 2);
    drop(
        store
            .layer_writer(ns, LayerSpan { chain: &chain, first: 0, count: 2 }, &Terms::default())
            .unwrap(),
    );
    put(&store, ns, &support::chain(4, 2), 0, 8192);
    drop(store);
    let store = open(dir.path(), &config);
    assert_eq!(
        (store.probe(ns, &chain).unwrap(), store.probe(ns, &support::chain(4, 2)).unwrap()),
        (0, 2)
    );
    assert_eq!(store.stats().open_faults, 0);
}

#[test]
fn a_writer_that_outlives_its_store_keeps_nothing_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &config(64 << 20));
    let ns = namespace(&store, 2, 4096, "outlived");
    let chain = chain(3, 2);
    let writer = store
        .layer_writer(ns, LayerSpan { chain: &chain, first: 0, count: 2 }, &Terms::default())
        .unwrap();
    store.close();
    let again = open(dir.path(), &config(64 << 20));
    let ns = namespace(&again, 2, 4096, "outlived");
    assert_eq!(put(&again, ns, &chain, 0, 8192).count(PutOutcome::Stored), 2);
    assert_eq!(
        writer.commit(Keep::Stored, &Terms::default()).unwrap_err().kind(),
        ErrorKind::Closed
    );
    drop(writer);
    assert_eq!(get(&again, ns, &chain, 8192, &Terms::default()), 2);
}

#[test]
fn the_dram_tier_serves_repeats_within_its_bound() {
    for admission in [DramAdmission::Get, DramAdmission::Put] {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { dram: Some(1 << 20), dram_admission: admission, ..config(64 << 20) };
        let store = open(dir.path(), &config);
        let ns = namespace(&store, 1, 64 << 10, "dram");
        let chain = chain(9, 40);
        put(&store, ns, &chain, 0, 64 << 10);
        for _ in 0..3 {
            assert_eq!(get(&store, ns, &chain[..8], 64 << 10, &Terms::default()), 8);
            assert_eq!(get(&store, ns, &chain, 64 << 10, &Terms::default()), 40);
            assert!(store.stats().dram_bytes <= 1 << 20);
        }
        assert!(store.stats().get_dram_blocks > 0, "{admission:?}");
    }
}

#[test]
fn regression_removing_a_namespace_leaves_the_others_in_dram() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { dram: Some(1 << 20), ..config(64 << 20) };
    let store = open(dir.path(), &config);
    let (one, two) = (namespace(&store, 1, 4096, "one"), namespace(&store, 1, 4096, "two"));
    let chain = chain(5, 8);
    for ns in [one, two] {
        put(&store, ns, &chain, 0, 4096);
        assert_eq!(get(&store, ns, &chain, 4096, &Terms::default()), 8);
    }
    assert_eq!(store.stats().dram_blocks, 16);
    assert_eq!(store.remove(one, None, &Terms::default()).unwrap(), 8);
    assert_eq!(store.stats().dram_blocks, 8);
    assert_eq!(get(&store, one, &chain, 4096, &Terms::default()), 0);
    assert_eq!(get(&store, two, &chain, 4096, &Terms::default()), 8);
    assert_eq!(store.stats().get_dram_blocks, 8, "served from DRAM, not from the log");
}

/// A get looks each block up exactly as often as `contains` does, also where DRAM serves some of them.
#[test]
fn regression_a_get_looks_up_each_block_once() {
    for dram in [0, 1 << 20] {
        let dir = tempfile::tempdir().unwrap();
        let setup = Setup { index: IndexChoice::Lsm, ..Setup::SIMPLEST };
        let config = Config { dram: Some(dram), ..setup.config(64 << 20) };
        let store = open(dir.path(), &config);
        let ns = namespace(&store, 1, 4096, "counted");
        let chain = chain(5, 40);
        for first in (0..40).step_by(4) {
            put(&store, ns, &chain[..first + 4], first, 4096);
        }
        drop(store);
        // Only entries in tables are counted.
        let store = open(dir.path(), &config);
        let looked_up = || {
            let asked = store.stats().index.unwrap().lsm.asked;
            asked.point_hits + asked.point_misses
        };
        let ns = namespace(&store, 1, 4096, "counted");
        let before = looked_up();
        assert_eq!(store.contains(ns, &chain).unwrap(), [true; 40]);
        let once = looked_up() - before;
        assert!(once >= 10, "{once} lookups of ten extents");
        let before = looked_up();
        let terms = Terms::default();
        if dram > 0 {
            // The first blocks enter DRAM, which looks each of them up once more.
            assert_eq!(get(&store, ns, &chain[..10], 4096, &terms), 10);
            let first = looked_up() - before;
            assert!(first > 10 && first <= once + 10, "{first} lookups of ten blocks");
            // DRAM serves them now, after a lookup.
            let before = looked_up();
            assert_eq!(get(&store, ns, &chain[..10], 4096, &terms), 10);
            let ten = looked_up() - before;
            assert!(ten > 0 && ten <= once, "{ten} lookups of ten blocks");
            assert_eq!(ten + 10, first, "once more for each block that entered DRAM");
        } else {
            assert_eq!(get(&store, ns, &chain, 4096, &terms), 40);
            assert_eq!(looked_up() - before, once);
        }
    }
}

#[test]
fn removed_blocks_stay_gone_after_reopening_and_can_be_put_again() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(64 << 20);
    let store = open(dir.path(), &config);
    let (ns, all) = (namespace(&store, 1, 4096, "some"), namespace(&store, 1, 4096, "all"));
    let chain = chain(1, 6);
    put(&store, ns, &chain, 0, 4096);
    put(&store, all, &chain, 0, 4096);
    assert_eq!(store.remove(ns, Some(&chain[2..4]), &Terms::default()).unwrap(), 2);
    assert_eq!(store.remove(all, None, &Terms::default()).unwrap(), 6);
    for _ in 0..2 {
        assert_eq!(store.contains(ns, &chain).unwrap(), [true, true, false, false, true, true]);
        assert_eq!(store.probe(all, &chain).unwrap(), 0);
    }
    drop(store);
    let store = open(dir.path(), &config);
    assert_eq!(store.contains(ns, &chain).unwrap(), [true, true, false, false, true, true]);
    assert_eq!(store.probe(all, &chain).unwrap(), 0);
    assert_eq!(put(&store, ns, &chain, 0, 4096).count(PutOutcome::Stored), 2);
    drop(store);
    let store = open(dir.path(), &config);
    assert_eq!(get(&store, ns, &chain, 4096, &Terms::default()), 6);
}

/// The extent of a put under way is older than all removals, so none of them may be forgotten before it ends. Each
/// removal is between two puts.
#[test]
fn puts_and_removals_go_on_while_a_put_holds_its_space() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { segment: Some(1 << 20), ..config(6 << 20) };
    let store = open(dir.path(), &config);
    let ns = namespace(&store, 1, 4096, "removed");
    let held = hold_space(&store, 5 * 4096).unwrap();
    let (mut same, others) = (chain(2, 1), chain(3, 100));
    for round in 0..1000_usize {
        if round % 10 == 0 {
            same[0] = others[round / 10];
        }
        assert_eq!(put(&store, ns, &same, 0, 4096).count(PutOutcome::Stored), 1, "{round}");
        assert_eq!(store.remove(ns, Some(&same), &Terms::default()).unwrap(), 1, "{round}");
    }
    drop(held);
    drop(store);
    let store = open(dir.path(), &config);
    assert!(others.iter().all(|hash| store.probe(ns, &[*hash]).unwrap() == 0));
}

/// A chain in use is moved from segment to segment and never ends. Its age must not keep every tombstone alive: they
/// would fill the log, and no put would find space any more, also after the next open.
#[test]
fn regression_a_chain_in_use_keeps_no_tombstones() {
    for index in [IndexChoice::Memory, IndexChoice::Lsm] {
        let dir = tempfile::tempdir().unwrap();
        let setup = Setup { index, ..Setup::SIMPLEST };
        let config = Config { segment: Some(1 << 20), ..setup.config(8 << 20) };
        let store = open(dir.path(), &config);
        let (kept, removed) =
            (namespace(&store, 1, 32 << 10, "kept"), namespace(&store, 1, 4096, "removed"));
        let hot = chain(1, 2);
        put(&store, kept, &hot, 0, 32 << 10);
        for round in 0..700 {
            assert_eq!(get(&store, kept, &hot, 32 << 10, &Terms::default()), 2, "{round}");
            let others = (chain(2 * round + 10, 1), chain(2 * round + 11, 1));
            assert_eq!(put(&store, kept, &others.0, 0, 32 << 10).count(PutOutcome::Stored), 1);
            assert_eq!(put(&store, removed, &others.1, 0, 4096).count(PutOutcome::Stored), 1);
            store.remove(removed, Some(&others.1), &Terms::default()).unwrap();
        }
        drop(store);
        let store = open(dir.path(), &config);
        assert_eq!(get(&store, kept, &hot, 32 << 10, &Terms::default()), 2);
        let gone: Vec<_> = (0..700).map(|round| chain(2 * round + 11, 1)[0]).collect();
        assert_eq!(store.contains(removed, &gone).unwrap(), [false; 700]);
        assert_eq!(put(&store, kept, &chain(2, 2), 0, 32 << 10).count(PutOutcome::Stored), 2);
    }
}

#[test]
fn transfers_end_once_and_return_their_result() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { durability: Durability::Batch, ..config(64 << 20) };
    let store = open(dir.path(), &config);
    let ns = namespace(&store, 1, 4096, "transfer");
    let chain = chain(1, 4);
    let blocks: Vec<Vec<u8>> = chain.iter().map(|h| block(*h, 4096)).collect();
    let mut out = vec![vec![0_u8; 4096]; 4];
    lend(|lender| {
        let memory = blocks.iter().map(|b| vec![lender.shared(b)]).collect();
        let transfer = store.submit_put(ns, chain.clone(), 0, memory, Keep::Stored, None);
        assert!(transfer.wait(Some(Duration::from_secs(20))));
        assert_eq!(transfer.take().unwrap().unwrap().count(PutOutcome::Stored), 4);
        assert!(transfer.take().is_none());
    });
    lend(|lender| {
        let memory = out.iter_mut().map(|b| vec![lender.exclusive(b)]).collect();
        let get =
            store.submit_get(ns, chain.clone(), memory, Scope::Each, Some(Duration::from_secs(20)));
        assert!(get.wait(None));
        assert_eq!(get.take().unwrap().unwrap().hit_blocks(), 4);
    });
    assert_eq!(out, blocks);
    assert!(store.stats().log.syncs > 0);
}

#[test]
fn wrong_sizes_are_refused_before_any_access() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &config(64 << 20));
    let ns = namespace(&store, 1, 4096, "sizes");
    let chain = chain(1, 2);
    let mut short = vec![7_u8; 100];
    let error = lend(|lender| {
        let out = vec![vec![lender.exclusive(&mut short)]];
        store.get_batch(ns, &chain[..1], out, Scope::Prefix, &Terms::default()).unwrap_err()
    });
    assert!(error.message().contains("buffer 0 has 100 bytes"), "{error}");
    assert!(short.iter().all(|b| *b == 7));
    let error = store.get_batch(ns, &chain, vec![], Scope::Prefix, &Terms::default()).unwrap_err();
    assert!(error.message().contains("one buffer per block"), "{error}");
    store.close();
    assert_eq!(store.probe(ns, &chain).unwrap_err().kind(), dalsegno_store::ErrorKind::Closed);
}

#[test]
fn regression_two_threads_that_close_a_store_do_not_wait_for_each_other_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &config(64 << 20));
    std::thread::scope(|scope| {
        let closing = [store.clone(), store].map(|store| scope.spawn(move || store.close()));
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while !closing.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            assert!(std::time::Instant::now() < deadline, "one waits for the other");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    // Both have released the directory.
    open(dir.path(), &config(64 << 20)).close();
}
