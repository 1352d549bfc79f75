//! The counters and gauges of an open store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::Limits;

use crate::blocks::indexed_log::IndexedLog;
use crate::counters::Counters;
use crate::device::{Scheduled, Watched};
use crate::far::removal_notes::RemovalNotes;
use crate::far::stats::FarStats;
use crate::far::tier::FarTier;
use crate::state::dram::Dram;
use crate::stats::Stats;
use crate::upkeep::merger::Merger;

/// What has counters or gauges.
#[derive(Debug)]
pub(crate) struct Meters {
    pub(crate) counters: Arc<Counters>,
    pub(crate) merger: Arc<Merger>,
    pub(crate) stored: Arc<IndexedLog>,
    pub(crate) dram: Arc<Dram>,
    pub(crate) device: Arc<Watched>,
    pub(crate) order: Arc<Scheduled<Watched>>,
    pub(crate) far: Option<Arc<FarTier>>,
    pub(crate) notes: Option<Arc<RemovalNotes>>,
    pub(crate) limits: Arc<Limits>,
}

impl Meters {
    /// All counters and gauges.
    pub(crate) fn view(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let IndexedLog { log, index, care } = self.stored.as_ref();
        let (extents, blocks) = index.counts();
        let dram = self.dram.view();
        let geometry = self.device.geometry();
        Stats {
            put_calls: get(&counters.put_calls),
            put_stored_blocks: get(&counters.put_stored_blocks),
            pool_only_blocks: get(&counters.pool_only_blocks),
            put_present_blocks: get(&counters.put_present_blocks),
            put_pending_blocks: get(&counters.put_pending_blocks),
            put_declined_blocks: get(&counters.put_declined_blocks),
            put_failed_blocks: get(&counters.put_failed_blocks),
            put_bytes: get(&counters.put_bytes),
            get_calls: get(&counters.get_calls),
            get_dram_blocks: get(&counters.get_dram_blocks),
            get_log_blocks: get(&counters.get_log_blocks),
            get_far_blocks: get(&counters.get_far_blocks),
            get_missed_blocks: get(&counters.get_missed_blocks),
            get_bytes: get(&counters.get_bytes),
            probe_calls: get(&counters.probe_calls),
            probe_asked_blocks: get(&counters.probe_asked_blocks),
            probe_present_blocks: get(&counters.probe_present_blocks),
            evicted_blocks: get(&counters.evicted_blocks),
            relocated_bytes: get(&counters.relocated_bytes),
            quarantined_blocks: get(&counters.quarantined_blocks),
            removed_blocks: get(&counters.removed_blocks),
            throttled_transfers: get(&counters.throttled_transfers),
            // The caller knows it.
            engine_copied_bytes: 0,
            open_faults: get(&counters.open_faults),
            merging: counters.merging.view(self.merger.waiting()),
            scrubbing: counters.scrubbing.view(),
            extents,
            blocks,
            dram_blocks: dram.blocks,
            dram_bytes: dram.bytes,
            dram_admitted_blocks: dram.admitted,
            dram_evicted_blocks: dram.evicted,
            dram_throttled_blocks: dram.throttled,
            disk_bytes: log.segments().disk_bytes(),
            capacity_bytes: self.limits.capacity_bytes,
            poisoned: log.is_poisoned(),
            device: self.device.stats(),
            schedule: self.order.view().into(),
            io_engine: geometry.engine,
            io_direct: geometry.direct,
            index: care.stats(),
            log: log.stats().view(),
            far: self.far.as_ref().map(|far| {
                let notes = self.notes.as_ref();
                let pending_removals = notes.map_or(0, |notes| notes.pending_count());
                FarStats { pending_removals, ..far.stats() }
            }),
        }
    }
}
