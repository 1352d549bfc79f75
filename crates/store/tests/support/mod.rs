//! Shared by the store's tests: chains, blocks whose bytes depend on their name, and stores in temporary folders.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub(crate) mod child;
pub(crate) mod disk;
#[path = "../../../io/tests/common/dose.rs"]
pub(crate) mod dose;
pub(crate) mod hanging;
pub(crate) mod mount;
#[path = "../../../io/tests/common/power.rs"]
pub(crate) mod power;
#[path = "../../../io/tests/common/skip.rs"]
pub(crate) mod skip;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dalsegno_core::SpaceFacts;
use dalsegno_io::{BufferPool, Device, DirectoryOptions, LocalDirectory, SystemClock};
use dalsegno_store::testing::{Executor, MergeRules, Parts, ScrubRules};
use dalsegno_store::{
    ChainHash, Config, EngineChoice, IndexChoice, Keep, KvLayout, Memory, Namespace, NamespaceId,
    Put, PutReport, RegisterOptions, Scope, Store, StoreId, Terms, lend,
};
pub(crate) use skip::skip;

/// Longer than anything takes that is to happen on a slow machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// What serves a store's files, and where its index is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) engine: EngineChoice,
    pub(crate) index: IndexChoice,
}

impl Setup {
    pub(crate) const SIMPLEST: Self =
        Self { engine: EngineChoice::Psync, index: IndexChoice::Memory };

    /// The log has the same space for every index.
    pub(crate) fn config(self, capacity: u64) -> Config {
        let set_aside = if self.index == IndexChoice::Lsm { 4 << 20 } else { 0 };
        Config {
            io_engine: self.engine,
            index: self.index,
            // The least, so that little data makes several tables.
            index_memory: Some(1 << 20),
            ..config(capacity + set_aside)
        }
    }

    /// For a child; [`Setup::decode`] reads it.
    pub(crate) fn encode(self) -> String {
        format!("{:?},{:?}", self.engine, self.index)
    }

    pub(crate) fn decode([engine, index]: [&str; 2]) -> Self {
        let engines = [EngineChoice::Psync, EngineChoice::Uring];
        let indexes = [IndexChoice::Memory, IndexChoice::Lsm];
        Self { engine: named(engines, engine), index: named(indexes, index) }
    }
}

/// The one of `all` that is written like this.
pub(crate) fn named<T: std::fmt::Debug, const N: usize>(all: [T; N], name: &str) -> T {
    all.into_iter().find(|value| format!("{value:?}") == name).unwrap()
}

/// Every engine that works here with every place for the index.
pub(crate) fn setups() -> Vec<Setup> {
    let mut all = Vec::new();
    for index in [IndexChoice::Memory, IndexChoice::Lsm] {
        all.extend(engines().iter().map(|engine| Setup { engine: *engine, index }));
    }
    all
}

/// The engines that work here; says so if one does not.
pub(crate) fn engines() -> &'static [EngineChoice] {
    static ENGINES: OnceLock<Vec<EngineChoice>> = OnceLock::new();
    ENGINES.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let uring = Config { io_engine: EngineChoice::Uring, ..config(16 << 20) };
        match Store::open(dir.path(), &uring) {
            Ok(_) => vec![EngineChoice::Psync, EngineChoice::Uring],
            Err(error) => {
                skip("io_uring", &error.to_string());
                vec![EngineChoice::Psync]
            }
        }
    })
}

pub(crate) fn config(capacity: u64) -> Config {
    Config {
        capacity: Some(capacity),
        dram: Some(0),
        staging: Some(16 << 20),
        io_engine: EngineChoice::Psync,
        ..Config::default()
    }
}

/// Merges soon, so that tests need not wait.
pub(crate) fn soon() -> MergeRules {
    MergeRules { pile_extents: 16, quiet: Duration::from_millis(300), ..MergeRules::default() }
}

/// A store over real files that merges by these rules.
pub(crate) fn open_with(dir: &Path, config: &Config, merging: MergeRules) -> Store {
    open_by(dir, config, merging, ScrubRules::default())
}

/// A store over real files that merges and scrubs by these rules.
pub(crate) fn open_by(
    dir: &Path,
    config: &Config,
    merging: MergeRules,
    scrubbing: ScrubRules,
) -> Store {
    let clock = Arc::new(SystemClock::new());
    let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
    let options = DirectoryOptions { engine: config.io_engine, ..DirectoryOptions::default() };
    let device = LocalDirectory::open(dir, options, &pool, Arc::<SystemClock>::clone(&clock));
    let device: Arc<dyn Device> = Arc::new(device.unwrap());
    let space = SpaceFacts { free_bytes: 1 << 40, own_bytes: 0, existing_segment_bytes: None };
    let parts = Parts {
        device,
        clock,
        pool,
        limits: config.validate(space).unwrap(),
        lock: None,
        new_store: StoreId([7; 16]),
        tiers: dalsegno_store::testing::Tiers::default(),
        executor: Executor::Threads,
        merging,
        scrubbing,
    };
    Store::open_parts(parts).unwrap()
}

/// Opens a store, and checks that the configured engine serves it.
pub(crate) fn open(path: &Path, config: &Config) -> Store {
    let store = Store::open(path, config).unwrap();
    let served = store.stats().io_engine;
    match config.io_engine {
        EngineChoice::Psync => assert_eq!(served, "psync"),
        EngineChoice::Uring => assert_eq!(served, "uring"),
        EngineChoice::Auto => {}
    }
    assert_eq!(store.limits().index, config.index);
    store
}

/// Whether a closed store has its index on disk.
pub(crate) fn has_index_files(dir: &Path) -> bool {
    index_files(dir).iter().any(|name| name.contains(".manifest"))
}

/// The store's files except its lock, sorted.
#[expect(clippy::disallowed_methods, reason = "looks at the directory from outside of the store")]
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths.filter(|path| path.file_name().unwrap() != "LOCK").collect();
    files.sort();
    files
}

/// Names of the index's files, sorted.
#[expect(clippy::disallowed_methods, reason = "looks at the directory from outside of the store")]
pub(crate) fn index_files(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("index-")).collect();
    names.sort();
    names
}

pub(crate) fn namespace(store: &Store, layers: u32, slice_bytes: u32, salt: &str) -> NamespaceId {
    let layout = KvLayout::new(layers, slice_bytes).unwrap();
    let namespace = Namespace::builder(layout).field("salt", salt).build().unwrap();
    store.register(&namespace, RegisterOptions::default()).unwrap();
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
        store
            .put_batch(
                namespace,
                Put { chain, first, blocks, keep: Keep::Stored },
                &Terms::default(),
            )
            .unwrap()
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

/// Waits until something is so. A test that waits for [`LIMIT`] has failed.
#[allow(
    clippy::disallowed_methods,
    reason = "waits for threads of a store, which no simulation drives"
)]
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
