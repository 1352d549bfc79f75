//! Chains of blocks for an index.

use dalsegno_core::{ChainHash, Extent, ExtentId, KvLayout, Location, NamespaceId};

use crate::Index;
use crate::lsm::index::LsmIndex;

pub(super) const NAMESPACE: NamespaceId = NamespaceId([1; 16]);

pub(super) fn hash(block: u64) -> ChainHash {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&block.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    bytes[24..].copy_from_slice(&block.to_be_bytes());
    ChainHash(bytes)
}

/// Puts an extent of a chain, from a block on: so many blocks, or all that are left.
pub(super) fn put(index: &LsmIndex, number: u64, chain: &[ChainHash], first: usize, count: usize) {
    let hashes: Vec<_> = chain[first..].iter().copied().take(count).collect();
    let (first_block_index, put) =
        (u32::try_from(first).unwrap(), u32::try_from(hashes.len()).unwrap());
    let extent = Extent {
        id: ExtentId(number),
        born: number,
        namespace: NAMESPACE,
        lineage: chain[0],
        first_block_index,
        parent: first.checked_sub(1).map_or(ChainHash::default(), |parent| chain[parent]),
        layout: KvLayout::new(1, 4096).unwrap(),
        location: Location {
            segment: 1,
            epoch: 1,
            offset: 4096,
            header_bytes: 4096,
            coded_bytes: 0,
        },
        hashes,
    };
    assert_eq!(index.insert(extent, &|_| true), put);
}
