//! The thread that removes what dead stores left at the far location.
//!
//! 1. It holds nothing of the store but the far tier, and a call that hangs keeps nobody waiting.
//! 2. It ends between two calls when the store is closed.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_far::{CHECK_EVERY, Collector};
use dalsegno_io::{Duty, NextStep, StopSignal};

use crate::counters::add;
use crate::far::tier::FarTier;

/// Pause between two steps in one folder.
const STEP: Duration = Duration::from_secs(2);

/// Checks one writer after the other, and removes the folders of dead ones.
pub(super) struct CollectDuty {
    far: Arc<FarTier>,
    collector: Collector,
}

impl CollectDuty {
    pub(super) fn new(far: &Arc<FarTier>) -> Self {
        Self { far: Arc::clone(far), collector: Collector::new(far.member.clone()) }
    }
}

impl Duty for CollectDuty {
    fn step(&mut self, stop: &StopSignal) -> NextStep {
        let before = self.collector.stats();
        if let Err(error) = self.collector.step(&|| stop.is_set()) {
            tracing::debug!(%error, "a dead store's folder is not removed; it is tried again later");
        }
        let now = self.collector.stats();
        let counters = &self.far.counters;
        add(&counters.collected_writers, now.writers - before.writers);
        add(&counters.collected_packs, now.packs - before.packs);
        NextStep::After(if self.collector.is_working() { STEP } else { CHECK_EVERY })
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_core::{Clock, Limits, ManualClock, StoreId};
    use dalsegno_far::{DEAD_AFTER, MemoryLocation, Object, Tier, WATCHED, WriterId, wait_for};
    use dalsegno_io::{BufferPool, Executor, Memory};

    use super::*;
    use crate::far::tier::FarParts;

    #[test]
    fn what_is_collected_is_counted_and_the_pace_depends_on_the_work() {
        let manual = Arc::new(ManualClock::default());
        let clock = Arc::clone(&manual) as Arc<dyn Clock>;
        let location = MemoryLocation::new(Arc::clone(&clock));
        let writer = |store| WriterId { store: StoreId([store; 16]), open: 1 };
        let dead = location.mount();
        for object in [Object::Pack(1), Object::Pack(2), Object::Beat(1)] {
            let (name, bytes) = (writer(1).object(object), vec![Memory::owned(vec![7; 4096], ())]);
            wait_for(&clock, STEP, |ask| dead.publish(name, bytes, ask)).unwrap();
        }
        let far = Arc::new(
            FarTier::start(FarParts {
                tier: Arc::new(location.mount()),
                writer: writer(2),
                limits: Limits { far_workers: 1, ..Limits::default() },
                clock: Arc::clone(&clock),
                pool: BufferPool::new(4 << 20, 1 << 20).unwrap(),
                executor: Executor::Inline,
            })
            .unwrap(),
        );
        let mut duty = CollectDuty::new(&far);
        let mut step = || duty.step(&StopSignal::default());
        manual.advance(DEAD_AFTER);
        assert_eq!(step(), NextStep::After(CHECK_EVERY));
        manual.advance(WATCHED);
        assert_eq!([step(), step()], [NextStep::After(STEP), NextStep::After(CHECK_EVERY)]);
        let stats = far.stats();
        assert_eq!((stats.collected_writers, stats.collected_packs), (1, 2));
        assert!(location.objects().is_empty());
    }
}
