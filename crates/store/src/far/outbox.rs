//! What waits to be written to the far location, and the publisher that writes it.
//!
//! 1. No put and no reclaim waits for the location: an extent that finds no place in the queue is not written there,
//!    and counted.
//! 2. No pack is filled before it is known that no removal was missed that covers what this store holds.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dalsegno_core::{Extent, FarWrite, Limits, Nanos};
use dalsegno_extent::Cause;
use dalsegno_far::{KEEP_REMOVALS, Member, Publisher, PublisherOptions, PublisherStats, Refused};
use dalsegno_log::Log;
use parking_lot::Mutex;

use crate::counters::add;
use crate::far::removal_notes::RemovalNotes;
use crate::far::reoffers::Reoffers;
use crate::state::recent_removals::{RecentRemovals, RemovalMark};

/// Size of a full pack.
const PACK_BYTES: u64 = 32 << 20;
/// How long the eviction of a segment waits for others that copy extents to packs.
const DEMOTE_WAIT: Duration = Duration::from_millis(5);
/// Extents that wait to be written.
const MOST_WAITING: usize = 4096;

/// An extent that waits to be written.
#[derive(Debug)]
pub(crate) struct OfferedExtent {
    pub(crate) extent: Extent,
    /// From before its blocks were put, or found.
    pub(crate) mark: RemovalMark,
}

/// The extents that wait to be written to the location, and their publisher.
#[derive(Debug)]
pub(crate) struct Outbox {
    member: Member,
    /// Most bytes of this store's packs; `None` if the size of the location is not known yet.
    capacity_bytes: Option<u64>,
    /// When a block is written.
    pub(crate) write: FarWrite,
    pub(crate) publisher: Mutex<Publisher>,
    waiting: Mutex<VecDeque<OfferedExtent>>,
    reoffers: Reoffers,
    /// The publisher's counters are copied here, so that reading them does not wait for the location.
    published: Mutex<PublisherStats>,
    pub(crate) dropped_blocks: AtomicU64,
    pub(crate) present_blocks: AtomicU64,
    /// Until when packs may be filled; `None` before it is known that no removal was missed.
    fills_until: Mutex<Option<Nanos>>,
}

impl Outbox {
    pub(crate) fn new(member: Member, limits: &Limits) -> Self {
        let options = PublisherOptions {
            pack_bytes: PACK_BYTES,
            capacity_bytes: limits.far_capacity_bytes.unwrap_or(u64::MAX),
            flush: Duration::from_millis(limits.far_flush_ms),
        };
        Self {
            publisher: Mutex::new(Publisher::new(member.clone(), options)),
            member,
            capacity_bytes: limits.far_capacity_bytes,
            write: limits.far_write,
            waiting: Mutex::default(),
            reoffers: Reoffers::default(),
            published: Mutex::default(),
            dropped_blocks: AtomicU64::new(0),
            present_blocks: AtomicU64::new(0),
            fills_until: Mutex::default(),
        }
    }

    /// Whether the bound on own packs was known when the store was opened.
    pub(crate) fn has_capacity(&self) -> bool {
        self.capacity_bytes.is_some()
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
            add(&self.dropped_blocks, extent.hashes.len() as u64);
        }
    }

    /// Copies extents that are about to be evicted to packs, as far as that can be done immediately.
    pub(crate) fn demote<'a>(
        &self,
        log: &Log,
        removals: &RecentRemovals,
        extents: impl Iterator<Item = &'a Extent>,
        mark: RemovalMark,
    ) {
        if self.write != FarWrite::Evict {
            return;
        }
        let mut wait = DEMOTE_WAIT;
        for extent in extents.filter(|extent| !self.has_all(extent)) {
            let publisher = self.may_fill().then(|| self.publisher.try_lock_for(wait)).flatten();
            if publisher.is_none() {
                wait = Duration::ZERO;
            }
            let added = publisher
                .map(|mut publisher| add_to_pack(&mut publisher, log, removals, extent, mark));
            if added != Some(Ok(())) {
                add(&self.dropped_blocks, extent.hashes.len() as u64);
            }
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
        self.fills_until.lock().is_some_and(|until| self.member.clock.now() < until)
    }

    /// Notes what became of publishing, for counters and for extents that are put again.
    pub(crate) fn note_published(&self, stats: PublisherStats) {
        *self.published.lock() = stats;
        let dropped = self.dropped_blocks.load(Ordering::Relaxed);
        let failures = stats.failed_blocks + dropped + self.member.tier.facts().reopened;
        self.reoffers.note_failures(failures);
    }

    /// Drops the extents that still wait.
    pub(crate) fn drop_waiting(&self) {
        let left: usize = self.waiting.lock().drain(..).map(|one| one.extent.hashes.len()).sum();
        add(&self.dropped_blocks, left as u64);
    }

    /// Whether the location has all blocks of an extent.
    pub(crate) fn has_all(&self, extent: &Extent) -> bool {
        extent.hashes.iter().all(|hash| self.member.index.find(extent.namespace, hash).is_some())
    }

    /// The publisher's counters, as they were noted last.
    pub(crate) fn published(&self) -> PublisherStats {
        *self.published.lock()
    }

    /// How many extents wait.
    pub(crate) fn waiting_extents(&self) -> u64 {
        self.waiting.lock().len() as u64
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
    publisher.add(log.source(), &pinned, log.store(), extent)
}
