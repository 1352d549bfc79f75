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

/// When an engine needs the layers of a load, from now on. They order the reads of several loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerTimes {
    /// Until it needs the first layer.
    pub first: Duration,
    /// Until it needs each further one.
    pub layer: Duration,
}

/// How long a load may take, and when it is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadTiming {
    /// After this time the rest of the load is a miss.
    pub timeout: Option<Duration>,
    /// When its layers are needed; `None` for as soon as possible.
    pub due: Option<LayerTimes>,
}

impl From<Option<Duration>> for LoadTiming {
    /// Needed as soon as possible.
    fn from(timeout: Option<Duration>) -> Self {
        Self { timeout, due: None }
    }
}
