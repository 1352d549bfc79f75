//! An on-disk index: an open does not read again what it knows, and damage to its files costs only a rebuild.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::support::{Setup, chain, engines, get, index_files, namespace, next, open, put};
use dalsegno_core::SpaceFacts;
use dalsegno_io::{
    BufferPool, Device, DirEntry, DirectoryOptions, FileId, Geometry, IoError, LocalDirectory,
    OpenMode, Opened, Operation, Request, Source, Space, SystemClock,
};
use dalsegno_store::testing::{Executor, MergeRules, Parts, ScrubRules};
use dalsegno_store::{
    ChainHash, Config, EngineChoice, IndexChoice, NamespaceId, Store, StoreId, Terms, info,
};

const BLOCK: usize = 4096;
const BLOCKS: usize = 8;
/// Chains that are put before the store is closed for the first time, and before the second.
const CHAINS: [std::ops::Range<u64>; 2] = [0..150, 150..300];

fn config(engine: EngineChoice) -> Config {
    let setup = Setup { engine, index: IndexChoice::Lsm };
    Config { segment: Some(1 << 20), extent: Some(32 << 10), ..setup.config(32 << 20) }
}

fn kept(store: &Store) -> NamespaceId {
    namespace(store, 1, 4096, "kept")
}

fn gone(store: &Store) -> NamespaceId {
    namespace(store, 1, 4096, "gone")
}

fn is_removed(name: u64) -> bool {
    name.is_multiple_of(7)
}

/// Fills a store in two sessions. The second one removes chains in an older table, and a whole namespace.
fn fill(dir: &Path, config: &Config) {
    for part in CHAINS {
        let store = open(dir, config);
        let (kept, gone) = (kept(&store), gone(&store));
        let is_last = part.end == CHAINS[1].end;
        for name in part {
            put(&store, kept, &chain(name, BLOCKS), 0, BLOCK);
            if name % 10 == 0 {
                put(&store, gone, &chain(name, BLOCKS), 0, BLOCK);
            }
        }
        if is_last {
            for name in (0..CHAINS[1].end).filter(|name| is_removed(*name)) {
                store.remove(kept, Some(&chain(name, BLOCKS)), &Terms::default()).unwrap();
            }
            store.remove(gone, None, &Terms::default()).unwrap();
        }
    }
}

/// Gets everything: no wrong byte, and nothing that was removed. Returns the chains that are not whole.
fn missing(store: &Store, what: &str) -> Vec<u64> {
    let (kept, gone) = (kept(store), gone(store));
    let mut missing = Vec::new();
    for name in 0..CHAINS[1].end {
        let hashes = chain(name, BLOCKS);
        let hits = get(store, kept, &hashes, BLOCK, &Terms::default());
        if is_removed(name) {
            assert_eq!(store.contains(kept, &hashes).unwrap(), [false; BLOCKS], "{what}: {name}");
        } else if hits < BLOCKS {
            missing.push(name);
        }
        if name % 10 == 0 {
            assert_eq!(store.contains(gone, &hashes).unwrap(), [false; BLOCKS], "{what}: {name}");
        }
    }
    missing
}

type Files = HashMap<String, Vec<u8>>;

fn snapshot(dir: &Path) -> Files {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.map(|name| (name.clone(), fs::read(dir.join(name)).unwrap())).collect()
}

fn restore(dir: &Path, files: &Files) {
    for name in snapshot(dir).into_keys().filter(|name| !files.contains_key(name)) {
        fs::remove_file(dir.join(name)).unwrap();
    }
    for (name, bytes) in files {
        fs::write(dir.join(name), bytes).unwrap();
    }
}

/// Overwrites, truncates or removes one of the index's files; returns what it did.
fn damage(dir: &Path, random: &mut u64) -> String {
    let mut below = |end: u64| {
        *random = next(*random);
        *random % end
    };
    let names = index_files(dir);
    let name = &names[usize::try_from(below(names.len() as u64)).unwrap()];
    let path = dir.join(name);
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let bytes = file.metadata().unwrap().len();
    match below(8) {
        0 => {
            fs::remove_file(&path).unwrap();
            format!("{name} removed")
        }
        1 => {
            let cut = below(bytes);
            file.set_len(cut).unwrap();
            format!("{name} of {bytes} truncated to {cut}")
        }
        2 => {
            let other = dir.join(&names[usize::try_from(below(names.len() as u64)).unwrap()]);
            fs::write(&path, fs::read(&other).unwrap()).unwrap();
            format!("{name} overwritten with {}", other.display())
        }
        _ => {
            let (at, len) = (below(bytes), 1 + below(64));
            let at = at.min(bytes - len);
            let mut old = vec![0; usize::try_from(len).unwrap()];
            file.read_exact_at(&mut old, at).unwrap();
            let new: Vec<u8> =
                old.iter().map(|byte| byte ^ (1 + below(255)).to_le_bytes()[0]).collect();
            file.write_all_at(&new, at).unwrap();
            format!("{name} of {bytes}: {len} bytes at {at}")
        }
    }
}

#[test]
fn damage_anywhere_in_the_index_costs_one_rebuild_and_no_block() {
    let dir = tempfile::tempdir().unwrap();
    let config_of = |round: usize| config(engines()[round % engines().len()]);
    fill(dir.path(), &config_of(0));
    let pristine = snapshot(dir.path());
    let tables = index_files(dir.path()).iter().filter(|name| name.contains(".table")).count();
    assert!(tables > 1, "there are older tables under newer ones");
    let mut random = 0x1d_da3a_u64;
    for round in 0..60 {
        let what = format!("round {round}: {}", damage(dir.path(), &mut random));
        let config = config_of(round);
        let first = missing(&open(dir.path(), &config), &what);
        let second = missing(&open(dir.path(), &config), &what);
        assert!(second.is_empty(), "{what}: {second:?} missing, before {} were", first.len());
        assert_eq!(info(dir.path()).unwrap().namespaces.len(), 1, "{what}");
        restore(dir.path(), &pristine);
    }
}

#[test]
fn blocks_removed_while_the_index_is_damaged_stay_removed() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(EngineChoice::Psync);
    fill(dir.path(), &config);
    let pristine = snapshot(dir.path());
    let mut random = 0xdead_u64;
    for round in 0..40 {
        let what = format!("round {round}: {}", damage(dir.path(), &mut random));
        let store = open(dir.path(), &config);
        let ns = kept(&store);
        // All of the namespace in one round, one chain in the other.
        let hashes = chain(1, BLOCKS);
        store.remove(ns, (round % 2 == 0).then_some(&hashes), &Terms::default()).unwrap();
        let removed = if round % 2 == 0 { 1..2 } else { 0..CHAINS[1].end };
        for life in 0..3 {
            let store = open_again(&store, dir.path(), &config, life);
            let ns = kept(&store);
            for name in removed.clone() {
                let present = store.contains(ns, &chain(name, BLOCKS)).unwrap();
                assert_eq!(present, [false; BLOCKS], "{what}: chain {name} in life {life}");
            }
        }
        drop(store);
        restore(dir.path(), &pristine);
    }
}

#[test]
fn a_removal_before_a_crash_holds_with_a_damaged_index() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(EngineChoice::Psync);
    fill(dir.path(), &config);
    let store = open(dir.path(), &config);
    store.remove(kept(&store), None, &Terms::default()).unwrap();
    // The log knows of the removal, the index does not.
    let crashed = snapshot(dir.path());
    drop(store);
    let mut random = 0xc4a5_u64;
    for round in 0..40 {
        restore(dir.path(), &crashed);
        let what = format!("round {round}: {}", damage(dir.path(), &mut random));
        for life in 0..3 {
            let store = open(dir.path(), &config);
            let ns = kept(&store);
            for name in 0..CHAINS[1].end {
                let present = store.contains(ns, &chain(name, BLOCKS)).unwrap();
                assert_eq!(present, [false; BLOCKS], "{what}: chain {name} in life {life}");
            }
        }
    }
}

/// The store itself in its first session, then a reopened one.
fn open_again(store: &Store, dir: &Path, config: &Config, life: u32) -> Store {
    if life == 0 {
        return store.clone();
    }
    store.close();
    open(dir, config)
}

#[test]
fn opening_and_closing_does_not_grow_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(EngineChoice::Psync);
    fill(dir.path(), &config);
    let bytes = |files: Files| -> usize {
        files.iter().filter(|(n, _)| n.starts_with("index-")).map(|(_, bytes)| bytes.len()).sum()
    };
    drop(open(dir.path(), &config));
    let before = (index_files(dir.path()).len(), bytes(snapshot(dir.path())));
    for _ in 0..20 {
        drop(open(dir.path(), &config));
    }
    assert_eq!((index_files(dir.path()).len(), bytes(snapshot(dir.path()))), before);
    assert!(missing(&open(dir.path(), &config), "opened often").is_empty());
}

#[test]
fn the_index_moves_between_disk_and_memory() {
    let dir = tempfile::tempdir().unwrap();
    let in_files = config(EngineChoice::Psync);
    let in_memory = Config { index: IndexChoice::Memory, ..in_files.clone() };
    fill(dir.path(), &in_files);
    for config in [&in_memory, &in_files, &in_files, &in_memory] {
        let store = open(dir.path(), config);
        assert!(missing(&store, "moved").is_empty());
        drop(store);
        let is_in_files = config.index == IndexChoice::Lsm;
        assert_eq!(!index_files(dir.path()).is_empty(), is_in_files);
    }
}

/// A directory that notes which sectors of which files are read.
#[derive(Debug)]
struct Noting {
    device: LocalDirectory,
    names: Mutex<HashMap<FileId, String>>,
    reads: Mutex<BTreeSet<(String, u64)>>,
}

impl Noting {
    fn note(&self, name: &str, opened: Result<Opened, IoError>) -> Result<Opened, IoError> {
        if let Ok(opened) = &opened {
            self.names.lock().unwrap().insert(opened.file, name.to_owned());
        }
        opened
    }
}

impl Source for Noting {
    fn submit(&self, requests: Vec<Request>) {
        for request in requests.iter().filter(|request| request.operation == Operation::Read) {
            let name = self.names.lock().unwrap()[&request.file].clone();
            self.reads.lock().unwrap().insert((name, request.offset));
        }
        self.device.submit(requests);
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
}

impl Device for Noting {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        self.note(name, self.device.open(name, mode))
    }

    fn open_cached(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        self.note(name, self.device.open_cached(name, mode))
    }

    fn try_read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<bool, IoError> {
        self.device.try_read_at(file, offset, buffer)
    }

    fn read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        self.device.read_at(file, offset, buffer)
    }

    fn close(&self, file: FileId) {
        self.device.close(file);
    }

    fn remove(&self, name: &str) -> Result<(), IoError> {
        self.device.remove(name)
    }

    fn sync_names(&self) -> Result<(), IoError> {
        self.device.sync_names()
    }

    fn list(&self) -> Result<Vec<DirEntry>, IoError> {
        self.device.list()
    }

    fn space(&self) -> Result<Space, IoError> {
        self.device.space()
    }
}

/// Opens a store; returns it and how often it read of segments behind their headers.
fn open_noting(dir: &Path, config: &Config) -> (Store, usize) {
    let facts = SpaceFacts { free_bytes: 1 << 30, own_bytes: 0, existing_segment_bytes: None };
    let limits = config.validate(facts).unwrap();
    let pool = BufferPool::new(limits.staging_bytes, limits.io_request_bytes).unwrap();
    let clock = Arc::new(SystemClock::new());
    let options = DirectoryOptions { engine: limits.io_engine, ..DirectoryOptions::default() };
    let device = LocalDirectory::open(dir, options, &pool, clock.clone()).unwrap();
    let device = Arc::new(Noting { device, names: Mutex::default(), reads: Mutex::default() });
    let parts = Parts {
        device: device.clone(),
        clock,
        pool,
        limits,
        lock: None,
        new_store: StoreId::default(),
        tiers: dalsegno_store::testing::Tiers::default(),
        executor: Executor::Threads,
        merging: MergeRules::default(),
        scrubbing: ScrubRules::default(),
    };
    let store = Store::open_parts(parts).unwrap();
    let reads = device.reads.lock().unwrap();
    let behind = reads.iter().filter(|(name, at)| name.starts_with("segment-") && *at > 0).count();
    drop(reads);
    (store, behind)
}

#[test]
fn an_open_reads_no_headers_before_the_checkpoint() {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let in_files = config(*engine);
        fill(dir.path(), &in_files);
        let segments = snapshot(dir.path()).keys().filter(|n| n.starts_with("segment-")).count();
        assert!(segments > 4, "{segments} segments");
        // The end of the open segment is looked for, once.
        let (store, reads) = open_noting(dir.path(), &in_files);
        assert!(reads <= 1, "{reads} reads behind headers of {segments} segments");
        assert!(missing(&store, "covered").is_empty());
        // Only what comes now is read by the next open, if it was not closed.
        let hashes: Vec<ChainHash> = chain(1000, BLOCKS);
        put(&store, kept(&store), &hashes, 0, BLOCK);
        let left = snapshot(dir.path());
        drop(store);
        restore(dir.path(), &left);
        let (store, reads) = open_noting(dir.path(), &in_files);
        assert!((1..=4).contains(&reads), "{reads} reads behind headers after a crash");
        assert_eq!(get(&store, kept(&store), &hashes, BLOCK, &Terms::default()), BLOCKS);
        assert!(missing(&store, "half indexed").is_empty());
        drop(store);
        let in_memory = Config { index: IndexChoice::Memory, ..in_files };
        let (_store, reads) = open_noting(dir.path(), &in_memory);
        assert!(reads > 100, "{reads} reads fill an index in memory");
    }
}

#[test]
fn regression_a_new_segment_never_reuses_the_number_of_a_missing_one() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(EngineChoice::Psync);
    fill(dir.path(), &config);
    for name in snapshot(dir.path()).into_keys().filter(|name| name.starts_with("segment-")) {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    for life in 0..3 {
        let store = open(dir.path(), &config);
        let ns = kept(&store);
        // One chain in each session, the last one in a segment that the index does not know.
        let fresh = 1000 + life;
        put(&store, ns, &chain(fresh, BLOCKS), 0, BLOCK);
        for name in (0..CHAINS[1].end).chain(1000..=fresh) {
            let present = [name >= 1000; BLOCKS];
            assert_eq!(
                store.contains(ns, &chain(name, BLOCKS)).unwrap(),
                present,
                "{life}: {name}"
            );
        }
        assert_eq!(store.stats().blocks, (life + 1) * BLOCKS as u64);
    }
}

#[test]
fn an_index_restored_from_another_copy_never_serves_wrong_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(EngineChoice::Psync);
    drop(open(dir.path(), &config));
    let born = snapshot(dir.path());
    // Two copies of one store: each puts a chain of its own to the same place.
    let live = |name: u64| {
        restore(dir.path(), &born);
        let store = open(dir.path(), &config);
        put(&store, kept(&store), &chain(name, BLOCKS), 0, BLOCK);
        drop(store);
        snapshot(dir.path())
    };
    let (saved, mut files) = (live(1), live(2));
    // The index of one copy is placed next to the log of the other, as a careless restore does.
    files.retain(|name, _| !name.starts_with("index-"));
    files.extend(saved.into_iter().filter(|(name, _)| name.starts_with("index-")));
    restore(dir.path(), &files);
    let store = open(dir.path(), &config);
    let ns = kept(&store);
    assert_eq!(get(&store, ns, &chain(1, BLOCKS), BLOCK, &Terms::default()), 0);
    assert!(
        store.stats().log.transfers.misses["wrong_place"] > 0,
        "the index was trusted until then"
    );
    for name in [1, 2] {
        put(&store, ns, &chain(name, BLOCKS), 0, BLOCK);
        assert_eq!(get(&store, ns, &chain(name, BLOCKS), BLOCK, &Terms::default()), BLOCKS);
    }
}
