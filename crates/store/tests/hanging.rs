//! A device that hangs: no call with a timeout waits for it, whatever it would have to do, and nothing is wrong after.
#![allow(clippy::disallowed_methods, reason = "plays the world outside of the store")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use dalsegno_core::SpaceFacts;
use dalsegno_io::{
    BufferPool, Device, DirEntry, DirectoryOptions, FileId, Geometry, IoError, LocalDirectory,
    OpenMode, Opened, Operation, Request, Space, SystemClock,
};
use dalsegno_store::{
    Cancel, ChainHash, Config, Durability, ErrorKind, Memory, MergeRules, NamespaceId, Parts, Put,
    PutOutcome, PutReport, Store, StoreId, Terms, TransferState, lend,
};
use support::{block, chain, config, get, namespace, open, put};

/// Bytes of a block: four fill an extent, sixteen a segment.
const BYTES: usize = 60 << 10;
/// What a call is given, and what it may take with the machine busy: far below the minute that a sync may.
const TIMEOUT: Duration = Duration::from_millis(200);
const AT_MOST: Duration = Duration::from_secs(5);

/// What hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hung {
    Nothing,
    Syncs,
    Creation,
    Everything,
}

/// A directory that answers when the test says so.
#[derive(Debug)]
struct Hanging {
    files: LocalDirectory,
    hung: Mutex<Hung>,
    changed: Condvar,
    kept: Mutex<Vec<Request>>,
}

impl Hanging {
    fn hang(&self, what: Hung) {
        *self.hung.lock().unwrap() = what;
    }

    /// Carries out everything that was asked of it meanwhile.
    fn go_on(&self) {
        self.hang(Hung::Nothing);
        self.changed.notify_all();
        self.files.submit(std::mem::take(&mut self.kept.lock().unwrap()));
    }

    fn wait(&self) {
        let mut hung = self.hung.lock().unwrap();
        while matches!(*hung, Hung::Everything | Hung::Creation) {
            hung = self.changed.wait(hung).unwrap();
        }
    }
}

impl Device for Hanging {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        self.wait();
        self.files.open(name, mode)
    }
    fn open_cached(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        self.wait();
        self.files.open_cached(name, mode)
    }
    fn read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        self.files.read_at(file, offset, buffer)
    }
    fn close(&self, file: FileId) {
        self.files.close(file);
    }
    fn submit(&self, requests: Vec<Request>) {
        let hung = *self.hung.lock().unwrap();
        let (hanging, served): (Vec<_>, Vec<_>) =
            requests.into_iter().partition(|request| match hung {
                Hung::Nothing | Hung::Creation => false,
                Hung::Syncs => request.operation == Operation::Sync,
                Hung::Everything => true,
            });
        self.kept.lock().unwrap().extend(hanging);
        self.files.submit(served);
    }
    fn remove(&self, name: &str) -> Result<(), IoError> {
        self.wait();
        self.files.remove(name)
    }
    fn sync_names(&self) -> Result<(), IoError> {
        self.wait();
        self.files.sync_names()
    }
    fn list(&self) -> Result<Vec<DirEntry>, IoError> {
        self.files.list()
    }
    fn space(&self) -> Result<Space, IoError> {
        self.files.space()
    }
    fn geometry(&self) -> Geometry {
        self.files.geometry()
    }
}

fn settings(durability: Durability) -> Config {
    Config { segment: Some(1 << 20), extent: Some(256 << 10), durability, ..config(5 << 20) }
}

fn hanging(dir: &Path, config: &Config) -> (Arc<Hanging>, Store, NamespaceId) {
    let facts = SpaceFacts { free_bytes: 1 << 30, own_bytes: 0, existing_segment_bytes: None };
    let limits = config.validate(facts).unwrap();
    let pool = BufferPool::new(limits.staging_bytes, limits.io_request_bytes).unwrap();
    let clock = Arc::new(SystemClock::new());
    let options = DirectoryOptions { engine: limits.io_engine, ..DirectoryOptions::default() };
    let files = LocalDirectory::open(dir, options, &pool, clock.clone()).unwrap();
    let (hung, changed, kept) = (Mutex::new(Hung::Nothing), Condvar::new(), Mutex::default());
    let device = Arc::new(Hanging { files, hung, changed, kept });
    let parts = Parts {
        device: Arc::<Hanging>::clone(&device),
        clock,
        pool,
        limits,
        lock: None,
        new_store: StoreId([7; 16]),
        inline_upkeep: false,
        merging: MergeRules::default(),
    };
    let store = Store::open_parts(parts).unwrap();
    let ns = namespace(&store, 2, 30 << 10, "hanging");
    (device, store, ns)
}

/// A store that must give something up for every new segment, with some of it hit so that it moves on.
fn crowded(dir: &Path, config: &Config) -> (Arc<Hanging>, Store, NamespaceId) {
    let (device, store, ns) = hanging(dir, config);
    for name in 0..30 {
        assert_eq!(put(&store, ns, &chain(name, 4), 0, BYTES).count(PutOutcome::Stored), 4);
        if name % 3 == 0 {
            get(&store, ns, &chain(name, 4), BYTES, &Terms::default());
        }
    }
    assert!(store.stats().evicted_blocks > 0, "the store is full");
    (device, store, ns)
}

fn put_within(store: &Store, ns: NamespaceId, chain: &[ChainHash], terms: &Terms) -> PutReport {
    let blocks: Vec<Vec<u8>> = chain.iter().map(|hash| block(*hash, BYTES)).collect();
    let started = Instant::now();
    let report = lend(|lender| {
        let blocks = blocks.iter().map(|b| vec![lender.shared(b)]).collect();
        store.put_batch(ns, Put { chain, first: 0, blocks }, terms).unwrap()
    });
    assert!(started.elapsed() < AT_MOST, "a put took {:?}", started.elapsed());
    report
}

/// Everything that is served is right, and new blocks find room.
fn check_well(store: &Store, ns: NamespaceId) {
    assert!(!store.stats().poisoned);
    for name in 0..200 {
        get(store, ns, &chain(name, 4), BYTES, &Terms::default());
    }
    for name in 1000..1020 {
        let report = put(store, ns, &chain(name, 4), 0, BYTES);
        assert_eq!(report.count(PutOutcome::Stored), 4, "{report:?}");
        assert_eq!(get(store, ns, &chain(name, 4), BYTES, &Terms::default()), 4);
    }
}

#[test]
fn a_put_into_a_full_store_ends_at_its_deadline_while_the_device_hangs() {
    for durability in [Durability::Batch, Durability::None] {
        let dir = tempfile::tempdir().unwrap();
        let config = settings(durability);
        let (device, store, ns) = crowded(dir.path(), &config);
        device.hang(Hung::Everything);
        for name in 100..108 {
            let report = put_within(&store, ns, &chain(name, 4), &Terms::within(TIMEOUT));
            assert_eq!(report.count(PutOutcome::Failed), 4, "{report:?}");
            assert_eq!(store.probe(ns, &chain(name, 4)).unwrap(), 0);
        }
        device.go_on();
        check_well(&store, ns);
        store.close();
        let store = open(dir.path(), &config);
        assert_eq!(store.stats().open_faults, 0);
        check_well(&store, ns);
    }
}

#[test]
fn a_put_that_waits_for_room_can_be_called_off() {
    let dir = tempfile::tempdir().unwrap();
    let (device, store, ns) = crowded(dir.path(), &settings(Durability::Batch));
    // Until the open segment is full: what is already with the device is waited for.
    device.hang(Hung::Everything);
    for name in 100..105 {
        put_within(&store, ns, &chain(name, 4), &Terms::within(TIMEOUT));
    }
    let cancel = Cancel::default();
    let terms = Terms { timeout: None, cancel: Some(cancel.clone()) };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| put_within(&store, ns, &chain(110, 4), &terms));
        std::thread::sleep(TIMEOUT);
        assert!(!waiting.is_finished());
        cancel.cancel();
        assert_eq!(waiting.join().unwrap().count(PutOutcome::Failed), 4);
    });
    device.go_on();
    check_well(&store, ns);
}

#[test]
fn a_put_waits_for_no_segment_to_be_created_and_for_no_sync_beyond_its_deadline() {
    for hung in [Hung::Creation, Hung::Syncs] {
        let dir = tempfile::tempdir().unwrap();
        let config = settings(Durability::Batch);
        let (device, store, ns) = hanging(dir.path(), &config);
        device.hang(hung);
        let report = put_within(&store, ns, &chain(1, 4), &Terms::within(TIMEOUT));
        assert_eq!(report.count(PutOutcome::Failed), 4, "{hung:?}");
        let started = Instant::now();
        let layers = store.layer_writer(ns, &chain(2, 4), 0, 4, &Terms::within(TIMEOUT));
        assert_eq!(layers.unwrap_err().kind(), ErrorKind::Unavailable, "{hung:?}");
        assert!(started.elapsed() < AT_MOST);
        device.go_on();
        check_well(&store, ns);
        // Now with a segment that is open already.
        device.hang(hung);
        let mut failed = 0;
        for name in 20..28 {
            let report = put_within(&store, ns, &chain(name, 4), &Terms::within(TIMEOUT));
            failed += report.count(PutOutcome::Failed);
        }
        assert!(failed > 0 || hung == Hung::Creation, "{hung:?}");
        device.go_on();
        check_well(&store, ns);
        store.close();
        check_well(&open(dir.path(), &config), ns);
    }
}

#[test]
fn a_removal_ends_at_its_deadline_and_becomes_durable_when_the_device_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let config = settings(Durability::Batch);
    let (device, store, ns) = crowded(dir.path(), &config);
    let gone = chain(29, 4);
    assert_eq!(store.probe(ns, &gone).unwrap(), 4);
    device.hang(Hung::Everything);
    let started = Instant::now();
    let late = store.remove(ns, Some(&gone), &Terms::within(TIMEOUT));
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(started.elapsed() < AT_MOST);
    assert_eq!(store.probe(ns, &gone).unwrap(), 0, "gone at once all the same");
    device.go_on();
    // Behind the one that was left to the store, since removals are done one by one.
    store.remove(ns, Some(&chain(28, 1)), &Terms::default()).unwrap();
    drop(store);
    let store = open(dir.path(), &config);
    assert_eq!(store.probe(ns, &gone).unwrap(), 0);
    check_well(&store, ns);
}

#[test]
fn a_layer_that_waits_for_another_one_ends_at_its_deadline_and_may_be_stored_again() {
    let dir = tempfile::tempdir().unwrap();
    let (device, store, ns) = hanging(dir.path(), &settings(Durability::Batch));
    let (chain, slice) = (chain(1, 2), BYTES / 2);
    let blocks: Vec<Vec<u8>> = chain.iter().map(|hash| block(*hash, BYTES)).collect();
    let writer = store.layer_writer(ns, &chain, 0, 2, &Terms::default()).unwrap();
    device.hang(Hung::Everything);
    lend(|lender| {
        let layer = |number: usize| -> Vec<Vec<Memory>> {
            let rows = blocks.iter().map(|b| &b[number * slice..][..slice]);
            rows.map(|row| vec![lender.shared(row)]).collect()
        };
        let first = writer.submit_store_layer(0, layer(0), None);
        std::thread::sleep(TIMEOUT);
        let second = writer.submit_store_layer(1, layer(1), Some(TIMEOUT));
        assert!(second.wait(Some(AT_MOST)));
        assert_eq!(second.take().unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(first.state(), TransferState::Running);
        let commit = writer.commit(&Terms::within(TIMEOUT));
        assert_eq!(commit.unwrap_err().kind(), ErrorKind::Unavailable);
        device.go_on();
        assert!(first.wait(Some(AT_MOST)));
        first.take().unwrap().unwrap();
        writer.store_layer(1, layer(1), &Terms::default()).unwrap();
    });
    assert_eq!(writer.commit(&Terms::default()).unwrap(), 2);
    assert_eq!(get(&store, ns, &chain, BYTES, &Terms::default()), 2);
}
