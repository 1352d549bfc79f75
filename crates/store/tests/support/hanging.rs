//! A device that hangs on request.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use dalsegno_core::{Clock, SpaceFacts};
use dalsegno_io::{
    BufferPool, Device, DirEntry, DirectoryOptions, FileId, Geometry, IoError, LocalDirectory,
    OpenMode, Opened, Operation, Request, Source, Space, SystemClock,
};
use dalsegno_store::testing::{Executor, MergeRules, Parts, ScrubRules, Tiers};
use dalsegno_store::{Config, Store, StoreId};

/// What hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hung {
    Nothing,
    Reads,
    Writes,
    /// The next sync, and nothing after it.
    NextSync,
    Syncs,
    /// Reads do not hang, but fail.
    FailReads,
    /// The next read fails, and those after it hang.
    FailOneRead,
    Creation,
    Everything,
}

/// A directory that responds on request.
#[derive(Debug)]
pub(crate) struct Hanging {
    files: LocalDirectory,
    hung: Mutex<Hung>,
    changed: Condvar,
    kept: Mutex<Vec<Request>>,
}

impl Hanging {
    pub(crate) fn hang(&self, what: Hung) {
        *self.hung.lock().unwrap() = what;
    }

    /// Carries out every request that it kept.
    pub(crate) fn go_on(&self) {
        self.hang(Hung::Nothing);
        self.changed.notify_all();
        self.files.submit(std::mem::take(&mut self.kept.lock().unwrap()));
    }

    /// How many requests it keeps.
    pub(crate) fn kept(&self) -> usize {
        self.kept.lock().unwrap().len()
    }

    fn wait(&self) {
        let mut hung = self.hung.lock().unwrap();
        while matches!(*hung, Hung::Everything | Hung::Creation) {
            hung = self.changed.wait(hung).unwrap();
        }
    }
}

impl Source for Hanging {
    fn submit(&self, requests: Vec<Request>) {
        let mut hung = self.hung.lock().unwrap();
        let mut is_hung = |operation| match *hung {
            Hung::Reads => operation == Operation::Read,
            Hung::Writes => operation == Operation::Write,
            Hung::NextSync if operation == Operation::Sync => {
                *hung = Hung::Nothing;
                true
            }
            Hung::Nothing
            | Hung::Creation
            | Hung::NextSync
            | Hung::FailReads
            | Hung::FailOneRead => false,
            Hung::Syncs => operation == Operation::Sync,
            Hung::Everything => true,
        };
        let (hanging, served): (Vec<_>, Vec<_>) =
            requests.into_iter().partition(|request| is_hung(request.operation));
        let fails = *hung == Hung::FailReads || *hung == Hung::FailOneRead;
        if *hung == Hung::FailOneRead && served.iter().any(|r| r.operation == Operation::Read) {
            *hung = Hung::Reads;
        }
        drop(hung);
        let (failing, served): (Vec<_>, Vec<_>) =
            served.into_iter().partition(|request| fails && request.operation == Operation::Read);
        for request in failing {
            let source = std::io::Error::other("the device fails");
            request.complete(Err(IoError::Os { operation: "read", file: "log".into(), source }));
        }
        self.kept.lock().unwrap().extend(hanging);
        self.files.submit(served);
    }

    fn geometry(&self) -> Geometry {
        self.files.geometry()
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

    fn try_read_at(&self, _: FileId, _: u64, _: &mut [u8]) -> Result<bool, IoError> {
        // Nothing is in the page cache.
        Ok(false)
    }

    fn read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        self.wait();
        self.files.read_at(file, offset, buffer)
    }

    fn close(&self, file: FileId) {
        self.files.close(file);
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
}

/// A store over such a directory.
pub(crate) fn hanging(dir: &Path, config: &Config) -> (Arc<Hanging>, Store) {
    let (device, store, _) = hanging_with_pool(dir, config);
    (device, store)
}

/// The same, with its staging memory.
pub(crate) fn hanging_with_pool(dir: &Path, config: &Config) -> (Arc<Hanging>, Store, BufferPool) {
    hanging_with(dir, config, Tiers::default())
}

/// The same, with these tiers.
pub(crate) fn hanging_with(
    dir: &Path,
    config: &Config,
    tiers: Tiers,
) -> (Arc<Hanging>, Store, BufferPool) {
    hanging_by(Arc::new(SystemClock::new()), dir, config, tiers)
}

/// The same, by another clock.
pub(crate) fn hanging_by(
    clock: Arc<dyn Clock>,
    dir: &Path,
    config: &Config,
    tiers: Tiers,
) -> (Arc<Hanging>, Store, BufferPool) {
    let facts = SpaceFacts { free_bytes: 1 << 30, own_bytes: 0, existing_segment_bytes: None };
    let limits = config.validate(facts).unwrap();
    let pool = BufferPool::new(limits.staging_bytes, limits.io_request_bytes).unwrap();
    let options = DirectoryOptions { engine: limits.io_engine, ..DirectoryOptions::default() };
    let files = LocalDirectory::open(dir, options, &pool, clock.clone()).unwrap();
    let (hung, changed, kept) = (Mutex::new(Hung::Nothing), Condvar::new(), Mutex::default());
    let device = Arc::new(Hanging { files, hung, changed, kept });
    let parts = Parts {
        device: Arc::<Hanging>::clone(&device),
        clock,
        pool: pool.clone(),
        limits,
        lock: None,
        new_store: StoreId([7; 16]),
        tiers,
        executor: Executor::Threads,
        merging: MergeRules::default(),
        scrubbing: ScrubRules::default(),
    };
    let store = Store::open_parts(parts).unwrap();
    (device, store, pool)
}
