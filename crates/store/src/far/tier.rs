//! The far tier as the paths of a store use it.
//!
//! 1. A lookup reads memory. While the location does not respond, its blocks are not present.
//! 2. No put and no reclaim waits for the location: an extent that finds no place in the queue is not written there,
//!    and counted.
//! 3. Memory of the index, of headers and of packs is bounded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dalsegno_core::{
    ChainHash, Clock, DramAdmission, Extent, FarWrite, Limits, NamespaceId, Nanos, StoreId,
};
use dalsegno_extent::{Cause, IoBounds, SourceIo};
use dalsegno_far::{
    BadObject, FarIndex, FarPlace, FarReader, FarReading, FarShape, FarWanted, KEEP_REMOVALS,
    Polled, Publisher, PublisherOptions, Refused, Removal, Tier, TierState, WriterId,
};
use dalsegno_io::{BufferPool, Call, IoError, Source};
use dalsegno_log::Log;
use parking_lot::Mutex;

use crate::block_key::BlockKey;
use crate::counters::add;
use crate::device::WatchedSource;
use crate::far::prefetches::Prefetches;
use crate::far::promotions::Promotions;
use crate::far::removal_notes::RemovalNotes;
use crate::far::reoffers::Reoffers;
use crate::far::stats::FarStats;
use crate::far::timed_source::{RequestTimes, TimedSource};
use crate::state::held_block::HeldBlock;
use crate::state::recent_removals::{RecentRemovals, RemovalMark};

/// Memory of the index: 8 million blocks.
const INDEX_BYTES: u64 = 256 << 20;
/// Memory of headers.
const HEADER_BYTES: u64 = 64 << 20;
/// Size of a full pack.
const PACK_BYTES: u64 = 32 << 20;
/// How long an eviction waits for others that copy extents to packs.
const DEMOTE_WAIT: Duration = Duration::from_millis(5);
/// Extents that wait to be written.
const MOST_WAITING: usize = 4096;
/// The largest single request.
const REQUEST_BYTES: u64 = 1 << 20;

/// Staging memory of a far tier with so many workers. It takes none of the log's, because a location that hangs keeps
/// its memory.
pub(crate) fn staging_of(workers: u32) -> Result<BufferPool, IoError> {
    BufferPool::new(u64::from(workers + 2) * REQUEST_BYTES * 8 / 7, REQUEST_BYTES)
}

/// The parts that a far tier is made of.
#[derive(Debug)]
pub(crate) struct FarParts {
    pub(crate) tier: Arc<dyn Tier>,
    pub(crate) writer: WriterId,
    pub(crate) limits: Limits,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) pool: BufferPool,
}

/// The far tier of a store.
#[derive(Debug)]
pub(crate) struct FarTier {
    pub(crate) tier: Arc<dyn Tier>,
    /// Most bytes of this store's packs; `None` if the size of the location is not known yet.
    capacity_bytes: Option<u64>,
    /// When a block is written.
    pub(crate) write: FarWrite,
    pub(crate) writer: WriterId,
    pub(crate) index: Arc<FarIndex>,
    pub(crate) source: Arc<WatchedSource>,
    pub(crate) publisher: Mutex<Publisher>,
    reader: FarReader,
    waiting: Mutex<VecDeque<OfferedExtent>>,
    reoffers: Reoffers,
    pub(crate) promotions: Promotions,
    pub(crate) prefetches: Prefetches,
    times: Arc<RequestTimes>,
    /// Its counters are copied here, so that reading them does not wait for the location.
    published: Mutex<dalsegno_far::PublisherStats>,
    pub(crate) counters: FarCounters,
    /// The object that was found last that cannot be used, and why.
    newest_bad: Mutex<Option<String>>,
    clock: Arc<dyn Clock>,
    /// Until when packs may be filled; `None` before it is known that no removal was missed.
    fills_until: Mutex<Option<Nanos>>,
}

#[derive(Debug, Default)]
pub(crate) struct FarCounters {
    pub(crate) promoted_blocks: AtomicU64,
    pub(crate) rescued_blocks: AtomicU64,
    pub(crate) dropped_blocks: AtomicU64,
    pub(crate) present_blocks: AtomicU64,
    pub(crate) bad_objects: AtomicU64,
    pub(crate) bad_catalogs: AtomicU64,
    pub(crate) applied_removals: AtomicU64,
    pub(crate) complete_polls: AtomicU64,
    pub(crate) failed_polls: AtomicU64,
    pub(crate) collected_writers: AtomicU64,
    pub(crate) collected_packs: AtomicU64,
}

/// An extent that waits to be written.
#[derive(Debug)]
pub(crate) struct OfferedExtent {
    pub(crate) extent: Extent,
    /// From before its blocks were put, or found.
    pub(crate) mark: RemovalMark,
}

/// A block of a get that is at the far location.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarBlock {
    /// Its position in the chain.
    pub(crate) at: usize,
    /// Where it is.
    pub(crate) place: FarPlace,
}

impl FarTier {
    pub(crate) fn new(parts: FarParts) -> Self {
        let FarParts { tier, writer, limits, clock, pool } = parts;
        // A far file system is fast only with all of its workers busy.
        let busy_bytes = u64::from(limits.far_workers) * REQUEST_BYTES;
        let busy_bytes = usize::try_from(busy_bytes).expect("64-bit addresses");
        let index = Arc::new(FarIndex::new(INDEX_BYTES));
        let as_source = Arc::clone(&tier) as Arc<dyn Source>;
        let source = Arc::new(WatchedSource::new(as_source, "reads of the far tier", &clock));
        let bounds =
            IoBounds { depth: limits.far_workers, request_bytes: REQUEST_BYTES, busy_bytes };
        let watched = Arc::<WatchedSource>::clone(&source);
        let measured = TimedSource::new(watched, Arc::clone(&clock));
        let times = measured.times();
        let admits = limits.dram_admission == DramAdmission::Get;
        let io = Arc::new(SourceIo {
            source: Arc::new(measured),
            clock: Arc::clone(&clock),
            pool,
            bounds,
            stats: Arc::default(),
        });
        let reader = FarReader::new(io, Arc::clone(&tier), Arc::clone(&index), HEADER_BYTES);
        let options = PublisherOptions {
            pack_bytes: PACK_BYTES,
            capacity_bytes: limits.far_capacity_bytes.unwrap_or(u64::MAX),
            flush: Duration::from_millis(limits.far_flush_ms),
        };
        let of_tier = Arc::clone(&tier);
        let publisher =
            Publisher::new(of_tier, Arc::clone(&index), Arc::clone(&clock), writer, options);
        Self {
            tier,
            capacity_bytes: limits.far_capacity_bytes,
            write: limits.far_write,
            writer,
            index,
            source,
            publisher: Mutex::new(publisher),
            reader,
            waiting: Mutex::default(),
            reoffers: Reoffers::default(),
            promotions: Promotions::default(),
            prefetches: Prefetches::new(if admits { limits.dram_bytes } else { 0 }),
            times,
            published: Mutex::default(),
            counters: FarCounters::default(),
            newest_bad: Mutex::default(),
            clock,
            fills_until: Mutex::default(),
        }
    }

    /// Where a block is, if it can be read.
    pub(crate) fn find(&self, namespace: NamespaceId, hash: &ChainHash) -> Option<FarPlace> {
        self.index.find(namespace, hash)
    }

    /// Whether the bound on own packs was known when the store was opened.
    pub(crate) fn has_capacity(&self) -> bool {
        self.capacity_bytes.is_some()
    }

    /// Whether reads are refused because the location does not respond, or has not responded yet.
    pub(crate) fn is_suspended(&self) -> bool {
        self.tier.facts().state != TierState::Open || self.source.is_suspended()
    }

    /// Plans to read blocks.
    pub(crate) fn begin_read<'a>(
        &'a self,
        shape: FarShape,
        wanted: Vec<FarWanted>,
        call: &'a Call,
    ) -> FarReading<'a> {
        self.reader.begin(shape, wanted, call)
    }

    /// Counts a block that the log could not return, and that was read here.
    pub(crate) fn count_rescued(&self) {
        add(&self.counters.rescued_blocks, 1);
    }

    /// Notes a hit of the last block of `chain`. At the second one its bytes are queued to be copied to the log.
    pub(crate) fn note_hit(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
        mark: RemovalMark,
        block: impl FnOnce() -> HeldBlock,
    ) {
        self.promotions.note_hit(namespace, chain, mark, block);
    }

    /// Names the blocks of a chain that only this tier has, for prefetching.
    pub(crate) fn name_chain(
        &self,
        namespace: NamespaceId,
        hashes: impl Iterator<Item = ChainHash>,
    ) {
        self.prefetches.name(namespace, hashes);
    }

    /// Takes over blocks that a get reads itself, so they are not prefetched. Returns what [`Self::prefetch`] wants.
    pub(crate) fn take_over(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Vec<u64> {
        self.prefetches.take_over(namespace, hashes)
    }

    /// Prefetches what follows blocks that a get has read here.
    pub(crate) fn prefetch(&self, chains: &[u64]) {
        self.prefetches.begin(chains);
    }

    /// Whether a block is being prefetched.
    pub(crate) fn is_prefetching(&self, key: &BlockKey) -> bool {
        self.prefetches.is_reading(key)
    }

    /// Waits until none of these blocks is being prefetched, at most `timeout`.
    pub(crate) fn wait_for_prefetch(&self, keys: &[BlockKey], timeout: Duration) {
        self.prefetches.wait_for(keys, timeout);
    }

    /// Notes that a get was served with a block that only this tier has. It may have been prefetched.
    pub(crate) fn note_prefetch_use(&self, key: &BlockKey) {
        self.prefetches.note_use(key);
    }

    /// Queues an extent of the log to be written, for the reason `why`. One that is put again is written even so if
    /// publishing failed since it was put. `mark` is from before its blocks were put, or found.
    pub(crate) fn offer(&self, extent: &Extent, mark: RemovalMark, why: FarWrite) {
        let failed = || {
            (self.write, why) == (FarWrite::Put, FarWrite::SecondPut)
                && self.reoffers.take(extent.id)
                && !self.has_all(extent)
        };
        if self.write != why && !failed() {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.len() < MOST_WAITING {
            waiting.push_back(OfferedExtent { extent: extent.clone(), mark });
        } else {
            add(&self.counters.dropped_blocks, extent.hashes.len() as u64);
        }
    }

    /// Copies an extent that is about to be evicted to a pack, if that can be done immediately.
    pub(crate) fn demote(
        &self,
        log: &Log,
        removals: &RecentRemovals,
        extent: &Extent,
        mark: RemovalMark,
    ) {
        if self.write != FarWrite::Evict || self.has_all(extent) {
            return;
        }
        let publisher = self.publisher.try_lock_for(DEMOTE_WAIT);
        let added = publisher
            .filter(|_| self.may_fill())
            .map(|mut publisher| add_to_pack(&mut publisher, log, removals, extent, mark));
        if added != Some(Ok(())) {
            add(&self.counters.dropped_blocks, extent.hashes.len() as u64);
        }
    }

    /// The next extent to be written.
    pub(crate) fn next_waiting(&self) -> Option<OfferedExtent> {
        self.waiting.lock().pop_front()
    }

    /// Puts an extent back that could not be written yet.
    pub(crate) fn put_back(&self, extent: OfferedExtent) {
        self.waiting.lock().push_front(extent);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// Stops finding blocks that this store removed.
    pub(crate) fn remove(&self, removal: &Removal) {
        self.index.remove_own(removal);
    }

    /// Names in packs that are begun from now on which removals are applied and stored.
    pub(crate) fn use_applied(&self, notes: &RemovalNotes) {
        let mut publisher = self.publisher.lock();
        let applied = notes.stored_applied();
        publisher.set_applied(applied.clone());
        drop(publisher);
        notes.note_named(&applied);
    }

    /// Lets packs be filled until removals may have been missed: a poll that began at this moment missed none.
    pub(crate) fn note_fresh(&self, began: Nanos) {
        *self.fills_until.lock() = Some(began.after(KEEP_REMOVALS));
    }

    /// Lets no pack be filled until the next call of [`Self::note_fresh`].
    pub(crate) fn note_stale(&self) {
        *self.fills_until.lock() = None;
    }

    /// Whether packs may be filled: no removal was missed that covers what this store holds.
    pub(crate) fn may_fill(&self) -> bool {
        self.fills_until.lock().is_some_and(|until| self.clock.now() < until)
    }

    /// Notes which objects a poll could not use.
    pub(crate) fn note_bad_objects(&self, polled: &mut Polled) {
        self.counters.bad_objects.store(polled.bad_now, Ordering::Relaxed);
        self.counters.bad_catalogs.store(polled.bad_catalogs(), Ordering::Relaxed);
        let newest = polled.newest_bad.take();
        *self.newest_bad.lock() =
            newest.map(|BadObject { name, reason }| format!("{name}: {reason}"));
    }

    /// Notes what became of publishing, for [`Self::stats`] and for extents that are put again.
    pub(crate) fn note_published(&self, stats: dalsegno_far::PublisherStats) {
        *self.published.lock() = stats;
        let dropped = self.counters.dropped_blocks.load(Ordering::Relaxed);
        let failures = stats.failed_blocks + dropped + self.tier.facts().reopened;
        self.reoffers.note_failures(failures);
    }

    /// Drops the extents that still wait when the store is closed.
    pub(crate) fn drop_waiting(&self) {
        let left: usize = self.waiting.lock().drain(..).map(|one| one.extent.hashes.len()).sum();
        add(&self.counters.dropped_blocks, left as u64);
    }

    /// Whether the location has all blocks of an extent.
    pub(crate) fn has_all(&self, extent: &Extent) -> bool {
        extent.hashes.iter().all(|hash| self.find(extent.namespace, hash).is_some())
    }

    /// All counters.
    pub(crate) fn stats(&self) -> FarStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (facts, index) = (self.tier.facts(), self.index.view());
        let (suspensions, refused_requests) = self.source.counts();
        let transfers = self.reader.stats();
        let prefetches = self.prefetches.counts();
        FarStats {
            reads: match facts.state {
                TierState::Away => "away",
                _ if self.is_suspended() => "suspended",
                _ => "working",
            },
            reopened: facts.reopened,
            suspensions,
            refused_requests,
            packs: index.packs,
            pack_bytes: index.pack_bytes,
            blocks: index.blocks,
            duplicate_blocks: index.duplicate_blocks,
            forgotten_blocks: index.forgotten_blocks,
            index_bytes: index.memory_bytes,
            used_bytes: self.reader.used_bytes(),
            fetched_bytes: transfers.read_bytes,
            read_requests: transfers.read_requests,
            misses: transfers.misses,
            promoted_blocks: get(&self.counters.promoted_blocks),
            rescued_blocks: get(&self.counters.rescued_blocks),
            prefetched_blocks: prefetches.fetched,
            prefetch_used_blocks: prefetches.used,
            prefetch_dropped_blocks: prefetches.dropped,
            in_flight_bytes: self.times.in_flight_bytes(),
            requests_by_us: self.times.buckets(),
            waiting_extents: self.waiting.lock().len() as u64,
            dropped_blocks: get(&self.counters.dropped_blocks),
            present_blocks: get(&self.counters.present_blocks),
            bad_objects: get(&self.counters.bad_objects),
            bad_catalogs: get(&self.counters.bad_catalogs),
            newest_bad_object: self.newest_bad.lock().clone(),
            applied_removals: get(&self.counters.applied_removals),
            pending_removals: 0,
            complete_polls: get(&self.counters.complete_polls),
            failed_polls: get(&self.counters.failed_polls),
            collected_writers: get(&self.counters.collected_writers),
            collected_packs: get(&self.counters.collected_packs),
            published: *self.published.lock(),
        }
    }
}

/// Copies an extent to a pack, unless it was evicted or blocks of it were removed.
pub(crate) fn add_to_pack(
    publisher: &mut Publisher,
    log: &Log,
    removals: &RecentRemovals,
    extent: &Extent,
    mark: RemovalMark,
) -> Result<(), Refused> {
    let gone = Refused::Unread(Cause::Recycled);
    if !publisher.is_described(extent.namespace) {
        return Err(gone);
    }
    let of_log = log.removals().removed_since(extent.namespace, extent.born, &extent.hashes);
    let of_process = removals.removed_since(mark, extent.namespace, &extent.hashes);
    if !of_log.is_empty() || !of_process.is_empty() {
        return Err(gone);
    }
    let pinned = log.pinned_file(extent.location).ok_or(gone)?;
    let of = (log.store(), extent);
    publisher.add(log.source(), &pinned, of)
}

/// The name under which a store writes while it is open.
pub(crate) fn writer_id(store: StoreId, random: [u8; 8]) -> WriterId {
    // Below 2^62, as all counts of the formats.
    WriterId { store, open: u64::from_le_bytes(random) >> 2 }
}
