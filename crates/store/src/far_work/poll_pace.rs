//! How often a host polls a location where each poll costs money.
//!
//! 1. A host that used the location within [`IDLE_AFTER`] polls at every step.
//! 2. One that is idle polls after the time that the location allows, and again at the first step after a use.

use std::time::Duration;

use dalsegno_core::Nanos;

/// A host that did not use the location for this time is idle.
const IDLE_AFTER: Duration = Duration::from_secs(600);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct PollPace {
    /// When a step last saw a use.
    used: Nanos,
    /// When the last poll began; `None` before the first one.
    polled: Option<Nanos>,
}

impl PollPace {
    /// A host that is opened counts as one that uses its location.
    pub(super) fn new(now: Nanos) -> Self {
        Self { used: now, polled: None }
    }

    /// Whether any poll began.
    pub(super) fn has_polled(&self) -> bool {
        self.polled.is_some()
    }

    /// A poll begins.
    pub(super) fn note_poll(&mut self, now: Nanos) {
        self.polled = Some(now);
    }

    /// Whether a step is to poll. `is_used` is whether there was a use since the last step, `idle_poll` what the
    /// location allows to an idle host.
    pub(super) fn is_due(&mut self, now: Nanos, is_used: bool, idle_poll: Duration) -> bool {
        if is_used {
            self.used = now;
        }
        let is_idle = now.since(self.used) >= IDLE_AFTER;
        !is_idle || self.polled.is_none_or(|polled| now.since(polled) >= idle_poll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_secs(2);
    const IDLE_POLL: Duration = Duration::from_secs(30);

    /// The polls of so many steps, of which those in `used` see a use.
    fn polls(steps: u32, used: std::ops::Range<u32>, idle_poll: Duration) -> Vec<u32> {
        let begun = Nanos::default();
        let mut pace = PollPace::new(begun);
        let mut polled = Vec::new();
        for step in 0..steps {
            let now = begun.after(STEP * step);
            if pace.is_due(now, used.contains(&step), idle_poll) {
                pace.note_poll(now);
                polled.push(step);
            }
        }
        polled
    }

    #[test]
    fn a_host_that_is_idle_polls_every_thirty_seconds_and_at_its_next_use() {
        let polled = polls(1000, 700..701, IDLE_POLL);
        assert!((0..300).all(|step| polled.contains(&step)), "ten minutes after the open");
        let idle: Vec<u32> =
            polled.iter().copied().filter(|step| (300..700).contains(step)).collect();
        assert!(idle.windows(2).all(|pair| pair[1] - pair[0] == 15), "{idle:?}");
        assert_eq!(idle.len(), 26);
        assert!((700..1000).all(|step| polled.contains(&step)), "it is used again");
    }

    #[test]
    fn where_polls_cost_nothing_every_step_polls() {
        assert_eq!(polls(1000, 0..0, Duration::ZERO).len(), 1000);
    }

    #[test]
    fn the_first_step_polls() {
        let mut pace = PollPace::new(Nanos::default());
        let later = Nanos::default().after(2 * IDLE_AFTER);
        assert!(!pace.has_polled() && pace.is_due(later, false, IDLE_POLL));
    }
}
