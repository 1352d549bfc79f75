//! Watches the reads of a far location, and refuses them while it hangs or fails.

use std::sync::Arc;

use dalsegno_core::Clock;
use dalsegno_io::{Geometry, IoError, Request, Source};

use crate::device::WatchedReads;

/// A source that gets requests only as long as it responds.
#[derive(Debug)]
pub(super) struct WatchedSource {
    source: Arc<dyn Source>,
    reads: WatchedReads,
}

impl WatchedSource {
    pub(super) fn new(source: Arc<dyn Source>, clock: &Arc<dyn Clock>) -> Self {
        Self { source, reads: WatchedReads::new("reads of the far tier", clock) }
    }

    /// Whether reads are refused now.
    pub(super) fn is_suspended(&self) -> bool {
        self.reads.is_suspended()
    }

    /// How often reads were suspended, and how many were refused.
    pub(super) fn counts(&self) -> (u64, u64) {
        self.reads.counts()
    }

    /// Notes how a call of the location ended that was not a read of blocks.
    pub(super) fn note(&self, result: Result<(), &IoError>) {
        self.reads.note(result);
    }
}

impl Source for WatchedSource {
    fn submit(&self, requests: Vec<Request>) {
        let admitted: Vec<_> =
            requests.into_iter().filter_map(|request| self.reads.admit(request)).collect();
        if !admitted.is_empty() {
            self.source.submit(admitted);
        }
    }

    fn geometry(&self) -> Geometry {
        self.source.geometry()
    }
}
