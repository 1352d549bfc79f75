//! How the blocks of a get ended.

use dalsegno_extent::Cause;

use crate::counters::{Counters, add};

/// How a wanted block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Served from DRAM.
    Dram,
    /// Served from the log.
    Log,
    /// Served from the far tier.
    Far,
    /// Not stored, or behind the first miss of a prefix.
    Absent,
    /// Stored, but it could not be read. The counter of the cause's name says how often.
    Lost(Cause),
}

impl Outcome {
    /// Whether the bytes are in the caller's memory.
    #[must_use]
    pub fn is_hit(self) -> bool {
        matches!(self, Self::Dram | Self::Log | Self::Far)
    }

    /// Whether the block is stored and could not be read.
    #[must_use]
    pub fn is_lost(self) -> bool {
        matches!(self, Self::Lost(_))
    }
}

/// How each block of a get ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetReport {
    /// One per block, in order.
    pub outcomes: Vec<Outcome>,
}

impl GetReport {
    /// How many leading blocks are hits.
    #[must_use]
    pub fn leading_blocks(&self) -> usize {
        self.outcomes.iter().take_while(|outcome| outcome.is_hit()).count()
    }

    /// How many blocks are hits.
    #[must_use]
    pub fn hit_blocks(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.is_hit()).count()
    }
}

/// Counts a get of blocks of `bytes` bytes.
pub(super) fn count(counters: &Counters, report: &GetReport, bytes: u64) {
    let count = |wanted: &dyn Fn(&Outcome) -> bool| {
        report.outcomes.iter().filter(|outcome| wanted(outcome)).count() as u64
    };
    let [dram, log, far] =
        [Outcome::Dram, Outcome::Log, Outcome::Far].map(|tier| count(&|o| *o == tier));
    add(&counters.get_calls, 1);
    add(&counters.get_dram_blocks, dram);
    add(&counters.get_log_blocks, log);
    add(&counters.get_far_blocks, far);
    let hits = dram + log + far;
    add(&counters.get_missed_blocks, report.outcomes.len() as u64 - hits);
    add(&counters.get_bytes, hits * bytes);
}
