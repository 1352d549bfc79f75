//! An extent before it has a place.

use dalsegno_core::{ChainHash, KvLayout, NamespaceId, StoreId};

use super::place::RecordPlace;
use super::record::{RecordHeader, RecordKind, record_header_bytes};
use super::units::Units;

/// An extent to be written.
#[derive(Clone, Debug)]
pub struct NewExtent {
    /// The namespace whose readers find it.
    pub namespace: NamespaceId,
    /// See [`Extent::lineage`](dalsegno_core::Extent::lineage).
    pub lineage: ChainHash,
    /// See [`Extent::first_block_index`](dalsegno_core::Extent::first_block_index).
    pub first_block_index: u32,
    /// See [`Extent::parent`](dalsegno_core::Extent::parent).
    pub parent: ChainHash,
    /// Shape of the blocks.
    pub layout: KvLayout,
    /// Names of the blocks.
    pub hashes: Vec<ChainHash>,
    /// Set if the bytes are copied from other extents: see [`Extent::born`](dalsegno_core::Extent::born).
    pub born: Option<u64>,
}

impl NewExtent {
    /// Number of blocks.
    #[must_use]
    pub fn block_count(&self) -> u32 {
        u32::try_from(self.hashes.len()).expect("bounded by MAX_EXTENT_BLOCKS")
    }

    /// Bytes of the header of the plain extent.
    #[must_use]
    pub fn header_bytes(&self) -> u32 {
        record_header_bytes(self.block_count(), self.layout.layers())
    }

    /// Bytes of header and payload of the plain extent.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.header_bytes()) + self.layout.payload_bytes(self.block_count())
    }

    /// The header of the extent at its place.
    #[must_use]
    pub fn header(
        &self,
        store: StoreId,
        place: RecordPlace,
        sequence: u64,
        slice_crcs: Vec<u32>,
        units: Option<Units>,
    ) -> RecordHeader {
        let kind = RecordKind::Extent { layout: self.layout, slice_crcs, units };
        RecordHeader {
            born: self.born.unwrap_or(sequence),
            namespace: self.namespace,
            lineage: self.lineage,
            parent: self.parent,
            first_block_index: self.first_block_index,
            hashes: self.hashes.clone(),
            ..place.bare_header(store, sequence, kind)
        }
    }
}
