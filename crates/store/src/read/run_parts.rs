//! Parts of the runs that a lookup found.

use std::ops::Range;
use std::sync::Arc;

use dalsegno_index::Run;

/// The positions of a run's blocks in the hashes that were looked up.
pub(super) fn positions_of(run: &Run) -> Range<usize> {
    run.at..run.at + run.count as usize
}

/// The parts of a run that have not been served: those with something in `out`.
pub(super) fn missing_parts<T>(run: &Run, out: &[Option<T>]) -> Vec<Run> {
    let mut parts: Vec<Run> = Vec::new();
    for (first_block, at) in (run.first_block..).zip(positions_of(run)) {
        if out[at].is_none() {
            continue;
        }
        match parts.last_mut() {
            Some(part) if positions_of(part).end == at => part.count += 1,
            _ => parts.push(Run { at, extent: Arc::clone(&run.extent), first_block, count: 1 }),
        }
    }
    parts
}
