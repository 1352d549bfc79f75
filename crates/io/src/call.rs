//! How long one call may take: its deadline, and how it is cancelled.
//!
//! Callers give a relative timeout. It becomes the deadline of a call by the clock of a store or of a client. A request
//! to a device or to a tier, and a lookup in the index, carry the deadline alone, because nothing cancels them.
//!
//! 1. A call that is over waits for nothing more, except that a cancelled one waits for a lookup in the index, which
//!    ends with its deadline. Requests in flight complete unseen.
//! 2. A wait that can be cancelled checks that at least every [`CANCEL_POLL`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use dalsegno_core::{Class, Clock, Deadline, Stopped};

use crate::error::IoError;
use crate::request::Purpose;

/// How often a wait checks whether its call was cancelled.
pub const CANCEL_POLL: Duration = Duration::from_millis(10);

/// Cancels a call from another thread.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Cancels the call. Requests in flight complete unseen.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the call was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What holds for one call, whatever it waits for.
#[derive(Clone, Debug)]
pub struct Call {
    /// What its requests are for.
    pub purpose: Purpose,
    /// When the call ends.
    pub deadline: Deadline,
    /// Ends the call early; `None` if nothing may.
    pub cancel: Option<Cancel>,
}

impl Call {
    /// Without a deadline, and not refusable.
    #[must_use]
    pub fn of(class: Class) -> Self {
        Self { purpose: Purpose::of(class), deadline: Deadline::Never, cancel: None }
    }

    /// Sets the deadline.
    #[must_use]
    pub fn until(mut self, deadline: Deadline) -> Self {
        self.deadline = deadline;
        self
    }

    /// The call's deadline, or `limit` from now if that is earlier.
    #[must_use]
    pub fn at_most(&self, limit: Duration, clock: &dyn Clock) -> Deadline {
        let ours = clock.now().after(limit);
        match self.deadline {
            Deadline::At(theirs) => Deadline::At(theirs.min(ours)),
            Deadline::Never => Deadline::At(ours),
        }
    }

    /// Whether requests must use staging buffers, because they may outlast the call and its memory.
    #[must_use]
    pub fn must_stage(&self) -> bool {
        self.deadline.is_bounded()
    }

    /// Whether the call was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }

    /// The time that is left; `None` without a deadline.
    ///
    /// # Errors
    ///
    /// [`Stopped::Deadline`] if none is.
    pub fn left(&self, clock: &dyn Clock) -> Result<Option<Duration>, Stopped> {
        match self.deadline.remaining(clock.now()) {
            Some(left) if left.is_zero() => Err(Stopped::Deadline),
            left => Ok(left),
        }
    }

    /// Fails once the call is over.
    ///
    /// # Errors
    ///
    /// [`Stopped::Cancelled`] or [`Stopped::Deadline`].
    pub fn check(&self, clock: &dyn Clock) -> Result<(), Stopped> {
        self.timeout(clock).map(drop)
    }

    /// How long to wait before calling this again; `None` if a wait needs no timeout.
    ///
    /// # Errors
    ///
    /// As [`Call::check`].
    pub fn timeout(&self, clock: &dyn Clock) -> Result<Option<Duration>, Stopped> {
        if self.is_cancelled() {
            return Err(Stopped::Cancelled);
        }
        let left = self.left(clock)?;
        let poll = self.cancel.as_ref().map(|_| CANCEL_POLL);
        Ok(left.into_iter().chain(poll).min())
    }

    /// Receives one value, at the latest when the call ends. A value that has already arrived counts even then.
    ///
    /// # Errors
    ///
    /// As [`Call::check`]; [`IoError::Closed`] if the sender is gone.
    pub fn receive<T>(&self, values: &Receiver<T>, clock: &dyn Clock) -> Result<T, IoError> {
        loop {
            if let Ok(value) = values.try_recv() {
                return Ok(value);
            }
            let received = match self.timeout(clock)? {
                None => values.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(timeout) => values.recv_timeout(timeout),
            };
            match received {
                Ok(value) => return Ok(value),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(IoError::Closed),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_core::ManualClock;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn within(time: Duration, clock: &ManualClock) -> Call {
        Call::of(Class::Need).until(Deadline::At(clock.now().after(time)))
    }

    #[test]
    fn a_call_ends_at_its_deadline_or_when_it_is_cancelled() {
        let clock = ManualClock::default();
        let cancel = Cancel::default();
        let call = Call { cancel: Some(cancel.clone()), ..within(SECOND, &clock) };
        assert_eq!(call.left(&clock), Ok(Some(SECOND)));
        assert_eq!(call.timeout(&clock), Ok(Some(CANCEL_POLL)));
        clock.advance(SECOND);
        assert_eq!(call.check(&clock), Err(Stopped::Deadline));
        cancel.cancel();
        assert_eq!(call.check(&clock), Err(Stopped::Cancelled));
        assert_eq!(Call::of(Class::Upkeep).timeout(&clock), Ok(None));
    }

    #[test]
    fn a_value_that_has_arrived_counts_after_the_end_of_the_call() {
        let clock = ManualClock::default();
        let over = within(Duration::ZERO, &clock);
        let (sender, values) = crossbeam_channel::bounded(1);
        sender.send(7).unwrap();
        assert!(matches!(over.receive(&values, &clock), Ok(7)));
        let late = over.receive(&values, &clock);
        assert!(matches!(late, Err(IoError::Stopped(Stopped::Deadline))));
        drop(sender);
        let gone = Call::of(Class::Upkeep).receive(&values, &clock);
        assert!(matches!(gone, Err(IoError::Closed)));
    }
}
