//! What a get wants of each block.

use dalsegno_extent::{BlockRead, BlockTarget};
use dalsegno_io::Memory;

/// What the caller wants of a block.
pub(super) enum Wanted {
    /// Its bytes in the caller's memory.
    Copy(Vec<Memory>),
    /// The block in its place in DRAM.
    Lease,
    /// One of these. The log could not return the block, and gave its memory back.
    Again(BlockTarget),
}

impl Wanted {
    /// The block once more, if all of its memory of `bytes` came back.
    pub(super) fn again(read: BlockRead, bytes: usize, outlives_call: bool) -> Option<Self> {
        let BlockRead { memory, copy, .. } = read;
        let is_whole = memory.iter().map(Memory::len).sum::<usize>() == bytes;
        is_whole.then(|| Self::Again(BlockTarget { block: 0, memory, outlives_call, copy }))
    }
}
