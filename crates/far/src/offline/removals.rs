//! What the lists of removals at a location cover: the rule of docs/formats/pack.md.
//!
//! 1. Memory is bounded as in a store: beyond the bound, a removal covers more than it names.

use dalsegno_core::Extent;
use dalsegno_io::IoError;
use serde::Serialize;

use super::location::Location;
use super::read::read_list;
use super::report::FarFinding;
use crate::format::{MAX_LIST_BYTES, RemovalList};
use crate::index::Removed;
use crate::names::ObjectName;
use crate::removal::Applied;

/// Removed blocks that are remembered, about 100 bytes each, and removed namespaces.
const MOST_BLOCKS: usize = 1 << 20;

/// The lists of removals of a location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FarRemovalsRow {
    /// Lists that can be used.
    pub lists: u64,
    /// Removals in them. One that several lists have counts once for each.
    pub removals: u64,
    /// Bytes of all lists.
    pub bytes: u64,
}

/// What all lists cover.
#[derive(Debug)]
pub(super) struct RemovedBlocks {
    removed: Removed,
    pub(super) row: FarRemovalsRow,
}

impl RemovedBlocks {
    /// Reads all lists. Notes those that cannot be used.
    pub(super) fn read(location: &Location, faults: &mut Vec<FarFinding>) -> Result<Self, IoError> {
        let removed = Removed::new(MOST_BLOCKS, MOST_BLOCKS);
        let mut read = Self { removed, row: FarRemovalsRow::default() };
        let listed = location.call(|tier, ask| tier.removals(ask))?;
        read.row.bytes = listed.iter().map(|(_, bytes)| bytes).sum();
        let names: Vec<ObjectName> = listed.into_iter().map(|(name, _)| name).collect();
        location.fetch_each(&names, MAX_LIST_BYTES, |name, fetched| {
            match read_list(name, fetched) {
                Ok(Some(list)) => read.add(&list),
                Ok(None) => {}
                Err(what) => faults.push(FarFinding::new(name, 0, what)),
            }
        });
        Ok(read)
    }

    fn add(&mut self, list: &RemovalList) {
        self.row.lists += 1;
        self.row.removals += list.removals.len() as u64;
        for removal in &list.removals {
            self.removed.add(removal);
        }
    }

    /// How many blocks of an extent are covered, in a pack whose writer had applied `applied`.
    pub(super) fn count(&self, extent: &Extent, applied: &Applied) -> u64 {
        let hashes = &extent.hashes;
        if self.removed.covers_all(extent.namespace, applied) {
            return hashes.len() as u64;
        }
        let is_covered = |hash: &&_| self.removed.covers_block(extent.namespace, hash, applied);
        hashes.iter().filter(is_covered).count() as u64
    }
}
