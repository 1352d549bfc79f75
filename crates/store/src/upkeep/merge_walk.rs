//! The walk over the index. It finds small extents that no put reported: those stored before the last open, and those
//! that were forgotten. After an open it also makes each extent as recent as the extents that depend on it.
//!
//! 1. One step looks at a bounded number of extents and remembers those of at most one lineage.

use std::time::Duration;

use dalsegno_core::{Extent, IndexChoice, Nanos};
use dalsegno_index::{Index, ScanPlace, lift_ancestors};
use dalsegno_policy::merging::{LineageKey, SmallExtent};

/// Extents of one step.
const STEP: usize = 256;
/// The shortest time between the end of a walk and the start of the next one.
const REST: Duration = Duration::from_secs(600);

/// The progress of a walk.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    from: ScanPlace,
    /// When it continues; `None` if it has ended.
    next_at: Option<Nanos>,
    ended: Nanos,
    lineage: Option<LineageKey>,
    extents: usize,
    small: Vec<SmallExtent>,
}

impl Walk {
    /// A walk that starts now.
    pub(crate) fn new() -> Self {
        Self {
            from: ScanPlace::default(),
            next_at: Some(Nanos(0)),
            ended: Nanos(0),
            lineage: None,
            extents: 0,
            small: Vec::new(),
        }
    }

    /// When it continues.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        self.next_at
    }

    /// Starts again after a while, unless it is under way.
    pub(crate) fn again(&mut self, now: Nanos) {
        if self.next_at.is_none() {
            *self = Self { next_at: Some(self.ended.after(REST).max(now)), ..Self::new() };
        }
    }

    /// Continues later, unless it has ended.
    pub(crate) fn paused(mut self, until: Nanos) -> Self {
        match &mut self.next_at {
            Some(at) => *at = until,
            None => self.ended = until,
        }
        self
    }

    /// Returns the small extents of the last lineage if it has too many extents.
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

    /// Looks at the next extents; returns the small ones of lineages that have more than `most_extents`. `small` says
    /// what is small.
    pub(crate) fn step(
        mut self,
        index: &dyn Index,
        choice: IndexChoice,
        most_extents: usize,
        small: impl Fn(&Extent) -> Option<SmallExtent>,
    ) -> (Self, Vec<(LineageKey, SmallExtent)>) {
        let extents = index.scan(self.from, STEP);
        if choice == IndexChoice::Lsm {
            lift_ancestors(index, &extents);
        }
        let mut found = Vec::new();
        for extent in &extents {
            let lineage = (extent.namespace, extent.lineage);
            if self.lineage != Some(lineage) || self.small.len() >= STEP {
                found.extend(self.leave(most_extents));
                self.lineage = Some(lineage);
            }
            self.extents += 1;
            self.small.extend(small(extent));
        }
        let last = extents.last().filter(|_| extents.len() == STEP);
        let next = last.and_then(|last| ScanPlace::behind(last));
        if let Some(from) = next {
            self.from = from;
        } else {
            found.extend(self.leave(most_extents));
            self.next_at = None;
        }
        (self, found)
    }
}
