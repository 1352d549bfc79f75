//! The bytes of a block that the store itself holds.

use std::sync::Arc;

use dalsegno_io::Memory;

use super::arena::PlacedBlock;

/// A block on its way to the log.
#[derive(Debug)]
pub(crate) enum HeldBlock {
    /// In its place in DRAM.
    Placed(Arc<PlacedBlock>),
    /// In other memory.
    Elsewhere(Memory),
}

impl HeldBlock {
    /// A copy of bytes in any pieces.
    pub(crate) fn copy_of(pieces: &[Memory]) -> Self {
        let bytes = pieces.iter().flat_map(Memory::as_slice).copied().collect();
        Self::Elsewhere(Memory::owned(bytes, ()))
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Placed(block) => block.len(),
            Self::Elsewhere(memory) => memory.len(),
        }
    }
}
