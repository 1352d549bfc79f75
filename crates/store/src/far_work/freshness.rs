//! Whether removals may be gone that cover what a store holds: docs/formats/pack.md, Expiry.
//!
//! 1. The first poll of an open is compared with the last one of earlier opens, by the location's time.
//! 2. Later polls are compared with the one before, by the host's clock, and by the location's time where it is known.
//! 3. If the location does not show its time, the last change of the folder of lists takes its place in the first
//!    comparison: a list that expired in between has changed the folder later than a week after the earlier poll.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Nanos};
use dalsegno_far::{KEEP_REMOVALS, LocationTime, Polled};

/// Whether removals may be gone that cover what the store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// It could not be found out yet.
    Unknown,
    Fresh,
    /// It followed nothing for too long, and still holds something.
    Stale,
}

/// A poll after which everything was applied.
#[derive(Clone, Copy, Debug)]
struct PassedPoll {
    began: Nanos,
    /// The location's time then; `None` if the location has not shown it since the open.
    time: Option<Duration>,
}

/// Tests whether a store may have missed removals.
#[derive(Debug)]
pub(super) struct FreshnessTest {
    clock: Arc<dyn Clock>,
    /// The location's time at the last complete poll of earlier opens; `None` if there was none.
    earlier: Option<Duration>,
    /// The last complete poll of this open, or the open of a store that followed no location before: from then on it
    /// may miss removals.
    passed: Option<PassedPoll>,
    /// A poll of this open that showed the location's time, and that time.
    shown: Option<(Nanos, Duration)>,
}

impl FreshnessTest {
    pub(super) fn new(clock: Arc<dyn Clock>, earlier: Option<Duration>) -> Self {
        let passed = PassedPoll { began: clock.now(), time: None };
        let passed = earlier.is_none().then_some(passed);
        Self { clock, earlier, passed, shown: None }
    }

    pub(super) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Notes what a poll that began at a moment found out about the time, also if it read nothing else.
    pub(super) fn note(&mut self, polled: &Polled, began: Nanos) {
        if let LocationTime::Is(now) = polled.time {
            self.shown = Some((began, now));
        }
    }

    /// Judges by a poll that began at a moment and read all lists.
    pub(super) fn judge(&self, polled: &Polled, began: Nanos) -> Freshness {
        let away = if let Some(passed) = self.passed {
            let by_location = self.known_time(began).zip(passed.time);
            let by_location = by_location.map(|(now, then)| now.saturating_sub(then));
            Some(began.since(passed.began).max(by_location.unwrap_or_default()))
        } else {
            let now = self.known_time(began).or(bound_of(polled));
            now.zip(self.earlier).map(|(now, then)| now.saturating_sub(then))
        };
        match away {
            Some(away) if away >= KEEP_REMOVALS => Freshness::Stale,
            Some(_) => Freshness::Fresh,
            None => Freshness::Unknown,
        }
    }

    /// Notes that everything was applied after a poll that began at a moment, or that the store then held nothing.
    pub(super) fn pass(&mut self, began: Nanos) {
        self.passed = Some(PassedPoll { began, time: self.known_time(began) });
    }

    /// The location's time when a poll began, or an earlier time if the location does not show it.
    pub(super) fn time(&self, polled: &Polled, began: Nanos) -> Option<Duration> {
        // A poll that did not ask leaves the time of an earlier one.
        let bound = || bound_of(polled).map(|bound| bound.max(self.earlier.unwrap_or_default()));
        self.known_time(began).or_else(bound)
    }

    fn known_time(&self, began: Nanos) -> Option<Duration> {
        self.shown.map(|(since, time)| time + began.since(since))
    }
}

fn bound_of(polled: &Polled) -> Option<Duration> {
    match polled.time {
        LocationTime::NotBefore(bound) => Some(bound),
        LocationTime::Unknown | LocationTime::Is(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_core::ManualClock;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const YEARS: Duration = Duration::from_secs(1_000_000_000);

    fn test(earlier: Option<Duration>) -> FreshnessTest {
        FreshnessTest::new(Arc::new(ManualClock::default()), earlier)
    }

    fn polled(now: Option<Duration>, not_before: Option<Duration>) -> Polled {
        let bound = not_before.map_or(LocationTime::Unknown, LocationTime::NotBefore);
        let time = now.map_or(bound, LocationTime::Is);
        let mut polled = Polled::default();
        polled.time = time;
        polled
    }

    #[test]
    fn the_first_poll_is_compared_by_the_time_of_the_location_or_by_the_last_change_of_lists() {
        let judge_by = |mut test: FreshnessTest, polled: &Polled| {
            test.note(polled, Nanos::default());
            test.judge(polled, Nanos::default())
        };
        let judge = |now, not_before| judge_by(test(Some(YEARS)), &polled(now, not_before));
        let (shorter, longer) =
            ((YEARS + KEEP_REMOVALS).saturating_sub(HOUR), YEARS + KEEP_REMOVALS);
        assert_eq!(judge(Some(shorter), None), Freshness::Fresh);
        assert_eq!(judge(Some(longer), None), Freshness::Stale);
        assert_eq!(judge(None, Some(shorter)), Freshness::Fresh);
        assert_eq!(judge(None, Some(Duration::ZERO)), Freshness::Fresh, "there never was a list");
        assert_eq!(judge(None, Some(longer)), Freshness::Stale);
        assert_eq!(judge(None, None), Freshness::Unknown);
        assert_eq!(judge_by(test(None), &polled(None, None)), Freshness::Fresh);
    }

    #[test]
    fn later_polls_are_compared_by_both_clocks() {
        let began = Nanos::default();
        for (time, elapsed, expected) in [
            (None, KEEP_REMOVALS.saturating_sub(HOUR), Freshness::Fresh),
            (None, KEEP_REMOVALS, Freshness::Stale),
            (Some(YEARS + KEEP_REMOVALS), HOUR, Freshness::Stale),
            (Some(YEARS + HOUR), HOUR, Freshness::Fresh),
        ] {
            let mut test = test(Some(YEARS));
            test.note(&polled(Some(YEARS), None), began);
            test.pass(began);
            let (now, later) = (polled(time, None), began.after(elapsed));
            assert_eq!(test.time(&polled(None, None), later), Some(YEARS + elapsed));
            test.note(&now, later);
            assert_eq!(test.judge(&now, later), expected, "{time:?} {elapsed:?}");
        }
    }

    #[test]
    fn a_location_that_shows_its_time_late_makes_no_store_stale_that_followed() {
        let began = Nanos::default();
        let mut test = test(Some(YEARS));
        let unknown = polled(None, Some(YEARS.saturating_sub(HOUR)));
        assert_eq!(test.judge(&unknown, began), Freshness::Fresh);
        assert_eq!(test.time(&unknown, began), Some(YEARS));
        assert_eq!(test.time(&polled(None, None), began), None, "it did not ask");
        test.pass(began);
        let known = polled(Some(YEARS + 2 * KEEP_REMOVALS), None);
        test.note(&known, began.after(HOUR));
        assert_eq!(test.judge(&known, began.after(HOUR)), Freshness::Fresh);
    }
}
