//! Where a record is written.

use dalsegno_core::{ChainHash, NamespaceId, StoreId};

use super::record::{RecordHeader, RecordKind};

/// A place for a record in a segment or a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// The segment's number.
    pub segment: u64,
    /// The segment's epoch.
    pub epoch: u64,
    /// The record's offset in the segment.
    pub offset: u64,
}

impl RecordPlace {
    /// Makes a header that of the same record here, in a file of `store`.
    pub fn move_here(self, store: StoreId, header: &mut RecordHeader) {
        header.store = store;
        (header.segment, header.epoch, header.offset) = (self.segment, self.epoch, self.offset);
    }

    /// The header of a record here that names no blocks.
    #[must_use]
    pub fn bare_header(self, store: StoreId, sequence: u64, kind: RecordKind) -> RecordHeader {
        RecordHeader {
            store,
            segment: self.segment,
            epoch: self.epoch,
            offset: self.offset,
            sequence,
            born: sequence,
            namespace: NamespaceId::default(),
            lineage: ChainHash::default(),
            parent: ChainHash::default(),
            first_block_index: 0,
            hashes: Vec::new(),
            kind,
        }
    }
}
