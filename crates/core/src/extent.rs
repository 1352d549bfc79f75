//! What the index knows of an extent, and where it lies.

use crate::{ChainHash, KvLayout, NamespaceId, SECTOR_BYTES};

/// Most blocks in one extent; together with [`MAX_EXTENT_SLICES`] it bounds a header to 256 KiB.
pub const MAX_EXTENT_BLOCKS: u32 = 4096;
/// Most slices (layers x blocks) in one extent.
pub const MAX_EXTENT_SLICES: u32 = 16_384;

/// No segment is nearly as long.
const MAX_OFFSET: u64 = 1 << 48;

/// The name of an extent while a store is open: its sequence number, unique and growing in the order of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentId(pub u64);

/// Where an extent lies in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// Number of the segment, never used again for another file.
    pub segment: u64,
    /// The segment's epoch at the time of writing.
    pub epoch: u64,
    /// First byte of the extent's header in the segment, a multiple of the sector.
    pub offset: u64,
    /// Bytes of the header, a multiple of the sector; the payload follows.
    pub header_bytes: u32,
    /// Bytes of the payload if it is compressed, a multiple of the sector; zero if it is plain.
    pub compressed_bytes: u64,
}

/// Consecutive blocks of one chain as they lie in the log, layer-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Sequence number of the write; names the extent.
    pub id: ExtentId,
    /// No removal up to this sequence number concerns the bytes. A put has its own number, a relocated extent the
    /// newest number when the store looked which blocks to copy, an extent made of several that of the newest.
    pub born: u64,
    /// Who may read it.
    pub namespace: NamespaceId,
    /// The run of the prefix tree that it belongs to, named by the hash of the run's first block.
    pub lineage: ChainHash,
    /// Position of its first block in the lineage's numbering.
    pub first_block_index: u32,
    /// The block before the first one, if the writer knew it; all zero otherwise.
    pub parent: ChainHash,
    /// Shape of the blocks.
    pub layout: KvLayout,
    /// Where it lies.
    pub location: Location,
    /// Names of the blocks, in order; never empty.
    pub hashes: Vec<ChainHash>,
}

impl Extent {
    /// Number of blocks.
    #[must_use]
    pub fn block_count(&self) -> u32 {
        u32::try_from(self.hashes.len()).expect("bounded by MAX_EXTENT_BLOCKS")
    }

    /// Bytes from the first byte of layer `l` to the first byte of layer `l + 1`: whole sectors, so that a layer can be
    /// read and written alone with direct I/O.
    #[must_use]
    pub fn layer_stride_bytes(&self) -> u64 {
        layer_stride_bytes(self.layout, self.block_count())
    }

    /// Whether it was put in another place before, or is made of others that were.
    #[must_use]
    pub fn is_moved(&self) -> bool {
        self.born != self.id.0
    }

    /// Whether its payload is compressed, so that only its header says where a layer lies.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        self.location.compressed_bytes > 0
    }

    /// Whether its place and its shape agree, as far as that can be told without its header: for whoever read this
    /// somewhere else than there.
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

    /// Bytes of the payload as it is stored.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        match self.location.compressed_bytes {
            0 => self.layer_stride_bytes() * u64::from(self.layout.layers()),
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
    /// If the slice lies outside of the grid, or the extent is compressed.
    #[must_use]
    pub fn slice_offset(&self, layer: u32, block: u32) -> u64 {
        assert!(!self.is_compressed(), "slices of a compressed extent have no place");
        assert!(layer < self.layout.layers() && block < self.block_count(), "slice out of grid");
        self.location.offset
            + u64::from(self.location.header_bytes)
            + u64::from(layer) * self.layer_stride_bytes()
            + u64::from(block) * u64::from(self.layout.slice_bytes())
    }
}

/// See [`Extent::layer_stride_bytes`].
pub(crate) fn layer_stride_bytes(layout: KvLayout, block_count: u32) -> u64 {
    crate::sector_up(u64::from(block_count) * u64::from(layout.slice_bytes()))
}

impl KvLayout {
    /// Bytes of the payload of an extent of `block_count` blocks.
    #[must_use]
    pub fn payload_bytes(self, block_count: u32) -> u64 {
        layer_stride_bytes(self, block_count) * u64::from(self.layers())
    }
}
