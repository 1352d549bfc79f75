//! Which namespaces a store knows: a bounded number, and after an open only those with blocks.

use std::path::Path;
use std::sync::Arc;

use crate::support::{chain, config, get, namespace, open, put};
use dalsegno_core::{SpaceFacts, Stopped};
use dalsegno_extent::format::{NamespaceSector, namespace_file};
use dalsegno_io::{
    BufferPool, Device, DirEntry, DirectoryOptions, FileId, Geometry, IoError, LocalDirectory,
    OpenMode, Opened, Request, Source, Space, SystemClock,
};
use dalsegno_store::testing::{Executor, MergeRules, Parts, ScrubRules};
use dalsegno_store::{
    Compression, Config, ErrorKind, KvLayout, Namespace, NamespaceId, RegisterOptions, Store,
    StoreId, Terms, info, list, verify,
};

/// Bytes of a block, and of a sector.
const BYTES: usize = 4096;

fn described(salt: &str) -> Namespace {
    let layout = KvLayout::new(1, 4096).unwrap();
    Namespace::builder(layout).field("salt", salt).build().unwrap()
}

/// How many namespaces are described in the directory.
fn descriptors(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().starts_with("namespace-")).count()
}

/// A store with one namespace that has a block and one that has none, closed.
fn filled(dir: &Path, config: &Config) -> NamespaceId {
    let store = open(dir, config);
    let ns = namespace(&store, 1, 4096, "with a block");
    put(&store, ns, &chain(1, 1), 0, BYTES);
    store.register(&described("without"), RegisterOptions::default()).unwrap();
    ns
}

#[test]
fn namespaces_without_blocks_are_forgotten_when_the_store_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(64 << 20);
    let ns = filled(dir.path(), &config);
    // As earlier opens have left them: as many as a store knows at most.
    for number in 0..4096 {
        let one = described(&number.to_string());
        let mut sector = [0; BYTES];
        assert!(NamespaceSector(one.clone(), Compression::PLAIN).encode(&mut sector));
        std::fs::write(dir.path().join(namespace_file(one.id())), sector).unwrap();
    }
    let store = open(dir.path(), &config);
    assert_eq!(descriptors(dir.path()), 1);
    assert_eq!(get(&store, ns, &chain(1, 1), BYTES, &Terms::default()), 1);
    // One that is gone may come again, and a new one may come.
    for salt in ["7", "new"] {
        let other = namespace(&store, 1, 4096, salt);
        put(&store, other, &chain(2, 1), 0, BYTES);
    }
    drop(store);
    let rows = info(dir.path()).unwrap().namespaces;
    let mut salts: Vec<_> = rows.iter().map(|row| row.fields["salt"].as_str()).collect();
    salts.sort_unstable();
    assert_eq!(salts, ["7", "new", "with a block"]);
}

#[test]
fn reopening_frees_places_for_namespaces() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { namespaces: Some(2), ..config(64 << 20) };
    filled(dir.path(), &config);
    for salt in ["a", "b", "c"] {
        let store = open(dir.path(), &config);
        store.register(&described(salt), RegisterOptions::default()).unwrap();
        let error = store.register(&described("one more"), RegisterOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("open the store again"), "{error}");
    }
}

#[test]
fn a_namespace_is_forgotten_when_its_last_block_was_removed() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(64 << 20);
    let ns = filled(dir.path(), &config);
    let store = open(dir.path(), &config);
    assert_eq!(store.remove(ns, None, &Terms::default()).unwrap(), 1);
    drop(store);
    let store = open(dir.path(), &config);
    assert_eq!(descriptors(dir.path()), 0);
    let again = namespace(&store, 1, 4096, "with a block");
    assert_eq!((again, store.probe(ns, &chain(1, 1)).unwrap()), (ns, 0));
}

#[test]
fn inspecting_a_store_forgets_nothing() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), &config(64 << 20));
    info(dir.path()).unwrap();
    list(dir.path()).unwrap();
    verify(dir.path(), &|_, _| {}).unwrap();
    assert_eq!(descriptors(dir.path()), 2);
}

/// A directory that lets no file be removed.
#[derive(Debug)]
struct Stubborn(LocalDirectory);

impl Source for Stubborn {
    fn submit(&self, requests: Vec<Request>) {
        self.0.submit(requests);
    }

    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
}

impl Device for Stubborn {
    fn remove(&self, _: &str) -> Result<(), IoError> {
        Err(IoError::Stopped(Stopped::Busy))
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        self.0.open(name, mode)
    }

    fn open_cached(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        self.0.open_cached(name, mode)
    }

    fn try_read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<bool, IoError> {
        self.0.try_read_at(file, offset, buffer)
    }

    fn read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        self.0.read_at(file, offset, buffer)
    }

    fn close(&self, file: FileId) {
        self.0.close(file);
    }

    fn sync_names(&self) -> Result<(), IoError> {
        self.0.sync_names()
    }

    fn list(&self) -> Result<Vec<DirEntry>, IoError> {
        self.0.list()
    }

    fn space(&self) -> Result<Space, IoError> {
        self.0.space()
    }
}

#[test]
fn a_description_that_cannot_be_removed_does_not_fail_the_open() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { namespaces: Some(2), ..config(64 << 20) };
    let ns = filled(dir.path(), &config);
    let facts = SpaceFacts { free_bytes: 1 << 30, own_bytes: 0, existing_segment_bytes: None };
    let limits = config.validate(facts).unwrap();
    let pool = BufferPool::new(limits.staging_bytes, limits.io_request_bytes).unwrap();
    let clock = Arc::new(SystemClock::new());
    let options = DirectoryOptions { engine: limits.io_engine, ..DirectoryOptions::default() };
    let device = LocalDirectory::open(dir.path(), options, &pool, clock.clone()).unwrap();
    let device = Arc::new(Stubborn(device));
    let new_store = StoreId::default();
    let parts = Parts {
        device,
        clock,
        pool,
        limits,
        lock: None,
        new_store,
        tiers: dalsegno_store::testing::Tiers::default(),
        executor: Executor::Threads,
        merging: MergeRules::default(),
        scrubbing: ScrubRules::default(),
    };
    let store = Store::open_parts(parts).unwrap();
    assert_eq!(descriptors(dir.path()), 2);
    store.register(&described("new"), RegisterOptions::default()).unwrap();
    assert_eq!(get(&store, ns, &chain(1, 1), BYTES, &Terms::default()), 1);
}
