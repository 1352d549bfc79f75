//! A time that is learned, and how wrong its predictions were.
//!
//! 1. The predictions of the last measurements are compared with what was measured. The first measurements, and those
//!    at which the work has changed, say nothing about predictions.
//! 2. A measurement is a surprise if it is off by more than [`DRIFT`], and none of the last ones of work that was no
//!    longer took as long, or none of work that was no shorter was as fast. Two in a row to the same side mean that the
//!    work has changed: what was learned is scaled, and the second one counts like the first ones. A single one is
//!    learned from, or not: see [`Single`].
//! 3. A high prediction for the work that was measured last is not below what that took, less what would be no unusual
//!    delay: one slow measurement is believed at once.
//! 4. Work that was given up has no time. Until other work was measured, a high prediction is longer than any
//!    computing.

use super::recent::{Precedents, Recent, Usual};
use super::regression::{Regression, is_time};

/// A prediction that is off by this factor is a surprise.
const DRIFT: f64 = 1.5;
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

/// A measurement that is far from what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Surprise {
    Late,
    Early,
}

/// The time of one kind of work, in seconds.
#[derive(Clone, Debug)]
pub struct Learned<const TERMS: usize> {
    regression: Regression<TERMS>,
    single: Single,
    recent: Recent<TERMS>,
    usual: Usual,
    /// The last measurement was one, and the work had not changed.
    surprise: Option<Surprise>,
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
        Self { regression, single, recent, usual, surprise: None, measured: 0, drifts: 0 }
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

    /// Learns that work took so long.
    pub fn note(&mut self, terms: &[f64; TERMS], seconds: f64) {
        let expected = self.regression.time(terms);
        if !(is_time(seconds) && expected > 0.0) {
            self.regression.note(terms, seconds);
            return;
        }
        let was_surprise = self.surprise.is_some();
        let time = |terms: &_| self.regression.time(terms);
        let precedents = self.recent.precedents(expected, was_surprise, time);
        let surprise = surprise_of(expected, seconds, precedents);
        let has_changed = surprise.is_some() && surprise == self.surprise;
        if has_changed {
            let ratio = seconds / expected;
            self.regression.scale(ratio);
            self.recent.change(ratio);
            self.drifts += 1;
        }
        let is_first = self.measured <= TERMS as u64;
        self.surprise = surprise.filter(|_| !has_changed);
        if self.surprise.is_none() || is_first || self.single == Single::Learned {
            self.regression.note(terms, seconds);
        }
        let time = self.regression.time(terms).max(f64::MIN_POSITIVE);
        let compared = if has_changed || is_first { time } else { expected };
        self.recent.push(*terms, compared, seconds);
        self.measured += 1;
        self.usual = self.recent.usual();
        let delay_s = (DRIFT * precedents.delay).max(self.usual.late_s);
        self.usual.high = self.usual.high.max((seconds - delay_s) / time);
    }

    /// Learns that work was given up.
    pub fn note_given_up(&mut self) {
        self.usual.high = self.usual.high.max(GIVEN_UP);
    }
}

fn surprise_of(expected: f64, seconds: f64, precedents: Precedents) -> Option<Surprise> {
    if seconds > (DRIFT * expected).max(precedents.longest) {
        Some(Surprise::Late)
    } else if DRIFT * seconds < expected && seconds < precedents.shortest {
        Some(Surprise::Early)
    } else {
        None
    }
}
