//! What the index hands out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dalsegno_core::{ChainHash, Extent, ExtentId};

/// An extent in the index, with what was learned about its use since it was written.
#[derive(Debug)]
pub struct Indexed {
    /// The extent.
    pub extent: Extent,
    hits: AtomicU32,
    last_hit: AtomicU64,
}

impl Indexed {
    /// An extent that nobody has read yet.
    #[must_use]
    pub fn new(extent: Extent) -> Self {
        Self { extent, hits: AtomicU32::new(0), last_hit: AtomicU64::new(0) }
    }

    /// Notes a hit; `sequence` is the log's newest sequence number.
    pub fn touch(&self, sequence: u64) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.last_hit.fetch_max(sequence, Ordering::Relaxed);
    }

    /// Hits since the extent was written, or moved.
    #[must_use]
    pub fn hits(&self) -> u32 {
        self.hits.load(Ordering::Relaxed)
    }

    /// The log's newest sequence number at the last hit, zero for none.
    #[must_use]
    pub fn last_hit(&self) -> u64 {
        self.last_hit.load(Ordering::Relaxed)
    }
}

/// Neighbouring blocks of one extent.
#[derive(Clone, Debug)]
pub struct Run {
    /// Position of the first one in the hashes that were asked for.
    pub at: usize,
    /// The extent.
    pub entry: Arc<Indexed>,
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

/// What is alive in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentUse {
    /// Bytes of extents with visible blocks, headers included.
    pub live_bytes: u64,
    /// Of these, bytes of extents that were hit since they were written.
    pub hit_bytes: u64,
    /// When they were last used, on average by bytes: an extent's last hit, else its own sequence number.
    pub mean_use_sequence: u64,
}
