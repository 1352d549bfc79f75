//! The log, with the index of what it holds.
//!
//! 1. The index refers only to extents that are in the log.
//! 2. It keeps the directory locked: the log holds the device, and the device holds the lock (`device`).

use std::sync::Arc;

use dalsegno_core::Deadline;
use dalsegno_index::{Index, Run, note_use};
use dalsegno_log::Log;

use crate::tuning::index_care::IndexCare;

/// A log and its index.
#[derive(Debug)]
pub(crate) struct IndexedLog {
    pub(crate) log: Log,
    pub(crate) index: Arc<dyn Index>,
    /// Maintains the index if it is on disk.
    pub(crate) care: IndexCare,
}

impl IndexedLog {
    /// Notes that blocks were used, with all that they depend on.
    pub(crate) fn note_use(&self, runs: &[Run], deadline: Deadline) {
        note_use(self.index.as_ref(), runs, self.log.segments().round(), deadline);
    }
}
