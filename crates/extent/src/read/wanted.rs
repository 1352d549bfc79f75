//! What a read wants: records, their blocks, and memory for them.

use std::ops::Range;
use std::sync::Arc;

use dalsegno_core::{ChainHash, Extent, KvLayout, NamespaceId, StoreId};
use dalsegno_io::{FileId, Memory};

use super::header_cache::HeaderName;
use crate::error::Cause;
use crate::format::RecordPlace;
use crate::transfer::PinnedFile;

/// The part of one extent to read.
#[derive(Debug)]
pub struct ExtentRead {
    /// The extent.
    pub extent: Arc<Extent>,
    /// The wanted layers.
    pub layers: Range<u32>,
    /// The wanted blocks, in ascending order, each once.
    pub targets: Vec<BlockTarget>,
}

/// The part of one record to read.
#[derive(Debug)]
pub struct RecordRead {
    /// The store that wrote it.
    pub store: StoreId,
    /// What its header must say.
    pub record: WantedRecord,
    /// The file; `None` if it was recycled, and the blocks are lost.
    pub pinned: Option<PinnedFile>,
    /// The wanted layers.
    pub layers: Range<u32>,
    /// The wanted blocks, in ascending order, each once.
    pub targets: Vec<BlockTarget>,
}

/// A record, as its reader knows it before it has the header.
#[derive(Clone, Debug)]
pub enum WantedRecord {
    /// This very extent.
    Extent(Arc<Extent>),
    /// Any extent at this place that has the wanted blocks.
    Placed(PlacedRecord),
}

/// The place of a record, and what the reader expects there.
#[derive(Clone, Debug)]
pub struct PlacedRecord {
    /// The place. Its file never changes.
    pub place: RecordPlace,
    /// Bytes of the header, whole sectors.
    pub header_bytes: u32,
    /// The namespace of the blocks.
    pub namespace: NamespaceId,
    /// Its layout.
    pub layout: KvLayout,
    /// Its blocks, if its payload is not compressed: then the payload is read with the header, and not after it.
    pub plain_blocks: Option<u32>,
    /// The names of the wanted blocks, one for each target.
    pub hashes: Vec<ChainHash>,
}

/// Where the slices of a record are whose payload is not compressed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlainPayload {
    start: u64,
    blocks: u32,
    layout: KvLayout,
}

impl PlainPayload {
    /// That of an extent; `None` if it is compressed.
    pub(super) fn of(extent: &Extent) -> Option<Self> {
        let start = extent.location.offset + u64::from(extent.location.header_bytes);
        let plain = Self { start, blocks: extent.block_count(), layout: extent.layout };
        (!extent.is_compressed()).then_some(plain)
    }

    /// Blocks of the record.
    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Offset of a slice in the file.
    pub(super) fn slice_offset(&self, layer: u32, block: u32) -> u64 {
        assert!(layer < self.layout.layers() && block < self.blocks, "slice out of grid");
        self.start
            + u64::from(layer) * self.layout.layer_stride_bytes(self.blocks)
            + u64::from(block) * u64::from(self.layout.slice_bytes())
    }
}

/// One wanted block of a record.
#[derive(Debug)]
pub struct BlockTarget {
    /// The block's index in the extent.
    pub block: u32,
    /// The caller's own number of the block, for a [`SliceSink`](super::SliceSink).
    pub number: u32,
    /// Memory for the wanted layers, lowest layer first, in any number of pieces.
    pub memory: Vec<Memory>,
    /// Whether a request may use the memory after the call ended. If so, a deadline needs no staging buffer.
    pub outlives_call: bool,
    /// Memory that gets a copy of the bytes as they arrive, in any number of pieces; empty for none. No request uses
    /// it. Of a block that is no hit its contents are undefined.
    pub copy: Vec<Memory>,
}

/// How the read of a block ended.
pub type BlockOutcome = Result<(), Cause>;

/// A wanted block after the read.
#[derive(Debug)]
pub struct BlockRead {
    /// Whether the bytes are there and verified.
    pub outcome: BlockOutcome,
    /// The target's memory, in order: all of it for a hit, otherwise what came back. Less came back if a request has
    /// some of it.
    pub memory: Vec<Memory>,
    /// The target's memory for a copy.
    pub copy: Vec<Memory>,
    /// How many of its slices were verified, although the block may be no hit.
    pub verified_slices: u32,
}

/// Files with which a reader finds out whether a device reads at all.
pub trait TrialFiles: std::fmt::Debug + Send + Sync {
    /// A file of the device other than `file`, if there is one.
    fn other_file(&self, file: FileId) -> Option<FileId>;
}

impl ExtentRead {
    /// The same read of a record that `store` wrote to a file.
    #[must_use]
    pub fn in_file(self, store: StoreId, pinned: Option<PinnedFile>) -> RecordRead {
        let Self { extent, layers, targets } = self;
        RecordRead { store, record: WantedRecord::Extent(extent), pinned, layers, targets }
    }
}

impl WantedRecord {
    /// Offset of the header in its file.
    pub(super) fn offset(&self) -> u64 {
        match self {
            Self::Extent(extent) => extent.location.offset,
            Self::Placed(placed) => placed.place.offset,
        }
    }

    /// Bytes of the header.
    pub(super) fn header_bytes(&self) -> u32 {
        match self {
            Self::Extent(extent) => extent.location.header_bytes,
            Self::Placed(placed) => placed.header_bytes,
        }
    }

    /// Shape of the blocks.
    pub(super) fn layout(&self) -> KvLayout {
        match self {
            Self::Extent(extent) => extent.layout,
            Self::Placed(placed) => placed.layout,
        }
    }

    /// The extent, if it is known without its header.
    pub(super) fn extent(&self) -> Option<&Arc<Extent>> {
        match self {
            Self::Extent(extent) => Some(extent),
            Self::Placed(_) => None,
        }
    }

    /// Where its slices are, if that is known without its header.
    pub(super) fn plain_payload(&self) -> Option<PlainPayload> {
        match self {
            Self::Extent(extent) => PlainPayload::of(extent),
            Self::Placed(placed) => placed.plain_blocks.map(|blocks| PlainPayload {
                start: placed.place.offset + u64::from(placed.header_bytes),
                blocks,
                layout: placed.layout,
            }),
        }
    }

    /// The name of the header in the cache.
    pub(super) fn header_name(&self, file: FileId) -> HeaderName {
        match self {
            Self::Extent(extent) => HeaderName::Extent(extent.id),
            Self::Placed(placed) => HeaderName::Place(file, placed.place.offset),
        }
    }

    /// Whether a header that describes `found` is the one that is wanted. Whether it has the wanted blocks is checked
    /// for each block.
    pub(super) fn accepts(&self, found: &Extent) -> bool {
        match self {
            Self::Extent(extent) => **extent == *found,
            Self::Placed(placed) => {
                let PlacedRecord { place, header_bytes, namespace, layout, plain_blocks, .. } =
                    placed;
                let at = found.location;
                let found_blocks = (!found.is_compressed()).then(|| found.block_count());
                *place == RecordPlace { segment: at.segment, epoch: at.epoch, offset: at.offset }
                    && *header_bytes == at.header_bytes
                    && *namespace == found.namespace
                    && *layout == found.layout
                    && *plain_blocks == found_blocks
            }
        }
    }

    /// Whether the target `at` is block `block` of `found`.
    pub(super) fn names(&self, at: usize, block: u32, found: &Extent) -> bool {
        match self {
            Self::Extent(_) => true,
            Self::Placed(placed) => {
                found.hashes.get(block as usize).is_some_and(|hash| *hash == placed.hashes[at])
            }
        }
    }
}

impl BlockTarget {
    /// The block as one that is not read.
    #[must_use]
    pub fn lost(self, cause: Cause) -> BlockRead {
        BlockRead { outcome: Err(cause), memory: self.memory, copy: self.copy, verified_slices: 0 }
    }
}
