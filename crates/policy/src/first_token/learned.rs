//! A time that is learned, and how wrong its predictions were.
//!
//! 1. The predictions of the last measurements are compared with what was measured. The first measurements, and those
//!    at which the work has changed, say nothing about predictions.
//! 2. A measurement is a surprise if it is off by more than [`DRIFT`], and none of the last ones of work that was no
//!    longer took as long, or none of the newest ones of work that was no shorter was as fast. If the next one is late
//!    and a surprise as well, or early, as the first one was, the work has changed: what was learned is scaled, and the
//!    second one counts like the first ones. A single one is learned from, or not: see [`Single`]. If not, the work has
//!    changed as well when [`LATE_RUN`] in a row are late, by what the least late one says. What was a usual delay
//!    before them is left out. Soon after a change, one in the other direction that shorter or longer work shows is
//!    another one: short and long work disagree about the terms, which are learned again from the last two
//!    measurements.
//! 3. A high prediction for the work that was measured last is not below what that took, less what would be no unusual
//!    delay: one slow measurement is believed at once.
//! 4. Work that was given up has no time. Until other work was measured, a high prediction is longer than any
//!    computing.

use super::recent::{DRIFT, Precedents, Recent, Usual};
use super::regression::{Regression, is_time};

/// Measurements in a row that are late by more than [`DRIFT`], after which the work has changed.
const LATE_RUN: u32 = 4;
/// Measurements after a change in which another one, in the other direction, may be due to the terms.
const SETTLES: u32 = 4;
/// Work that takes so many times longer, or less, than other work says something else of the terms.
const OTHER_WORK: f64 = 2.0;
/// A high prediction over the expected time, after work was given up.
const GIVEN_UP: f64 = 1e6;

/// What is learned from a surprise that no second one has confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Single {
    /// As much as from others: work may not be as the terms say.
    Learned,
    /// Only that it may happen again.
    Remembered,
}

/// What a measurement has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Nothing that is new.
    Nothing,
    /// Something that another one has to confirm.
    Surprise,
    /// That the work has changed.
    Change,
}

/// A measurement that is far from what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Surprise {
    Late,
    Early,
}

impl Surprise {
    /// Whether work was not like that before.
    fn is_new(self, seconds: f64, precedents: Precedents) -> bool {
        match self {
            Self::Late => seconds > precedents.longest,
            Self::Early => seconds < precedents.shortest,
        }
    }
}

/// Measurements in a row that were late, even if a delay that was usual before is left out.
#[derive(Clone, Copy, Debug)]
struct LateRun {
    count: u32,
    /// The least of them, times the expected time.
    least: f64,
    /// Seconds of that delay.
    usual_s: f64,
}

impl LateRun {
    const NONE: Self = Self { count: 0, least: f64::INFINITY, usual_s: 0.0 };

    /// Adds a measurement; returns the least of the run if it is long enough.
    fn add(&mut self, expected: f64, seconds: f64, usual_s: f64) -> Option<f64> {
        // What was late makes delays usual: they count from before the run.
        let usual_s = if self.count == 0 { usual_s } else { self.usual_s };
        let ratio = (seconds - usual_s) / expected;
        if ratio <= DRIFT {
            *self = Self::NONE;
            return None;
        }
        *self = Self { count: self.count + 1, least: self.least.min(ratio), usual_s };
        (self.count >= LATE_RUN).then_some(self.least)
    }
}

/// How work has changed.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// It takes so many times as long.
    Speed(f64),
    /// Its terms are not what they seemed to be; it takes about so many times as long.
    Terms(f64),
}

/// A change a moment ago.
#[derive(Clone, Copy, Debug)]
struct Settling<const TERMS: usize> {
    side: Surprise,
    /// Of the work that has shown it.
    terms: [f64; TERMS],
    /// Measurements until it is long ago.
    left: u32,
}

/// The time of one kind of work, in seconds.
#[derive(Clone, Debug)]
pub struct Learned<const TERMS: usize> {
    regression: Regression<TERMS>,
    single: Single,
    recent: Recent<TERMS>,
    usual: Usual,
    /// The last measurement was one, or a hint at one, and the work had not changed.
    surprise: Option<Surprise>,
    late_run: LateRun,
    settling: Option<Settling<TERMS>>,
    measured: u64,
    drifts: u64,
}

impl<const TERMS: usize> Learned<TERMS> {
    /// Starts with a prior that may be wrong by a factor of about `spread`.
    #[must_use]
    pub fn new(prior: [f64; TERMS], spread: f64, single: Single) -> Self {
        let regression = Regression::new(prior, spread);
        let recent = Recent::new();
        let usual = recent.usual();
        let late_run = LateRun::NONE;
        Self {
            regression,
            single,
            recent,
            usual,
            surprise: None,
            late_run,
            settling: None,
            measured: 0,
            drifts: 0,
        }
    }

    /// The time that is expected.
    #[must_use]
    pub fn time(&self, terms: &[f64; TERMS]) -> f64 {
        self.regression.time(terms)
    }

    /// A time that most measurements do not exceed.
    #[must_use]
    pub fn high(&self, terms: &[f64; TERMS]) -> f64 {
        self.usual.late_s + self.usual.high * self.regression.time(terms)
    }

    /// The coefficients, in seconds for one unit of each term.
    #[must_use]
    pub fn coefficients(&self) -> &[f64; TERMS] {
        self.regression.coefficients()
    }

    /// How often it was measured.
    #[must_use]
    pub fn measured(&self) -> u64 {
        self.measured
    }

    /// How often the work has changed.
    #[must_use]
    pub fn drifts(&self) -> u64 {
        self.drifts
    }

    /// How much measurements usually differ from what is expected.
    #[must_use]
    pub fn usual(&self) -> Usual {
        self.usual
    }

    /// Learns that work took so long; returns what that has shown. If the work does not confirm that other work was
    /// early, it may be early for another reason, as it is short.
    pub fn note(&mut self, terms: &[f64; TERMS], seconds: f64, confirms: bool) -> Shown {
        let expected = self.regression.time(terms);
        if !(is_time(seconds) && expected > 0.0) {
            self.regression.note(terms, seconds);
            return Shown::Nothing;
        }
        let was_surprise = self.surprise.is_some();
        let time = |terms: &_| self.regression.time(terms);
        let precedents = self.recent.precedents(expected, was_surprise, time);
        let side = side_of(expected, seconds);
        let is_new = side.is_some_and(|side| side.is_new(seconds, precedents));
        let is_again = side.is_some() && side == self.surprise;
        let is_confirmed = is_again
            && match side {
                // A delay that is usual confirms nothing.
                Some(Surprise::Late) => is_new,
                _ => confirms,
            };
        let run = match self.single {
            Single::Learned => None,
            Single::Remembered => self.late_run.add(expected, seconds, self.usual.late_s),
        };
        let ratio = if is_confirmed { Some(seconds / expected) } else { run };
        let changed = self.change_of(terms, side, ratio);
        self.apply(changed);
        let has_changed = changed.is_some();
        let is_first = self.measured <= TERMS as u64;
        // What was early is left, if this is early as well and too short to confirm it.
        let is_left = |side: &_| is_again && *side == Surprise::Early;
        self.surprise = side.filter(|side| !has_changed && (is_new || is_left(side)));
        let is_clear = is_confirmed || is_first || self.single == Single::Learned;
        if is_clear || self.surprise.is_none() {
            // What has happened before, and is far off, moves what was learned by a step.
            let now = self.regression.time(terms);
            let near = seconds.clamp(now / DRIFT, DRIFT * now);
            self.regression.note(terms, if is_clear { seconds } else { near });
        }
        let time = self.regression.time(terms).max(f64::MIN_POSITIVE);
        let compared = if has_changed || is_first { time } else { expected };
        self.recent.push(*terms, compared, seconds);
        self.measured += 1;
        self.usual = self.recent.usual();
        let delay_s = (DRIFT * precedents.delay).max(self.usual.late_s);
        self.usual.high = self.usual.high.max((seconds - delay_s) / time);
        match self.surprise {
            _ if has_changed => Shown::Change,
            Some(_) => Shown::Surprise,
            None => Shown::Nothing,
        }
    }

    /// What work shows that takes so many times as long as expected, if that is no accident.
    fn change_of(
        &mut self,
        terms: &[f64; TERMS],
        side: Option<Surprise>,
        ratio: Option<f64>,
    ) -> Option<Change> {
        let before = self.settling.take();
        let Some((side, ratio)) = side.zip(ratio) else {
            let less = |before: Settling<TERMS>| Settling { left: before.left - 1, ..before };
            self.settling = before.map(less).filter(|before| before.left > 0);
            return None;
        };
        let is_other = |before: &Settling<TERMS>| {
            let times = self.time(terms) / self.time(&before.terms);
            before.side != side && !(1.0 / OTHER_WORK..=OTHER_WORK).contains(&times)
        };
        if before.is_some_and(|before| is_other(&before)) {
            return Some(Change::Terms(ratio));
        }
        self.settling = Some(Settling { side, terms: *terms, left: SETTLES });
        Some(Change::Speed(ratio))
    }

    /// Changes what was learned; the measurement that shows it follows.
    fn apply(&mut self, changed: Option<Change>) {
        let ratio = match changed {
            None => return,
            Some(Change::Speed(ratio)) => {
                self.regression.scale(ratio);
                self.drifts += 1;
                ratio
            }
            Some(Change::Terms(ratio)) => {
                self.regression.scale(1.0);
                if let Some((terms, seconds)) = self.recent.last() {
                    self.regression.note(terms, seconds);
                }
                ratio
            }
        };
        self.late_run = LateRun::NONE;
        self.recent.change(ratio, |terms| self.regression.time(terms));
    }

    /// Learns that other work was early, of which the time says nothing: if the next measurement is early, the work has
    /// changed.
    pub fn note_early_hint(&mut self) {
        self.surprise.get_or_insert(Surprise::Early);
    }

    /// Whether something was early that the next measurement may confirm.
    pub fn is_early(&self) -> bool {
        self.surprise == Some(Surprise::Early)
    }

    /// Whether work is short, compared with one of the newest ones: it may be early for that reason.
    pub fn is_short(&self, terms: &[f64; TERMS]) -> bool {
        let time = |terms: &_| self.regression.time(terms);
        self.recent.is_short(time(terms), time)
    }

    /// Forgets that something was early, or a hint.
    pub fn forget_early(&mut self) {
        self.surprise = self.surprise.filter(|one| *one != Surprise::Early);
    }

    /// Whether work was given up, and none was measured since.
    pub fn was_given_up(&self) -> bool {
        self.usual.high >= GIVEN_UP
    }

    /// Learns that work was given up.
    pub fn note_given_up(&mut self) {
        self.forget_early();
        self.usual.high = self.usual.high.max(GIVEN_UP);
    }
}

/// The side to which a measurement is far off.
fn side_of(expected: f64, seconds: f64) -> Option<Surprise> {
    if seconds > DRIFT * expected {
        Some(Surprise::Late)
    } else if DRIFT * seconds < expected {
        Some(Surprise::Early)
    } else {
        None
    }
}
