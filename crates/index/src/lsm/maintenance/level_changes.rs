//! How a planned step changes the levels of a version.

use std::sync::Arc;

use dalsegno_policy::fluid::Step;

use crate::lsm::version::run::SortedRun;
use crate::lsm::version::run_source::Tables;

/// The runs of each level, the newest first.
pub(crate) type Levels = Vec<Vec<Arc<SortedRun>>>;

/// Takes the runs that a step compacts out of the levels, the newest first. Also returns the level whose newest run the
/// result becomes. A step that compacts nothing is complete.
pub(crate) fn take_inputs(step: &Step, levels: &mut Levels) -> (Vec<Arc<SortedRun>>, usize) {
    match step.clone() {
        Step::Move { from, runs, to } => {
            levels.resize(levels.len().max(to + 1), Vec::new());
            let moved: Vec<_> = levels[from].drain(runs).collect();
            let at = if to > from { 0 } else { levels[to].len() };
            levels[to].splice(at..at, moved);
            (Vec::new(), to)
        }
        Step::Join { runs } => (levels[0].drain(..runs).collect(), 0),
        Step::Down { level, joined } => {
            let mut inputs: Vec<_> = levels[..level].iter_mut().flat_map(std::mem::take).collect();
            inputs.extend(levels[level].drain(..joined));
            (inputs, level)
        }
    }
}

/// Drops runs without tables, and levels without runs at the end.
pub(crate) fn drop_empty(levels: &mut Levels) {
    for runs in levels.iter_mut() {
        runs.retain(|run| !run.tables().is_empty());
    }
    while levels.len() > 1 && levels.last().is_some_and(Vec::is_empty) {
        levels.pop();
    }
}
