//! Removals, and how far a writer had applied them: docs/formats/pack.md, Removals.
//!
//! 1. A removal covers a pack if the pack's writer had not applied it. No clock is compared.

use std::collections::BTreeMap;
use std::fmt;

use dalsegno_core::{ChainHash, NamespaceId};

use crate::names::WriterId;

/// The name of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemovalId {
    /// The open of a store that issued it.
    pub by: WriterId,
    /// 1 for the first one of this open, and then the next number.
    pub number: u64,
}

/// Blocks that were removed from everything that was put before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Its name.
    pub id: RemovalId,
    /// The namespace of the blocks.
    pub namespace: NamespaceId,
    /// The blocks; none for all of the namespace.
    pub hashes: Vec<ChainHash>,
}

/// The newest removal of each writer that was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied(BTreeMap<WriterId, u64>);

impl fmt::Display for RemovalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.number, self.by)
    }
}

impl Applied {
    /// Whether a removal was applied.
    #[must_use]
    pub fn contains(&self, id: RemovalId) -> bool {
        id.number <= self.number(id.by)
    }

    /// The newest removal of a writer that was applied; 0 for none.
    #[must_use]
    pub fn number(&self, by: WriterId) -> u64 {
        self.0.get(&by).copied().unwrap_or(0)
    }

    /// Notes that a removal was applied, and all that the same writer issued before it.
    pub fn note(&mut self, id: RemovalId) {
        if id.number > 0 {
            let number = self.0.entry(id.by).or_default();
            *number = id.number.max(*number);
        }
    }

    /// Notes everything that `other` has.
    pub fn join(&mut self, other: &Self) {
        other.iter().for_each(|id| self.note(id));
    }

    /// The newest removal of each writer, sorted by writer.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = RemovalId> {
        self.0.iter().map(|(by, number)| RemovalId { by: *by, number: *number })
    }

    /// Whether no removal was applied.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<RemovalId> for Applied {
    fn from_iter<I: IntoIterator<Item = RemovalId>>(ids: I) -> Self {
        let mut applied = Self::default();
        ids.into_iter().for_each(|id| applied.note(id));
        applied
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_core::StoreId;

    use super::*;

    fn id(open: u64, number: u64) -> RemovalId {
        RemovalId { by: WriterId { store: StoreId([1; 16]), open }, number }
    }

    #[test]
    fn a_number_stands_for_all_removals_of_its_writer_up_to_it() {
        let mut applied: Applied = [id(1, 3), id(2, 1), id(1, 2), id(3, 0)].into_iter().collect();
        assert_eq!(applied.iter().collect::<Vec<_>>(), [id(1, 3), id(2, 1)]);
        assert!(applied.contains(id(1, 1)) && applied.contains(id(1, 3)));
        assert!(!applied.contains(id(1, 4)) && !applied.contains(id(3, 1)));
        applied.join(&[id(2, 5), id(4, 1)].into_iter().collect());
        assert_eq!(applied.iter().collect::<Vec<_>>(), [id(1, 3), id(2, 5), id(4, 1)]);
    }
}
