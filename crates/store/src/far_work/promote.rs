//! The thread that copies blocks to the log, which were read from the far location twice.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dalsegno_io::Memory;

use crate::counters::add;
use crate::far::promotions::{PromotedBlock, Promotion};
use crate::far::tier::FarTier;
use crate::jobs::helper::{Duty, NoTask};
use crate::jobs::task_queue::{Next, TaskQueue};
use crate::state::arena::PlacedBlock;
use crate::terms::Terms;
use crate::write::put::{Put, PutOrigin, PutOutcome, Writer};

/// How long a copy to the log may take.
const PROMOTE: Duration = Duration::from_secs(30);
/// Pause between two looks for blocks.
const STEP: Duration = Duration::from_millis(100);

/// The bytes of blocks, and their places if all of them have one.
fn memory_of(blocks: Vec<PromotedBlock>) -> (Vec<Vec<Memory>>, Vec<Arc<PlacedBlock>>) {
    let (count, mut placed) = (blocks.len(), Vec::new());
    let memory = blocks.into_iter().map(|block| match block {
        PromotedBlock::Copied(bytes) => vec![Memory::owned(bytes, ())],
        PromotedBlock::Placed(block) => {
            let memory = vec![block.memory()];
            placed.push(block);
            memory
        }
    });
    let memory: Vec<Vec<Memory>> = memory.collect();
    if placed.len() < count {
        placed.clear();
    }
    (memory, placed)
}

/// Copies blocks to the log.
pub(super) struct PromoteDuty {
    pub(super) far: Arc<FarTier>,
    pub(super) writer: Weak<Writer>,
}

impl Duty for PromoteDuty {
    type Task = NoTask;

    fn run(&mut self, task: NoTask) {
        match task {}
    }

    fn step(&mut self, _: &TaskQueue<NoTask>) -> Next {
        for promotion in self.far.promotions.take() {
            let Some(writer) = self.writer.upgrade() else { break };
            let Promotion { namespace, chain, blocks, mark } = promotion;
            let first = chain.len() - blocks.len();
            let (memory, placed) = memory_of(blocks);
            let put = Put { chain: &chain, first, blocks: memory };
            let origin = PutOrigin { placed: &placed, mark };
            match writer.put_from(namespace, put, origin, &Terms::within(PROMOTE)) {
                Ok(report) => {
                    let stored = report.count(PutOutcome::Stored);
                    add(&self.far.counters.promoted_blocks, stored);
                }
                Err(error) => tracing::debug!(%error, "blocks not copied to the log"),
            }
        }
        Next::After(STEP)
    }
}
