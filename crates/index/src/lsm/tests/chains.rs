//! Chains of blocks, and an index for them.

use std::sync::Arc;

use dalsegno_core::{
    ChainHash, Deadline, Extent, ExtentId, KvLayout, Location, ManualClock, NamespaceId, Shape,
};
use dalsegno_policy::recency::Use;

use super::STORE;
use super::files::MemoryFiles;
use crate::Index;
use crate::lsm::files::table_files::TableFiles;
use crate::lsm::index::on_disk::{IndexParts, LsmIndex};
use crate::lsm::maintenance::steps::TreeBounds;
use crate::lsm::version::levels::Version;

pub(super) const NAMESPACE: NamespaceId = NamespaceId([1; 16]);

pub(super) fn hash(block: u64) -> ChainHash {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&block.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    bytes[24..].copy_from_slice(&block.to_be_bytes());
    ChainHash(bytes)
}

/// An index with so many bytes of disk and small tables.
pub(super) fn index_in(files: &Arc<MemoryFiles>, disk_bytes: u64) -> Arc<LsmIndex> {
    let bounds = TreeBounds {
        memtable_bytes: 1 << 20,
        table_bytes: 16 << 10,
        filter_bits: 10.0,
        disk_bytes,
    };
    Arc::new(empty_index(files, Shape::nearest(4, 1, 1), bounds))
}

/// An index without entries and without a cache.
pub(super) fn empty_index(files: &Arc<MemoryFiles>, shape: Shape, bounds: TreeBounds) -> LsmIndex {
    let files: Arc<dyn TableFiles> = Arc::<MemoryFiles>::clone(files);
    let version = Version::default();
    let clock = Arc::new(ManualClock::default());
    let parts = IndexParts { files, clock, store: STORE, shape, version, next_number: 1 };
    LsmIndex::new(parts, bounds, 0, <[u8]>::to_vec)
}

/// Puts an extent of a chain: at most `count` blocks from `first` on.
pub(super) fn put(index: &LsmIndex, number: u64, chain: &[ChainHash], first: usize, count: usize) {
    let hashes: Vec<_> = chain[first..].iter().copied().take(count).collect();
    let parent = first.checked_sub(1).map_or(ChainHash::default(), |parent| chain[parent]);
    insert(index, number, (chain[0], u32::try_from(first).unwrap()), parent, hashes);
}

/// Puts an extent that forks off the end of a chain.
pub(super) fn put_fork(index: &LsmIndex, number: u64, chain: &[ChainHash], child: ChainHash) {
    let first = u32::try_from(chain.len()).unwrap();
    insert(index, number, (child, first), chain[chain.len() - 1], vec![child]);
}

fn insert(
    index: &LsmIndex,
    number: u64,
    (lineage, first_block_index): (ChainHash, u32),
    parent: ChainHash,
    hashes: Vec<ChainHash>,
) {
    let put = u32::try_from(hashes.len()).unwrap();
    let extent = Extent {
        id: ExtentId(number),
        born: number,
        namespace: NAMESPACE,
        lineage,
        first_block_index,
        parent,
        layout: KvLayout::new(1, 4096).unwrap(),
        location: Location {
            segment: 1,
            epoch: 1,
            offset: 4096,
            header_bytes: 4096,
            compressed_bytes: 0,
        },
        hashes,
    };
    assert_eq!(index.insert(extent, Use::written(number), &|_| true, Deadline::Never), put);
}
