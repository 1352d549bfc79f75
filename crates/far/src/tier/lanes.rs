//! The threads on which a tier makes calls that may hang.
//!
//! 1. No call runs on the caller's thread. Reads have a lane of their own, so writes that hang leave all of its threads
//!    to reads.
//! 2. Every call gets one reply, even if it panics, is refused or is late.
//! 3. Dropping the lanes refuses what is queued, and waits a bounded time for calls in progress. One that hangs is left
//!    behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Deadline, Stopped};
use dalsegno_io::{Executor, IoError, JobLane};

use super::Ask;

/// How long dropping the lanes waits for calls in progress.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether a call may run; if not, why.
pub type Permission = Result<(), IoError>;

/// The lanes of a tier. Their threads are started on demand.
#[derive(Debug)]
pub struct TierLanes {
    reads: JobLane,
    others: JobLane,
    clock: Arc<dyn Clock>,
}

impl TierLanes {
    /// Starts them: in each, `workers` calls run at a time and `queue` wait. More are refused as busy. `clock` decides
    /// whether a deadline has passed.
    ///
    /// # Errors
    ///
    /// The system's own if it refuses a thread.
    ///
    /// # Panics
    ///
    /// If `workers` or `queue` is 0.
    pub fn start(workers: u32, queue: usize, clock: Arc<dyn Clock>) -> Result<Self, IoError> {
        let lane = || {
            JobLane::start("dalsegno-far", Executor::Threads, workers, queue).map_err(|source| {
                let file = "a thread for far locations".to_owned();
                IoError::Os { operation: "start", file, source }
            })
        };
        Ok(Self { reads: lane()?, others: lane()?, clock })
    }

    /// Queues the read of a part of an object, which an engine may wait for; never waits. `work` is called exactly
    /// once.
    pub fn read(&self, deadline: Deadline, work: impl FnOnce(Permission) + Send + 'static) {
        self.queue(&self.reads, deadline, work);
    }

    /// Queues something else that nobody waits for; as [`Self::read`].
    pub fn spawn(&self, work: impl FnOnce(Permission) + Send + 'static) {
        self.queue(&self.others, Deadline::Never, work);
    }

    /// Queues a call, and answers it; never waits. What `call` holds is dropped before the reply.
    pub fn answer<T: Send + 'static>(
        &self,
        ask: Ask<T>,
        call: impl FnOnce() -> Result<T, IoError> + Send + 'static,
    ) {
        self.queue(&self.others, ask.deadline, move |permission| {
            let result = match permission {
                Ok(()) => catch_unwind(AssertUnwindSafe(call))
                    .unwrap_or_else(|_| Err(IoError::panicked("call", "a far location"))),
                Err(error) => {
                    drop(call);
                    Err(error)
                }
            };
            ask.answer(result);
        });
    }

    fn queue(
        &self,
        lane: &JobLane,
        deadline: Deadline,
        work: impl FnOnce(Permission) + Send + 'static,
    ) {
        let place = match lane.keep_place(Some(Duration::ZERO)) {
            Ok(place) => place,
            Err(refused) => return work(Err(refused)),
        };
        let clock = Arc::clone(&self.clock);
        place.start(move |permission| {
            let is_late = deadline.is_bounded() && deadline.expired(clock.now());
            work(if is_late {
                permission.and(Err(IoError::Stopped(Stopped::Deadline)))
            } else {
                permission
            });
        });
    }
}

impl Drop for TierLanes {
    fn drop(&mut self) {
        let deadline = Deadline::At(self.clock.now().after(CLOSE_TIMEOUT));
        let lanes = [&self.reads, &self.others];
        for lane in lanes {
            lane.abort();
        }
        for lane in lanes {
            lane.join(deadline.remaining(self.clock.now()).unwrap_or_default());
        }
    }
}
