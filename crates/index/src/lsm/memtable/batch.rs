//! Changes to a memtable that become visible together.

use crate::lsm::format::keys::{ForkKey, Record};

/// The new record of an extent, and the blocks whose points change with it.
#[derive(Debug)]
pub(crate) struct Change {
    /// The extent is removed if no block points to it.
    pub(crate) record: Record,
    pub(crate) blocks: Vec<u32>,
    /// What becomes of the points.
    pub(crate) points: PointChange,
}

/// How the points of blocks change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PointChange {
    /// They point to the record.
    Set,
    /// They are removed.
    Remove,
}

/// What a memtable holds under a key. Older entries of the key do not count.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Newest<T> {
    Present(T),
    Removed,
}

impl<T> Newest<T> {
    pub(crate) fn present(self) -> Option<T> {
        match self {
            Self::Present(found) => Some(found),
            Self::Removed => None,
        }
    }
}

/// Changes that become visible together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) changes: Vec<Change>,
    pub(crate) forks: Vec<ForkKey>,
}

impl Batch {
    /// How many entries of all kinds it has.
    pub(crate) fn entries(&self) -> usize {
        let of_change = |change: &Change| 1 + change.blocks.len();
        self.changes.iter().map(of_change).sum::<usize>() + self.forks.len()
    }
}
