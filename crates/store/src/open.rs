//! Opening a store.
//!
//! 1. One process owns a directory; the lock is taken before anything is read and belongs to the device (`watch.rs`).
//! 2. A directory that holds something else is refused; nothing in it is touched.
//! 3. The index is rebuilt from the log's headers, in the order they were written.
//! 4. Namespaces without blocks are forgotten, so that those of old models do not use up the bound on namespaces.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dalsegno_core::{
    ChainHash, Clock, Compression, Config, Error, ErrorKind, Limits, Namespace, NamespaceId,
    Result, SpaceFacts, StoreId, format_bytes, may_be_segment_bytes,
};
use dalsegno_index::{Index, LsmIndex};
use dalsegno_io::{
    BufferPool, Device, DirectoryLock, DirectoryOptions, IoError, LocalDirectory, LockError,
    SystemClock, allow_open_files,
};
use dalsegno_log::Log;
use dalsegno_log::format::{STORE_FILE, namespace_file, namespace_of_file, segment_number};
use dalsegno_policy::AdmissionFilter;
use dalsegno_policy::merging::MergeRules;
use parking_lot::{Mutex, RwLock};

use crate::dram::Dram;
use crate::failed_reads::FailedReads;
use crate::merge::Merger;
use crate::offline::Reader;
use crate::open_log::{Opened, Whence};
use crate::pending::Pending;
use crate::removal_watch::RemovalFeed;
use crate::room::RoomMaker;
use crate::scrub::{ScrubRules, Scrubber};
use crate::stats::Counters;
use crate::store::{Inner, Store, no_thread, to_error};
use crate::transfer::TransferLanes;
use crate::tuner::Tuner;
use crate::upkeep::{Upkeep, UpkeepRules};
use crate::watch::Watched;

/// Memory of the filter that remembers blocks put once, with admission `second-put`.
const ADMISSION_BYTES: usize = 8 << 20;

/// Files that a process has open beside segments: tables of an index, descriptors of the I/O engine, its own.
const OTHER_FILES: u64 = 512;

/// What a store is made of; [`Store::open`] makes the real ones, a simulation brings its own.
#[derive(Debug)]
pub struct Parts {
    /// The files.
    pub device: Arc<dyn Device>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Staging memory.
    pub pool: BufferPool,
    /// The bounds.
    pub limits: Limits,
    /// Of the device's directory; kept until the store is closed and the device has answered all it was asked to write.
    pub lock: Option<DirectoryLock>,
    /// The id if the store is new.
    pub new_store: StoreId,
    /// Whoever writes also makes room and does what an index in files needs, instead of threads, and headers are read
    /// one after the other at open: for simulations, which must replay.
    pub inline_upkeep: bool,
    /// What merging of small extents aims at.
    pub merging: MergeRules,
    /// When scrubbing begins.
    pub scrubbing: ScrubRules,
}

/// What a directory says before it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryFacts {
    /// Whether a store lives there.
    pub(crate) is_store: bool,
    /// Room, for [`Config::validate`].
    pub(crate) space: SpaceFacts,
}

impl Store {
    /// Opens the store in `path`, creating both if they do not exist.
    ///
    /// # Errors
    ///
    /// `Unavailable` if another process owns it, it is read-only, the system refuses, or this process was forked while
    /// a store was open; `Incompatible` if a newer Dalsegno wrote it; `Invalid` for settings that do not fit or a
    /// directory that holds something else.
    pub fn open(path: &Path, config: &Config) -> Result<Self> {
        if path.as_os_str().is_empty() {
            return Err(Error::invalid("the path is empty; give the store a directory"));
        }
        refuse_forked()?;
        LocalDirectory::create_dir(path).map_err(|error| unavailable(path, error))?;
        // Before the lock file is made: nothing is left in a directory that is not ours.
        let reader = Reader::open(path)?;
        reader.facts(path)?;
        let lock = DirectoryLock::acquire(path).map_err(|error| lock_error(path, error))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let facts = reader.facts(path)?;
        let limits = config.validate(facts.space)?;
        let pool = BufferPool::new(limits.staging_bytes, limits.io_request_bytes)
            .map_err(|error| unavailable(path, error))?;
        let options = DirectoryOptions { engine: limits.io_engine, ..DirectoryOptions::default() };
        let device = LocalDirectory::open(path, options, &pool, Arc::clone(&clock))
            .map_err(|error| not_served(path, error))?;
        let needed = u64::from(limits.segment_count) + OTHER_FILES;
        let allowed = allow_open_files(needed);
        if allowed < needed {
            tracing::warn!(
                "this process may have {allowed} files open, and the store in {} may need {needed}: raise the limit \
                 (ulimit -n)",
                path.display()
            );
        }
        let store = Self::open_parts(Parts {
            device: Arc::new(device),
            clock,
            pool,
            limits,
            lock: Some(lock),
            new_store: random_id(path)?,
            inline_upkeep: false,
            merging: MergeRules::default(),
            scrubbing: ScrubRules::default(),
        })?;
        tracing::info!(
            "store {} in {} uses at most {}{}",
            store.id(),
            path.display(),
            format_bytes(store.limits().capacity_bytes),
            if store.limits().capacity_is_default {
                " (80% of what the disk can give)"
            } else {
                ""
            }
        );
        Ok(store)
    }

    /// Opens a store from its parts.
    ///
    /// # Errors
    ///
    /// As [`Store::open`].
    pub fn open_parts(parts: Parts) -> Result<Self> {
        let Parts {
            device,
            clock,
            pool,
            limits,
            lock,
            new_store,
            inline_upkeep,
            merging,
            scrubbing,
        } = parts;
        let watch = Arc::new(Watched::new(device, &clock, lock));
        let device = Arc::<Watched>::clone(&watch) as Arc<dyn Device>;
        let dram = open_dram(&limits)?;
        let whence = Whence {
            device: Arc::clone(&device),
            clock: Arc::clone(&clock),
            pool: pool.clone(),
            limits: &limits,
            in_order: inline_upkeep,
            new_store,
        };
        let counters = Counters::default();
        let Opened { log, index, lsm } = whence.open(&counters)?;
        watch.try_with(STORE_FILE, pool);
        let is_used = |namespace| {
            has_blocks(index.as_ref(), namespace) || !knows_all(lsm.as_deref(), &counters)
        };
        let namespaces = namespaces_in_use(&log, device.as_ref(), is_used)?;
        let rules = UpkeepRules {
            clock: Arc::clone(&clock),
            bytes_per_s: limits.index_bytes_per_s,
            index_bytes: limits.index_bytes,
            inline: inline_upkeep,
        };
        let tuner = lsm.as_ref().map(|lsm| Tuner::open(&device, lsm, limits.index_tuning));
        let upkeep = match lsm.zip(tuner) {
            Some((lsm, tuner)) => Upkeep::start(lsm, log.clone(), tuner, rules)?,
            None => Upkeep::none(),
        };
        let room = RoomMaker::start(inline_upkeep)?;
        let transfers = start_transfers(&limits)?;
        let merger = Merger::new(merging, &limits, inline_upkeep);
        let scrubber = Scrubber::new(scrubbing, &limits, inline_upkeep);
        let inner = Inner {
            merger,
            scrubber,
            reads: AtomicU32::new(0),
            dram,
            admission: Mutex::new(AdmissionFilter::new(limits.admission, ADMISSION_BYTES)),
            limits,
            watch,
            clock,
            log,
            index,
            upkeep,
            pending: Pending::default(),
            failed_reads: FailedReads::default(),
            removal_feed: RemovalFeed::default(),
            namespaces: RwLock::new(namespaces),
            registering: Mutex::default(),
            counters,
            room,
        };
        let store = Self::new(inner, transfers);
        store.enter()?.start_merging()?;
        store.enter()?.start_scrubbing()?;
        Ok(store)
    }
}

fn start_transfers(limits: &Limits) -> Result<TransferLanes> {
    TransferLanes::start(limits.transfer_threads, limits.transfer_queue).map_err(no_thread)
}

fn open_dram(limits: &Limits) -> Result<Dram> {
    Dram::new(limits.dram_bytes).map_err(|error| {
        let asked = format_bytes(limits.dram_bytes);
        let message = format!("a DRAM tier of {asked} cannot be had; set `dram` to less");
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })
}

/// Refuses to open anything in a child that was forked while a store was open: it might wait for ever.
pub(crate) fn refuse_forked() -> Result<()> {
    let Some(parent) = dalsegno_io::forked_amid_threads() else { return Ok(()) };
    let message = format!(
        "process {} had a store open when it forked this one, so none can be opened here: fork before you open a \
         store, or start the child anew (with multiprocessing, the start method \"spawn\")",
        parent.id()
    );
    Err(Error::new(ErrorKind::Unavailable, message))
}

/// The namespaces of a store; those that are not in use are forgotten.
fn namespaces_in_use(
    log: &Log,
    device: &dyn Device,
    is_used: impl Fn(NamespaceId) -> bool,
) -> Result<HashMap<NamespaceId, (Arc<Namespace>, Compression)>> {
    let namespaces = log.store_files().read_namespaces().map_err(to_error)?;
    let (used, unused): (Vec<_>, Vec<_>) =
        namespaces.into_iter().partition(|(namespace, _)| is_used(namespace.id()));
    for (namespace, _) in &unused {
        forget(device, namespace);
    }
    Ok(used.into_iter().map(|(n, compression)| (n.id(), (Arc::new(n), compression))).collect())
}

/// Whether there are no blocks but those that the index shows: what could not be read may hold others.
fn knows_all(lsm: Option<&LsmIndex>, counters: &Counters) -> bool {
    let knows = |lsm: &LsmIndex| !(lsm.is_damaged() || lsm.has_missed() || lsm.has_failed());
    counters.open_faults.load(Ordering::Relaxed) == 0 && lsm.is_none_or(knows)
}

fn has_blocks(index: &dyn Index, namespace: NamespaceId) -> bool {
    let first = index.scan((namespace, ChainHash::default(), 0), 1);
    first.iter().any(|extent| extent.namespace == namespace)
}

/// Removes the description of a namespace; whoever registers it again writes it again. If that fails, or a crash takes
/// it back, the next open tries again.
fn forget(device: &dyn Device, namespace: &Namespace) {
    let file = namespace_file(namespace.id());
    match device.remove(&file) {
        Ok(()) => tracing::debug!("{file} describes a namespace without blocks; it is removed"),
        Err(error) => tracing::warn!("a namespace without blocks was forgotten, but {error}"),
    }
}

impl Reader {
    /// Looks at the directory without changing it.
    ///
    /// # Errors
    ///
    /// `Unavailable` if it cannot be read; `Invalid` if it holds something else than a store.
    pub(crate) fn facts(&self, path: &Path) -> Result<DirectoryFacts> {
        let entries = self.device.list().map_err(|error| unavailable(path, error))?;
        let space = self.device.space().map_err(|error| unavailable(path, error))?;
        let segments: Vec<_> =
            entries.iter().filter(|e| segment_number(&e.name).is_some()).collect();
        let is_ours = |name: &str| {
            name == STORE_FILE
                || segment_number(name).is_some()
                || namespace_of_file(name).is_some()
        };
        let is_store = entries.iter().any(|entry| is_ours(&entry.name));
        if let Some(foreign) = entries.iter().find(|e| e.name != "LOCK").filter(|_| !is_store) {
            return Err(Error::invalid(format!(
                "{} holds {:?} but no Dalsegno store; give an empty or a new directory",
                path.display(),
                foreign.name
            )));
        }
        Ok(DirectoryFacts {
            is_store,
            space: SpaceFacts {
                free_bytes: space.free_bytes,
                own_bytes: segments.iter().map(|e| e.allocated_bytes).sum(),
                existing_segment_bytes: self.segment_bytes(&segments),
            },
        })
    }

    /// The segment size of the store's header, else the size that most segment files have: one that was cut must not
    /// decide.
    fn segment_bytes(&self, segments: &[&dalsegno_io::DirEntry]) -> Option<u64> {
        if let Some(header) = self.store_header() {
            return Some(header.segment_bytes);
        }
        let mut sizes: Vec<u64> =
            segments.iter().map(|e| e.bytes).filter(|bytes| may_be_segment_bytes(*bytes)).collect();
        sizes.sort_unstable();
        sizes.get(sizes.len() / 2).copied()
    }
}

pub(crate) fn unavailable(path: &Path, error: IoError) -> Error {
    let message = format!("{} cannot be used", path.display());
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

/// Says what to do if the I/O engine that was asked for cannot be had.
fn not_served(path: &Path, error: IoError) -> Error {
    if !error.is_start() {
        return unavailable(path, error);
    }
    let message = format!(
        "{} cannot be served: this kernel, or the sandbox, does not let the process use the I/O engine; set \
         \"io_engine\" to \"auto\" or \"psync\"",
        path.display()
    );
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

pub(crate) fn lock_error(path: &Path, error: LockError) -> Error {
    let message = match &error {
        LockError::Held { owner } => format!(
            "{} is in use by {owner}; one process owns a store, so close it there or use another directory{}",
            path.display(),
            if owner.starts_with(&format!("pid {} ", std::process::id())) {
                "; if it was closed, its disk still owes it an answer"
            } else {
                ""
            }
        ),
        LockError::ReadOnly => {
            format!(
                "{} is on a read-only file system; mount it writable or use another directory",
                path.display()
            )
        }
        LockError::Os { .. } => format!("{} cannot be locked", path.display()),
    };
    let told = Error::new(ErrorKind::Unavailable, message);
    if matches!(error, LockError::Os { .. }) { told.with_source(error) } else { told }
}

fn random_id(path: &Path) -> Result<StoreId> {
    dalsegno_io::random_bytes().map(StoreId).map_err(|error| unavailable(path, error))
}
