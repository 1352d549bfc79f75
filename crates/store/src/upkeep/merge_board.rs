//! What merging knows: the small extents that wait, the rate, the walk, and what is due next.
//!
//! 1. Puts report small extents, and after an open a walk over the index does, in small steps. Memory is bounded; the
//!    next walk finds extents that were forgotten.
//! 2. If there is no space or a merge fails, nothing is merged for a while.

use std::time::Duration;

use dalsegno_core::{Extent, IndexChoice, Limits, Nanos};
use dalsegno_policy::merging::{Bucket, Due, LineageKey, MergeRules, Piles, SmallExtent};
use parking_lot::Mutex;

use crate::rewrite::merge_row::Merged;
use crate::upkeep::merge_walk::Walk;

/// How often the thread looks whether something is due.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);
/// Between two steps of a walk.
const WALK_PAUSE: Duration = Duration::from_millis(20);

/// What the helper is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MergeMode {
    /// Merging, and the walks that merging needs.
    Merge,
    /// One walk after an open: without merging, an on-disk index still has to learn which extents others depend on.
    WalkOnce,
}

/// Shared by puts, which report extents, and the helper that merges.
#[derive(Debug)]
pub(crate) struct MergeBoard {
    rules: MergeRules,
    mode: MergeMode,
    segment_bytes: u64,
    state: Mutex<BoardState>,
}

#[derive(Debug)]
struct BoardState {
    piles: Piles,
    bucket: Bucket,
    walk: Walk,
    /// Bytes that may be merged once more.
    spare_bytes: u64,
    /// Bytes that merging left dead since dead segments were last recycled.
    dead_bytes: u64,
    /// Nothing is tried before this moment.
    not_before: Nanos,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum MergeTask {
    Merge(Due),
    Walk,
    Recycle,
    Wait(Duration),
    Stop,
}

/// Whether the rate allows another merge now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budget {
    Left,
    Spent,
}

impl MergeBoard {
    /// None if there is nothing to do: no merging, and an index in memory.
    pub(crate) fn new(rules: MergeRules, limits: &Limits) -> Option<Self> {
        let mode = match (limits.merge_bytes_per_s, limits.index) {
            (0, IndexChoice::Memory) => return None,
            (0, IndexChoice::Lsm) => MergeMode::WalkOnce,
            _ => MergeMode::Merge,
        };
        let most_bytes = rules.most_bytes.min(limits.extent_bytes);
        let rules = MergeRules { most_bytes, ..rules };
        let state = BoardState {
            piles: Piles::new(rules),
            bucket: Bucket::new(limits.merge_bytes_per_s),
            walk: Walk::new(),
            spare_bytes: 0,
            dead_bytes: 0,
            not_before: Nanos(0),
        };
        let segment_bytes = limits.segment_bytes;
        Some(Self { rules, mode, segment_bytes, state: Mutex::new(state) })
    }

    pub(crate) fn rules(&self) -> &MergeRules {
        &self.rules
    }

    /// Notes an extent that became visible; returns whether its lineage is due now.
    pub(crate) fn note(&self, extent: &Extent, now: Nanos) -> bool {
        let Some(small) = self.small(extent) else { return false };
        let lineage = (extent.namespace, extent.lineage);
        self.state.lock().piles.note(lineage, small, now)
    }

    /// What a pile keeps of an extent; `None` if the extent is large enough.
    pub(crate) fn small(&self, extent: &Extent) -> Option<SmallExtent> {
        let blocks = extent.block_count();
        let bytes = u64::from(blocks) * extent.layout.block_bytes();
        let small = SmallExtent { first: extent.first_block_index, blocks, bytes };
        (self.mode == MergeMode::Merge && self.rules.is_small(bytes)).then_some(small)
    }

    /// Lineages whose small extents wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.state.lock().piles.len() as u64
    }

    pub(crate) fn next_task(&self, now: Nanos) -> MergeTask {
        let mut state = self.state.lock();
        if self.mode == MergeMode::WalkOnce {
            return match state.walk.next_at() {
                Some(at) if at <= now => MergeTask::Walk,
                Some(at) => MergeTask::Wait(at.since(now)),
                None => MergeTask::Stop,
            };
        }
        let paid = state.bucket.wait(now).unwrap_or(PERIOD);
        let wait = paid.max(state.not_before.since(now));
        if !wait.is_zero() {
            return MergeTask::Wait(wait.min(PERIOD));
        }
        if state.dead_bytes < self.segment_bytes / 4
            && let Some(due) = state.piles.next(now)
        {
            return MergeTask::Merge(due);
        }
        if std::mem::take(&mut state.dead_bytes) > 0 {
            return MergeTask::Recycle;
        }
        if state.piles.take_forgotten() > 0 {
            state.walk.again(now);
        }
        let is_full = state.piles.len() >= self.rules.most_lineages / 2;
        match state.walk.next_at().filter(|_| !is_full) {
            Some(at) if at <= now => MergeTask::Walk,
            _ => {
                let next_at = state.piles.next_at().into_iter().chain(state.walk.next_at()).min();
                let wait = next_at.map_or(PERIOD, |at| at.since(now));
                MergeTask::Wait(wait.clamp(Duration::from_millis(1), PERIOD))
            }
        }
    }

    /// The walk as it is now.
    pub(crate) fn walk(&self) -> Walk {
        self.state.lock().walk.clone()
    }

    /// Notes a step of the walk and the small extents that it found.
    pub(crate) fn walked(&self, walk: Walk, found: Vec<(LineageKey, SmallExtent)>, now: Nanos) {
        let mut state = self.state.lock();
        state.walk = walk.paused(now.after(WALK_PAUSE));
        for (lineage, extent) in found {
            state.piles.note(lineage, extent, now);
        }
    }

    /// Bytes that may be merged once more.
    pub(crate) fn spare_bytes(&self) -> u64 {
        self.state.lock().spare_bytes
    }

    /// Notes a merge.
    pub(crate) fn merged(&self, merged: Merged, now: Nanos) -> Budget {
        let Merged { fresh_bytes, moved_bytes } = merged;
        let mut state = self.state.lock();
        state.bucket.spend(fresh_bytes + moved_bytes, now);
        state.spare_bytes = state.spare_bytes.saturating_sub(moved_bytes);
        state.spare_bytes += self.rules.spared(fresh_bytes);
        state.dead_bytes += fresh_bytes + moved_bytes;
        if state.bucket.wait(now) == Some(Duration::ZERO) { Budget::Left } else { Budget::Spent }
    }

    /// Puts back a lineage with more to merge. It is due again when there is budget, unless it still grows: then its
    /// next extent makes it due.
    pub(crate) fn put_back(&self, due: &Due) {
        if due.is_quiet {
            self.state.lock().piles.put_back(due, Nanos(0));
        }
    }

    /// Puts back a lineage that could not be merged. Nothing is tried for a while if other lineages would fail too.
    pub(crate) fn failed(&self, due: &Due, blocks_all: bool, now: Nanos) {
        let mut state = self.state.lock();
        state.piles.put_back(due, now);
        if blocks_all {
            state.not_before = now.after(self.rules.quiet);
        }
    }
}
