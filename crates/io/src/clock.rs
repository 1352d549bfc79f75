//! The real clock.

use std::time::{Duration, Instant};

use dalsegno_core::{Clock, Nanos};

/// The machine's monotonic clock, counted from the creation of the value.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that starts now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clock")]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Nanos {
        // The first moment is one tick, so that `Nanos::default()` is always in the past.
        Nanos::default().after(self.start.elapsed() + Duration::from_nanos(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back() {
        let clock = SystemClock::new();
        let moments: Vec<Nanos> = (0..1000).map(|_| clock.now()).collect();
        assert!(moments.is_sorted() && moments[0] > Nanos::default());
    }
}
