//! What a caller says about one call: who waits, how long, and whether it still wants the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use dalsegno_core::{Clock, Deadline};
use dalsegno_io::{Class, IoError};

use crate::error::LogError;

/// How long a wait goes on before it looks whether the call was cancelled.
pub(crate) const CANCEL_POLL: Duration = Duration::from_millis(10);

/// Shared between a call and whoever may call it off.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Calls it off; work that is already with the device finishes unseen.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was called off.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The terms of one call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who waits.
    pub class: Class,
    /// When to give up.
    pub deadline: Deadline,
    /// How to be called off.
    pub cancel: Option<Cancel>,
}

impl Call {
    /// Somebody waits, as long as it takes.
    #[must_use]
    pub fn foreground() -> Self {
        Self { class: Class::Foreground, deadline: Deadline::Never, cancel: None }
    }

    /// Nobody waits.
    #[must_use]
    pub fn background() -> Self {
        Self { class: Class::Background, ..Self::foreground() }
    }

    /// Sets when to give up.
    #[must_use]
    pub fn until(mut self, deadline: Deadline) -> Self {
        self.deadline = deadline;
        self
    }

    /// Its deadline, `limit` from now at the latest.
    #[must_use]
    pub fn at_most(&self, limit: Duration, clock: &dyn Clock) -> Deadline {
        let ours = clock.now().after(limit);
        match self.deadline {
            Deadline::At(theirs) => Deadline::At(theirs.min(ours)),
            Deadline::Never => Deadline::At(ours),
        }
    }

    /// Whether requests must not touch the caller's memory, because the call may end before they do.
    #[must_use]
    pub fn must_stage(&self) -> bool {
        self.deadline.is_bounded()
    }

    /// How long a wait may go on before this is asked again; `None` is as long as it takes.
    ///
    /// # Errors
    ///
    /// [`LogError::Cancelled`] or [`LogError::Deadline`] if the call is over.
    pub fn patience(&self, clock: &dyn Clock) -> Result<Option<Duration>, LogError> {
        if self.is_cancelled() {
            return Err(LogError::Cancelled);
        }
        let left = self.deadline.remaining(clock.now());
        if left.is_some_and(|left| left.is_zero()) {
            return Err(LogError::Deadline);
        }
        let poll = self.cancel.as_ref().map(|_| CANCEL_POLL);
        Ok(left.into_iter().chain(poll).min())
    }

    /// Waits for an answer, no longer than the call lasts. One that is there already counts also when the call is over.
    ///
    /// # Errors
    ///
    /// As [`Call::patience`]; [`IoError::Closed`] if nobody is left to answer.
    pub fn answer<T>(&self, answers: &Receiver<T>, clock: &dyn Clock) -> Result<T, LogError> {
        loop {
            if let Ok(answer) = answers.try_recv() {
                return Ok(answer);
            }
            let received = match self.patience(clock)? {
                None => answers.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(patience) => answers.recv_timeout(patience),
            };
            match received {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(IoError::Closed.into()),
            }
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }
}
