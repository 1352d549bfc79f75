//! What the index stores for each extent.

use crate::SECTOR_BYTES;
use crate::hash::{ChainHash, NamespaceId};
use crate::layout::KvLayout;

/// Most blocks in one extent; together with [`MAX_EXTENT_SLICES`] it bounds a header to 256 KiB.
pub const MAX_EXTENT_BLOCKS: u32 = 4096;
/// Most slices (layers x blocks) in one extent.
pub const MAX_EXTENT_SLICES: u32 = 16_384;

/// Far larger than any segment.
const MAX_OFFSET: u64 = 1 << 48;

/// The name of an extent while a store is open: its sequence number, unique and growing in the order of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentId(pub u64);

/// The place of an extent in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// Number of the segment, which no other file ever uses.
    pub segment: u64,
    /// The segment's epoch at the time of writing.
    pub epoch: u64,
    /// First byte of the extent's header in the segment, a multiple of the sector.
    pub offset: u64,
    /// Bytes of the header, a multiple of the sector. The payload follows.
    pub header_bytes: u32,
    /// Bytes of a compressed payload, a multiple of the sector; zero for a plain one.
    pub compressed_bytes: u64,
}

/// Consecutive blocks of one chain as they are stored in the log, layer-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Sequence number of the write, which identifies the extent.
    pub id: ExtentId,
    /// Removals up to this sequence number do not apply to the bytes. A put has its own number. A relocated extent has
    /// the newest number at the time when the store chose the blocks to copy. An extent merged from several has the
    /// newest number of theirs.
    pub born: u64,
    /// The namespace that may read it.
    pub namespace: NamespaceId,
    /// Its run of the prefix tree, identified by the hash of the run's first block.
    pub lineage: ChainHash,
    /// Position of its first block in the lineage's numbering.
    pub first_block_index: u32,
    /// The block before the first one if the writer knew it, otherwise all zero.
    pub parent: ChainHash,
    /// Shape of the blocks.
    pub layout: KvLayout,
    /// Its place in the log.
    pub location: Location,
    /// Hashes of the blocks, in order; never empty.
    pub hashes: Vec<ChainHash>,
}

impl Extent {
    /// Number of blocks.
    #[must_use]
    pub fn block_count(&self) -> u32 {
        u32::try_from(self.hashes.len()).expect("bounded by MAX_EXTENT_BLOCKS")
    }

    /// Bytes from the start of one layer to the start of the next: whole sectors.
    #[must_use]
    pub fn layer_stride_bytes(&self) -> u64 {
        self.layout.layer_stride_bytes(self.block_count())
    }

    /// Whether it was relocated, or merged from others.
    #[must_use]
    pub fn is_moved(&self) -> bool {
        self.born != self.id.0
    }

    /// Whether its payload is compressed, so that only its header says where a layer is.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        self.location.compressed_bytes > 0
    }

    /// Whether its location and layout are consistent, as far as that is known without its header. For an extent that
    /// was read from the index.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let blocks = u64::try_from(self.hashes.len()).unwrap_or(u64::MAX);
        let slices = blocks.saturating_mul(u64::from(self.layout.layers()));
        let Location { offset, header_bytes, compressed_bytes, .. } = self.location;
        let header_bytes = u64::from(header_bytes);
        (1..=u64::from(MAX_EXTENT_BLOCKS)).contains(&blocks)
            && slices <= u64::from(MAX_EXTENT_SLICES)
            && header_bytes > 0
            && [offset, header_bytes, compressed_bytes]
                .iter()
                .all(|at| at.is_multiple_of(SECTOR_BYTES))
            && offset.saturating_add(header_bytes).saturating_add(compressed_bytes) <= MAX_OFFSET
    }

    /// Bytes of the stored payload.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        match self.location.compressed_bytes {
            0 => self.layout.payload_bytes(self.block_count()),
            compressed_bytes => compressed_bytes,
        }
    }

    /// Bytes of header and payload in the segment.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.location.header_bytes) + self.payload_bytes()
    }

    /// Offset in the segment of slice (`layer`, `block`) of a plain extent.
    ///
    /// # Panics
    ///
    /// If the slice is outside of the grid, or the extent is compressed.
    #[must_use]
    pub fn slice_offset(&self, layer: u32, block: u32) -> u64 {
        assert!(!self.is_compressed(), "slices of a compressed extent have no fixed offset");
        assert!(layer < self.layout.layers() && block < self.block_count(), "slice out of grid");
        self.location.offset
            + u64::from(self.location.header_bytes)
            + u64::from(layer) * self.layer_stride_bytes()
            + u64::from(block) * u64::from(self.layout.slice_bytes())
    }
}
