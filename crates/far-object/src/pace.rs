//! How many requests in a second a server takes that asked for fewer.
//!
//! 1. Without such an answer nothing waits. After one, all requests of the location have one rate: half of what was
//!    sent, and half again for each later second that brings another answer like it.
//! 2. Each second without one adds a tenth and one request. After a minute without one there is no rate any more.

use std::time::Duration;

/// What was sent is counted in windows of this time.
const WINDOW: Duration = Duration::from_secs(1);
/// Least requests in a second.
const LEAST: f64 = 1.0;
/// After so many windows without an answer of that kind, nothing waits any more.
const FORGIVEN: u32 = 60;

/// See the module. Times are since any fixed moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    /// Requests in a second; `None` if nothing waits.
    rate: Option<f64>,
    /// Requests that may be sent at once, at most one.
    tokens: f64,
    refilled: Duration,
    window: Duration,
    sent: u32,
    /// Those of the window before.
    before: u32,
    is_slowed: bool,
    quiet: u32,
}

impl Pace {
    /// Takes the turn of a request, or says how long it waits before it asks again.
    pub(crate) fn turn(&mut self, now: Duration) -> Result<(), Duration> {
        self.roll(now);
        if let Some(rate) = self.rate {
            let since = now.saturating_sub(self.refilled).as_secs_f64();
            self.tokens = (self.tokens + since * rate).min(1.0);
            self.refilled = now;
            if self.tokens < 1.0 {
                return Err(Duration::from_secs_f64((1.0 - self.tokens) / rate));
            }
            self.tokens -= 1.0;
        }
        self.sent += 1;
        Ok(())
    }

    /// The server asked for fewer requests.
    pub(crate) fn slow_down(&mut self, now: Duration) {
        self.roll(now);
        self.quiet = 0;
        if std::mem::replace(&mut self.is_slowed, true) {
            return;
        }
        let sent = f64::from(self.sent.max(self.before));
        self.rate = Some((self.rate.unwrap_or(sent).min(sent) / 2.0).max(LEAST));
        (self.tokens, self.refilled) = (0.0, now);
    }

    /// Begins another window if this one is over.
    fn roll(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.window);
        if passed < WINDOW {
            return;
        }
        self.before = if passed < 2 * WINDOW { self.sent } else { 0 };
        (self.window, self.sent) = (now, 0);
        let windows = u32::try_from(passed.as_secs()).unwrap_or(u32::MAX);
        if !std::mem::take(&mut self.is_slowed) {
            self.quiet = self.quiet.saturating_add(windows);
            self.rate = self.rate.filter(|_| self.quiet < FORGIVEN).map(|rate| rate * 1.1 + 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends as fast as the pace allows for some seconds, to a server that takes `most` in a second and asks the rest
    /// for fewer. Returns how many it took, and how many it did not.
    fn run(pace: &mut Pace, from: u64, seconds: u64, most: u32) -> (u32, u32) {
        let (mut now, end) = (Duration::from_secs(from), Duration::from_secs(from + seconds));
        let (mut second, mut in_second, mut taken, mut refused) = (0, 0, 0, 0);
        while now < end {
            if let Err(wait) = pace.turn(now) {
                now += wait.max(Duration::from_micros(1));
                continue;
            }
            if now.as_secs() != second {
                (second, in_second) = (now.as_secs(), 0);
            }
            in_second += 1;
            if in_second > most {
                refused += 1;
                pace.slow_down(now);
            } else {
                taken += 1;
            }
            now += Duration::from_millis(1);
        }
        (taken, refused)
    }

    #[test]
    fn a_server_that_asks_for_fewer_gets_nearly_what_it_takes() {
        let mut pace = Pace::default();
        let (taken, refused) = run(&mut pace, 10, 40, 100);
        assert!(taken > 40 * 50, "{taken} taken");
        assert!(refused < taken / 2, "{refused} refused of {taken}");
    }

    #[test]
    fn without_such_an_answer_nothing_waits_and_one_is_forgiven() {
        let mut pace = Pace::default();
        assert_eq!(run(&mut pace, 0, 5, u32::MAX), (5000, 0));
        pace.slow_down(Duration::from_secs(5));
        assert!(pace.turn(Duration::from_secs(5)).is_err());
        assert!(pace.turn(Duration::from_secs(6)).is_ok());
        let later = Duration::from_secs(5 + 2 * u64::from(FORGIVEN));
        assert!((0..1000).all(|_| pace.turn(later).is_ok()));
    }

    #[test]
    fn a_clock_that_jumps_back_stops_nothing() {
        let mut pace = Pace::default();
        pace.slow_down(Duration::from_secs(1000));
        let wait = pace.turn(Duration::from_secs(1)).unwrap_err();
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
    }
}
