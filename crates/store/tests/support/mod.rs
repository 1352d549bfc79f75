//! What the store's tests share: chains, blocks whose bytes tell their name, and stores in temporary folders.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;

use dalsegno_store::{
    ChainHash, Config, EngineChoice, KvLayout, Memory, Namespace, NamespaceId, Put, PutReport,
    Scope, Store, Terms, lend,
};

pub(crate) fn config(capacity: u64) -> Config {
    Config {
        capacity: Some(capacity),
        dram: Some(0),
        staging: Some(16 << 20),
        io_engine: EngineChoice::Psync,
        ..Config::default()
    }
}

pub(crate) fn open(path: &Path, config: &Config) -> Store {
    Store::open(path, config).unwrap()
}

pub(crate) fn namespace(store: &Store, layers: u32, slice_bytes: u32, salt: &str) -> NamespaceId {
    let layout = KvLayout::new(layers, slice_bytes).unwrap();
    let namespace = Namespace::builder(layout).field("salt", salt).build().unwrap();
    store.register(&namespace).unwrap();
    namespace.id()
}

/// Hashes of a chain: a function of its name and the position.
pub(crate) fn chain(name: u64, blocks: usize) -> Vec<ChainHash> {
    (0..blocks).map(|block| hash(name, block)).collect()
}

pub(crate) fn hash(name: u64, block: usize) -> ChainHash {
    let mut bytes = [0_u8; 32];
    let mut state = name.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (block as u64) << 17 ^ 0x5151;
    for chunk in bytes.chunks_mut(8) {
        state = next(state);
        chunk.copy_from_slice(&state.to_le_bytes());
    }
    ChainHash(bytes)
}

/// The bytes that belong to a hash, and to no other.
pub(crate) fn block(hash: ChainHash, bytes: usize) -> Vec<u8> {
    let mut state = u64::from_le_bytes(hash.0[..8].try_into().unwrap()) | 1;
    let mut block = vec![0_u8; bytes];
    for chunk in block.chunks_mut(8) {
        state = next(state);
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    block
}

pub(crate) fn next(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    state
}

pub(crate) fn put(
    store: &Store,
    namespace: NamespaceId,
    chain: &[ChainHash],
    first: usize,
    bytes: usize,
) -> PutReport {
    let blocks: Vec<Vec<u8>> = chain[first..].iter().map(|hash| block(*hash, bytes)).collect();
    lend(|lender| {
        let blocks: Vec<Vec<Memory>> = blocks.iter().map(|b| vec![lender.shared(b)]).collect();
        store.put_batch(namespace, Put { chain, first, blocks }, &Terms::default()).unwrap()
    })
}

/// Gets a chain and checks every byte of every hit; returns the leading hits.
pub(crate) fn get(
    store: &Store,
    namespace: NamespaceId,
    chain: &[ChainHash],
    bytes: usize,
    terms: &Terms,
) -> usize {
    let mut out = vec![vec![0xee_u8; bytes]; chain.len()];
    let report = lend(|lender| {
        let targets = out.iter_mut().map(|b| vec![lender.exclusive(b)]).collect();
        store.get_batch(namespace, chain, targets, Scope::Prefix, terms).unwrap()
    });
    for ((hash, bytes_got), outcome) in chain.iter().zip(&out).zip(&report.outcomes) {
        if outcome.is_hit() {
            assert!(*bytes_got == block(*hash, bytes), "wrong bytes for {hash}");
        }
    }
    report.leading_blocks()
}
