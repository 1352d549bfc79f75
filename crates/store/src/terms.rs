//! How long a call may take, and how it is cancelled, as callers say it: in a timeout, because they know no clock of a
//! store. The clock may be simulated. It makes the timeout a moment, and the terms a [`Call`].

use std::time::Duration;

use dalsegno_core::{Class, Clock, Deadline};
use dalsegno_io::{Call, Purpose};

pub use dalsegno_io::Cancel;

/// The terms of a call. By default it waits as long as it takes.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// After this time the rest of the work is a miss. With a timeout, bytes go through staging buffers, so that
    /// nothing touches the caller's memory after the call has ended. Without one, aligned memory is used directly.
    pub timeout: Option<Duration>,
    /// Lets another thread cancel the work.
    pub cancel: Option<Cancel>,
}

impl Terms {
    /// Terms with a timeout.
    #[must_use]
    pub fn within(timeout: Duration) -> Self {
        Self { timeout: Some(timeout), cancel: None }
    }

    /// The call that begins now by this clock, for which an engine waits. A client of a server has a clock of its own.
    #[must_use]
    pub fn call(&self, clock: &dyn Clock) -> Call {
        self.call_of(Class::Need, clock)
    }

    /// A call that begins now by this clock.
    #[must_use]
    pub fn call_of(&self, class: Class, clock: &dyn Clock) -> Call {
        let deadline = self
            .timeout
            .map_or(Deadline::Never, |timeout| Deadline::At(clock.now().after(timeout)));
        Call {
            purpose: Purpose { is_refusable: true, ..Purpose::of(class) },
            deadline,
            cancel: self.cancel.clone(),
        }
    }
}
