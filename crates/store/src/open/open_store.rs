//! An open store: the engine, and the paths that callers use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dalsegno_core::{ChainHash, Deadline, NamespaceId, Result};
use dalsegno_io::{JobLane, Source};

use crate::engine::Engine;
use crate::far::stats::FarStats;
use crate::far_work::lanes::FarLanes;
use crate::lookup::lookups::Lookups;
use crate::namespaces::registrar::Registrar;
use crate::put::writer::Writer;
use crate::remove::remover::{PublishRemovals, RemovalOrigin, Remover};
use crate::rewrite::space::SpaceLane;
use crate::stats::Stats;
use crate::terms::Terms;
use crate::upkeep::merger::Merger;
use crate::upkeep::scrubber::Scrubber;

/// How long closing waits for transfers, calls and background work under way.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The parts of an open store. Every call holds it until it ends.
#[derive(Debug)]
pub(crate) struct OpenStore {
    pub(crate) engine: Arc<Engine>,
    pub(crate) lookups: Lookups,
    pub(crate) registrar: Registrar,
    pub(crate) writer: Arc<Writer>,
    pub(crate) remover: Arc<Remover>,
    pub(crate) merger: Arc<Merger>,
    pub(crate) scrubber: Scrubber,
    /// Records removals and namespaces. Closed before the space lane, because a removal asks for space.
    pub(crate) records: Arc<JobLane>,
    pub(crate) space: Arc<SpaceLane>,
    pub(crate) far: Option<FarLanes>,
}

impl OpenStore {
    /// See [`Store::remove`](crate::Store::remove).
    pub(crate) fn remove(
        &self,
        namespace: NamespaceId,
        hashes: Option<&[ChainHash]>,
        terms: &Terms,
    ) -> Result<u64> {
        let lanes = self.far.as_ref().map(|far| far as &dyn PublishRemovals);
        self.remover.remove(RemovalOrigin::Caller(lanes), namespace, hashes, terms)
    }

    /// All counters and gauges.
    pub(crate) fn stats(&self) -> Stats {
        let engine = &self.engine;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &engine.counters;
        let (extents, blocks) = engine.index.counts();
        let dram = engine.front.dram.view();
        let geometry = engine.device.geometry();
        Stats {
            put_calls: get(&counters.put_calls),
            put_stored_blocks: get(&counters.put_stored_blocks),
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
            disk_bytes: engine.log.segments().disk_bytes(),
            capacity_bytes: engine.limits.capacity_bytes,
            poisoned: engine.log.is_poisoned(),
            device: engine.device.stats(),
            io_engine: geometry.engine,
            io_direct: geometry.direct,
            index: engine.stored.care.stats(),
            log: engine.log.stats().view(),
            far: engine.far.as_ref().map(|far| {
                let notes = engine.front.removal_notes.as_ref();
                let pending_removals = notes.map_or(0, |notes| notes.pending_count());
                FarStats { pending_removals, ..far.stats() }
            }),
        }
    }

    /// Ends merging, scrubbing and the far tier.
    pub(crate) fn close_periodic_work(&self, deadline: Deadline) {
        if let Some(far) = &self.far {
            far.close(self.left(deadline));
        }
        self.merger.close(self.left(deadline));
        self.scrubber.close(self.left(deadline));
    }

    /// Ends the lanes, after they wrote the list of segments.
    pub(crate) fn close_lanes(&self, deadline: Deadline) {
        self.space.list_segments(deadline);
        self.records.close();
        self.records.join(self.left(deadline));
        self.space.close(deadline);
    }

    fn left(&self, deadline: Deadline) -> Duration {
        deadline.remaining(self.engine.clock.now()).unwrap_or_default()
    }
}
