//! One direction of a device, and the watch on each of its requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{Clock, Nanos};
use dalsegno_io::{DirectoryLock, IoError, Operation, Request, Watch};
use dalsegno_policy::breaker::{Breaker, BreakerRules, RequestKind, Response, Verdict};
use parking_lot::Mutex;

use super::guarded::Admission;

/// Reads, or writes and syncs.
#[derive(Debug)]
pub(super) struct WatchedDirection {
    what: &'static str,
    breaker: Mutex<Breaker>,
    clock: Arc<dyn Clock>,
    refused: AtomicU64,
    /// Of writes (invariant 4); `None` where there is nothing to lock.
    _lock: Option<DirectoryLock>,
}

/// Reports to a direction how a request ended.
#[derive(Debug)]
pub(super) struct DirectionWatch {
    pub(super) side: Arc<WatchedDirection>,
    kind: RequestKind,
}

impl WatchedDirection {
    /// A watch for each kind of request.
    pub(super) fn watches(
        what: &'static str,
        rules: BreakerRules,
        clock: &Arc<dyn Clock>,
        lock: Option<DirectoryLock>,
    ) -> [Arc<DirectionWatch>; 2] {
        let (breaker, clock) = (Mutex::new(Breaker::new(rules)), Arc::clone(clock));
        let refused = AtomicU64::new(0);
        let side = Arc::new(Self { what, breaker, clock, refused, _lock: lock });
        [RequestKind::Regular, RequestKind::Trial]
            .map(|kind| Arc::new(DirectionWatch { side: Arc::clone(&side), kind }))
    }

    /// Completes a request that is not sent.
    fn refuse(&self, request: Request) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        request.complete(Err(IoError::Suspended));
    }

    /// How many requests were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Lets `update` use the breaker, and logs if that suspends the device.
    pub(super) fn with<R>(&self, update: impl FnOnce(&mut Breaker, Nanos) -> R) -> R {
        let now = self.clock.now();
        let mut breaker = self.breaker.lock();
        let before = breaker.suspensions();
        let answer = update(&mut breaker, now);
        let is_new = breaker.suspensions() > before;
        drop(breaker);
        if is_new {
            tracing::warn!(
                direction = self.what,
                "device suspended; a trial request checks it periodically"
            );
        }
        answer
    }
}

impl DirectionWatch {
    /// Whether a request may be sent, and how; if not, it is completed with an error. `tries_alone` is asked about a
    /// trial: whether it was made with this watch and without the request, which is refused then.
    pub(super) fn admit(
        watches: &[Arc<Self>; 2],
        mut request: Request,
        tries_alone: impl FnOnce(&Request, &Arc<dyn Watch>) -> bool,
    ) -> Option<(Request, Admission)> {
        if !is_refusable(&request) {
            return Some((request, Admission::Regular));
        }
        let [usual, trial] = watches;
        let verdict = usual.side.with(|breaker, now| {
            let verdict = breaker.admit(now);
            if verdict == Verdict::Trial {
                breaker.begin(now, trial.kind);
            }
            verdict
        });
        let watch = Arc::clone(trial) as Arc<dyn Watch>;
        match verdict {
            Verdict::Admit => Some((request, Admission::Regular)),
            Verdict::Trial if !tries_alone(&request, &watch) => {
                request.add_watch(watch);
                Some((request, Admission::Trial))
            }
            Verdict::Trial | Verdict::Refuse => {
                usual.side.refuse(request);
                None
            }
        }
    }

    /// Watches a request that is sent now.
    pub(super) fn begin(self: &Arc<Self>, request: &mut Request) {
        self.side.with(|breaker, now| breaker.begin(now, self.kind));
        request.add_watch(Arc::clone(self) as Arc<dyn Watch>);
    }
}

/// Whether a request may be refused while its direction is suspended.
fn is_refusable(request: &Request) -> bool {
    request.operation != Operation::Sync
        && request.purpose.is_refusable
        && request.deadline.is_bounded()
}

impl Watch for DirectionWatch {
    fn ended(&self, result: Result<(), &IoError>) {
        let response = match result {
            // A short read says that the file ends there.
            Ok(()) | Err(IoError::Short { operation: "read", .. }) => Response::Good,
            Err(IoError::Stopped(_) | IoError::Closed | IoError::Suspended) => Response::NotSent,
            // It was closed while the request waited for its turn.
            Err(error) if error.is_closed_file() => Response::NotSent,
            Err(error) if error.is_no_space() || error.is_not_found() || error.is_exists() => {
                Response::Good
            }
            Err(IoError::Os { .. } | IoError::Short { .. }) => Response::Bad,
        };
        let ended = self.side.with(|breaker, now| breaker.end(now, self.kind, response));
        if let Some(suspended) = ended {
            tracing::warn!(
                direction = self.side.what,
                seconds = suspended.as_secs_f64(),
                "device resumed"
            );
        }
    }
}
