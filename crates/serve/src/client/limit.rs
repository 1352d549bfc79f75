//! How long a call may take, and why it has no answer.

use std::time::Duration;

use dalsegno_core::{Clock, Deadline, Nanos, Stopped};
use dalsegno_store::{Cancel, Cause};

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The server is gone, or does not respond.
    Away,
    /// The call ended early, or there is no memory for the bytes of a put.
    Stopped(Stopped),
    /// The server has no connection for this client.
    Refused,
    /// The connection ended before the reply.
    Ended,
}

impl Lost {
    pub(super) fn cause(self) -> Cause {
        match self {
            Self::Away | Self::Ended => Cause::Suspended,
            Self::Stopped(stopped) => stopped.into(),
            Self::Refused => Cause::Throttled,
        }
    }
}

impl From<Stopped> for Lost {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}

/// How long a call may take.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    pub(super) deadline: Deadline,
    pub(super) cancel: Option<Cancel>,
}

impl Limit {
    /// The end of a call that begins at `now` and may take `timeout`.
    pub(super) fn within(timeout: Duration, now: Nanos) -> Self {
        Self { deadline: Deadline::At(now.after(timeout)), cancel: None }
    }

    /// The time that is left; `None` without a deadline.
    ///
    /// # Errors
    ///
    /// [`Stopped::Deadline`] if none is.
    pub(super) fn left(&self, clock: &dyn Clock) -> Result<Option<Duration>, Stopped> {
        let now = clock.now();
        if self.deadline.expired(now) {
            return Err(Stopped::Deadline);
        }
        Ok(self.deadline.remaining(now))
    }

    /// Fails once the call has ended: its deadline passed, or it was cancelled.
    ///
    /// # Errors
    ///
    /// [`Stopped::Deadline`] or [`Stopped::Cancelled`].
    pub(super) fn check(&self, clock: &dyn Clock) -> Result<(), Stopped> {
        if self.cancel.as_ref().is_some_and(Cancel::is_cancelled) {
            return Err(Stopped::Cancelled);
        }
        self.left(clock).map(drop)
    }
}

/// A timeout as messages have it.
pub(super) fn timeout_ns(timeout: Option<Duration>) -> Option<u64> {
    timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
}
