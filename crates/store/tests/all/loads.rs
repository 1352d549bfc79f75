//! Loads by layer: into pages of an engine and into memory, from DRAM, from the log and from a lease.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::hanging::{Hanging, Hung, hanging};
use crate::support::{LIMIT, block, chain, config, namespace, open, put, until};
use dalsegno_store::{
    ChainHash, Config, ErrorKind, GetReport, LayerOutcome, Load, LoadTarget, NamespaceId, Outcome,
    PagePart, PageShape, PagedMemory, Store, Terms, lend,
};

const LAYERS: u32 = 5;
const SLICE: usize = 24 << 10;
const BYTES: usize = LAYERS as usize * SLICE;
const READY: Option<LayerOutcome> = Some(LayerOutcome::Ready);
const LOST: Option<LayerOutcome> = Some(LayerOutcome::Lost);

/// An engine whose pages have keys and values apart; two pages hold a block.
struct Engine {
    memory: Arc<PagedMemory>,
}

impl Engine {
    fn new(pages: usize) -> Self {
        let bytes = SLICE / 4;
        let parts = [0, pages * bytes].map(|offset| PagePart { offset, bytes });
        let shape = PageShape { stride: bytes, parts: parts.into(), pages_per_block: 2 };
        let buffer_bytes = 2 * pages * bytes;
        Self { memory: PagedMemory::zeroed(LAYERS as usize, buffer_bytes, pages, shape).unwrap() }
    }

    /// The bytes of some blocks, as they are in their pages.
    fn blocks(&self, table: &[u32]) -> Vec<Vec<u8>> {
        let pages = self.memory.blocks(table.to_vec()).unwrap();
        let slice = |at, layer| pages.take_slice(at, layer).unwrap().into_memory();
        let block = |at| {
            let slices = (0..LAYERS).flat_map(|layer| slice(at, layer));
            slices.flat_map(|memory| memory.as_slice().to_vec()).collect()
        };
        (0..pages.len()).map(block).collect()
    }

    fn load(
        &self,
        store: &Store,
        ns: NamespaceId,
        chain: &[ChainHash],
        table: &[u32],
        timeout: Option<Duration>,
    ) -> Load {
        let pages = LoadTarget::Pages(self.memory.blocks(table.to_vec()).unwrap());
        store.load(ns, chain.to_vec(), pages, timeout).unwrap()
    }
}

/// Pages of `blocks` blocks in no order.
fn table(blocks: usize, pages: usize) -> Vec<u32> {
    (0..2 * blocks).map(|at| u32::try_from((at * 7 + 3) % pages).unwrap()).collect()
}

fn end(load: &Load) -> GetReport {
    assert!(load.transfer.wait(Some(LIMIT)));
    load.transfer.take().unwrap().unwrap()
}

fn outcomes(load: &Load) -> Vec<Option<LayerOutcome>> {
    (0..LAYERS).map(|layer| load.layers.outcome(layer).unwrap()).collect()
}

fn right(chain: &[ChainHash]) -> Vec<Vec<u8>> {
    chain.iter().map(|hash| block(*hash, BYTES)).collect()
}

fn with_dram(dram: u64) -> Config {
    Config { dram: Some(dram), ..config(64 << 20) }
}

fn open_at(dir: &Path, dram: u64) -> (Store, NamespaceId) {
    let store = open(dir, &with_dram(dram));
    let ns = namespace(&store, LAYERS, u32::try_from(SLICE).unwrap(), "loads");
    (store, ns)
}

/// A store that has only read its log: nothing is in DRAM.
fn reopened(dir: &Path, dram: u64, chains: &[Vec<ChainHash>]) -> (Store, NamespaceId) {
    let (store, ns) = open_at(dir, dram);
    for chain in chains {
        put(&store, ns, chain, 0, BYTES);
    }
    store.close();
    open_at(dir, dram)
}

#[test]
fn every_layer_gets_to_its_pages_from_the_log_and_from_dram() {
    let dir = tempfile::tempdir().unwrap();
    let (chain, engine) = (chain(1, 20), Engine::new(61));
    let (store, ns) = reopened(dir.path(), 16 << 20, &[chain[..12].to_vec(), chain.clone()]);
    let table = table(20, 61);
    let dram = |report: &GetReport| report.outcomes.iter().filter(|o| **o == Outcome::Dram).count();
    for (round, timeout) in [None, Some(LIMIT), None].into_iter().enumerate() {
        let load = engine.load(&store, ns, &chain, &table, timeout);
        for layer in 0..LAYERS {
            assert_eq!(load.layers.wait(layer, Some(LIMIT)).unwrap(), READY);
        }
        let report = end(&load);
        assert_eq!((report.leading_blocks(), dram(&report)), (20, if round == 0 { 0 } else { 20 }));
        assert!(engine.blocks(&table) == right(&chain));
    }
    // Some from DRAM, the others from the log.
    let others = chain_behind(&store, ns, &chain);
    let load = engine.load(&store, ns, &others, &self::table(24, 61), None);
    assert_eq!(end(&load).leading_blocks(), 24);
    assert!(engine.blocks(&self::table(24, 61)) == right(&others));
}

/// The chain with four blocks that DRAM does not have.
fn chain_behind(store: &Store, ns: NamespaceId, chain: &[ChainHash]) -> Vec<ChainHash> {
    let longer = [chain, &self::chain(9, 4)].concat();
    put(store, ns, &longer, 20, BYTES);
    longer
}

#[test]
fn blocks_are_loaded_into_memory_too() {
    let dir = tempfile::tempdir().unwrap();
    let chain = chain(1, 9);
    for dram in [0, 16 << 20] {
        let (store, ns) = reopened(dir.path(), dram, std::slice::from_ref(&chain));
        for _ in 0..2 {
            let mut out = vec![vec![0_u8; BYTES]; 9];
            lend(|lender| {
                let out = out.iter_mut().map(|block| vec![lender.exclusive(block)]).collect();
                let load = store.load(ns, chain.clone(), LoadTarget::Blocks(out), None).unwrap();
                assert_eq!(end(&load).leading_blocks(), 9);
                assert_eq!(outcomes(&load), [READY; LAYERS as usize]);
            });
            assert!(out == right(&chain));
        }
        store.close();
    }
}

#[test]
fn missing_blocks_cost_the_layers_and_the_blocks_before_them_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (chain, engine) = (chain(1, 10), Engine::new(61));
    let (store, ns) = reopened(dir.path(), 16 << 20, &[chain[..6].to_vec()]);
    let table = table(10, 61);
    let load = engine.load(&store, ns, &chain, &table, None);
    let report = end(&load);
    assert_eq!((report.leading_blocks(), report.outcomes[6]), (6, Outcome::Absent));
    assert_eq!(outcomes(&load), [LOST; LAYERS as usize]);
    assert!(engine.blocks(&table)[..6] == right(&chain)[..6]);
    assert!(load.layers.outcome(LAYERS).is_err(), "no such layer");
}

#[test]
fn a_load_larger_than_leases_may_hold_has_several_rounds() {
    let dir = tempfile::tempdir().unwrap();
    let (chain, engine) = (chain(1, 60), Engine::new(127));
    // Places of 128 KiB: leases hold at most eight.
    let (store, ns) = reopened(dir.path(), 2 << 20, std::slice::from_ref(&chain));
    let table = table(60, 127);
    for _ in 0..2 {
        let load = engine.load(&store, ns, &chain, &table, None);
        assert_eq!(end(&load).leading_blocks(), 60);
        assert_eq!(outcomes(&load), [READY; LAYERS as usize]);
        assert!(engine.blocks(&table) == right(&chain));
    }
    let leases = [(); 2].map(|()| store.lease(ns, &chain, &Terms::default()).unwrap());
    assert_eq!(leases.iter().map(dalsegno_store::Lease::len).sum::<usize>(), 8);
    let report = end(&engine.load(&store, ns, &chain, &table, None));
    assert_eq!(report.outcomes[0], Outcome::Lost(dalsegno_store::Cause::Throttled));
}

#[test]
fn a_lease_is_copied_to_pages_whatever_happens_to_its_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let (chain, engine) = (chain(1, 8), Engine::new(61));
    let (store, ns) = open_at(dir.path(), 16 << 20);
    put(&store, ns, &chain, 0, BYTES);
    let lease = Arc::new(store.lease(ns, &chain, &Terms::default()).unwrap());
    store.remove(ns, Some(&chain), &Terms::default()).unwrap();
    let table = table(6, 61);
    let pages = engine.memory.blocks(table.clone()).unwrap();
    let load = store.load_lease(&lease, pages, None).unwrap();
    assert_eq!(load.layers.wait(LAYERS - 1, Some(LIMIT)).unwrap(), READY);
    assert_eq!(end(&load).leading_blocks(), 6);
    assert!(engine.blocks(&table) == right(&chain[..6]));
    let many = engine.memory.blocks(self::table(9, 61)).unwrap();
    assert_eq!(store.load_lease(&lease, many, None).unwrap_err().kind(), ErrorKind::Invalid);
}

/// A store that has some blocks on a device that hangs.
fn hung_with(path: &Path, chain: &[ChainHash]) -> (Arc<Hanging>, Store, NamespaceId) {
    let (device, store) = hanging(path, &with_dram(16 << 20));
    let ns = namespace(&store, LAYERS, u32::try_from(SLICE).unwrap(), "loads");
    put(&store, ns, chain, 0, BYTES);
    device.hang(Hung::Reads);
    (device, store, ns)
}

#[test]
fn a_device_that_hangs_costs_a_load_its_timeout_and_writes_no_page_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let (chain, engine) = (chain(1, 10), Engine::new(61));
    let (device, store, ns) = hung_with(dir.path(), &chain);
    let table = table(10, 61);
    let load = engine.load(&store, ns, &chain, &table, Some(Duration::from_millis(200)));
    assert_eq!(end(&load).leading_blocks(), 0);
    assert_eq!(outcomes(&load), [LOST; LAYERS as usize]);
    // Another load uses the pages while the first one's requests are on their way.
    until("the request", || device.kept() > 0);
    device.go_on();
    std::thread::sleep(Duration::from_millis(50));
    assert!(engine.blocks(&table).iter().flatten().all(|byte| *byte == 0));
}

#[test]
fn a_load_that_is_cancelled_ends_and_gives_its_pages_back() {
    let dir = tempfile::tempdir().unwrap();
    let (chain, engine) = (chain(1, 10), Engine::new(61));
    let (device, store, ns) = hung_with(dir.path(), &chain);
    let load = engine.load(&store, ns, &chain, &table(10, 61), None);
    until("the request", || device.kept() > 0);
    assert!(engine.memory.blocks(vec![table(10, 61)[5]]).is_err(), "the load uses it");
    load.transfer.cancel();
    assert_eq!(end(&load).leading_blocks(), 0);
    assert_eq!(engine.memory.blocks(table(10, 61)).unwrap().len(), 10);
    device.go_on();
}

#[test]
fn wrong_loads_are_refused_before_they_start() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ns) = open_at(dir.path(), 16 << 20);
    let engine = Engine::new(61);
    let refused = |store: &Store, ns, blocks: usize, table: &[u32]| {
        let pages = LoadTarget::Pages(engine.memory.blocks(table.to_vec()).unwrap());
        let error = store.load(ns, chain(1, blocks), pages, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.to_string()
    };
    assert!(refused(&store, ns, 3, &table(2, 61)).contains("3 blocks, but pages for 2"));
    let other = namespace(&store, LAYERS, 4096, "other");
    assert!(refused(&store, other, 2, &table(2, 61)).contains("the namespace has 5 of 4096"));
    store.close();
    let (without_dram, ns) = open_at(dir.path(), 0);
    assert!(refused(&without_dram, ns, 2, &table(2, 61)).contains("DRAM"));
}

#[test]
fn a_closed_store_ends_no_load_without_its_layers() {
    let dir = tempfile::tempdir().unwrap();
    let (chain, engine) = (chain(1, 20), Engine::new(61));
    let (store, ns) = reopened(dir.path(), 16 << 20, std::slice::from_ref(&chain));
    let loads: Vec<Load> = (0..3)
        .map(|at| {
            engine.load(
                &store,
                ns,
                &chain[..2],
                &[4 * at, 4 * at + 1, 4 * at + 2, 4 * at + 3],
                None,
            )
        })
        .collect();
    store.close();
    for load in loads {
        let report = end(&load);
        let expected = if report.leading_blocks() == 2 { READY } else { LOST };
        assert_eq!(outcomes(&load), [expected; LAYERS as usize]);
    }
}
