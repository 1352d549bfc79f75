//! The real clock.

use std::time::Duration;

use dalsegno_core::{Clock, Nanos};

/// The machine's monotonic clock, counted from the creation of the value. It counts the time in which the machine is
/// suspended.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Duration,
}

impl SystemClock {
    /// A clock that starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { start: since_boot() }
    }
}

/// The time since the machine was started. A clock of the kernel never fails to be read.
fn since_boot() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Through libc, as the standard library reads its clock, so that tests can let it jump.
    // SAFETY: `now` is valid for writes during the call.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    assert_eq!(failed, 0, "Linux has this clock since 2.6.39");
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).expect("below a second"))
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Nanos {
        // The first moment is one tick, so that `Nanos::default()` is always in the past.
        Nanos::default().after(since_boot().saturating_sub(self.start) + Duration::from_nanos(1))
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
