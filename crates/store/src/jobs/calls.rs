//! Jobs that a call waits for within its terms. What it leaves behind is still done.

use dalsegno_core::{Clock, Stopped};
use dalsegno_io::{Call, IoError, JobLane, JobPlace};
use dalsegno_log::LogError;

/// How a job ended.
pub(crate) type Answer<T = ()> = Result<T, LogError>;

/// Runs `work` in a lane and waits for its answer within the terms of `call`.
///
/// # Errors
///
/// The error of the work. [`Stopped::Deadline`] or [`Stopped::Cancelled`] if the call is over first: then the work
/// goes on, unless it found no place in the queue and is dropped.
pub(crate) fn run_blocking<T: Send + 'static>(
    lane: &JobLane,
    call: &Call,
    clock: &dyn Clock,
    work: impl FnOnce() -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let answer = keep_place(lane, call, clock)?.ask(work);
    call.receive(&answer, clock)?
}

/// Keeps a place in the queue of a lane; waits for it within the terms of `call`.
///
/// # Errors
///
/// [`Stopped::Deadline`] or [`Stopped::Cancelled`] if the call is over first, [`IoError::Closed`] if the lane is
/// closed.
pub(crate) fn keep_place<'a>(
    lane: &'a JobLane,
    call: &Call,
    clock: &dyn Clock,
) -> Result<JobPlace<'a>, LogError> {
    loop {
        match lane.keep_place(call.timeout(clock)?) {
            Err(IoError::Stopped(Stopped::Busy)) => {}
            kept => return Ok(kept?),
        }
    }
}
