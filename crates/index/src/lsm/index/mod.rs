//! The index over the tree: from chain hashes to extents.

pub(crate) mod draft;
pub(crate) mod lookup;
pub(crate) mod on_disk;
pub(crate) mod open;
pub(crate) mod operations;
pub(crate) mod orphans;
pub(crate) mod stats;
