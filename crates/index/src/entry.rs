//! What the index hands out.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Extent, ExtentId};
use dalsegno_io::IoError;

use crate::lsm::TableError;

/// Neighbouring blocks of one extent.
#[derive(Clone, Debug)]
pub struct Run {
    /// Position of the first one in the hashes that were asked for.
    pub at: usize,
    /// The extent.
    pub extent: Arc<Extent>,
    /// Position of the first one in the extent.
    pub first_block: u32,
    /// Number of blocks.
    pub count: u32,
}

/// How far to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Up to the first block that is missing.
    Prefix,
    /// All blocks, whatever is missing between them.
    Each,
}

/// Where a put belongs in the order of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The run of the prefix tree.
    pub lineage: ChainHash,
    /// Position in its numbering.
    pub first_block_index: u32,
}

/// What a removal took away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Blocks that were visible.
    pub blocks: u64,
    /// Extents that hold nothing visible any more.
    pub extents: Vec<ExtentId>,
}

impl Removed {
    /// Adds what another removal took away.
    pub(crate) fn join(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.extents.extend(other.extents);
    }
}

/// The index cannot say it now: what was asked for lies in a file of it that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the index cannot be read: {0}")]
pub struct Unread(#[source] pub(crate) TableError);

impl Unread {
    /// Whether the time was up, the device is not asked for now, or the index is empty since a removal. That says
    /// nothing about the file.
    #[must_use]
    pub fn is_put_off(&self) -> bool {
        use IoError::{Busy, Closed, Deadline, Suspended};
        matches!(self.0, TableError::Io(Busy | Closed | Deadline | Suspended))
    }
}
