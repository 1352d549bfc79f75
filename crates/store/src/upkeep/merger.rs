//! The helper that merges small extents. One merge is in `rewrite/merge_row.rs`.
//!
//! 1. No caller waits for it. It yields to reads, within bounds, and writes no more a second than the setting
//!    `merge_rate` allows.
//! 2. Without a thread, each put does one step afterwards: one merge at most, so that no put does the work of many.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Extent, IndexChoice, Limits, Result};
use dalsegno_io::{Duty, Executor, NextStep, Periodic, StopSignal};
use dalsegno_policy::merging::{Due, MergeRules};

use crate::error::no_thread;
use crate::rewrite::copy::RowBuffer;
use crate::rewrite::merge_row::{Merge, RowMerger};
use crate::upkeep::merge_board::{Budget, MergeBoard, MergeTask, PERIOD};

/// Merges small extents.
#[derive(Debug)]
pub(crate) struct Merger {
    /// None where there is nothing to do.
    running: Option<RunningMerger>,
}

#[derive(Debug)]
struct RunningMerger {
    board: Arc<MergeBoard>,
    clock: Arc<dyn Clock>,
    helper: Periodic<MergeDuty>,
}

#[derive(Debug)]
struct MergeDuty {
    rows: RowMerger,
    board: Arc<MergeBoard>,
    clock: Arc<dyn Clock>,
    index: IndexChoice,
    buffer: RowBuffer,
    executor: Executor,
}

impl Merger {
    pub(crate) fn start(
        rules: MergeRules,
        rows: RowMerger,
        limits: &Limits,
        clock: Arc<dyn Clock>,
        executor: Executor,
    ) -> Result<Self> {
        let Some(board) = MergeBoard::new(rules, limits).map(Arc::new) else {
            return Ok(Self { running: None });
        };
        let duty = MergeDuty {
            rows,
            board: Arc::clone(&board),
            clock: Arc::clone(&clock),
            index: limits.index,
            buffer: RowBuffer::default(),
            executor,
        };
        let first = NextStep::After(Duration::ZERO);
        let helper = Periodic::start("dalsegno-merge", executor, duty, first).map_err(no_thread)?;
        Ok(Self { running: Some(RunningMerger { board, clock, helper }) })
    }

    /// To be called when an extent became visible: it may be worth merging.
    pub(crate) fn note(&self, extent: &Extent) {
        let Some(RunningMerger { board, clock, helper }) = &self.running else { return };
        if board.note(extent, clock.now()) {
            helper.wake();
        }
    }

    /// To be called at the end of a put.
    pub(crate) fn after_put(&self) {
        if let Some(running) = &self.running {
            running.helper.step_inline();
        }
    }

    /// Lineages whose small extents wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.board.waiting())
    }

    /// Starts no further merge and waits for the one under way. Calling it again does nothing more.
    pub(crate) fn close(&self, timeout: Duration) {
        if let Some(running) = &self.running {
            running.helper.close();
            running.helper.join(timeout);
        }
    }
}

impl Duty for MergeDuty {
    fn step(&mut self, stop: &StopSignal) -> NextStep {
        match self.board.next_task(self.clock.now()) {
            MergeTask::Stop => return NextStep::Never,
            MergeTask::Wait(wait) => {
                if wait >= PERIOD {
                    self.buffer = RowBuffer::default();
                }
                return NextStep::After(wait);
            }
            MergeTask::Merge(due) => self.merge_lineage(&due, stop),
            MergeTask::Recycle => self.rows.space.recycle_dead(),
            MergeTask::Walk => {
                let most_extents = self.board.rules().most_extents;
                let small = |extent: &Extent| self.board.small(extent);
                let index = self.rows.stored.index.as_ref();
                let walk = self.board.walk();
                let (walk, found) = walk.step(index, self.index, most_extents, small);
                self.board.walked(walk, found, self.clock.now());
            }
        }
        NextStep::After(Duration::ZERO)
    }
}

impl MergeDuty {
    /// Merges the extents of a lineage that are due, as far as the rate allows.
    fn merge_lineage(&mut self, due: &Due, stop: &StopSignal) {
        let (rows, rules) = (&self.rows, self.board.rules());
        loop {
            let spare_bytes = self.board.spare_bytes();
            let merge = Merge { rows, rules, stop };
            match merge.next_of(due, spare_bytes, &mut self.buffer) {
                Ok(Some(merged)) => {
                    let budget = self.board.merged(merged, self.clock.now());
                    if budget == Budget::Spent || self.executor == Executor::Inline {
                        return self.board.put_back(due);
                    }
                }
                Ok(None) => return,
                Err(skip) => {
                    skip.count(&rows.counters.merging);
                    return self.board.failed(due, skip.is_of_the_store(), self.clock.now());
                }
            }
        }
    }
}
