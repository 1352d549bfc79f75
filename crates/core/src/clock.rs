//! Time as a value: only a [`Clock`] reads it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nanoseconds since an arbitrary start, monotonic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This moment plus `duration`, saturating at the largest value.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// A source of monotonic time: the machine's in the io crate, a virtual one in tests and the simulator.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// The current moment.
    fn now(&self) -> Nanos;
}

/// The moment at which a wait ends as a miss; `Never` waits until the work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Deadline {
    /// No limit.
    #[default]
    Never,
    /// The wait ends at this moment of the store's clock.
    At(Nanos),
}

impl Deadline {
    /// The time left at `now`; `None` for no limit.
    #[must_use]
    pub fn remaining(self, now: Nanos) -> Option<Duration> {
        match self {
            Self::Never => None,
            Self::At(end) => Some(end.since(now)),
        }
    }

    /// Whether the moment has passed.
    #[must_use]
    pub fn expired(self, now: Nanos) -> bool {
        matches!(self, Self::At(end) if end <= now)
    }

    /// Whether there is a limit.
    #[must_use]
    pub fn is_bounded(self) -> bool {
        matches!(self, Self::At(_))
    }
}

/// A clock that only a test advances.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_expires_exactly_at_its_moment() {
        let clock = ManualClock::default();
        let deadline = Deadline::At(clock.now().after(Duration::from_millis(5)));
        clock.advance(Duration::from_millis(4));
        assert_eq!(deadline.remaining(clock.now()), Some(Duration::from_millis(1)));
        clock.advance(Duration::from_millis(1));
        assert!(deadline.expired(clock.now()));
        assert!(!Deadline::Never.expired(Nanos(u64::MAX)));
    }
}
