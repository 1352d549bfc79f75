//! How long a caller may wait for files that are read synchronously.

use std::time::Instant;

use dalsegno_core::{Clock, Deadline};

/// A bound on the waits of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitLimit {
    /// As long as the device takes: for background work.
    Unlimited,
    /// No longer than until a moment, which is given in the store's time and in the system's.
    Until {
        /// No request starts after this moment.
        deadline: Deadline,
        /// The same moment, for the system's waits.
        instant: Instant,
    },
}

impl WaitLimit {
    /// Waits end at `deadline`; with [`Deadline::Never`] there is no limit.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the system's waits know no other time")]
    pub fn until(deadline: Deadline, clock: &dyn Clock) -> Self {
        match deadline.remaining(clock.now()) {
            Some(left) => Self::Until { deadline, instant: Instant::now() + left },
            None => Self::Unlimited,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dalsegno_core::ManualClock;
    use std::time::Duration;

    #[test]
    fn a_limit_keeps_the_deadline_and_never_is_no_limit() {
        let clock = ManualClock::default();
        let deadline = Deadline::At(clock.now().after(Duration::from_secs(5)));
        let WaitLimit::Until { deadline: kept, instant } = WaitLimit::until(deadline, &clock)
        else {
            panic!("a deadline is a limit");
        };
        assert_eq!(kept, deadline);
        let WaitLimit::Until { instant: earlier, .. } =
            WaitLimit::until(Deadline::At(clock.now()), &clock)
        else {
            panic!("a deadline is a limit");
        };
        assert!(earlier < instant);
        assert_eq!(WaitLimit::until(Deadline::Never, &clock), WaitLimit::Unlimited);
    }
}
