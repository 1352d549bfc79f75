//! The terms of one call: its class, its deadline, and how it is cancelled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use dalsegno_core::{Clock, Deadline, Stopped};
use dalsegno_io::{Class, IoError};

/// How often a wait checks whether its call was cancelled.
pub(crate) const CANCEL_POLL: Duration = Duration::from_millis(10);

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

/// The terms of one call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Whether a caller waits.
    pub class: Class,
    /// When the call ends.
    pub deadline: Deadline,
    /// Ends the call early; `None` if nothing may.
    pub cancel: Option<Cancel>,
}

impl Call {
    /// A caller waits, without a deadline.
    #[must_use]
    pub fn foreground() -> Self {
        Self { class: Class::Foreground, deadline: Deadline::Never, cancel: None }
    }

    /// Background work, without a deadline.
    #[must_use]
    pub fn background() -> Self {
        Self { class: Class::Background, ..Self::foreground() }
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

    /// How long to wait before calling this again; `None` if a wait needs no timeout.
    ///
    /// # Errors
    ///
    /// [`Stopped::Cancelled`] or [`Stopped::Deadline`] if the call ended.
    pub fn timeout(&self, clock: &dyn Clock) -> Result<Option<Duration>, Stopped> {
        if self.is_cancelled() {
            return Err(Stopped::Cancelled);
        }
        let left = self.deadline.remaining(clock.now());
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Stopped::Deadline);
        }
        let poll = self.cancel.as_ref().map(|_| CANCEL_POLL);
        Ok(left.into_iter().chain(poll).min())
    }

    /// Receives one value, at the latest when the call ends. A value that has already arrived counts even then.
    ///
    /// # Errors
    ///
    /// As [`Call::timeout`]; [`IoError::Closed`] if the sender is gone.
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
                Err(RecvTimeoutError::Disconnected) => return Err(IoError::Closed.into()),
            }
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }
}
