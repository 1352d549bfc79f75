//! How long a call may take, and why it has no answer.

use std::time::Duration;

use dalsegno_core::{Clock, Deadline, Nanos};
use dalsegno_store::{Cancel, Cause};

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The server is gone, or does not respond.
    Away,
    /// The call's deadline passed.
    Late,
    /// The call was cancelled.
    Cancelled,
    /// There is no memory for the bytes of a put.
    NoMemory,
    /// The server has no connection for this client.
    Refused,
    /// The connection ended before the reply.
    Ended,
}

impl Lost {
    pub(super) fn cause(self) -> Cause {
        match self {
            Self::Away | Self::Ended => Cause::Suspended,
            Self::Late => Cause::Deadline,
            Self::Cancelled => Cause::Cancelled,
            Self::NoMemory | Self::Refused => Cause::Throttled,
        }
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
    /// [`Lost::Late`] if none is.
    pub(super) fn left(&self, clock: &dyn Clock) -> Result<Option<Duration>, Lost> {
        let now = clock.now();
        if self.deadline.expired(now) { Err(Lost::Late) } else { Ok(self.deadline.remaining(now)) }
    }

    /// Fails once the call has ended: its deadline passed, or it was cancelled.
    ///
    /// # Errors
    ///
    /// [`Lost::Late`] or [`Lost::Cancelled`].
    pub(super) fn check(&self, clock: &dyn Clock) -> Result<(), Lost> {
        if self.cancel.as_ref().is_some_and(Cancel::is_cancelled) {
            return Err(Lost::Cancelled);
        }
        self.left(clock).map(drop)
    }
}

/// A timeout as messages have it.
pub(super) fn timeout_ns(timeout: Option<Duration>) -> Option<u64> {
    timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
}
