//! Which entries a compaction keeps.
//!
//! 1. A removal is dropped when nothing older can be under it, that is in a compaction of the oldest run.
//! 2. A point in a past epoch of its segment counts as removed: an older place of the block may be under it.
//! 3. An extent in a past epoch is dropped in any compaction, because older entries of its key are in the same segment.
//! 4. An epoch is past if the sums of the manifest say so. So tables hold what their checkpoint covers, and entries
//!    that are indexed again find the same state.

use std::collections::HashMap;

use dalsegno_core::NamespaceId;

use crate::error::TableError;
use crate::lsm::format::keys::{ForkKey, KIND_FORK, KIND_ORDER, KIND_POINT, Point, Record};
use crate::lsm::version::levels::Version;

/// A fork whose lineage is gone is harmless, and looking for the lineage takes a scan. So each compaction checks only
/// one of so many forks.
const FORK_TURNS: u64 = 16;

/// Answers which lineages exist.
pub(crate) trait LineageCheck {
    /// Whether a lineage has any extent.
    fn has_lineage(&self, namespace: NamespaceId, lineage: [u8; 16]) -> Result<bool, TableError>;
}

/// The rule of one compaction.
pub(crate) struct Retention<'a> {
    /// Whether nothing older is under the compacted runs.
    is_oldest: bool,
    epochs: HashMap<u64, u64>,
    lineages: &'a dyn LineageCheck,
    /// Selects the forks that are checked.
    turn: u64,
}

/// What a compaction does with an entry.
pub(crate) enum Fate {
    Keep,
    /// Keeps it without its value: older entries under it must not come back.
    KeepAsRemoval,
    Drop,
}

impl<'a> Retention<'a> {
    /// The rule for a compaction of `version`; `turn` counts compactions.
    pub(crate) fn new(
        version: &Version,
        is_oldest: bool,
        lineages: &'a dyn LineageCheck,
        turn: u64,
    ) -> Self {
        let epochs = version.sums.iter().map(|sum| (sum.segment, sum.epoch)).collect();
        Self { is_oldest, epochs, lineages, turn }
    }

    /// What becomes of an entry.
    pub(crate) fn fate(&self, key: &[u8], value: &[u8]) -> Result<Fate, TableError> {
        let damaged = TableError::Malformed("an entry");
        let is_past =
            |segment: u64, epoch: u64| self.epochs.get(&segment).is_none_or(|now| *now != epoch);
        let removed = if self.is_oldest { Fate::Drop } else { Fate::KeepAsRemoval };
        Ok(match key.first() {
            Some(&(KIND_POINT | KIND_ORDER)) if value.is_empty() => removed,
            Some(&KIND_POINT) => {
                let (segment, epoch) = Point::place(value).ok_or(damaged)?;
                if is_past(segment, epoch) { removed } else { Fate::Keep }
            }
            Some(&KIND_ORDER) => {
                let (segment, epoch) = Record::place(value).ok_or(damaged)?;
                if is_past(segment, epoch) { Fate::Drop } else { Fate::Keep }
            }
            Some(&KIND_FORK) if self.is_oldest => {
                let fork = ForkKey::decode(key).ok_or(damaged)?;
                let is_turn = u64::from(fork.child[0]) % FORK_TURNS == self.turn % FORK_TURNS;
                let is_dead = is_turn && !self.lineages.has_lineage(fork.namespace, fork.child)?;
                if is_dead { Fate::Drop } else { Fate::Keep }
            }
            _ => Fate::Keep,
        })
    }
}
