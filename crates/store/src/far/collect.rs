//! The thread that removes what dead stores left at the far location.
//!
//! 1. It holds nothing of the store but the far tier, and a call that hangs keeps nobody waiting.
//! 2. It ends between two calls when the store is closed.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Clock;
use dalsegno_far::{CHECK_EVERY, Collector};

use crate::background::helper::{Duty, NoTask};
use crate::background::task_queue::{Next, TaskQueue};
use crate::far::tier::FarTier;
use crate::stats::add;

/// Pause between two steps in one folder.
const STEP: Duration = Duration::from_secs(2);

/// Checks one writer after the other, and removes the folders of dead ones.
pub(super) struct CollectDuty {
    far: Arc<FarTier>,
    collector: Collector,
}

impl CollectDuty {
    pub(super) fn new(far: &Arc<FarTier>, clock: &Arc<dyn Clock>) -> Self {
        let collector = Collector::new(Arc::clone(&far.tier), Arc::clone(clock), far.writer);
        Self { far: Arc::clone(far), collector }
    }
}

impl Duty for CollectDuty {
    type Task = NoTask;

    fn run(&mut self, task: NoTask) {
        match task {}
    }

    fn step(&mut self, queue: &TaskQueue<NoTask>) -> Next {
        let before = self.collector.stats();
        if let Err(error) = self.collector.step(&|| queue.is_closed()) {
            tracing::debug!(%error, "a dead store's folder is not removed; it is tried again later");
        }
        let now = self.collector.stats();
        let counters = &self.far.counters;
        add(&counters.collected_writers, now.writers - before.writers);
        add(&counters.collected_packs, now.packs - before.packs);
        Next::After(if self.collector.is_working() { STEP } else { CHECK_EVERY })
    }
}
