//! What runs in the background of an open store, and its end.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Deadline};
use dalsegno_io::JobLane;

use crate::blocks::indexed_log::IndexedLog;
use crate::far_work::lanes::FarLanes;
use crate::rewrite::space::SpaceLane;
use crate::upkeep::merger::Merger;
use crate::upkeep::scrubber::Scrubber;

/// The threads of a store.
#[derive(Debug)]
pub(crate) struct Workers {
    pub(crate) merger: Arc<Merger>,
    pub(crate) scrubber: Scrubber,
    /// Records removals and namespaces. Closed before the space lane, because a removal asks for space.
    pub(crate) records: Arc<JobLane>,
    pub(crate) space: Arc<SpaceLane>,
    pub(crate) far: Option<FarLanes>,
    /// The last to be closed.
    pub(crate) stored: Arc<IndexedLog>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Workers {
    /// Ends merging, scrubbing and the far tier.
    pub(crate) fn close_periodic_work(&self, deadline: Deadline) {
        if let Some(far) = &self.far {
            far.close(self.left(deadline));
        }
        self.merger.close(self.left(deadline));
        self.scrubber.close(self.left(deadline));
    }

    /// Ends the lanes, after they wrote the list of segments.
    pub(crate) fn close_lanes(&self, deadline: Deadline) {
        self.space.list_segments(deadline);
        self.records.close();
        self.records.join(self.left(deadline));
        self.space.close(deadline);
    }

    /// Flushes the index, and stops all writing.
    pub(crate) fn close_log(&self) {
        self.stored.care.close();
        self.stored.log.close();
    }

    fn left(&self, deadline: Deadline) -> Duration {
        deadline.remaining(self.clock.now()).unwrap_or_default()
    }
}
