//! A small, valid store. An input changes some of its bytes; then the target opens, reads, checks and writes it.

use std::sync::{Arc, OnceLock};

use dalsegno_core::{ManualClock, SpaceFacts};
use dalsegno_io::{BufferPool, Device, lend};
use dalsegno_log::store_header;
use dalsegno_store::testing::{Executor, MergeRules, Parts, ScrubRules};
use dalsegno_store::{
    ChainHash, Compression, Config, IndexChoice, Keep, KvLayout, Namespace, Put, PutOutcome,
    RegisterOptions, Scope, Store, StoreId, Terms,
};

use crate::device::MemoryDevice;
use crate::seal::{SECTOR, seal_manifest, seal_sector, seal_segment, seal_table};

const CAPACITY: u64 = 16 << 20;
const CHAINS: u64 = 6;
const BLOCKS: usize = 5;
const BLOCK: usize = 2 * 3000;
const STORE: StoreId = StoreId([5; 16]);

/// The hash of a block, which determines the block's bytes.
fn hash(chain: u64, block: usize) -> ChainHash {
    let mut hash = [0x5a; 32];
    hash[..8].copy_from_slice(&chain.to_be_bytes());
    hash[8..16].copy_from_slice(&(block as u64).to_be_bytes());
    ChainHash(hash)
}

fn chain(number: u64) -> Vec<ChainHash> {
    (0..BLOCKS).map(|block| hash(number, block)).collect()
}

/// Bytes that a codec can shrink, different for each block.
fn block(hash: &ChainHash) -> Vec<u8> {
    let seed = hash.0[7].wrapping_mul(31) ^ hash.0[15];
    (0..BLOCK).map(|at| seed.wrapping_add((at % 7 * (at & 1)).to_le_bytes()[0])).collect()
}

/// The namespaces: one of plain extents, one of compressed ones.
fn namespaces() -> [(Namespace, Compression); 2] {
    let layout = KvLayout::new(2, 3000).expect("a layout");
    let named =
        |salt: &str| Namespace::builder(layout).field("salt", salt).build().expect("fields");
    [(named("plain"), Compression::PLAIN), (named("coded"), Compression::zstd(2).expect("a width"))]
}

fn pool() -> BufferPool {
    static POOL: OnceLock<BufferPool> = OnceLock::new();
    POOL.get_or_init(|| BufferPool::new(16 << 20, 1 << 20).expect("16 MiB")).clone()
}

fn open(device: &Arc<MemoryDevice>, index: IndexChoice) -> dalsegno_store::Result<Store> {
    let config = Config {
        capacity: Some(CAPACITY),
        dram: Some(0),
        staging: Some(16 << 20),
        transfer_threads: Some(1),
        index,
        index_memory: Some(1 << 20),
        ..Config::default()
    };
    let clock = Arc::new(ManualClock::default());
    let header =
        store_header(Arc::<MemoryDevice>::clone(device), Arc::<ManualClock>::clone(&clock), pool());
    let existing_segment_bytes = header.ok().map(|header| header.segment_bytes);
    let space = SpaceFacts { free_bytes: 1 << 30, own_bytes: 0, existing_segment_bytes };
    let mut limits = config.validate(space)?;
    // Small memtables make several tables.
    limits.index_memory_bytes = 8 << 10;
    Store::open_parts(Parts {
        device: Arc::<MemoryDevice>::clone(device),
        clock,
        pool: pool(),
        limits,
        lock: None,
        new_store: STORE,
        tiers: dalsegno_store::testing::Tiers::default(),
        executor: Executor::Inline,
        merging: MergeRules::default(),
        scrubbing: ScrubRules::default(),
    })
}

fn put(store: &Store, namespace: &Namespace, number: u64) -> Vec<PutOutcome> {
    let chain = chain(number);
    let blocks: Vec<Vec<u8>> = chain.iter().map(block).collect();
    lend(|lender| {
        let blocks = blocks.iter().map(|bytes| vec![lender.shared(bytes)]).collect();
        let put = Put { chain: &chain, first: 0, blocks, keep: Keep::Stored };
        store.put_batch(namespace.id(), put, &Terms::default())
    })
    .map(|report| report.outcomes)
    .unwrap_or_default()
}

/// Gets a chain, and returns which blocks are hits. If the input is `exact`, without forged checksums, compares the
/// hits.
fn get(store: &Store, namespace: &Namespace, number: u64, exact: bool) -> Vec<bool> {
    let chain = chain(number);
    let mut out = vec![vec![0_u8; BLOCK]; BLOCKS];
    let report = lend(|lender| {
        let targets = out.iter_mut().map(|bytes| vec![lender.exclusive(bytes)]).collect();
        store.get_batch(namespace.id(), &chain, targets, Scope::Each, &Terms::default())
    });
    let Ok(report) = report else { return Vec::new() };
    let hits: Vec<bool> = report.outcomes.iter().map(|outcome| outcome.is_hit()).collect();
    for ((hash, bytes), hit) in chain.iter().zip(&out).zip(&hits) {
        assert!(!hit || !exact || *bytes == block(hash), "wrong bytes for {hash}");
    }
    hits
}

/// The files of a small store: two namespaces, removals, an on-disk index.
#[must_use]
pub fn seed_files() -> Vec<(String, Vec<u8>)> {
    let device = Arc::new(MemoryDevice::default());
    let store = open(&device, IndexChoice::Lsm).expect("an empty device");
    for (namespace, compression) in namespaces() {
        store
            .register(&namespace, RegisterOptions { compression: Some(compression) })
            .expect("a new namespace");
        for number in 0..CHAINS {
            assert_eq!(put(&store, &namespace, number), [PutOutcome::Stored; BLOCKS]);
        }
        let gone = chain(CHAINS - 1);
        store.remove(namespace.id(), Some(&gone[2..]), &Terms::default()).expect("a removal");
    }
    store.close();
    drop(store);
    device.files()
}

/// An input as a sequence of changes. Each has one byte for the file, three for the offset before the file's trailing
/// zeros, one for the number of bytes, then the bytes. A length of zero truncates the file there. A byte before the
/// first change says whether checksums are made valid afterwards, and where the index is.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn apply(mut self, files: &mut [(String, Vec<u8>)], used: &[usize]) {
        while let Some((head, rest)) = self.0.split_first_chunk::<5>() {
            let which = usize::from(head[0]) % files.len();
            let at = usize::from(head[1]) | usize::from(head[2]) << 8 | usize::from(head[3]) << 16;
            let (bytes, rest) = rest.split_at(usize::from(head[4] % 64).min(rest.len()));
            self.0 = rest;
            let (file, used) = (&mut files[which].1, used[which]);
            let at = at % used.max(1);
            if head[4] % 64 == 0 {
                file.truncate(at);
            } else {
                let at = at.min(file.len());
                file[at..].iter_mut().zip(bytes).for_each(|(byte, with)| *byte = *with);
            }
        }
    }
}

fn number_in(name: &str) -> u64 {
    let digits = name.split(['-', '.']).nth(1).unwrap_or_default();
    u64::from_str_radix(digits, 16).unwrap_or_default()
}

/// The sectors of each block of a table, in order.
fn block_sectors(table: &[u8]) -> Vec<usize> {
    let footer = &table[table.len() - SECTOR..];
    let at = |at: usize| u64::from_le_bytes(*footer[at..].first_chunk().expect("8 bytes"));
    let (filter, blocks) = (at(64) / SECTOR as u64, at(80));
    // Tables here have small blocks of one sector each.
    if filter == blocks { vec![1; usize::try_from(blocks).expect("few")] } else { Vec::new() }
}

fn seal(name: &str, bytes: &mut [u8], original: &[u8]) {
    match name.rsplit_once('.') {
        Some((_, "log")) => seal_segment(bytes),
        Some((_, "table")) => seal_table(bytes, number_in(name), &block_sectors(original)),
        Some((_, "manifest")) => seal_manifest(bytes),
        _ => seal_sector(bytes),
    }
}

struct Original {
    files: Vec<(String, Vec<u8>)>,
    /// Bytes of each file before its trailing zeros.
    used: Vec<usize>,
}

fn original() -> &'static Original {
    static ORIGINAL: OnceLock<Original> = OnceLock::new();
    ORIGINAL.get_or_init(|| {
        let files = seed_files();
        let used = |(_, bytes): &(String, Vec<u8>)| {
            bytes.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1)
        };
        let used = files.iter().map(used).collect();
        Original { files, used }
    })
}

/// Changes the store, and uses what is left.
pub(crate) fn store(input: &[u8]) {
    let Some((flags, script)) = input.split_first() else { return };
    let Original { files, used } = original();
    let (is_sealed, in_memory) = (flags & 1 == 1, flags & 2 == 2);
    let mut changed = files.clone();
    Script(script).apply(&mut changed, used);
    let device = Arc::new(MemoryDevice::default());
    for ((name, mut bytes), (_, original)) in changed.into_iter().zip(files) {
        if is_sealed && bytes != *original {
            seal(&name, &mut bytes, original);
        }
        device.plant(&name, bytes);
    }
    look(&device);
    let index = if in_memory { IndexChoice::Memory } else { IndexChoice::Lsm };
    for _ in 0..2 {
        let Ok(store) = open(&device, index) else { return };
        for (namespace, compression) in namespaces() {
            let _ = store.register(&namespace, RegisterOptions { compression: Some(compression) });
            for number in 0..CHAINS {
                let _ = store.probe(namespace.id(), &chain(number));
                let _ = store.contains(namespace.id(), &chain(number));
                get(&store, &namespace, number, !is_sealed);
            }
            let outcomes = put(&store, &namespace, CHAINS + 1);
            if outcomes == [PutOutcome::Stored; BLOCKS] && !is_sealed {
                assert_eq!(get(&store, &namespace, CHAINS + 1, true), [true; BLOCKS], "not kept");
            }
        }
        let _ = (store.namespaces(), store.stats());
        store.close();
    }
    look(&device);
}

/// Runs the tools for a store that nobody has open.
fn look(device: &Arc<MemoryDevice>) {
    let clock = || Arc::new(ManualClock::default());
    let shared = || Arc::<MemoryDevice>::clone(device);
    let _ = dalsegno_log::verify(shared(), clock(), pool(), &|_, _| {});
    let _ = dalsegno_index::verify_index(shared(), Some(STORE), &|_| {});
    let _ = dalsegno_index::read_notes(shared());
    for entry in device.list().expect("a device in memory") {
        for at in [None, Some(0), Some(4096), Some(20_000)] {
            let _ = dalsegno_log::inspect(shared(), clock(), pool(), &entry.name, at);
        }
    }
}
