//! The helper that merges small extents. One merge is in `merge_row.rs`.
//!
//! 1. No caller waits for it. It yields to reads, within bounds, and writes no more a second than the setting
//!    `merge_rate` allows.
//! 2. Without a thread, each put does one step afterwards: one merge at most, so that no put does the work of many.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Extent, Result};
use dalsegno_io::{Duty, Executor, NextStep, Periodic, StopSignal};
use dalsegno_policy::merging::{Due, MergeRules};

use crate::background::copy::RowBuffer;
use crate::background::merge_board::{Budget, MergeBoard, MergeTask, PERIOD};
use crate::background::merge_row::Merge;
use crate::background::space::SpaceLane;
use crate::engine::Engine;
use crate::error::no_thread;

/// Merges small extents.
#[derive(Debug)]
pub(crate) struct Merger {
    /// None where there is nothing to do.
    running: Option<RunningMerger>,
}

#[derive(Debug)]
struct RunningMerger {
    board: Arc<MergeBoard>,
    helper: Periodic<MergeDuty>,
}

#[derive(Debug)]
struct MergeDuty {
    engine: Arc<Engine>,
    space: Arc<SpaceLane>,
    board: Arc<MergeBoard>,
    buffer: RowBuffer,
    executor: Executor,
}

impl Merger {
    pub(crate) fn start(
        rules: MergeRules,
        engine: Arc<Engine>,
        space: Arc<SpaceLane>,
        executor: Executor,
    ) -> Result<Self> {
        let Some(board) = MergeBoard::new(rules, &engine.limits).map(Arc::new) else {
            return Ok(Self { running: None });
        };
        let (buffer, of_duty) = (RowBuffer::default(), Arc::clone(&board));
        let duty = MergeDuty { engine, space, board: of_duty, buffer, executor };
        let first = NextStep::After(Duration::ZERO);
        let helper = Periodic::start("dalsegno-merge", executor, duty, first).map_err(no_thread)?;
        Ok(Self { running: Some(RunningMerger { board, helper }) })
    }

    /// To be called when an extent became visible: it may be worth merging.
    pub(crate) fn note(&self, engine: &Engine, extent: &Extent) {
        let Some(RunningMerger { board, helper }) = &self.running else { return };
        if board.note(extent, engine.clock.now()) {
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
        let engine = &self.engine;
        match self.board.next_task(engine.clock.now(), engine.limits.segment_bytes) {
            MergeTask::Stop => return NextStep::Never,
            MergeTask::Wait(wait) => {
                if wait >= PERIOD {
                    self.buffer = RowBuffer::default();
                }
                return NextStep::After(wait);
            }
            MergeTask::Merge(due) => self.merge_lineage(&due, stop),
            MergeTask::Recycle => self.space.recycle_dead(),
            MergeTask::Walk => {
                let most_extents = self.board.rules().most_extents;
                let small = |extent: &Extent| self.board.small(extent);
                let (walk, found) = self.board.walk().step(engine, most_extents, small);
                self.board.walked(walk, found, engine.clock.now());
            }
        }
        NextStep::After(Duration::ZERO)
    }
}

impl MergeDuty {
    /// Merges the extents of a lineage that are due, as far as the rate allows.
    fn merge_lineage(&mut self, due: &Due, stop: &StopSignal) {
        let (engine, rules) = (&self.engine, self.board.rules());
        loop {
            let spare_bytes = self.board.spare_bytes();
            let merge = Merge { engine, space: &self.space, rules, stop };
            match merge.next_of(due, spare_bytes, &mut self.buffer) {
                Ok(Some(merged)) => {
                    let budget = self.board.merged(merged, engine.clock.now());
                    if budget == Budget::Spent || self.executor == Executor::Inline {
                        return self.board.put_back(due);
                    }
                }
                Ok(None) => return,
                Err(skip) => {
                    skip.count(&engine.counters.merging);
                    return self.board.failed(due, skip.is_of_the_store(), engine.clock.now());
                }
            }
        }
    }
}
