//! What calls of an index return.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Extent, ExtentId};
use dalsegno_io::IoError;

use crate::error::TableError;

/// Neighbouring blocks of one extent.
#[derive(Clone, Debug)]
pub struct Run {
    /// Position of the first one in the requested hashes.
    pub at: usize,
    /// The extent.
    pub extent: Arc<Extent>,
    /// Position of the first one in the extent.
    pub first_block: u32,
    /// Number of blocks.
    pub count: u32,
}

/// How far to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Up to the first missing block.
    Prefix,
    /// All blocks, even after missing ones.
    Each,
}

/// The place of a put in the order of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The lineage, a run of the prefix tree.
    pub lineage: ChainHash,
    /// The number of the first block in the lineage.
    pub first_block_index: u32,
}

/// The blocks and extents that a removal removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Visible blocks that were removed.
    pub blocks: u64,
    /// Extents that have no visible blocks any more.
    pub extents: Vec<ExtentId>,
}

impl Removed {
    /// Adds the result of another removal.
    pub(crate) fn join(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.extents.extend(other.extents);
    }
}

/// The answer is in a file of the index that cannot be read now.
#[derive(Debug, thiserror::Error)]
#[error("the index cannot be read: {0}")]
pub struct Unread(#[source] pub(crate) TableError);

impl Unread {
    /// Whether the deadline passed, reads are suspended, or a removal emptied the index. That says nothing about the
    /// file.
    #[must_use]
    pub fn is_put_off(&self) -> bool {
        use IoError::{Closed, Stopped, Suspended};
        matches!(self.0, TableError::Io(Stopped(_) | Closed | Suspended))
    }
}
