//! Names and places of blocks, as the index keeps them.

use dalsegno_core::{ChainHash, NamespaceId};

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FarPlace {
    /// The pack's number in this index, which no other pack ever has.
    pub pack: u32,
    /// The record in the pack.
    pub record: u16,
    /// The block in the record.
    pub block: u16,
}

impl FarPlace {
    pub(super) fn encode(self) -> u64 {
        u64::from(self.pack) << 32 | u64::from(self.record) << 16 | u64::from(self.block)
    }

    pub(super) fn decode(place: u64) -> Self {
        let [p3, p2, p1, p0, r1, r0, b1, b0] = place.to_be_bytes();
        Self {
            pack: u32::from_be_bytes([p3, p2, p1, p0]),
            record: u16::from_be_bytes([r1, r0]),
            block: u16::from_be_bytes([b1, b0]),
        }
    }
}

/// 64 bits of the name of a block.
pub(super) fn name_of(namespace: NamespaceId, hash: &ChainHash) -> u64 {
    let mut name = [0; NamespaceId::BYTES + ChainHash::BYTES];
    name[..NamespaceId::BYTES].copy_from_slice(&namespace.0);
    name[NamespaceId::BYTES..].copy_from_slice(&hash.0);
    xxhash_rust::xxh3::xxh3_64(&name)
}
