//! Blocks of a get that are being read: from the log, and from the far location meanwhile.

use std::time::Duration;

use dalsegno_extent::{BlockRead, BlocksRead, wait_for_all, wait_for_first};
use dalsegno_far::FarReading;
use dalsegno_index::Run;

use crate::far::tier::FarBlock;

/// Blocks that are being read from the log.
pub(super) struct LogRead<'a> {
    runs: Vec<Run>,
    reading: BlocksRead<'a>,
}

/// Blocks that are being read from the far location.
pub(super) struct FarRead<'a> {
    blocks: Vec<FarBlock>,
    reading: FarReading<'a>,
}

/// What a read returned.
pub(super) struct TierResults<T> {
    /// The blocks of each part that was read.
    pub(super) parts: Vec<T>,
    /// From the beginning to the last completion.
    pub(super) took: Duration,
}

impl<'a> LogRead<'a> {
    /// A read of some runs.
    pub(super) fn new(runs: Vec<Run>, reading: BlocksRead<'a>) -> Self {
        Self { runs, reading }
    }

    /// Waits for all blocks, while others are read from the far location.
    pub(super) fn finish(mut self, far: &mut [FarRead<'a>]) -> TierResults<(Run, Vec<BlockRead>)> {
        let mut reads = vec![&mut self.reading];
        reads.extend(far.iter_mut().map(|read| read.reading.as_read()));
        wait_for_first(&mut reads);
        let took = self.reading.took();
        let parts = self.runs.into_iter().zip(self.reading.finish()).collect();
        TierResults { parts, took }
    }
}

impl<'a> FarRead<'a> {
    /// Sends the first requests.
    pub(super) fn begin(blocks: Vec<FarBlock>, mut reading: FarReading<'a>) -> Self {
        reading.as_read().advance();
        Self { blocks, reading }
    }

    /// Waits for all blocks of several reads.
    pub(super) fn finish_all(
        mut reads: Vec<Self>,
    ) -> impl Iterator<Item = TierResults<(FarBlock, BlockRead)>> {
        wait_for_all(&mut reads.iter_mut().map(|read| read.reading.as_read()).collect::<Vec<_>>());
        reads.into_iter().map(|Self { blocks, reading }| {
            let took = reading.took();
            TierResults { parts: blocks.into_iter().zip(reading.finish()).collect(), took }
        })
    }
}
