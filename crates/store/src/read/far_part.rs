//! The blocks of a get that are read from the far location, while others are read from the log.

use dalsegno_far::{FarReading, FarWanted};
use dalsegno_log::BlockRead;

use crate::far::tier::FarBlock;

/// Blocks that are being read from the far location.
pub(super) struct FarPart<'a> {
    blocks: Vec<FarBlock>,
    reading: FarReading<'a>,
}

impl<'a> FarPart<'a> {
    /// Sends the first requests. `begin` plans the read of the blocks.
    pub(super) fn begin(
        blocks: Vec<FarBlock>,
        wanted: Vec<FarWanted>,
        begin: impl FnOnce(Vec<FarWanted>) -> FarReading<'a>,
    ) -> Self {
        let mut part = Self { blocks, reading: begin(wanted) };
        part.advance();
        part
    }

    /// Takes what has arrived, and sends further requests; returns whether more is to come. Does not wait.
    pub(super) fn advance(&mut self) -> bool {
        !self.reading.advance()
    }

    /// Waits for all blocks.
    pub(super) fn finish(self) -> impl Iterator<Item = (FarBlock, BlockRead)> {
        self.blocks.into_iter().zip(self.reading.finish())
    }
}
