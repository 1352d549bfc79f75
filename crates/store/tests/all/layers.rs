//! Layers as transfers: submitted, polled, waited for, cancelled.

use std::time::Duration;

use crate::support::{block, chain, config, get, namespace, open};
use dalsegno_store::{ErrorKind, LayerWriter, Memory, Terms, Transfer, TransferState, lend};

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
        let slices: Vec<Vec<Memory>> =
            blocks.iter().map(|b| vec![lender.shared(&b[at..at + SLICE])]).collect();
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
        let writer = store.layer_writer(ns, &chain, 0, 4, &Terms::default()).unwrap();
        for layer in (0..LAYERS).rev() {
            assert_eq!(writer.commit(&Terms::default()).unwrap_err().kind(), ErrorKind::Invalid);
            assert_eq!(store_layer(&writer, layer, &blocks, timeout), Ok(()));
        }
        assert_eq!(store_layer(&writer, 0, &blocks, timeout), Err(ErrorKind::Invalid), "twice");
        assert_eq!(store.probe(ns, &chain).unwrap(), 0);
        assert_eq!(writer.commit(&Terms::default()).unwrap(), 4);
        assert_eq!(get(&store, ns, &chain, bytes, &Terms::default()), 4);
        for layer in 0..LAYERS {
            let mut out = vec![vec![0_u8; SLICE]; 4];
            let report = lend(|lender| {
                let targets = out.iter_mut().map(|slice| vec![lender.exclusive(slice)]).collect();
                let chain = chain.clone();
                end(&store.submit_retrieve_layer(ns, chain, layer, targets, timeout)).unwrap()
            });
            assert_eq!(report.leading_blocks(), 4);
            let at = layer as usize * SLICE;
            for (got, whole) in out.iter().zip(&blocks) {
                assert_eq!(got[..], whole[at..at + SLICE]);
            }
        }
    }
}

#[test]
fn a_layer_transfer_that_times_out_abandons_the_put() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &config(64 << 20));
    let ns = namespace(&store, LAYERS, 5000, "late");
    let chain = chain(1, 2);
    let blocks: Vec<Vec<u8>> = chain.iter().map(|h| block(*h, LAYERS as usize * SLICE)).collect();
    let writer = store.layer_writer(ns, &chain, 0, 2, &Terms::default()).unwrap();
    let late = store_layer(&writer, 0, &blocks, Some(Duration::ZERO));
    assert_eq!(late, Err(ErrorKind::Unavailable));
    assert_eq!(store_layer(&writer, 1, &blocks, None), Err(ErrorKind::Unavailable));
    assert_eq!(writer.commit(&Terms::default()).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(store.probe(ns, &chain).unwrap(), 0);
}

#[test]
fn a_writer_may_be_dropped_before_its_transfers_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &config(64 << 20));
    let ns = namespace(&store, 1, 5000, "gone");
    let chain = chain(1, 2);
    let blocks: Vec<Vec<u8>> = chain.iter().map(|hash| block(*hash, SLICE)).collect();
    lend(|lender| {
        let writer = store.layer_writer(ns, &chain, 0, 2, &Terms::default()).unwrap();
        let slices = blocks.iter().map(|b| vec![lender.shared(b)]).collect();
        let transfer = writer.submit_store_layer(0, slices, None);
        drop(writer);
        end(&transfer).unwrap();
    });
    assert_eq!(store.probe(ns, &chain).unwrap(), 0);
    let again = store.layer_writer(ns, &chain, 0, 2, &Terms::default()).unwrap();
    assert_eq!(store_layer(&again, 0, &blocks, None), Ok(()));
    assert_eq!(again.commit(&Terms::default()).unwrap(), 2);
}
