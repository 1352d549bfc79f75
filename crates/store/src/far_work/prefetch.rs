//! The thread that reads blocks of the far location into DRAM before they are requested.
//!
//! While it waits for the location it holds nothing of the store but the far tier, places in DRAM and the table of
//! namespaces.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dalsegno_core::{ChainHash, Class, Clock, Deadline, NamespaceId};
use dalsegno_extent::{BlockRead, BlockTarget};
use dalsegno_far::{FarShape, FarWanted};
use dalsegno_io::{Call, Duty, Executor, NextStep, StopSignal};

use crate::blocks::recent::RecentBlocks;
use crate::far::prefetches::{PrefetchBatch, PrefetchResult};
use crate::far::tier::FarTier;
use crate::far_work::local_store::LocalStore;
use crate::lookup::lookups::lookup_limit;
use crate::namespaces::table::NamespaceTable;
use crate::state::arena::ReservedPlace;
use crate::state::dram::Leaving;
use crate::state::recent_removals::RemovalMark;

/// How long one wait for blocks to prefetch takes.
const WAIT: Duration = Duration::from_millis(100);
/// How long the read of a batch may take.
const READ: Duration = Duration::from_secs(10);

pub(super) struct PrefetchDuty {
    far: Arc<FarTier>,
    clock: Arc<dyn Clock>,
    recent: Weak<RecentBlocks>,
    namespaces: Arc<NamespaceTable>,
    /// How long a step waits for blocks to prefetch.
    wait: Duration,
}

/// The read of a batch.
struct PlannedBatch {
    shape: FarShape,
    wanted: Vec<FarWanted>,
    targets: Vec<BlockTarget>,
    places: Vec<(ChainHash, ReservedPlace)>,
    /// From before the blocks were looked up.
    mark: RemovalMark,
    /// Whether DRAM has no place for more.
    is_full: bool,
}

impl PrefetchDuty {
    pub(super) fn new(
        far: &Arc<FarTier>,
        clock: &Arc<dyn Clock>,
        local: &LocalStore,
        executor: Executor,
    ) -> Self {
        // A caller that does the work itself has nothing to wait for.
        let wait = if executor == Executor::Inline { Duration::ZERO } else { WAIT };
        Self {
            far: Arc::clone(far),
            clock: Arc::clone(clock),
            recent: Weak::clone(&local.recent),
            namespaces: Arc::clone(&local.namespaces),
            wait,
        }
    }

    /// Reserves places for a batch; `None` if the store or the namespace is gone.
    fn plan(&self, batch: &PrefetchBatch) -> Option<PlannedBatch> {
        let recent = self.recent.upgrade()?;
        let layout = self.namespaces.get(batch.namespace).ok()?.layout();
        let shape = FarShape { namespace: batch.namespace, layout, layers: 0..layout.layers() };
        let bytes = usize::try_from(layout.block_bytes()).ok()?;
        let mark = recent.removals.mark();
        let (wanted, targets, places) = (Vec::new(), Vec::new(), Vec::new());
        let mut planned = PlannedBatch { shape, wanted, targets, places, mark, is_full: false };
        let here = recent.dram.holds_each(batch.namespace, &batch.hashes);
        for (hash, is_here) in batch.hashes.iter().zip(here) {
            let found = self.far.find(batch.namespace, hash);
            let Some(place) = found.filter(|_| !is_here) else { continue };
            let Some(mut reserved) = recent.dram.reserve(bytes, Leaving::Newcomers) else {
                planned.is_full = true;
                break;
            };
            let target = BlockTarget {
                block: u32::from(place.block),
                number: 0,
                memory: vec![reserved.memory()],
                outlives_call: true,
                copy: Vec::new(),
            };
            planned.wanted.push(FarWanted { place, hash: *hash });
            planned.targets.push(target);
            planned.places.push((*hash, reserved));
        }
        Some(planned)
    }

    /// Reads a batch.
    fn read(&self, batch: &PrefetchBatch) -> PrefetchResult {
        let failed = |dropped| PrefetchResult { fetched: Vec::new(), dropped, is_over: true };
        let Some(planned) = self.plan(batch) else {
            return failed(batch.hashes.len());
        };
        let PlannedBatch { shape, wanted, targets, places, mark, is_full } = planned;
        let count = places.len();
        let call = Call::of(Class::Prefetch).until(Deadline::At(self.clock.now().after(READ)));
        let read = self.far.begin_read(shape, &wanted, targets, &call).finish();
        let Some(recent) = self.recent.upgrade() else { return failed(count) };
        let mut fetched = Vec::with_capacity(count);
        for ((hash, place), BlockRead { outcome, memory, .. }) in places.into_iter().zip(read) {
            drop(memory);
            let Some(block) = outcome.ok().and_then(|()| place.complete()) else { continue };
            let key = (batch.namespace, hash);
            let limit = lookup_limit(self.clock.as_ref());
            recent.keep(key, Arc::new(block), mark, limit);
            fetched.push(hash);
        }
        let is_over = is_full || fetched.is_empty() && count > 0;
        PrefetchResult { dropped: count - fetched.len(), fetched, is_over }
    }

    fn block_bytes(&self, namespace: NamespaceId) -> Option<u64> {
        Some(self.namespaces.get(namespace).ok()?.layout().block_bytes())
    }
}

impl Duty for PrefetchDuty {
    fn step(&mut self, _: &StopSignal) -> NextStep {
        let prefetches = &self.far.prefetches;
        let batch = prefetches.next(self.clock.now(), self.wait, |of| self.block_bytes(of));
        if let Some(batch) = batch {
            let bytes = self.block_bytes(batch.namespace).unwrap_or_default();
            let result = self.read(&batch);
            prefetches.end(&batch, &result, self.clock.now(), bytes);
        }
        NextStep::After(Duration::ZERO)
    }
}
