//! Opening a store from its parts.
//!
//! 1. The index is filled from the log's headers, in the order they were written.
//! 2. Namespaces without blocks are forgotten, so that those of old models do not use up the bound on namespaces.
//! 3. Removals that the last open had begun are applied before a caller finds anything.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dalsegno_core::{
    Clock, Compression, Error, ErrorKind, Limits, Namespace, NamespaceId, Result, format_bytes,
};
use dalsegno_extent::format::{STORE_FILE, namespace_file};
use dalsegno_far::{Tier, WriterId};
use dalsegno_index::{Index, LsmIndex, ScanPlace};
use dalsegno_io::{Device, Executor, JobLane, StopSignal};
use dalsegno_log::Log;
use dalsegno_policy::merging::MergeRules;
use dalsegno_policy::schedule::{ScheduleRules, WindowRules};

use crate::blocks::dropper::Dropper;
use crate::blocks::finder::Finder;
use crate::blocks::indexed_log::IndexedLog;
use crate::blocks::recent::RecentBlocks;
use crate::counters::Counters;
use crate::device::{Scheduled, Watched};
use crate::error::{no_thread, to_error};
use crate::far::removal_notes::RemovalNotes;
use crate::far::tier::{FarParts, FarTier, staging_of, writer_id};
use crate::far_work::lanes::FarLanes;
use crate::jobs::transfers::TransferLanes;
use crate::namespaces::table::NamespaceTable;
use crate::open::log_and_index::{LogAndIndex, LogSource};
use crate::open::open_store::OpenStore;
use crate::open::parts::{Parts, Tiers};
use crate::open::shared_parts::SharedParts;
use crate::open::workers::Workers;
use crate::remove::remover::Remover;
use crate::rewrite::space::{LANE_JOBS, SpaceLane};
use crate::state::arena::ArenaBacking;
use crate::state::dram::Dram;
use crate::state::removal_feed::RemovalFeed;
use crate::tuning::index_care::{IndexCare, IndexCareOptions};
use crate::tuning::tuner::Tuner;
use crate::upkeep::merger::Merger;
use crate::upkeep::scrubber::{ScrubRules, Scrubber};

/// Opens a store from its parts.
///
/// # Errors
///
/// See [`Store::open`](crate::Store::open).
pub(crate) fn assemble(parts: Parts) -> Result<(OpenStore, TransferLanes)> {
    let (executor, merging, scrubbing) = (parts.executor, parts.merging, parts.scrubbing);
    start(&open_shared(parts)?, executor, merging, scrubbing)
}

/// Opens the log, the index and the tiers.
fn open_shared(parts: Parts) -> Result<SharedParts> {
    let Parts { device, clock, pool, limits, lock, new_store, executor, .. } = parts;
    let Tiers { arena, far, far_open, stop } = parts.tiers;
    let device = Arc::new(Watched::new(device, &clock, lock));
    let rules = schedule_rules(device.geometry().places);
    let in_order = Scheduled::start(Arc::clone(&device), rules, &clock, executor);
    let order = Arc::new(in_order.map_err(no_thread)?);
    let files = Arc::clone(&order) as Arc<dyn Device>;
    let feed = Arc::default();
    let dram = Arc::new(open_dram(&limits, &arena, &stop, &feed)?);
    let source = LogSource {
        device: Arc::clone(&files),
        clock: Arc::clone(&clock),
        pool: pool.clone(),
        limits: &limits,
        executor,
        new_store,
    };
    let counters = Arc::new(Counters::default());
    let LogAndIndex { log, index, lsm } = source.open(&counters)?;
    device.try_with(STORE_FILE, pool);
    let writer = match far_open {
        Some(open) => WriterId { store: log.store(), open },
        None => writer_id(log.store(), random_name()?),
    };
    let notes = RemovalNotes::open(log.store_files(), writer, far.is_some());
    let far = far.map(|tier| far_tier(tier, writer, &limits, &clock, executor)).transpose()?;
    let is_used =
        |namespace| has_blocks(index.as_ref(), namespace) || !knows_all(lsm.as_deref(), &counters);
    let namespaces = namespaces_in_use(&log, files.as_ref(), is_used)?;
    let options = IndexCareOptions {
        clock: Arc::clone(&clock),
        bytes_per_s: limits.index_bytes_per_s,
        index_bytes: limits.index_bytes,
        executor,
    };
    let care = match lsm {
        Some(lsm) => {
            let tuner = Tuner::open(&files, &lsm, limits.index_tuning);
            IndexCare::start(lsm, log.clone(), tuner, options)?
        }
        None => IndexCare::none(),
    };
    let stored = Arc::new(IndexedLog { log, index, care });
    let (hidden, in_pool) = (Arc::default(), Arc::clone(&dram));
    let finder = Finder { stored: Arc::clone(&stored), hidden, dram: in_pool, far };
    let recent = RecentBlocks { dram, removals: Arc::default(), finder: Arc::new(finder) };
    let of_dropper = Arc::clone(&counters);
    let dropper = Dropper { stored, recent: Arc::new(recent), feed, counters: of_dropper };
    Ok(SharedParts {
        limits: Arc::new(limits),
        clock,
        device,
        order,
        counters,
        namespaces: Arc::new(NamespaceTable::new(namespaces)),
        dropper: Arc::new(dropper),
        failed_reads: Arc::default(),
        speeds: Arc::default(),
        notes,
    })
}

/// Makes the paths, and starts what runs in the background.
fn start(
    shared: &SharedParts,
    executor: Executor,
    merging: MergeRules,
    scrubbing: ScrubRules,
) -> Result<(OpenStore, TransferLanes)> {
    let limits = &shared.limits;
    let clock = || Arc::clone(&shared.clock);
    let records = JobLane::start("dalsegno-record", executor, 1, LANE_JOBS);
    let records = Arc::new(records.map_err(no_thread)?);
    let device = Arc::clone(&shared.device);
    let space = Arc::new(SpaceLane::start(shared.reclaimer(), device, clock(), executor)?);
    let (threads, queue) = (limits.transfer_threads, limits.transfer_queue);
    let transfers = TransferLanes::start(executor, threads, queue).map_err(no_thread)?;
    let merger = Merger::start(merging, shared.row_merger(&space), limits, clock(), executor)?;
    let merger = Arc::new(merger);
    let bytes_per_s = limits.scrub_bytes_per_s;
    let scrubber = Scrubber::start(scrubbing, shared.scrub_parts(), bytes_per_s, executor)?;
    let writer = Arc::new(shared.writer(&space, &merger));
    let remover = Arc::new(shared.remover(&space, &records));
    if let Some(notes) = &shared.notes {
        resume_removals(notes, &shared.finder(), &remover);
    }
    let far = match (&shared.finder().far, &shared.notes) {
        (Some(far), Some(notes)) => {
            let local = shared.local_store(&writer, &remover, notes);
            Some(FarLanes::start(far, &shared.clock, &local, executor)?)
        }
        _ => None,
    };
    let store = OpenStore {
        loader: shared.loader(),
        lookups: shared.lookups(),
        writer,
        remover,
        registrar: shared.registrar(&records),
        recent: shared.recent(),
        feed: Arc::clone(&shared.dropper.feed),
        meters: shared.meters(&merger),
        order: Arc::clone(&shared.order),
        workers: Workers {
            merger,
            scrubber,
            records,
            space,
            far,
            stored: shared.stored(),
            clock: clock(),
        },
    };
    Ok((store, transfers))
}

fn far_tier(
    tier: Arc<dyn Tier>,
    writer: WriterId,
    limits: &Limits,
    clock: &Arc<dyn Clock>,
    executor: Executor,
) -> Result<Arc<FarTier>> {
    let (limits, clock) = (limits.clone(), Arc::clone(clock));
    let pool = staging_of(limits.far_workers).map_err(|error| {
        let message = "the system cannot provide memory for a far tier";
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })?;
    let parts = FarParts { tier, writer, limits, clock, pool, executor };
    Ok(Arc::new(FarTier::start(parts).map_err(no_thread)?))
}

/// How requests to a device start that works on so many of each direction at a time.
fn schedule_rules(places: usize) -> ScheduleRules {
    let rules = ScheduleRules::default();
    ScheduleRules { window: WindowRules { requests: places, ..rules.window }, ..rules }
}

/// The random part of the name under which a store writes to a far location.
fn random_name() -> Result<[u8; 8]> {
    dalsegno_io::random_bytes().map_err(|error| {
        Error::new(ErrorKind::Unavailable, "the system gives no random bytes").with_source(error)
    })
}

/// Goes on with the removals that the last open had begun: they are applied here, and not found at the far location.
fn resume_removals(notes: &RemovalNotes, finder: &Finder, remover: &Remover) {
    for removal in notes.unpublished() {
        finder.far.iter().for_each(|far| far.remove(&removal));
    }
    remover.retry_failed(notes);
    if let Err(error) = notes.store(finder.stored.log.store_files()) {
        tracing::warn!(%error, "the record of removals is not stored");
    }
}

fn open_dram(
    limits: &Limits,
    arena: &ArenaBacking,
    stop: &StopSignal,
    feed: &Arc<RemovalFeed>,
) -> Result<Dram> {
    Dram::new(limits.dram_bytes, arena, stop, feed).map_err(|error| {
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
    let first = index.scan(ScanPlace::of(namespace), 1);
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
