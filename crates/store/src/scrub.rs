//! Reads what is stored now and then, so that bytes that went bad are found before somebody asks for them.
//!
//! 1. A thread of its own reads, in the order of the index, no more a second than the setting `scrub_rate` says. It
//!    stands back while somebody else reads, and asks nothing of a device that is suspended.
//! 2. Every slice and header is checked as a get checks it; a block with a bad one is set aside, counted by cause.
//! 3. The first round begins a minute after the store was opened, so that it is not in the way when an engine starts;
//!    the next a day after the last one did, or when that is over if it takes longer.
//! 4. Reading is no use: it changes neither what is evicted nor what DRAM holds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dalsegno_core::{ChainHash, Extent, Limits, NamespaceId, Nanos, Result};
use dalsegno_io::Workers;
use dalsegno_policy::merging::Bucket;
use parking_lot::{Condvar, Mutex};
use serde::Serialize;

use crate::merge_row::{RowBuffer, blocks_at_once};
use crate::rewrite::{damaged_of, read_blocks};
use crate::stats::add;
use crate::store::{Inner, no_thread};

/// Extents that the index is asked for at a time.
const STEP: usize = 64;
/// Between two looks whether there is something to do.
const PERIOD: Duration = Duration::from_secs(1);

/// When scrubbing begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubRules {
    /// From opening the store to the first round.
    pub first: Duration,
    /// From the beginning of one round to that of the next.
    pub round: Duration,
}

impl Default for ScrubRules {
    fn default() -> Self {
        Self { first: Duration::from_secs(60), round: Duration::from_secs(24 * 3600) }
    }
}

/// What scrubbing did since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScrubStats {
    /// Rounds over everything stored.
    pub rounds: u64,
    /// Extents that were read.
    pub extents: u64,
    /// Bytes of blocks that were read and checked.
    pub bytes: u64,
    /// Blocks that were bad, and are set aside.
    pub damaged_blocks: u64,
}

#[derive(Debug, Default)]
pub(crate) struct ScrubCounters {
    rounds: AtomicU64,
    extents: AtomicU64,
    bytes: AtomicU64,
    damaged: AtomicU64,
}

impl ScrubCounters {
    pub(crate) fn view(&self) -> ScrubStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ScrubStats {
            rounds: get(&self.rounds),
            extents: get(&self.extents),
            bytes: get(&self.bytes),
            damaged_blocks: get(&self.damaged),
        }
    }
}

/// The thread that scrubs.
#[derive(Debug)]
pub(crate) struct Scrubber {
    /// None where nothing is scrubbed.
    shared: Option<Arc<Shared>>,
    threads: Mutex<Workers>,
}

#[derive(Debug)]
struct Shared {
    rules: ScrubRules,
    bytes_per_s: u64,
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Shared {
    /// Waits, but not longer than until the store is closed; `false` if it is.
    fn wait(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped && !time.is_zero() {
            self.changed.wait_for(&mut stopped, time);
        }
        !*stopped
    }

    fn is_stopped(&self) -> bool {
        *self.stopped.lock()
    }
}

/// Where the next extent is looked for.
type Place = (NamespaceId, ChainHash, u32);

/// How far the thread is.
struct Round {
    from: Place,
    began: Nanos,
    bucket: Bucket,
    buffer: RowBuffer,
}

impl Scrubber {
    /// `inline` is for simulations, where nothing is scrubbed: a get checks the same.
    pub(crate) fn new(rules: ScrubRules, limits: &Limits, inline: bool) -> Self {
        let bytes_per_s = limits.scrub_bytes_per_s;
        let shared = (bytes_per_s > 0 && !inline).then(|| {
            let (stopped, changed) = (Mutex::new(false), Condvar::new());
            Arc::new(Shared { rules, bytes_per_s, stopped, changed })
        });
        Self { shared, threads: Mutex::new(Workers::new()) }
    }

    /// Ends it, and waits for what is under way. Calling it again does nothing.
    pub(crate) fn close(&self, patience: Duration) {
        let Some(shared) = &self.shared else { return };
        *shared.stopped.lock() = true;
        shared.changed.notify_all();
        self.threads.lock().join(patience);
    }
}

impl Drop for Scrubber {
    /// In a forked child there is no thread to tell, and its locks may be taken for ever.
    fn drop(&mut self) {
        if self.threads.get_mut().are_ours() {
            self.close(PERIOD);
        }
    }
}

impl Inner {
    /// Starts the thread, if there is to be one.
    pub(crate) fn start_scrubbing(self: &Arc<Self>) -> Result<()> {
        let Some(shared) = self.scrubber.shared.as_ref().map(Arc::clone) else { return Ok(()) };
        let store = Arc::downgrade(self);
        let began = self.clock.now().after(shared.rules.first);
        let body = move || scrub(&shared, &store, began);
        self.scrubber.threads.lock().start("dalsegno-scrub", body).map_err(no_thread)
    }

    /// Reads the next extents, as far as the rate allows; returns how long to wait.
    fn scrub_step(&self, shared: &Shared, round: &mut Round) -> Duration {
        let now = self.clock.now();
        let start = Place::default();
        if round.from == start && now < round.began {
            return PERIOD.min(round.began.since(now));
        }
        if self.watch.is_suspended() {
            return PERIOD;
        }
        let extents = self.index.scan(round.from, STEP);
        for extent in &extents {
            let wait = round.bucket.wait(self.clock.now()).unwrap_or(PERIOD);
            if !shared.wait(wait) {
                return Duration::ZERO;
            }
            self.scrub_extent(shared, extent, round);
            let next = extent.first_block_index.checked_add(1);
            round.from = next.map_or(start, |next| (extent.namespace, extent.lineage, next));
        }
        if extents.len() < STEP {
            add(&self.counters.scrubbing.rounds, 1);
            round.from = start;
            round.began = round.began.after(shared.rules.round).max(self.clock.now());
            round.buffer = RowBuffer::default();
        }
        Duration::ZERO
    }

    /// Checks one extent piece by piece.
    fn scrub_extent(&self, shared: &Shared, extent: &Extent, round: &mut Round) {
        // A header that was checked before may have gone bad as well.
        self.log.forget(extent.id);
        let block_bytes = usize::try_from(extent.layout.block_bytes()).expect("64-bit addresses");
        // What the index cannot say now it says in another round.
        let visible = self.visible_blocks(&[extent]).unwrap_or_default();
        for spots in visible.chunks(blocks_at_once(block_bytes)) {
            if !self.stand_back(|| shared.is_stopped()) {
                return;
            }
            let bytes = round.buffer.of(spots.len() * block_bytes);
            let outcomes = read_blocks(&self.log, &[extent], spots, bytes);
            round.bucket.spend(bytes.len() as u64, self.clock.now());
            add(&self.counters.scrubbing.bytes, bytes.len() as u64);
            let damaged = damaged_of(spots, &outcomes);
            add(&self.counters.scrubbing.damaged, damaged.len() as u64);
            self.quarantine(extent, &damaged);
            if damaged.iter().any(|(_, cause)| cause.is_of_header()) {
                return;
            }
        }
        add(&self.counters.scrubbing.extents, 1);
    }
}

fn scrub(shared: &Shared, store: &Weak<Inner>, began: Nanos) {
    let (from, bucket) = (Place::default(), Bucket::new(shared.bytes_per_s));
    let mut round = Round { from, began, bucket, buffer: RowBuffer::default() };
    while let Some(inner) = store.upgrade() {
        let wait = inner.scrub_step(shared, &mut round);
        drop(inner);
        if !shared.wait(wait) {
            return;
        }
    }
}
