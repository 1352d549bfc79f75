//! The far tier as the paths of a store use it.
//!
//! 1. A lookup reads memory. While the location does not respond, its blocks are not present.
//! 2. Memory of the index, of headers and of packs is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dalsegno_core::{
    ChainHash, Clock, DramAdmission, Extent, FarWrite, Limits, NamespaceId, StoreId,
};
use dalsegno_extent::{BlockTarget, IoBounds, SourceIo};
use dalsegno_far::{
    BadObject, FarIndex, FarPlace, FarReader, FarReading, FarShape, FarWanted, Member, Polled,
    Removal, Tier, TierState, WriterId,
};
use dalsegno_io::{BufferPool, Call, Executor, IoError, Source};
use dalsegno_policy::schedule::{ScheduleRules, WindowRules};
use parking_lot::Mutex;

use crate::block_key::BlockKey;
use crate::counters::add;
use crate::device::{Scheduled, WatchedSource};
use crate::far::outbox::Outbox;
use crate::far::prefetches::Prefetches;
use crate::far::promotions::Promotions;
use crate::far::stats::FarStats;
use crate::far::timed_source::{RequestTimes, TimedSource};
use crate::state::held_block::HeldBlock;
use crate::state::recent_removals::RemovalMark;

/// Memory of the index: 8 million blocks.
const INDEX_BYTES: u64 = 256 << 20;
/// Memory of headers.
const HEADER_BYTES: u64 = 64 << 20;
/// The largest single request.
const REQUEST_BYTES: u64 = 1 << 20;

/// Staging memory of a far tier with so many workers. It takes none of the log's, because a location that hangs keeps
/// its memory.
pub(crate) fn staging_of(workers: u32) -> Result<BufferPool, IoError> {
    BufferPool::new(u64::from(workers + 2) * REQUEST_BYTES * 8 / 7, REQUEST_BYTES)
}

/// A location is fast only with all of its workers busy, and an object store if it can make requests into one.
fn most_reads(tier: &dyn Tier, limits: &Limits) -> u32 {
    limits.far_workers.max(tier.facts().most_reads)
}

fn rules_of(most_reads: u32) -> ScheduleRules {
    let bytes = u64::from(most_reads) * REQUEST_BYTES;
    let window =
        WindowRules { least: bytes, first: bytes, most: bytes, requests: most_reads as usize };
    ScheduleRules { window, ..ScheduleRules::default() }
}

/// The parts that a far tier is made of.
#[derive(Debug)]
pub(crate) struct FarParts {
    pub(crate) tier: Arc<dyn Tier>,
    pub(crate) writer: WriterId,
    pub(crate) limits: Limits,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) pool: BufferPool,
    pub(crate) executor: Executor,
}

/// The far tier of a store.
#[derive(Debug)]
pub(crate) struct FarTier {
    pub(crate) member: Member,
    pub(crate) source: Arc<WatchedSource>,
    reader: FarReader,
    pub(crate) outbox: Outbox,
    pub(crate) promotions: Promotions,
    pub(crate) prefetches: Prefetches,
    times: Arc<RequestTimes>,
    pub(crate) counters: FarCounters,
    /// The object that was found last that cannot be used, and why.
    newest_bad: Mutex<Option<String>>,
    /// Whether a block was looked for, or offered, since the last call of [`Self::take_use`].
    is_used: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct FarCounters {
    pub(crate) promoted_blocks: AtomicU64,
    pub(crate) rescued_blocks: AtomicU64,
    pub(crate) bad_objects: AtomicU64,
    pub(crate) bad_catalogs: AtomicU64,
    pub(crate) applied_removals: AtomicU64,
    pub(crate) complete_polls: AtomicU64,
    pub(crate) failed_polls: AtomicU64,
    pub(crate) collected_writers: AtomicU64,
    pub(crate) collected_packs: AtomicU64,
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
    /// # Errors
    ///
    /// The system's own if it refuses a thread.
    pub(crate) fn start(parts: FarParts) -> std::io::Result<Self> {
        let FarParts { tier, writer, limits, clock, pool, executor } = parts;
        let index = Arc::new(FarIndex::new(INDEX_BYTES));
        let member = Member { tier, index, clock, writer };
        let Member { tier, clock, .. } = &member;
        let measured = TimedSource::new(Arc::clone(tier) as Arc<dyn Source>, Arc::clone(clock));
        let times = measured.times();
        let measured = Arc::new(measured);
        let source = Arc::new(WatchedSource::new(measured, "reads of the far tier", clock));
        let depth = most_reads(&**tier, &limits);
        let in_order = Scheduled::start(Arc::clone(&source), rules_of(depth), clock, executor)?;
        let bounds = IoBounds { depth, request_bytes: REQUEST_BYTES };
        let admits = limits.dram_admission == DramAdmission::Get;
        let io = Arc::new(SourceIo {
            source: Arc::new(in_order),
            clock: Arc::clone(clock),
            pool,
            bounds,
            stats: Arc::default(),
        });
        let reader = FarReader::new(io, member.clone(), HEADER_BYTES);
        let outbox = Outbox::new(member.clone(), &limits);
        Ok(Self {
            member,
            source,
            reader,
            outbox,
            promotions: Promotions::default(),
            prefetches: Prefetches::new(if admits { limits.dram_bytes } else { 0 }),
            times,
            counters: FarCounters::default(),
            newest_bad: Mutex::default(),
            is_used: AtomicBool::new(true),
        })
    }

    /// Where a block is, if it can be read.
    pub(crate) fn find(&self, namespace: NamespaceId, hash: &ChainHash) -> Option<FarPlace> {
        self.member.index.find(namespace, hash)
    }

    /// Queues an extent of the log to be written: see [`Outbox::offer`].
    pub(crate) fn offer(&self, extent: &Extent, mark: RemovalMark, why: FarWrite) {
        self.note_use();
        self.outbox.offer(extent, mark, why);
    }

    /// Notes that this host looked something up, or stored it.
    pub(crate) fn note_use(&self) {
        // Read first: writing at each lookup would take the line from other threads.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether this host used the location since the last call.
    pub(crate) fn take_use(&self) -> bool {
        self.is_used.swap(false, Ordering::Relaxed)
    }

    /// Whether reads are refused because the location does not respond, or has not responded yet.
    pub(crate) fn is_suspended(&self) -> bool {
        self.member.tier.facts().state != TierState::Open || self.source.is_suspended()
    }

    /// Plans to read blocks, each to its target.
    pub(crate) fn begin_read<'a>(
        &'a self,
        shape: FarShape,
        wanted: &[FarWanted],
        targets: Vec<BlockTarget>,
        call: &'a Call,
    ) -> FarReading<'a> {
        self.reader.begin(shape, wanted, targets, call)
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

    /// Stops finding blocks that this store removed.
    pub(crate) fn remove(&self, removal: &Removal) {
        self.member.index.remove_own(removal);
    }

    /// Notes which objects a poll could not use.
    pub(crate) fn note_bad_objects(&self, polled: &mut Polled) {
        let bad = &mut polled.bad;
        self.counters.bad_objects.store(bad.now, Ordering::Relaxed);
        self.counters.bad_catalogs.store(bad.catalogs, Ordering::Relaxed);
        let newest = bad.newest.take();
        *self.newest_bad.lock() =
            newest.map(|BadObject { name, reason }| format!("{name}: {reason}"));
    }

    /// All counters.
    pub(crate) fn stats(&self) -> FarStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (facts, index) = (self.member.tier.facts(), self.member.index.view());
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
            waiting_extents: self.outbox.waiting_extents(),
            dropped_blocks: get(&self.outbox.dropped_blocks),
            present_blocks: get(&self.outbox.present_blocks),
            bad_objects: get(&self.counters.bad_objects),
            bad_catalogs: get(&self.counters.bad_catalogs),
            newest_bad_object: self.newest_bad.lock().clone(),
            applied_removals: get(&self.counters.applied_removals),
            pending_removals: 0,
            complete_polls: get(&self.counters.complete_polls),
            failed_polls: get(&self.counters.failed_polls),
            collected_writers: get(&self.counters.collected_writers),
            collected_packs: get(&self.counters.collected_packs),
            requests: self.member.tier.requests(),
            published: self.outbox.published(),
        }
    }
}

/// The name under which a store writes while it is open.
pub(crate) fn writer_id(store: StoreId, random: [u8; 8]) -> WriterId {
    // Below 2^62, as all counts of the formats.
    WriterId { store, open: u64::from_le_bytes(random) >> 2 }
}
