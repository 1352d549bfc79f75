//! The walk over the index: it finds small extents that no put reported, those of earlier lives and those that were
//! forgotten. After an open it also makes each extent as recent as what depends on it.
//!
//! 1. One step looks at a bounded number of extents, and keeps what it knows of one lineage at most.

use std::time::Duration;

use dalsegno_core::{ChainHash, IndexChoice, NamespaceId, Nanos};
use dalsegno_index::lift_ancestors;
use dalsegno_policy::merging::{LineageKey, SmallExtent};

use crate::merge::Shared;
use crate::store::Inner;

/// Extents of one step.
const STEP: usize = 256;
/// A walk begins at the earliest so long after the last one.
const REST: Duration = Duration::from_secs(600);

/// How far a walk came.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    from: (NamespaceId, ChainHash, u32),
    /// When it goes on; `None` if it is over.
    next_at: Option<Nanos>,
    ended: Nanos,
    lineage: Option<LineageKey>,
    extents: usize,
    small: Vec<SmallExtent>,
}

impl Walk {
    /// One that begins at once.
    pub(crate) fn new() -> Self {
        Self {
            from: (NamespaceId::default(), ChainHash::default(), 0),
            next_at: Some(Nanos(0)),
            ended: Nanos(0),
            lineage: None,
            extents: 0,
            small: Vec::new(),
        }
    }

    /// When it goes on.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        self.next_at
    }

    /// Begins anew after a while, unless it is under way.
    pub(crate) fn again(&mut self, now: Nanos) {
        if self.next_at.is_none() {
            *self = Self { next_at: Some(self.ended.after(REST).max(now)), ..Self::new() };
        }
    }

    /// Goes on later; one that is over stays so.
    pub(crate) fn paused(mut self, until: Nanos) -> Self {
        match &mut self.next_at {
            Some(at) => *at = until,
            None => self.ended = until,
        }
        self
    }

    /// The small extents of the last lineage, if there are too many of them.
    fn leave(&mut self, most_extents: usize) -> Vec<(LineageKey, SmallExtent)> {
        let small = std::mem::take(&mut self.small);
        let extents = std::mem::take(&mut self.extents);
        match self.lineage.take() {
            Some(lineage) if extents > most_extents && small.len() > 1 => {
                small.into_iter().map(|extent| (lineage, extent)).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Inner {
    /// Looks at the next extents; returns the small ones of lineages that have many.
    pub(crate) fn walk_step(
        &self,
        shared: &Shared,
        mut walk: Walk,
    ) -> (Walk, Vec<(LineageKey, SmallExtent)>) {
        let extents = self.index.scan(walk.from, STEP);
        if self.limits.index == IndexChoice::Lsm {
            lift_ancestors(self.index.as_ref(), &extents);
        }
        let most = shared.rules.most_extents;
        let mut found = Vec::new();
        for extent in &extents {
            let lineage = (extent.namespace, extent.lineage);
            if walk.lineage != Some(lineage) || walk.small.len() >= STEP {
                found.extend(walk.leave(most));
                walk.lineage = Some(lineage);
            }
            walk.extents += 1;
            walk.small.extend(shared.small(extent));
        }
        let last = extents.last().filter(|_| extents.len() == STEP);
        let next = last.and_then(|last| {
            let first = last.first_block_index.checked_add(1)?;
            Some((last.namespace, last.lineage, first))
        });
        if let Some(from) = next {
            walk.from = from;
        } else {
            found.extend(walk.leave(most));
            walk.next_at = None;
        }
        (walk, found)
    }
}
