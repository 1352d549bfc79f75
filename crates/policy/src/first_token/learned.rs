//! A time that is learned, and how wrong its predictions were.
//!
//! 1. The predictions of the last [`KEPT`] measurements are compared with what was measured. The first measurements,
//!    and those at which the work has changed, say nothing about predictions.
//! 2. Two measurements in a row that are off by more than [`DRIFT`] to the same side mean that the work has changed:
//!    what was learned is scaled, and the next measurements count like the first ones.
//! 3. A high prediction for the work that was measured last is never below what that took: one slow measurement is
//!    believed at once.
//! 4. Work that was given up has no time. Until other work was measured, a high prediction is longer than any
//!    computing.

use super::regression::{Regression, is_time};

/// Predictions that are remembered.
const KEPT: usize = 32;
/// A prediction that is off by this factor is a surprise.
const DRIFT: f64 = 1.5;
/// The part of measurements that are below a high prediction, and above a low one.
const CONFIDENCE: f64 = 0.8;
/// A high prediction over the expected time, after work was given up.
const GIVEN_UP: f64 = 1e6;

/// The time of one kind of work, in seconds.
#[derive(Clone, Debug)]
pub struct Learned<const TERMS: usize> {
    regression: Regression<TERMS>,
    /// Measured over predicted, in a ring.
    ratios: [f64; KEPT],
    /// The last ratio of a prediction; 1 after a change.
    last: f64,
    measured: u64,
    drifts: u64,
    /// Of the ratios; those of a perfect prediction without any.
    low: f64,
    high: f64,
}

impl<const TERMS: usize> Learned<TERMS> {
    /// Starts with a prior that may be wrong by a factor of about `spread`.
    #[must_use]
    pub fn new(prior: [f64; TERMS], spread: f64) -> Self {
        let regression = Regression::new(prior, spread);
        let ratios = [1.0; KEPT];
        Self { regression, ratios, last: 1.0, measured: 0, drifts: 0, low: 1.0, high: 1.0 }
    }

    /// The time that is expected.
    #[must_use]
    pub fn time(&self, terms: &[f64; TERMS]) -> f64 {
        self.regression.time(terms)
    }

    /// A time that most measurements do not exceed.
    #[must_use]
    pub fn high(&self, terms: &[f64; TERMS]) -> f64 {
        self.high * self.regression.time(terms)
    }

    /// A time that most measurements exceed.
    #[must_use]
    pub fn low(&self, terms: &[f64; TERMS]) -> f64 {
        self.low * self.regression.time(terms)
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

    /// The factors between an expected time and a low and a high one.
    #[must_use]
    pub fn spread(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    /// Learns that work took so long.
    pub fn note(&mut self, terms: &[f64; TERMS], seconds: f64) {
        let expected = self.regression.time(terms);
        if !(is_time(seconds) && expected > 0.0) {
            self.regression.note(terms, seconds);
            return;
        }
        let ratio = seconds / expected;
        let has_changed = same_surprise(ratio, self.last);
        if has_changed {
            self.regression.scale(ratio);
            self.drifts += 1;
            self.ratios = [1.0; KEPT];
        }
        self.regression.note(terms, seconds);
        self.last = if has_changed { 1.0 } else { ratio };
        let rest = seconds / self.regression.time(terms).max(f64::MIN_POSITIVE);
        let is_first = self.measured <= TERMS as u64;
        let at = usize::try_from(self.measured % KEPT as u64).unwrap_or_default();
        self.ratios[at] = if has_changed || is_first { rest } else { ratio };
        self.measured += 1;
        let mut sorted = self.ratios;
        sorted.sort_by(f64::total_cmp);
        self.high = quantile(&sorted, CONFIDENCE).max(rest).max(1.0);
        self.low = quantile(&sorted, 1.0 - CONFIDENCE).min(1.0);
    }

    /// Learns that work was given up.
    pub fn note_given_up(&mut self) {
        self.high = self.high.max(GIVEN_UP);
    }
}

/// Whether two ratios are surprises of the same kind.
fn same_surprise(one: f64, other: f64) -> bool {
    is_surprise(one) && is_surprise(other) && (one > 1.0) == (other > 1.0)
}

fn is_surprise(ratio: f64) -> bool {
    !(1.0 / DRIFT..=DRIFT).contains(&ratio)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a position in a short list"
)]
fn quantile(sorted: &[f64], part: f64) -> f64 {
    sorted[(part * (sorted.len() - 1) as f64).round() as usize]
}
