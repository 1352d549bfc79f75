//! Reads stored blocks periodically, so that bad bytes are found before a get meets them.
//!
//! 1. A thread reads in the order of the index, at most as many bytes a second as the setting `scrub_rate` allows. It
//!    yields to reads, and sends no requests to a suspended device.
//! 2. Every slice and header is checked as a get checks it. A block with a bad one is quarantined and counted by cause.
//! 3. The first round starts a minute after the store was opened, to stay out of the way while an engine starts. The
//!    next round starts a day after the last one did, or when that one ends if it takes longer.
//! 4. Scrubbing is no use: it changes neither what is evicted nor what DRAM holds.
//! 5. Without a thread nothing is scrubbed: a get checks the same.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Class, Clock, Deadline, Extent, Nanos, Result};
use dalsegno_index::ScanPlace;
use dalsegno_io::{Duty, Executor, NextStep, Periodic, StopSignal};
use dalsegno_policy::merging::Bucket;

use crate::blocks::dropper::Dropper;
use crate::blocks::indexed_log::IndexedLog;
use crate::counters::{Counters, add};
use crate::device::Watched;
use crate::error::no_thread;
use crate::rewrite::copy::{RowBuffer, blocks_at_once, damaged_of, read_blocks, visible_blocks};

/// Extents that are requested from the index at a time.
const STEP: usize = 64;
/// How often the thread looks whether there is something to do.
const PERIOD: Duration = Duration::from_secs(1);

/// When scrubbing starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubRules {
    /// From opening the store to the first round.
    pub first: Duration,
    /// From the start of one round to that of the next.
    pub round: Duration,
}

impl Default for ScrubRules {
    fn default() -> Self {
        Self { first: Duration::from_secs(60), round: Duration::from_secs(24 * 3600) }
    }
}

/// What scrubbing uses.
#[derive(Debug)]
pub(crate) struct ScrubParts {
    pub(crate) stored: Arc<IndexedLog>,
    pub(crate) dropper: Arc<Dropper>,
    pub(crate) device: Arc<Watched>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Scrubs what is stored.
#[derive(Debug)]
pub(crate) struct Scrubber {
    /// None where nothing is scrubbed.
    helper: Option<Periodic<ScrubDuty>>,
}

/// The progress of a round.
#[derive(Debug)]
struct ScrubDuty {
    parts: ScrubParts,
    rules: ScrubRules,
    from: ScanPlace,
    /// Extents that the index returned from there on.
    ahead: VecDeque<Arc<Extent>>,
    began: Nanos,
    bucket: Bucket,
    buffer: RowBuffer,
}

impl Scrubber {
    pub(crate) fn start(
        rules: ScrubRules,
        parts: ScrubParts,
        bytes_per_s: u64,
        executor: Executor,
    ) -> Result<Self> {
        if bytes_per_s == 0 {
            return Ok(Self { helper: None });
        }
        let duty = ScrubDuty {
            began: parts.clock.now().after(rules.first),
            parts,
            rules,
            from: ScanPlace::default(),
            ahead: VecDeque::new(),
            bucket: Bucket::new(bytes_per_s),
            buffer: RowBuffer::default(),
        };
        let first = NextStep::After(Duration::ZERO);
        let helper = Periodic::start("dalsegno-scrub", executor, duty, first).map_err(no_thread)?;
        Ok(Self { helper: Some(helper) })
    }

    /// Ends it, and waits for the read under way. Calling it again does nothing more.
    pub(crate) fn close(&self, timeout: Duration) {
        if let Some(helper) = &self.helper {
            helper.close();
            helper.join(timeout);
        }
    }
}

impl Duty for ScrubDuty {
    /// Reads the next extent, if the rate allows it.
    fn step(&mut self, stop: &StopSignal) -> NextStep {
        let now = self.parts.clock.now();
        if self.from == ScanPlace::default() && now < self.began {
            return NextStep::After(PERIOD.min(self.began.since(now)));
        }
        if self.parts.device.is_suspended() {
            return NextStep::After(PERIOD);
        }
        let wait = self.bucket.wait(now).unwrap_or(PERIOD);
        if !wait.is_zero() {
            return NextStep::After(wait);
        }
        if self.ahead.is_empty() {
            self.ahead = self.parts.stored.index.scan(self.from, STEP).into();
        }
        if let Some(extent) = self.ahead.pop_front() {
            self.scrub_extent(&extent, stop);
            self.from = ScanPlace::behind(&extent).unwrap_or_default();
        } else {
            add(&self.parts.counters.scrubbing.rounds, 1);
            self.from = ScanPlace::default();
            self.began = self.began.after(self.rules.round).max(self.parts.clock.now());
            self.buffer = RowBuffer::default();
        }
        NextStep::After(Duration::ZERO)
    }
}

impl ScrubDuty {
    /// Checks one extent piece by piece.
    fn scrub_extent(&mut self, extent: &Extent, stop: &StopSignal) {
        let ScrubParts { stored, dropper, counters, clock, .. } = &self.parts;
        // A header that was checked before may have gone bad too.
        stored.log.forget(extent.id);
        let block_bytes = usize::try_from(extent.layout.block_bytes()).expect("64-bit addresses");
        // If the index cannot be read now, another round checks the extent.
        let visible = visible_blocks(stored, &[extent]).unwrap_or_default();
        for spots in visible.chunks(blocks_at_once(block_bytes)) {
            if stop.is_set() {
                return;
            }
            let bytes = self.buffer.of(spots.len() * block_bytes);
            let outcomes = read_blocks(&stored.log, &[extent], spots, bytes, Class::Upkeep);
            self.bucket.spend(bytes.len() as u64, clock.now());
            add(&counters.scrubbing.bytes, bytes.len() as u64);
            let damaged = damaged_of(spots, &outcomes);
            add(&counters.scrubbing.damaged, damaged.len() as u64);
            dropper.quarantine(extent, &damaged, Deadline::Never);
            if damaged.iter().any(|(_, cause)| cause.is_of_header()) {
                return;
            }
        }
        add(&counters.scrubbing.extents, 1);
    }
}
