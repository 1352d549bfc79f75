//! A source that gets reads only as long as it responds.

use std::sync::Arc;

use dalsegno_core::Clock;
use dalsegno_io::{IoError, Request, Source, Watch};
use dalsegno_policy::breaker::{Breaker, BreakerRules, RequestKind};

use super::direction::{DirectionWatch, WatchedDirection};
use super::guarded::{Admission, Guarded};

/// A source that gets reads only as long as it responds. It has no file to try it with: requests of callers try it.
#[derive(Debug)]
pub(crate) struct WatchedSource {
    source: Arc<dyn Source>,
    reads: [Arc<DirectionWatch>; 2],
}

impl WatchedSource {
    pub(crate) fn new(source: Arc<dyn Source>, what: &'static str, clock: &Arc<dyn Clock>) -> Self {
        Self { source, reads: WatchedDirection::watches(what, BreakerRules::READS, clock, None) }
    }

    /// Whether reads are refused now.
    pub(crate) fn is_suspended(&self) -> bool {
        self.reads[0].side.with(Breaker::refuses)
    }

    /// Notes how something else ended that shows whether the source responds.
    pub(crate) fn note(&self, result: Result<(), &IoError>) {
        let [usual, _] = &self.reads;
        usual.side.with(|breaker, now| breaker.begin(now, RequestKind::Regular));
        usual.ended(result);
    }

    /// How often reads were suspended, and how many were refused.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let side = &self.reads[0].side;
        (side.with(|breaker, _| breaker.suspensions()), side.refused())
    }
}

impl Guarded for WatchedSource {
    fn admit(&self, request: Request) -> Option<(Request, Admission)> {
        DirectionWatch::admit(&self.reads, request, |_, _| false)
    }

    fn begin(&self, request: &mut Request) {
        self.reads[0].begin(request);
    }

    fn source(&self) -> &dyn Source {
        self.source.as_ref()
    }
}
