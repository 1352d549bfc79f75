//! Opening a store: everything that an open store consists of.
//!
//! 1. One process owns a directory. The lock is taken before anything is read, and belongs to the device (`device.rs`).
//! 2. The index is filled from the log's headers, in the order they were written.
//! 3. Namespaces without blocks are forgotten, so that those of old models do not use up the bound on namespaces.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dalsegno_core::{
    ChainHash, Clock, Compression, Config, Error, ErrorKind, Limits, Namespace, NamespaceId,
    Result, StoreId, format_bytes,
};
use dalsegno_extent::format::{STORE_FILE, namespace_file};
use dalsegno_far::{LocationPath, Removal, Tier, WriterId};
use dalsegno_index::{Index, LsmIndex};
use dalsegno_io::{
    BufferPool, Device, DirectoryLock, DirectoryOptions, Executor, IoError, JobLane,
    LocalDirectory, StopSignal, SystemClock, allow_open_files,
};
use dalsegno_log::Log;
use dalsegno_policy::AdmissionFilter;
use dalsegno_policy::merging::MergeRules;
use parking_lot::Mutex;

use crate::blocks::dropper::Dropper;
use crate::blocks::finder::Finder;
use crate::blocks::indexed_log::IndexedLog;
use crate::blocks::recent::RecentBlocks;
use crate::counters::Counters;
use crate::device::Watched;
use crate::engine::{Engine, Front};
use crate::error::{absolute, no_thread, to_error, unavailable};
use crate::far::removal_notes::RemovalNotes;
use crate::far::tier::{FarParts, FarTier, staging_of, writer_id};
use crate::far_work::lanes::FarLanes;
use crate::far_work::local_store::LocalStore;
use crate::jobs::transfers::TransferLanes;
use crate::lookup::lookups::Lookups;
use crate::namespaces::registrar::Registrar;
use crate::namespaces::table::NamespaceTable;
use crate::open::directory::{DirectoryReader, lock_error, refuse_forked};
use crate::open::far_location::{far_location, open_far};
use crate::open::log_and_index::{LogAndIndex, LogSource};
use crate::open::open_store::OpenStore;
use crate::put::group::ExtentWriter;
use crate::put::pending::Pending;
use crate::put::plan::{ADMISSION_BYTES, PutPlanner};
use crate::put::publish::ExtentPublisher;
use crate::put::writer::Writer;
use crate::remove::local::LocalRemover;
use crate::remove::remover::Remover;
use crate::rewrite::merge_row::RowMerger;
use crate::rewrite::reclaimer::Reclaimer;
use crate::rewrite::relocate::Relocator;
use crate::rewrite::space::{LANE_JOBS, SpaceLane};
use crate::state::arena::ArenaBacking;
use crate::state::dram::Dram;
use crate::state::hidden_blocks::HiddenBlocks;
use crate::state::recent_removals::RecentRemovals;
use crate::state::removal_feed::RemovalFeed;
use crate::tuning::index_care::{IndexCare, IndexCareOptions};
use crate::tuning::tuner::Tuner;
use crate::upkeep::merger::Merger;
use crate::upkeep::scrubber::{ScrubParts, ScrubRules, Scrubber};

/// Files that a process has open in addition to segments: tables of an index, descriptors of the I/O engine, its own.
const OTHER_FILES: u64 = 512;

/// What a store is made of. [`Store::open`](crate::Store::open) makes the real parts; a test or a simulation brings its
/// own.
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
    /// The lock of the device's directory, held until the store is closed and the device has completed every write.
    pub lock: Option<DirectoryLock>,
    /// The id if the store is new.
    pub new_store: StoreId,
    /// The tiers above and below the log.
    pub tiers: Tiers,
    /// What carries out background work. [`Executor::Inline`] also makes the open read headers one after the other.
    pub executor: Executor,
    /// What merging of small extents aims at.
    pub merging: MergeRules,
    /// When scrubbing starts.
    pub scrubbing: ScrubRules,
}

/// What the tiers above and below the log are made of.
#[derive(Debug, Default)]
pub struct Tiers {
    /// Who can map the memory of the DRAM tier.
    pub arena: ArenaBacking,
    /// The far tier, if the limits have one.
    pub far: Option<Arc<dyn Tier>>,
    /// The number of this open in the far tier; random if there is none.
    pub far_open: Option<u64>,
    /// Ends the open while it waits for the memory of the DRAM tier.
    pub stop: StopSignal,
}

/// The real parts of the store in a directory.
///
/// # Errors
///
/// See [`Store::open`](crate::Store::open).
pub(crate) fn parts_of(path: &Path, config: &Config) -> Result<Parts> {
    if path.as_os_str().is_empty() {
        return Err(Error::invalid("the path is empty; give the store a directory"));
    }
    refuse_forked()?;
    // A later change of the working directory changes nothing.
    let path = &absolute(path)?;
    let far = far_location(path, config)?;
    let created = LocalDirectory::create_dir(path).map_err(|error| unavailable(path, error))?;
    // A refused store leaves no directory. One that has a lock file is not empty, and stays.
    parts_in(path, config, far, !created.is_empty())
        .inspect_err(|_| LocalDirectory::remove_created(&created))
}

fn parts_in(
    path: &Path,
    config: &Config,
    far: Option<LocationPath>,
    is_new: bool,
) -> Result<Parts> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    // Before the lock file is created: nothing is left in a directory that is not ours.
    let reader = DirectoryReader::open(path)?;
    let facts = reader.facts(path)?;
    if is_new {
        config.validate(facts.space)?;
    }
    let lock = DirectoryLock::acquire(path).map_err(|error| lock_error(path, error))?;
    let facts = reader.facts(path)?;
    let mut limits = config.validate(facts.space)?;
    if facts.space.own_bytes > limits.capacity_bytes {
        tracing::warn!(
            path = %path.display(),
            stored_bytes = facts.space.own_bytes,
            capacity_bytes = limits.capacity_bytes,
            "the capacity is below what is stored; the blocks that were used last are kept"
        );
    }
    let pool = BufferPool::new(limits.staging_bytes, limits.io_request_bytes)
        .map_err(|error| unavailable(path, error))?;
    let options = DirectoryOptions { engine: limits.io_engine, ..DirectoryOptions::default() };
    let device = LocalDirectory::open(path, options, &pool, Arc::clone(&clock))
        .map_err(|error| not_served(path, error))?;
    let needed = u64::from(limits.segment_count) + OTHER_FILES;
    let allowed = allow_open_files(needed);
    if allowed < needed {
        tracing::warn!(
            path = %path.display(),
            allowed,
            needed,
            "too few open files allowed: raise the limit of the process (ulimit -n)"
        );
    }
    let new_store =
        dalsegno_io::random_bytes().map(StoreId).map_err(|error| unavailable(path, error))?;
    let far = far.map(|location| open_far(&location, &mut limits, &clock)).transpose()?;
    Ok(Parts {
        device: Arc::new(device),
        clock,
        pool,
        limits,
        lock: Some(lock),
        new_store,
        tiers: Tiers { arena: ArenaBacking::Private, far, ..Tiers::default() },
        executor: Executor::Threads,
        merging: MergeRules::default(),
        scrubbing: ScrubRules::default(),
    })
}

/// Opens a store from its parts.
///
/// # Errors
///
/// See [`Store::open`](crate::Store::open).
pub(crate) fn assemble(parts: Parts) -> Result<(OpenStore, TransferLanes)> {
    let Parts { device, clock, pool, limits, lock, new_store, executor, .. } = parts;
    let Tiers { arena, far, far_open, stop } = parts.tiers;
    let device = Arc::new(Watched::new(device, &clock, lock));
    let dram = Arc::new(open_dram(&limits, &arena, &stop)?);
    let source = LogSource {
        device: Arc::<Watched>::clone(&device),
        clock: Arc::clone(&clock),
        pool: pool.clone(),
        limits: &limits,
        executor,
        new_store,
    };
    let counters = Arc::new(Counters::default());
    let LogAndIndex { log, index, lsm } = source.open(&counters)?;
    device.try_with(STORE_FILE, pool.clone());
    let writer = match far_open {
        Some(open) => WriterId { store: log.store(), open },
        None => writer_id(log.store(), random_name()?),
    };
    let removal_notes = RemovalNotes::open(log.store_files(), writer, far.is_some());
    let far = match far {
        Some(tier) => {
            let (limits, clock) = (limits.clone(), Arc::clone(&clock));
            let pool = staging_of(limits.far_workers).map_err(|error| {
                let message = "the system cannot provide memory for a far tier";
                Error::new(ErrorKind::Unavailable, message).with_source(error)
            })?;
            Some(Arc::new(FarTier::new(FarParts { tier, writer, limits, clock, pool })))
        }
        None => None,
    };
    let is_used =
        |namespace| has_blocks(index.as_ref(), namespace) || !knows_all(lsm.as_deref(), &counters);
    let namespaces = namespaces_in_use(&log, device.as_ref(), is_used)?;
    let namespaces = Arc::new(NamespaceTable::new(namespaces));
    let options = IndexCareOptions {
        clock: Arc::clone(&clock),
        bytes_per_s: limits.index_bytes_per_s,
        index_bytes: limits.index_bytes,
        executor,
    };
    let care = match lsm {
        Some(lsm) => {
            let files = Arc::<Watched>::clone(&device) as Arc<dyn Device>;
            let tuner = Tuner::open(&files, &lsm, limits.index_tuning);
            IndexCare::start(lsm, log.clone(), tuner, options)?
        }
        None => IndexCare::none(),
    };
    let stored = Arc::new(IndexedLog { log, index, care });
    let hidden: Arc<HiddenBlocks> = Arc::default();
    let (stored_of, hidden_of, far_of) = (Arc::clone(&stored), Arc::clone(&hidden), far.clone());
    let finder = Arc::new(Finder { stored: stored_of, hidden: hidden_of, far: far_of });
    let removals: Arc<RecentRemovals> = Arc::default();
    let recent = RecentBlocks { dram: Arc::clone(&dram), removals: Arc::clone(&removals), finder };
    let recent = Arc::new(recent);
    let feed: Arc<RemovalFeed> = Arc::default();
    let dropper = Dropper {
        stored: Arc::clone(&stored),
        recent: Arc::clone(&recent),
        feed: Arc::clone(&feed),
        counters: Arc::clone(&counters),
    };
    let engine = Arc::new(Engine {
        limits: Arc::new(limits),
        clock,
        device,
        log: stored.log.clone(),
        index: Arc::clone(&stored.index),
        stored,
        counters,
        namespaces,
        front: Front {
            dram,
            failed_reads: Arc::default(),
            removal_feed: feed,
            removals,
            hidden,
            removal_notes,
            reads: Arc::default(),
            speeds: Arc::default(),
            recent,
            dropper: Arc::new(dropper),
        },
        far,
    });
    start_helpers(engine, executor, parts.merging, parts.scrubbing)
}

fn start_helpers(
    engine: Arc<Engine>,
    executor: Executor,
    merging: MergeRules,
    scrubbing: ScrubRules,
) -> Result<(OpenStore, TransferLanes)> {
    let (limits, clock) = (&engine.limits, Arc::clone(&engine.clock));
    let records = JobLane::start("dalsegno-record", executor, 1, LANE_JOBS);
    let records = Arc::new(records.map_err(no_thread)?);
    let namespaces = || Arc::clone(&engine.namespaces);
    let (stored, dropper) = (|| Arc::clone(&engine.stored), || Arc::clone(&engine.front.dropper));
    let (counters, reads) = (|| Arc::clone(&engine.counters), || Arc::clone(&engine.front.reads));
    let reclaimer = Reclaimer {
        stored: stored(),
        relocator: Relocator { stored: stored(), namespaces: namespaces() },
        dropper: dropper(),
        removals: Arc::clone(&engine.front.removals),
        far: engine.far.clone(),
        counters: counters(),
        limits: Arc::clone(&engine.limits),
    };
    let device = Arc::clone(&engine.device);
    let space = SpaceLane::start(reclaimer, device, Arc::clone(&clock), executor)?;
    let space = Arc::new(space);
    let (threads, queue) = (limits.transfer_threads, limits.transfer_queue);
    let transfers = TransferLanes::start(executor, threads, queue).map_err(no_thread)?;
    let rows = RowMerger {
        stored: stored(),
        namespaces: namespaces(),
        dropper: dropper(),
        space: Arc::clone(&space),
        reads: reads(),
        counters: counters(),
    };
    let merger = Merger::start(merging, rows, limits, Arc::clone(&clock), executor)?;
    let merger = Arc::new(merger);
    let parts = ScrubParts {
        stored: stored(),
        dropper: dropper(),
        device: Arc::clone(&engine.device),
        reads: reads(),
        counters: counters(),
        clock: Arc::clone(&clock),
    };
    let scrubber = Scrubber::start(scrubbing, parts, limits.scrub_bytes_per_s, executor)?;
    let failed_reads = || Arc::clone(&engine.front.failed_reads);
    let removals = || Arc::clone(&engine.front.removals);
    let filter = AdmissionFilter::new(limits.admission, ADMISSION_BYTES);
    let planner = PutPlanner {
        stored: stored(),
        failed_reads: failed_reads(),
        removals: removals(),
        far: engine.far.clone(),
        device: Arc::clone(&engine.device),
        pending: Pending::default(),
        admission: Mutex::new(filter),
    };
    let publisher = ExtentPublisher {
        stored: stored(),
        dropper: dropper(),
        failed_reads: failed_reads(),
        removals: removals(),
        far: engine.far.clone(),
        merger: Arc::clone(&merger),
    };
    let extents = ExtentWriter {
        log: engine.log.clone(),
        publisher,
        space: Arc::clone(&space),
        dram: Arc::clone(&engine.front.dram),
        removals: removals(),
        namespaces: namespaces(),
        limits: Arc::clone(&engine.limits),
    };
    let writer = Arc::new(Writer {
        planner,
        extents,
        merger: Arc::clone(&merger),
        log: engine.log.clone(),
        device: Arc::clone(&engine.device),
        removals: removals(),
        namespaces: namespaces(),
        counters: counters(),
        clock: Arc::clone(&clock),
    });
    let local = LocalRemover {
        stored: Arc::clone(&engine.stored),
        dropper: Arc::clone(&engine.front.dropper),
        removals: Arc::clone(&engine.front.removals),
        hidden: Arc::clone(&engine.front.hidden),
        notes: engine.front.removal_notes.clone(),
        space: Arc::clone(&space),
        index: engine.limits.index,
    };
    let remover = Arc::new(Remover {
        local: Arc::new(local),
        records: Arc::clone(&records),
        finder: Arc::clone(&engine.front.recent.finder),
        limits: Arc::clone(&engine.limits),
        clock: Arc::clone(&clock),
    });
    if let Some(notes) = &engine.front.removal_notes {
        resume_removals(&engine, notes, &remover);
    }
    let far = match (&engine.far, &engine.front.removal_notes) {
        (Some(far), Some(notes)) => {
            let local = LocalStore {
                stored: Arc::downgrade(&engine.stored),
                recent: Arc::downgrade(&engine.front.recent),
                writer: Arc::downgrade(&writer),
                remover: Arc::downgrade(&remover),
                namespaces: namespaces(),
                removals: removals(),
                notes: Arc::clone(notes),
            };
            Some(FarLanes::start(far, &clock, &local, executor)?)
        }
        _ => None,
    };
    let lookups = Lookups {
        finder: Arc::clone(&engine.front.recent.finder),
        recent: Arc::clone(&engine.front.recent),
        device: Arc::clone(&engine.device),
        namespaces: Arc::clone(&engine.namespaces),
        speeds: Arc::clone(&engine.front.speeds),
        counters: Arc::clone(&engine.counters),
        clock,
    };
    let registrar = Registrar {
        namespaces: Arc::clone(&engine.namespaces),
        log: engine.log.clone(),
        records: Arc::clone(&records),
        limits: Arc::clone(&engine.limits),
        clock: Arc::clone(&engine.clock),
    };
    let store = OpenStore {
        engine,
        lookups,
        registrar,
        writer,
        remover,
        merger,
        scrubber,
        records,
        space,
        far,
    };
    Ok((store, transfers))
}

/// The random part of the name under which a store writes to a far location.
fn random_name() -> Result<[u8; 8]> {
    dalsegno_io::random_bytes().map_err(|error| {
        Error::new(ErrorKind::Unavailable, "the system gives no random bytes").with_source(error)
    })
}

/// Goes on with the removals that the last open had begun: they are applied here, and not found at the far location.
fn resume_removals(engine: &Engine, notes: &RemovalNotes, remover: &Remover) {
    for removal in notes.unpublished() {
        engine.far.iter().for_each(|far| far.remove(&removal));
    }
    for Removal { id, namespace, hashes } in notes.failed_here() {
        let hashes = Some(hashes.as_slice()).filter(|hashes| !hashes.is_empty());
        match remover.remove_noted(namespace, hashes) {
            Ok(()) => notes.note_applied(id),
            Err(error) => tracing::warn!(%error, "removed blocks are still stored here"),
        }
    }
    if let Err(error) = notes.store(engine.log.store_files()) {
        tracing::warn!(%error, "the record of removals is not stored");
    }
}

fn open_dram(limits: &Limits, arena: &ArenaBacking, stop: &StopSignal) -> Result<Dram> {
    Dram::new(limits.dram_bytes, arena, stop).map_err(|error| {
        let wanted = format_bytes(limits.dram_bytes);
        let message =
            format!("the system cannot provide a DRAM tier of {wanted}; set `dram` to less");
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })
}

/// The namespaces of a store; those that are not in use are forgotten.
fn namespaces_in_use(
    log: &Log,
    device: &dyn Device,
    is_used: impl Fn(NamespaceId) -> bool,
) -> Result<Vec<(Namespace, Compression)>> {
    let namespaces = log.store_files().read_namespaces().map_err(to_error)?;
    let (used, unused): (Vec<_>, Vec<_>) =
        namespaces.into_iter().partition(|(namespace, _)| is_used(namespace.id()));
    for (namespace, _) in &unused {
        forget(device, namespace);
    }
    Ok(used)
}

/// Whether the index shows all blocks: segments or tables that could not be read may hold others.
fn knows_all(lsm: Option<&LsmIndex>, counters: &Counters) -> bool {
    let knows = |lsm: &LsmIndex| !(lsm.is_damaged() || lsm.has_missed() || lsm.has_failed());
    counters.open_faults.load(Ordering::Relaxed) == 0 && lsm.is_none_or(knows)
}

fn has_blocks(index: &dyn Index, namespace: NamespaceId) -> bool {
    let first = index.scan((namespace, ChainHash::default(), 0), 1);
    first.iter().any(|extent| extent.namespace == namespace)
}

/// Removes the description of a namespace; registering it again writes it again. If that fails, or a crash undoes it,
/// the next open tries again.
fn forget(device: &dyn Device, namespace: &Namespace) {
    let file = namespace_file(namespace.id());
    match device.remove(&file) {
        Ok(()) => tracing::debug!(file, "namespace without blocks forgotten"),
        Err(error) => {
            tracing::warn!(file, %error, "description of a namespace without blocks not removed");
        }
    }
}

/// The error if the requested I/O engine is not available.
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
