//! The thread that copies blocks to the log, which were read from the far location twice.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dalsegno_io::{Duty, NextStep, StopSignal};

use crate::counters::add;
use crate::far::promotions::Promotion;
use crate::far::tier::FarTier;
use crate::keep::Keep;
use crate::put::report::PutOutcome;
use crate::put::writer::{HeldPut, Writer};
use crate::terms::Terms;

/// How long a copy to the log may take.
const PROMOTE: Duration = Duration::from_secs(30);
/// Pause between two looks for blocks.
const STEP: Duration = Duration::from_millis(100);

/// Copies blocks to the log.
pub(super) struct PromoteDuty {
    pub(super) far: Arc<FarTier>,
    pub(super) writer: Weak<Writer>,
}

impl Duty for PromoteDuty {
    fn step(&mut self, _: &StopSignal) -> NextStep {
        for promotion in self.far.promotions.take() {
            let Some(writer) = self.writer.upgrade() else { break };
            let Promotion { namespace, chain, blocks, mark } = promotion;
            let first = chain.len() - blocks.len();
            let terms = Terms::within(PROMOTE);
            let put = HeldPut { chain: &chain, first, blocks, keep: Keep::Stored };
            match writer.put_held(namespace, put, mark, &terms) {
                Ok(report) => {
                    let stored = report.count(PutOutcome::Stored);
                    add(&self.far.counters.promoted_blocks, stored);
                }
                Err(error) => tracing::debug!(%error, "blocks not copied to the log"),
            }
        }
        NextStep::After(STEP)
    }
}
