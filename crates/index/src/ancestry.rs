//! Uses of chains: which extents a use raises, and what an open knows about earlier uses.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Deadline, Extent};
use dalsegno_policy::recency::{Ancestry, MOST_ANCESTORS, raise_chain};

use crate::answers::{Run, Scope};
use crate::index::Index;

/// The extents of an index in one round.
struct InRound<'a> {
    index: &'a dyn Index,
    round: u64,
    deadline: Deadline,
}

impl Ancestry for InRound<'_> {
    type Extent = Arc<Extent>;

    fn raise(&self, extent: &Arc<Extent>) -> bool {
        self.index.raise(extent, self.round)
    }

    fn parent(&self, extent: &Arc<Extent>) -> Option<Arc<Extent>> {
        parent_of(self.index, extent, self.deadline)
    }
}

/// The extent that holds the block before an extent's first one.
fn parent_of(index: &dyn Index, extent: &Extent, deadline: Deadline) -> Option<Arc<Extent>> {
    if extent.parent == ChainHash::default() {
        return None;
    }
    let runs = index.resolve(extent.namespace, &[extent.parent], Scope::Each, deadline);
    runs.into_iter().next().map(|run| run.extent)
}

/// Counts a use of these runs: raises their extents and all ancestors of them.
pub fn note_use(index: &dyn Index, runs: &[Run], round: u64, deadline: Deadline) {
    let in_round = InRound { index, round, deadline };
    let mut before: Option<&Run> = None;
    // From the front, so that an ancestor is never less recent than its dependents.
    for run in runs {
        let last = before.map(|run| run.extent.hashes[(run.first_block + run.count - 1) as usize]);
        if last == Some(run.extent.parent) {
            index.raise(&run.extent, round);
        } else {
            raise_chain(&in_round, &run.extent);
        }
        before = Some(run);
    }
}

/// Counts a use of the ancestors of a new extent.
pub fn raise_parent(index: &dyn Index, extent: &Extent, round: u64, deadline: Deadline) {
    if let Some(parent) = parent_of(index, extent, deadline) {
        raise_chain(&InRound { index, round, deadline }, &parent);
    }
}

/// Makes ancestors at least as recent as these extents, which are in the order of the index. For an opened index, which
/// knows only when extents were written.
pub fn lift_ancestors(index: &dyn Index, extents: &[Arc<Extent>]) {
    let mut after: Option<(&Arc<Extent>, u64)> = None;
    for extent in extents.iter().rev() {
        let mut last = index.use_of(extent).last();
        if let Some((next, last_of_next)) = after {
            if extent.namespace == next.namespace && extent.hashes.contains(&next.parent) {
                index.lift(extent, last_of_next);
                last = last.max(last_of_next);
            } else {
                lift_chain(index, next, last_of_next);
            }
        }
        after = Some((extent, last));
    }
    if let Some((first, last)) = after {
        lift_chain(index, first, last);
    }
}

/// Lifts the ancestors of an extent, up to one that is as recent.
fn lift_chain(index: &dyn Index, extent: &Arc<Extent>, last: u64) {
    let mut next = parent_of(index, extent, Deadline::Never);
    for _ in 0..MOST_ANCESTORS {
        match next {
            Some(parent) if index.lift(&parent, last) => {
                next = parent_of(index, &parent, Deadline::Never);
            }
            _ => return,
        }
    }
}
