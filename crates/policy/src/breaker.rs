//! The circuit breaker: suspends a device that hangs or fails, and tries it periodically.
//!
//! 1. Every request ends once: each [`Breaker::begin`] is followed by one [`Breaker::end`] of the same kind.
//! 2. A device is suspended when requests are in flight and none succeeded for [`BreakerRules::stall`], or when the
//!    last [`BreakerRules::errors`] responses were errors.
//! 3. Any successful response, to whichever request, ends the suspension.
//! 4. A suspended device gets a trial request after pauses that double. After errors the first trial is immediate,
//!    because all errors may concern one bad region.
//! 5. At most [`BreakerRules::trials`] trials are in flight, so the device never holds more of them.

use std::time::Duration;

use dalsegno_core::Nanos;

/// When to suspend a device, and how often to try it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerRules {
    /// Suspend after this time without a success while requests are in flight.
    pub stall: Duration,
    /// Suspend after this many errors in a row.
    pub errors: u32,
    /// Time from the suspension of a stalled device to the first trial.
    pub first_pause: Duration,
    /// Longest time between two trials.
    pub longest_pause: Duration,
    /// Most trials in flight.
    pub trials: u32,
}

impl BreakerRules {
    /// For reads, which callers wait for. A working disk responds within milliseconds; one that spins up or fails over
    /// to another path takes seconds.
    pub const READS: Self = Self {
        stall: Duration::from_secs(1),
        errors: 16,
        first_pause: Duration::from_millis(250),
        longest_pause: Duration::from_secs(5),
        trials: 4,
    };

    /// For writes and syncs, which callers do not wait for and which may take long when much is written back.
    pub const WRITES: Self = Self { stall: Duration::from_secs(5), ..Self::READS };
}

/// The state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// It gets all requests.
    Working,
    /// It gets no requests.
    Suspended,
    /// It gets no requests, but a trial is in flight.
    Trying,
}

impl DeviceState {
    /// The name in counters and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Suspended => "suspended",
            Self::Trying => "trying",
        }
    }
}

/// How the device responded to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// The device succeeded, or refused for a reason that is not a failure: a full disk works.
    Good,
    /// The device failed.
    Bad,
    /// The request never reached the device: the deadline passed first, or the queue was full.
    NotSent,
}

/// Why a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// The device works, or the request is never refused.
    Regular,
    /// It is a trial of a suspended device.
    Trial,
}

/// Whether a request may go to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Admit,
    /// It may as a trial, for which no caller should wait.
    Trial,
    /// It may not.
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Suspension {
    since: Nanos,
    pause: Duration,
    next_trial: Nanos,
}

/// The circuit breaker of one direction of a device.
///
/// ```
/// use dalsegno_core::Nanos;
/// use dalsegno_policy::breaker::{Breaker, BreakerRules, RequestKind, Response, Verdict};
///
/// let mut breaker = Breaker::new(BreakerRules::READS);
/// let now = Nanos(0);
/// assert_eq!(breaker.admit(now), Verdict::Admit);
/// breaker.begin(now, RequestKind::Regular);
///
/// // The read hangs: a second later the breaker refuses others, until the device responds.
/// let later = now.after(BreakerRules::READS.stall);
/// assert_eq!(breaker.admit(later), Verdict::Refuse);
/// breaker.end(later, RequestKind::Regular, Response::Good);
/// assert_eq!(breaker.admit(later), Verdict::Admit);
/// ```
#[derive(Clone, Debug)]
pub struct Breaker {
    rules: BreakerRules,
    /// Requests that began but did not end.
    in_flight: u64,
    /// Trials among them.
    trials: u32,
    /// The last success, or when a request began while none was in flight.
    quiet_since: Nanos,
    /// Errors since the last success.
    errors: u32,
    suspension: Option<Suspension>,
    suspensions: u64,
}

impl Breaker {
    /// A breaker that admits all requests.
    #[must_use]
    pub fn new(rules: BreakerRules) -> Self {
        Self {
            rules,
            in_flight: 0,
            trials: 0,
            quiet_since: Nanos(0),
            errors: 0,
            suspension: None,
            suspensions: 0,
        }
    }

    /// Whether [`Self::admit`] would refuse.
    pub fn refuses(&mut self, now: Nanos) -> bool {
        self.check_stall(now);
        let rules = self.rules;
        self.suspension.is_some_and(|it| it.next_trial > now || self.trials >= rules.trials)
    }

    /// Whether a request may go to the device now. Each [`Verdict::Trial`] admits one request.
    pub fn admit(&mut self, now: Nanos) -> Verdict {
        if self.refuses(now) {
            return Verdict::Refuse;
        }
        let Some(suspension) = &mut self.suspension else { return Verdict::Admit };
        suspension.pause = (2 * suspension.pause).min(self.rules.longest_pause);
        suspension.next_trial = now.after(suspension.pause);
        Verdict::Trial
    }

    /// Notes that a request goes to the device.
    pub fn begin(&mut self, now: Nanos, kind: RequestKind) {
        if self.in_flight == 0 {
            self.quiet_since = now;
        }
        self.in_flight += 1;
        self.trials += u32::from(kind == RequestKind::Trial);
    }

    /// Notes that a request has ended. Returns the length of the suspension if this ends it.
    pub fn end(&mut self, now: Nanos, kind: RequestKind, response: Response) -> Option<Duration> {
        assert!(self.in_flight > 0, "a request ended that never began");
        self.in_flight -= 1;
        self.trials -= u32::from(kind == RequestKind::Trial);
        match response {
            Response::Good => {
                self.quiet_since = now;
                self.errors = 0;
                return self.suspension.take().map(|suspension| now.since(suspension.since));
            }
            Response::Bad => {
                self.errors = self.errors.saturating_add(1);
                if self.errors >= self.rules.errors {
                    // It responds, so try it immediately.
                    self.suspend(now, now);
                }
            }
            Response::NotSent => {}
        }
        None
    }

    /// The state of the device. This notices a stall even if no request is made.
    pub fn state(&mut self, now: Nanos) -> DeviceState {
        self.check_stall(now);
        match self.suspension {
            None => DeviceState::Working,
            Some(_) if self.trials > 0 => DeviceState::Trying,
            Some(_) => DeviceState::Suspended,
        }
    }

    /// Number of suspensions so far.
    #[must_use]
    pub fn suspensions(&self) -> u64 {
        self.suspensions
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    fn check_stall(&mut self, now: Nanos) {
        let stalled = self.quiet_since.after(self.rules.stall);
        if self.in_flight > 0 && stalled <= now {
            self.suspend(stalled, stalled.after(self.rules.first_pause));
        }
    }

    fn suspend(&mut self, since: Nanos, next_trial: Nanos) {
        if self.suspension.is_none() {
            let pause = self.rules.first_pause;
            self.suspension = Some(Suspension { since, pause, next_trial });
            self.suspensions += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);
    const START: Nanos = Nanos(7);

    fn breaker() -> Breaker {
        Breaker::new(BreakerRules::READS)
    }

    fn begin(breaker: &mut Breaker, now: Nanos) {
        breaker.begin(now, RequestKind::Regular);
    }

    fn end(breaker: &mut Breaker, now: Nanos, response: Response) -> Option<Duration> {
        breaker.end(now, RequestKind::Regular, response)
    }

    #[test]
    fn a_device_that_responds_is_never_suspended_even_with_slow_callers() {
        let (mut breaker, mut now) = (breaker(), START);
        for _ in 0..100 {
            assert_eq!(breaker.admit(now), Verdict::Admit);
            begin(&mut breaker, now);
            end(&mut breaker, now.after(SECOND / 2), Response::Good);
            now = now.after(100 * SECOND);
        }
        assert_eq!(breaker.suspensions(), 0);
    }

    #[test]
    fn errors_suspend_the_device_and_the_first_trial_is_immediate() {
        let (mut breaker, rules) = (breaker(), BreakerRules::READS);
        for _ in 0..rules.errors {
            assert_eq!(breaker.admit(START), Verdict::Admit);
            begin(&mut breaker, START);
            end(&mut breaker, START, Response::Bad);
        }
        assert_eq!([breaker.admit(START), breaker.admit(START)], [Verdict::Trial, Verdict::Refuse]);
        breaker.begin(START, RequestKind::Trial);
        breaker.end(START, RequestKind::Trial, Response::Bad);
        assert_eq!(breaker.admit(START.after(rules.first_pause)), Verdict::Refuse);
        assert_eq!(breaker.admit(START.after(2 * rules.first_pause)), Verdict::Trial);
    }

    #[test]
    fn a_stall_suspends_and_the_first_success_ends_it() {
        let mut breaker = breaker();
        begin(&mut breaker, START);
        begin(&mut breaker, START.after(SECOND / 2));
        assert_eq!(breaker.admit(START.after(SECOND / 2)), Verdict::Admit);
        let stalled = START.after(SECOND);
        assert_eq!(breaker.admit(stalled), Verdict::Refuse);
        assert_eq!(breaker.state(stalled), DeviceState::Suspended);
        let ended = end(&mut breaker, stalled.after(SECOND), Response::Good);
        assert_eq!(ended, Some(SECOND));
        assert_eq!(breaker.admit(stalled.after(SECOND)), Verdict::Admit);
        assert_eq!((breaker.suspensions(), breaker.in_flight()), (1, 1));
    }

    #[test]
    fn one_slow_response_among_successes_suspends_nothing() {
        let (mut breaker, mut now) = (breaker(), START);
        begin(&mut breaker, now);
        for _ in 0..1000 {
            begin(&mut breaker, now);
            now = now.after(SECOND / 10);
            assert_eq!(breaker.admit(now), Verdict::Admit);
            end(&mut breaker, now, Response::Good);
        }
    }

    #[test]
    fn trials_are_admitted_at_growing_pauses_and_few_are_in_flight() {
        let mut breaker = breaker();
        begin(&mut breaker, START);
        let mut now = START.after(SECOND);
        let mut trials = Vec::new();
        for step in 0..4000 {
            if breaker.admit(now) == Verdict::Trial {
                trials.push(now);
                breaker.begin(now, RequestKind::Trial);
                assert_eq!(breaker.state(now), DeviceState::Trying);
                if step < 2000 {
                    breaker.end(now, RequestKind::Trial, Response::Bad);
                    assert_eq!(breaker.state(now), DeviceState::Suspended);
                }
            }
            now = now.after(SECOND / 100);
        }
        let pauses: Vec<_> = trials.windows(2).map(|two| two[1].since(two[0])).collect();
        assert!(pauses.is_sorted() && pauses[0] <= SECOND, "{pauses:?}");
        assert!(pauses.ends_with(&[BreakerRules::READS.longest_pause; 4]), "{pauses:?}");
        assert_eq!(breaker.in_flight(), 1 + u64::from(BreakerRules::READS.trials));
        assert!(breaker.refuses(now.after(100 * SECOND)));
    }

    #[test]
    fn only_errors_in_a_row_suspend() {
        let mut breaker = breaker();
        for round in 0..10 * BreakerRules::READS.errors {
            begin(&mut breaker, START);
            let is_good = round % BreakerRules::READS.errors == 0;
            end(&mut breaker, START, if is_good { Response::Good } else { Response::Bad });
        }
        assert_eq!(breaker.state(START), DeviceState::Working);
        begin(&mut breaker, START);
        end(&mut breaker, START, Response::Bad);
        assert_eq!(breaker.state(START), DeviceState::Suspended);
        // A trial that fails keeps the suspension, one that succeeds ends it.
        let later = START.after(SECOND);
        assert_eq!(breaker.admit(later), Verdict::Trial);
        begin(&mut breaker, later);
        end(&mut breaker, later, Response::Bad);
        assert_eq!(breaker.admit(later), Verdict::Refuse);
        let later = later.after(SECOND);
        assert_eq!(breaker.admit(later), Verdict::Trial);
        begin(&mut breaker, later);
        assert!(end(&mut breaker, later, Response::Good).is_some());
        assert_eq!(breaker.admit(later), Verdict::Admit);
    }

    #[test]
    fn requests_that_never_reach_the_device_do_not_count() {
        let mut breaker = breaker();
        for _ in 0..1000 {
            begin(&mut breaker, START);
            end(&mut breaker, START, Response::NotSent);
        }
        assert_eq!(breaker.state(START), DeviceState::Working);
    }

    proptest! {
        /// After any history, a device that responds is tried again after the longest pause at the latest.
        #[test]
        fn a_recovered_device_is_noticed_within_the_longest_pause(
            steps in prop::collection::vec((0..3_u8, 0..3000_u64), 0..200)
        ) {
            let (mut breaker, mut now, mut in_flight) = (breaker(), START, 0);
            for (what, millis) in steps {
                now = now.after(Duration::from_millis(millis));
                if what == 0 {
                    if breaker.admit(now) != Verdict::Refuse {
                        begin(&mut breaker, now);
                        in_flight += 1;
                    }
                } else if in_flight > 0 {
                    in_flight -= 1;
                    end(&mut breaker, now, if what == 1 { Response::Bad } else { Response::Good });
                }
            }
            now = now.after(BreakerRules::READS.longest_pause);
            prop_assert_ne!(breaker.admit(now), Verdict::Refuse);
            begin(&mut breaker, now);
            end(&mut breaker, now, Response::Good);
            prop_assert_eq!(breaker.admit(now), Verdict::Admit);
        }
    }
}
