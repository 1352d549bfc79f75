//! Layers as transfers: submitted, polled, waited for, cancelled.

use std::time::Duration;

use crate::support::{block, chain, config, get, namespace, open, put};
use dalsegno_store::{
    ChainHash, Config, DramAdmission, ErrorKind, Keep, LayerOutcome, LayerSpan, LayerWriter,
    LoadTarget, NamespaceId, Store, Terms, Transfer, TransferState, lend,
};

const LAYERS: u32 = 3;
const SLICE: usize = 5000;

/// Stores a layer as a transfer and returns how that ended.
fn store_layer(
    writer: &LayerWriter,
    layer: u32,
    blocks: &[Vec<u8>],
    timeout: Option<Duration>,
) -> Result<(), ErrorKind> {
    lend(|lender| {
        let at = layer as usize * SLICE;
        let slices = blocks.iter().map(|b| vec![lender.shared(&b[at..at + SLICE])]).collect();
        let transfer = writer.submit_store_layer(layer, slices, timeout);
        end(&transfer).map_err(|error| error.kind())
    })
}

fn end<T>(transfer: &Transfer<T>) -> dalsegno_store::Result<T> {
    assert!(transfer.wait(Some(Duration::from_secs(60))));
    assert_eq!(transfer.state(), TransferState::Done);
    transfer.take().unwrap()
}

#[test]
fn layers_are_stored_and_retrieved_as_transfers() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &config(64 << 20));
    let ns = namespace(&store, LAYERS, 5000, "layers");
    let bytes = LAYERS as usize * SLICE;
    for (name, timeout) in [(1, None), (2, Some(Duration::from_secs(60)))] {
        let chain = chain(name, 4);
        let blocks: Vec<Vec<u8>> = chain.iter().map(|hash| block(*hash, bytes)).collect();
        let writer = store
            .layer_writer(ns, LayerSpan { chain: &chain, first: 0, count: 4 }, &Terms::default())
            .unwrap();
        for layer in (0..LAYERS).rev() {
            assert_eq!(
                writer.commit(Keep::Stored, &Terms::default()).unwrap_err().kind(),
                ErrorKind::Invalid
            );
            assert_eq!(store_layer(&writer, layer, &blocks, timeout), Ok(()));
        }
        assert_eq!(store_layer(&writer, 0, &blocks, timeout), Err(ErrorKind::Invalid), "twice");
        assert_eq!(store.probe(ns, &chain).unwrap(), 0);
        assert_eq!(writer.commit(Keep::Stored, &Terms::default()).unwrap(), 4);
        assert_eq!(get(&store, ns, &chain, bytes, &Terms::default()), 4);
        let mut out = vec![vec![0_u8; bytes]; 4];
        lend(|lender| {
            let targets = out.iter_mut().map(|block| vec![lender.exclusive(block)]).collect();
            let target = LoadTarget::Blocks(targets);
            let load = store.load(ns, chain.clone(), target, timeout).unwrap();
            for layer in 0..LAYERS {
                assert_eq!(load.layers.wait(layer, None).unwrap(), Some(LayerOutcome::Ready));
            }
            assert_eq!(end(&load.transfer).unwrap().leading_blocks(), 4);
        });
        assert_eq!(out, blocks);
    }
}

#[test]
fn a_layer_that_times_out_may_be_stored_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &config(64 << 20));
    let ns = namespace(&store, LAYERS, 5000, "late");
    let chain = chain(1, 2);
    let blocks: Vec<Vec<u8>> = chain.iter().map(|h| block(*h, LAYERS as usize * SLICE)).collect();
    let span = LayerSpan { chain: &chain, first: 0, count: 2 };
    let writer = store.layer_writer(ns, span, &Terms::default()).unwrap();
    let late = store_layer(&writer, 0, &blocks, Some(Duration::ZERO));
    assert_eq!(late, Err(ErrorKind::Unavailable));
    for layer in 1..LAYERS {
        assert_eq!(store_layer(&writer, layer, &blocks, None), Ok(()));
    }
    assert_eq!(
        writer.commit(Keep::Stored, &Terms::default()).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    assert_eq!(store_layer(&writer, 0, &blocks, None), Ok(()));
    assert_eq!(writer.commit(Keep::Stored, &Terms::default()).unwrap(), 2);
    assert_eq!(get(&store, ns, &chain, LAYERS as usize * SLICE, &Terms::default()), 2);
}

/// In places of the DRAM tier, in other memory, and in both.
#[test]
fn blocks_are_gathered_wherever_there_is_memory() {
    for (dram, places) in [(0, Some(0)), (128 << 10, None), (16 << 20, Some(4))] {
        let dir = tempfile::tempdir().unwrap();
        let admission = DramAdmission::Put;
        let config = Config { dram: Some(dram), dram_admission: admission, ..config(64 << 20) };
        let store = open(dir.path(), &config);
        let ns = namespace(&store, LAYERS, 5000, "gathered");
        let chain = chain(1, 4);
        let blocks: Vec<Vec<u8>> =
            chain.iter().map(|h| block(*h, LAYERS as usize * SLICE)).collect();
        let span = LayerSpan { chain: &chain, first: 0, count: 4 };
        let writer = store.layer_writer(ns, span, &Terms::default()).unwrap();
        for layer in 0..LAYERS {
            assert_eq!(store_layer(&writer, layer, &blocks, None), Ok(()));
        }
        assert_eq!(writer.commit(Keep::Stored, &Terms::default()).unwrap(), 4);
        let in_dram = store.stats().dram_blocks;
        assert!(places.is_none_or(|places| places == in_dram), "{in_dram} of {places:?}");
        assert_eq!(get(&store, ns, &chain, LAYERS as usize * SLICE, &Terms::default()), 4);
    }
}

/// A writer of four blocks, all layers of which are stored.
fn gathered(store: &Store, ns: NamespaceId, chain: &[ChainHash]) -> LayerWriter {
    let blocks: Vec<Vec<u8>> = chain.iter().map(|h| block(*h, LAYERS as usize * SLICE)).collect();
    let span = LayerSpan { chain, first: 0, count: chain.len() };
    let writer = store.layer_writer(ns, span, &Terms::default()).unwrap();
    for layer in 0..LAYERS {
        assert_eq!(store_layer(&writer, layer, &blocks, None), Ok(()));
    }
    writer
}

#[test]
fn writers_leave_the_tier_to_gets_and_leases() {
    for (admission, most) in [(DramAdmission::Get, 0), (DramAdmission::Put, 4)] {
        let dir = tempfile::tempdir().unwrap();
        // Sixteen places.
        let config = Config { dram: Some(1 << 20), dram_admission: admission, ..config(64 << 20) };
        let store = open(dir.path(), &config);
        let ns = namespace(&store, LAYERS, 5000, "shared");
        let bytes = LAYERS as usize * SLICE;
        put(&store, ns, &chain(0, 8), 0, bytes);
        assert_eq!(get(&store, ns, &chain(0, 8), bytes, &Terms::default()), 8);
        let writers: Vec<_> = (1..8).map(|name| gathered(&store, ns, &chain(name, 4))).collect();
        assert!(store.stats().dram_evicted_blocks <= most, "{admission:?}: {:?}", store.stats());
        let lease = store.lease(ns, &chain(0, 8), &Terms::default()).unwrap();
        assert_eq!(lease.len(), 8, "{admission:?}");
        drop(lease);
        assert!(
            writers
                .iter()
                .all(|writer| writer.commit(Keep::Stored, &Terms::default()).unwrap() == 4)
        );
    }
}

#[test]
fn a_removed_block_of_a_put_by_layer_leaves_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &config(64 << 20));
    let ns = namespace(&store, LAYERS, 5000, "removed");
    let chain = chain(1, 8);
    let writer = gathered(&store, ns, &chain);
    store.remove(ns, Some(&chain[3..4]), &Terms::default()).unwrap();
    assert_eq!(writer.commit(Keep::Stored, &Terms::default()).unwrap(), 7);
    let present: Vec<bool> = (0..8).map(|at| at != 3).collect();
    assert_eq!(store.contains(ns, &chain).unwrap(), present);
}

#[test]
fn puts_by_layer_of_the_same_blocks_at_once_all_succeed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &config(64 << 20));
    let ns = namespace(&store, LAYERS, 5000, "twice");
    for name in 0..50 {
        let chain = chain(name, 4);
        let writers = [(); 2].map(|()| gathered(&store, ns, &chain));
        std::thread::scope(|scope| {
            for writer in &writers {
                scope.spawn(|| {
                    assert!(writer.commit(Keep::Stored, &Terms::default()).unwrap() <= 4);
                });
            }
        });
        assert_eq!(store.probe(ns, &chain).unwrap(), 4);
    }
}

#[test]
fn puts_by_layer_gather_a_bounded_number_of_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { capacity: Some(1 << 30), dram: Some(0), ..Config::default() };
    let store = open(dir.path(), &config);
    let ns = namespace(&store, 1, 16 << 20, "large");
    let span = |chain: &[ChainHash]| {
        store.layer_writer(ns, LayerSpan { chain, first: 0, count: 1 }, &Terms::default())
    };
    let mut writers: Vec<_> = (0..63).map(|name| span(&chain(name, 1)).unwrap()).collect();
    assert_eq!(span(&chain(64, 1)).unwrap_err().kind(), ErrorKind::Unavailable);
    writers.pop();
    span(&chain(64, 1)).unwrap();
}

#[test]
fn a_writer_may_be_dropped_before_its_transfers_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &config(64 << 20));
    let ns = namespace(&store, 1, 5000, "gone");
    let chain = chain(1, 2);
    let blocks: Vec<Vec<u8>> = chain.iter().map(|hash| block(*hash, SLICE)).collect();
    lend(|lender| {
        let writer = store
            .layer_writer(ns, LayerSpan { chain: &chain, first: 0, count: 2 }, &Terms::default())
            .unwrap();
        let slices = blocks.iter().map(|b| vec![lender.shared(b)]).collect();
        let transfer = writer.submit_store_layer(0, slices, None);
        drop(writer);
        end(&transfer).unwrap();
    });
    assert_eq!(store.probe(ns, &chain).unwrap(), 0);
    let again = store
        .layer_writer(ns, LayerSpan { chain: &chain, first: 0, count: 2 }, &Terms::default())
        .unwrap();
    assert_eq!(store_layer(&again, 0, &blocks, None), Ok(()));
    assert_eq!(again.commit(Keep::Stored, &Terms::default()).unwrap(), 2);
}
