//! Whether a device that hangs or fails is asked at all.
//!
//! 1. Whatever is begun ends once: each [`Breaker::begin`] is followed by one [`Breaker::end`] of the same kind.
//! 2. A device is suspended when it owes answers and gave no good one for [`Rules::stall`], or when the last
//!    [`Rules::errors`] answers were bad.
//! 3. Any good answer, whatever it belongs to, ends the suspension.
//! 4. While it is suspended a request is let through now and then as a trial, after pauses that double; the first one
//!    at once if it was bad answers, which may all be of one bad region. What the device keeps is bounded: of trials
//!    that get no answer there are at most [`Rules::trials`].

use std::time::Duration;

use dalsegno_core::Nanos;

/// When to suspend a device, and how often to try it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// So long without a good answer, though some are owed.
    pub stall: Duration,
    /// So many bad answers one after the other.
    pub errors: u32,
    /// From the suspension of a device that gives no answer to the first trial.
    pub first_pause: Duration,
    /// Most between two trials.
    pub longest_pause: Duration,
    /// Most trials that wait for an answer.
    pub trials: u32,
}

impl Rules {
    /// For reads, which somebody waits for: a disk that works answers within some milliseconds, one that spins up or
    /// fails over to another path takes seconds.
    pub const READS: Self = Self {
        stall: Duration::from_secs(1),
        errors: 16,
        first_pause: Duration::from_millis(250),
        longest_pause: Duration::from_secs(5),
        trials: 4,
    };

    /// For writes and syncs, which nobody waits for and which may take long when much has to be written back.
    pub const WRITES: Self = Self { stall: Duration::from_secs(5), ..Self::READS };
}

/// What is known of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is asked as ever.
    Working,
    /// It is not asked.
    Suspended,
    /// It is not asked but for a trial, whose answer is awaited.
    Trying,
}

impl State {
    /// The word for counters and people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Suspended => "suspended",
            Self::Trying => "trying",
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The device did what it was asked, or said sensibly that it cannot: a full disk works.
    Good,
    /// The device failed.
    Bad,
    /// The device was never asked: the deadline came first, or the queue was full.
    Unasked,
}

/// What a request is to the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One that was let through because the device works, or that is never refused.
    Usual,
    /// One that [`Verdict::Try`] was said to.
    Trial,
}

/// Whether a request may go to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Yes.
    Ask,
    /// As a trial: nobody should wait for this one.
    Try,
    /// No.
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Suspension {
    since: Nanos,
    pause: Duration,
    next_trial: Nanos,
}

/// The circuit breaker of one direction of a device.
#[derive(Clone, Debug)]
pub struct Breaker {
    rules: Rules,
    /// Begun and not ended.
    owed: u64,
    /// Trials among them.
    trials: u32,
    /// The last good answer, or when something was begun while nothing was owed.
    quiet_since: Nanos,
    /// Bad answers since the last good one.
    errors: u32,
    suspension: Option<Suspension>,
    suspensions: u64,
}

impl Breaker {
    /// A device that works, as far as anybody knows.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            owed: 0,
            trials: 0,
            quiet_since: Nanos(0),
            errors: 0,
            suspension: None,
            suspensions: 0,
        }
    }

    /// Whether [`Self::ask`] would refuse.
    pub fn refuses(&mut self, now: Nanos) -> bool {
        self.look(now);
        let rules = self.rules;
        self.suspension.is_some_and(|it| it.next_trial > now || self.trials >= rules.trials)
    }

    /// Whether a request that could be refused may go to the device now. [`Verdict::Try`] is said once, to the one who
    /// asked.
    pub fn ask(&mut self, now: Nanos) -> Verdict {
        if self.refuses(now) {
            return Verdict::Refuse;
        }
        let Some(suspension) = &mut self.suspension else { return Verdict::Ask };
        suspension.pause = (2 * suspension.pause).min(self.rules.longest_pause);
        suspension.next_trial = now.after(suspension.pause);
        Verdict::Try
    }

    /// A request goes to the device.
    pub fn begin(&mut self, now: Nanos, kind: Kind) {
        if self.owed == 0 {
            self.quiet_since = now;
        }
        self.owed += 1;
        self.trials += u32::from(kind == Kind::Trial);
    }

    /// A request has ended. Returns how long the device was suspended if this ends it.
    pub fn end(&mut self, now: Nanos, kind: Kind, answer: Answer) -> Option<Duration> {
        assert!(self.owed > 0, "what ends was begun");
        self.owed -= 1;
        self.trials -= u32::from(kind == Kind::Trial);
        match answer {
            Answer::Good => {
                self.quiet_since = now;
                self.errors = 0;
                return self.suspension.take().map(|suspension| now.since(suspension.since));
            }
            Answer::Bad => {
                self.errors = self.errors.saturating_add(1);
                if self.errors >= self.rules.errors {
                    // It answers, so whether it can do better is known at once.
                    self.suspend(now, now);
                }
            }
            Answer::Unasked => {}
        }
        None
    }

    /// What is known of the device. A stall is noticed here, too, where nobody asks any more.
    pub fn state(&mut self, now: Nanos) -> State {
        self.look(now);
        match self.suspension {
            None => State::Working,
            Some(_) if self.trials > 0 => State::Trying,
            Some(_) => State::Suspended,
        }
    }

    /// How often it was suspended.
    #[must_use]
    pub fn suspensions(&self) -> u64 {
        self.suspensions
    }

    /// Requests that the device has not answered.
    #[must_use]
    pub fn owed(&self) -> u64 {
        self.owed
    }

    fn look(&mut self, now: Nanos) {
        let stalled = self.quiet_since.after(self.rules.stall);
        if self.owed > 0 && stalled <= now {
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
        Breaker::new(Rules::READS)
    }

    fn begin(breaker: &mut Breaker, now: Nanos) {
        breaker.begin(now, Kind::Usual);
    }

    fn end(breaker: &mut Breaker, now: Nanos, answer: Answer) -> Option<Duration> {
        breaker.end(now, Kind::Usual, answer)
    }

    #[test]
    fn a_device_that_answers_is_never_suspended_however_slow_its_callers_are() {
        let (mut breaker, mut now) = (breaker(), START);
        for _ in 0..100 {
            assert_eq!(breaker.ask(now), Verdict::Ask);
            begin(&mut breaker, now);
            end(&mut breaker, now.after(SECOND / 2), Answer::Good);
            now = now.after(100 * SECOND);
        }
        assert_eq!(breaker.suspensions(), 0);
    }

    #[test]
    fn bad_answers_suspend_and_whether_the_device_can_do_better_is_tried_at_once() {
        let (mut breaker, rules) = (breaker(), Rules::READS);
        for _ in 0..rules.errors {
            assert_eq!(breaker.ask(START), Verdict::Ask);
            begin(&mut breaker, START);
            end(&mut breaker, START, Answer::Bad);
        }
        assert_eq!([breaker.ask(START), breaker.ask(START)], [Verdict::Try, Verdict::Refuse]);
        breaker.begin(START, Kind::Trial);
        breaker.end(START, Kind::Trial, Answer::Bad);
        assert_eq!(breaker.ask(START.after(rules.first_pause)), Verdict::Refuse);
        assert_eq!(breaker.ask(START.after(2 * rules.first_pause)), Verdict::Try);
    }

    #[test]
    fn a_stall_suspends_and_the_first_good_answer_ends_it() {
        let mut breaker = breaker();
        begin(&mut breaker, START);
        begin(&mut breaker, START.after(SECOND / 2));
        assert_eq!(breaker.ask(START.after(SECOND / 2)), Verdict::Ask);
        let stalled = START.after(SECOND);
        assert_eq!(breaker.ask(stalled), Verdict::Refuse);
        assert_eq!(breaker.state(stalled), State::Suspended);
        let ended = end(&mut breaker, stalled.after(SECOND), Answer::Good);
        assert_eq!(ended, Some(SECOND));
        assert_eq!(breaker.ask(stalled.after(SECOND)), Verdict::Ask);
        assert_eq!((breaker.suspensions(), breaker.owed()), (1, 1));
    }

    #[test]
    fn one_slow_answer_among_good_ones_suspends_nothing() {
        let (mut breaker, mut now) = (breaker(), START);
        begin(&mut breaker, now);
        for _ in 0..1000 {
            begin(&mut breaker, now);
            now = now.after(SECOND / 10);
            assert_eq!(breaker.ask(now), Verdict::Ask);
            end(&mut breaker, now, Answer::Good);
        }
    }

    #[test]
    fn trials_go_through_at_growing_pauses_and_few_are_left_without_an_answer() {
        let mut breaker = breaker();
        begin(&mut breaker, START);
        let mut now = START.after(SECOND);
        let mut trials = Vec::new();
        for step in 0..4000 {
            if breaker.ask(now) == Verdict::Try {
                trials.push(now);
                breaker.begin(now, Kind::Trial);
                assert_eq!(breaker.state(now), State::Trying);
                if step < 2000 {
                    breaker.end(now, Kind::Trial, Answer::Bad);
                    assert_eq!(breaker.state(now), State::Suspended);
                }
            }
            now = now.after(SECOND / 100);
        }
        let pauses: Vec<_> = trials.windows(2).map(|two| two[1].since(two[0])).collect();
        assert!(pauses.is_sorted() && pauses[0] <= SECOND, "{pauses:?}");
        assert!(pauses.ends_with(&[Rules::READS.longest_pause; 4]), "{pauses:?}");
        assert_eq!(breaker.owed(), 1 + u64::from(Rules::READS.trials));
        assert!(breaker.refuses(now.after(100 * SECOND)));
    }

    #[test]
    fn bad_answers_in_a_row_suspend_and_a_good_one_between_them_does_not() {
        let mut breaker = breaker();
        for round in 0..10 * Rules::READS.errors {
            begin(&mut breaker, START);
            let is_good = round % Rules::READS.errors == 0;
            end(&mut breaker, START, if is_good { Answer::Good } else { Answer::Bad });
        }
        assert_eq!(breaker.state(START), State::Working);
        begin(&mut breaker, START);
        end(&mut breaker, START, Answer::Bad);
        assert_eq!(breaker.state(START), State::Suspended);
        // A trial that fails leaves it so, one that succeeds ends it.
        let later = START.after(SECOND);
        assert_eq!(breaker.ask(later), Verdict::Try);
        begin(&mut breaker, later);
        end(&mut breaker, later, Answer::Bad);
        assert_eq!(breaker.ask(later), Verdict::Refuse);
        let later = later.after(SECOND);
        assert_eq!(breaker.ask(later), Verdict::Try);
        begin(&mut breaker, later);
        assert!(end(&mut breaker, later, Answer::Good).is_some());
        assert_eq!(breaker.ask(later), Verdict::Ask);
    }

    #[test]
    fn what_never_reached_the_device_says_nothing_about_it() {
        let mut breaker = breaker();
        for _ in 0..1000 {
            begin(&mut breaker, START);
            end(&mut breaker, START, Answer::Unasked);
        }
        assert_eq!(breaker.state(START), State::Working);
    }

    proptest! {
        /// Whatever happened before: a device that answers is asked again after the longest pause at the latest.
        #[test]
        fn a_device_that_recovers_is_found_within_the_longest_pause(
            steps in prop::collection::vec((0..3_u8, 0..3000_u64), 0..200)
        ) {
            let (mut breaker, mut now, mut owed) = (breaker(), START, 0);
            for (what, millis) in steps {
                now = now.after(Duration::from_millis(millis));
                if what == 0 {
                    if breaker.ask(now) != Verdict::Refuse {
                        begin(&mut breaker, now);
                        owed += 1;
                    }
                } else if owed > 0 {
                    owed -= 1;
                    end(&mut breaker, now, if what == 1 { Answer::Bad } else { Answer::Good });
                }
            }
            now = now.after(Rules::READS.longest_pause);
            prop_assert_ne!(breaker.ask(now), Verdict::Refuse);
            begin(&mut breaker, now);
            end(&mut breaker, now, Answer::Good);
            prop_assert_eq!(breaker.ask(now), Verdict::Ask);
        }
    }
}
