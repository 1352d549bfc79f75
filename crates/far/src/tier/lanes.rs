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

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, bounded};
    use dalsegno_core::Nanos;
    use dalsegno_io::{SystemClock, Workers};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn small() -> TierLanes {
        TierLanes::start(2, 2, Arc::new(SystemClock::new())).unwrap()
    }

    /// Queues a call that hangs until the test drops the other end of `held`; waits until it runs.
    fn hang(lanes: &TierLanes, lane: &JobLane, held: &Receiver<()>) {
        let (held, (start, started)) = (held.clone(), bounded(1));
        lanes.queue(lane, Deadline::Never, move |permission| {
            start.send(permission.is_ok()).unwrap();
            assert!(held.recv().is_err());
        });
        assert!(started.recv_timeout(LIMIT).unwrap());
    }

    /// Queues a call that reports whether it may run.
    fn report(
        lanes: &TierLanes,
        lane: &JobLane,
        deadline: Deadline,
    ) -> Receiver<Result<(), IoError>> {
        let (reply, result) = bounded(1);
        lanes.queue(lane, deadline, move |permission| reply.send(permission).unwrap());
        result
    }

    #[test]
    fn writes_that_hang_leave_all_threads_to_reads_and_reads_to_writes() {
        let lanes = small();
        for (hanging, other) in [(&lanes.others, &lanes.reads), (&lanes.reads, &lanes.others)] {
            let (release, held) = bounded(0);
            for lane in [hanging, hanging, other] {
                hang(&lanes, lane, &held);
            }
            let queued = report(&lanes, hanging, Deadline::Never);
            let result = report(&lanes, other, Deadline::Never);
            assert!(result.recv_timeout(LIMIT).unwrap().is_ok());
            assert!(queued.try_recv().is_err());
            drop(release);
            assert!(queued.recv_timeout(LIMIT).unwrap().is_ok());
        }
    }

    #[test]
    fn a_call_that_is_late_or_refused_or_queued_at_the_end_gets_the_reason() {
        let lanes = small();
        let late = report(&lanes, &lanes.reads, Deadline::At(Nanos::default()));
        assert!(matches!(
            late.recv_timeout(LIMIT).unwrap(),
            Err(IoError::Stopped(Stopped::Deadline))
        ));
        let (release, held) = bounded(0);
        (0..2).for_each(|_| hang(&lanes, &lanes.others, &held));
        let queued = [(); 2].map(|()| report(&lanes, &lanes.others, Deadline::Never));
        let refused = report(&lanes, &lanes.others, Deadline::Never);
        assert!(matches!(refused.try_recv().unwrap(), Err(IoError::Stopped(Stopped::Busy))));
        let mut workers = Workers::new();
        workers.start("drops", move || drop(lanes)).unwrap();
        for result in queued {
            assert!(matches!(result.recv_timeout(LIMIT).unwrap(), Err(IoError::Closed)));
        }
        drop(release);
        workers.join(LIMIT);
    }
}
