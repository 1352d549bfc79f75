//! Loads into pages of an engine, from the pool of a server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use dalsegno_serve::Client;
use dalsegno_store::{
    ChainHash, LayerOutcome, Load, LoadTarget, PagePart, PageShape, PagedMemory, Terms,
};

use crate::support::{BLOCK, Place, chain, content, namespace, put};

const READY: Option<LayerOutcome> = Some(LayerOutcome::Ready);
const LIMIT: Duration = Duration::from_secs(60);

/// Pages of an engine, one for each block.
fn engine(pages: usize) -> Arc<PagedMemory> {
    let bytes = BLOCK / 2;
    let shape =
        PageShape { stride: bytes, parts: vec![PagePart { offset: 0, bytes }], pages_per_block: 1 };
    PagedMemory::zeroed(2, pages * bytes, pages, shape).unwrap()
}

fn load(client: &Client, chain: &[ChainHash], memory: &Arc<PagedMemory>, table: &[u32]) -> Load {
    let pages = LoadTarget::Pages(memory.blocks(table.to_vec()).unwrap());
    client.load(namespace().id(), chain.to_vec(), pages, None).unwrap()
}

fn end(load: &Load) -> usize {
    assert!(load.transfer.wait(Some(LIMIT)));
    load.transfer.take().unwrap().unwrap().leading_blocks()
}

fn bytes_of(memory: &Arc<PagedMemory>, table: &[u32]) -> Vec<Vec<u8>> {
    let pages = memory.blocks(table.to_vec()).unwrap();
    let slice = |at, layer| pages.take_slice(at, layer).unwrap().into_memory();
    let block = |at| {
        let slices = (0..2).flat_map(|layer| slice(at, layer));
        slices.flat_map(|memory| memory.as_slice().to_vec()).collect()
    };
    (0..pages.len()).map(block).collect()
}

fn right(chain: &[ChainHash]) -> Vec<Vec<u8>> {
    chain.iter().map(|hash| content(hash, BLOCK)).collect()
}

#[test]
fn blocks_in_the_pool_and_in_the_log_get_to_their_pages() {
    let (place, memory, chain) = (Place::new(), engine(30), chain("a", 20));
    let table: Vec<u32> = (0..20).map(|at| at * 7 % 30).collect();
    for round in 0..2 {
        // The second server has nothing in its pool.
        let _server = place.serve();
        let client = place.client();
        if round == 0 {
            put(&client, &chain, 0);
        }
        let load = load(&client, &chain, &memory, &table);
        assert_eq!([0, 1].map(|layer| load.layers.wait(layer, Some(LIMIT)).unwrap()), [READY; 2]);
        assert_eq!(end(&load), 20);
        assert!(bytes_of(&memory, &table) == right(&chain));
    }
}

#[test]
fn a_load_has_as_many_rounds_as_the_share_of_a_client_needs() {
    let (place, memory, chain) = (Place::new(), engine(130), chain("b", 120));
    let _server = place.serve();
    let client = place.client();
    put(&client, &chain, 0);
    let table: Vec<u32> = (0..120).collect();
    let load = load(&client, &chain, &memory, &table);
    assert_eq!(end(&load), 120);
    assert_eq!(load.layers.outcome(1).unwrap(), READY);
    assert!(bytes_of(&memory, &table) == right(&chain));
}

#[test]
fn a_missing_block_ends_the_prefix_and_loses_the_layers() {
    let (place, memory, chain) = (Place::new(), engine(30), chain("c", 9));
    let _server = place.serve();
    let client = place.client();
    put(&client, &chain[..4], 0);
    let load = load(&client, &chain, &memory, &[9, 8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(end(&load), 4);
    assert_eq!(load.layers.outcome(0).unwrap(), Some(LayerOutcome::Lost));
    assert!(bytes_of(&memory, &[9, 8, 7, 6]) == right(&chain[..4]));
}

#[test]
fn a_server_that_is_away_costs_misses() {
    let (place, memory, chain) = (Place::new(), engine(30), chain("d", 3));
    let server = place.serve();
    let client = place.client();
    put(&client, &chain, 0);
    drop(server);
    let load = load(&client, &chain, &memory, &[1, 2, 3]);
    assert_eq!(end(&load), 0);
    assert_eq!(load.layers.outcome(0).unwrap(), Some(LayerOutcome::Lost));
}

#[test]
fn leased_blocks_are_copied_and_those_that_were_overwritten_are_misses() {
    let (place, memory, chain) = (Place::new(), engine(30), chain("e", 5));
    let server = place.serve();
    let client = place.client();
    put(&client, &chain, 0);
    let lease = Arc::new(client.lease(namespace().id(), &chain, &Terms::default()).unwrap());
    client.remove(namespace().id(), Some(&chain), &Terms::default()).unwrap();
    let table = [4, 3, 2, 1];
    let copied = |expected: usize| {
        let pages = memory.blocks(table.to_vec()).unwrap();
        let load = client.load_lease(&lease, pages, None).unwrap();
        assert_eq!(end(&load), expected);
        load.layers.outcome(1).unwrap()
    };
    assert_eq!(copied(4), READY);
    assert!(bytes_of(&memory, &table) == right(&chain[..4]));
    // Its places end with the server.
    drop(server);
    assert_eq!(lease.valid_blocks(), 0);
    assert_eq!(copied(0), Some(LayerOutcome::Lost));
}
