//! Least squares that learn from one measurement after the other.
//!
//! 1. Errors count relative to what was measured, so that short work is predicted as well as long work.
//! 2. Coefficients are never negative: more work never takes less time.
//! 3. The first measurement may be due to each term alone: a prior that is wrong by far is corrected.
//! 4. What was measured long ago is forgotten as far as it is measured again. What is not measured stays known.
//!    No coefficient becomes less certain than at the start.
//! 5. Numbers stay finite: what would make them something else teaches nothing.
//! 6. The covariance stays symmetric: rounding errors would grow with each measurement.

/// The relative noise of a measurement that is assumed.
const NOISE: f64 = 0.05;
/// How much of the weight of a measurement is left after the next one.
const KEPT: f64 = 0.98;

/// The coefficients of `TERMS` terms whose sum is the time of work, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Regression<const TERMS: usize> {
    coefficients: [f64; TERMS],
    /// How uncertain they are, and how their errors belong together.
    covariance: [[f64; TERMS]; TERMS],
    /// Those that the coefficients had at the start.
    first_variances: [f64; TERMS],
    has_measured: bool,
}

impl<const TERMS: usize> Regression<TERMS> {
    /// Starts with a prior that may be wrong by a factor of about `spread`.
    #[must_use]
    pub fn new(prior: [f64; TERMS], spread: f64) -> Self {
        let first_variances = prior.map(|one| (one * spread).powi(2));
        let mut regression = Self {
            coefficients: prior,
            covariance: [[0.0; TERMS]; TERMS],
            first_variances,
            has_measured: false,
        };
        regression.doubt();
        regression
    }

    /// The time of work.
    #[must_use]
    pub fn time(&self, terms: &[f64; TERMS]) -> f64 {
        dot(&self.coefficients, terms)
    }

    /// The coefficients, in seconds for one unit of each term.
    #[must_use]
    pub fn coefficients(&self) -> &[f64; TERMS] {
        &self.coefficients
    }

    /// Learns that work took so long. What is no [time](is_time) teaches nothing.
    pub fn note(&mut self, terms: &[f64; TERMS], seconds: f64) {
        if is_time(seconds) && terms.iter().all(|term| term.is_finite()) {
            self.keep_finite(|regression| regression.learn(terms, seconds));
        }
    }

    /// Changes what was learned, unless numbers would become infinite by that.
    fn keep_finite(&mut self, change: impl FnOnce(&mut Self)) {
        let before = self.clone();
        change(self);
        let all = self.covariance.iter().flatten().chain(&self.coefficients);
        if !all.chain(&self.first_variances).all(|one| one.is_finite()) {
            *self = before;
        }
    }

    fn learn(&mut self, terms: &[f64; TERMS], seconds: f64) {
        let scaled = terms.map(|term| term / seconds);
        if !self.has_measured {
            self.has_measured = true;
            for (variance, scaled) in self.first_variances.iter_mut().zip(scaled) {
                *variance = variance.max((0.5 / scaled.max(f64::MIN_POSITIVE)).powi(2).min(1.0));
            }
            self.doubt();
        }
        let shifted = self.covariance.map(|row| dot(&row, &scaled));
        let variance = NOISE * NOISE + dot(&shifted, &scaled);
        let gain = shifted.map(|one| one / variance);
        let error = 1.0 - dot(&self.coefficients, &scaled);
        for (coefficient, gain) in self.coefficients.iter_mut().zip(gain) {
            *coefficient += gain * error;
        }
        // Of what is left of the uncertainty in the measured direction, a part comes back.
        let left = NOISE * NOISE / variance;
        let certain = dot(&shifted, &scaled).max(f64::MIN_POSITIVE);
        let regained = (1.0 / KEPT - 1.0) * left * left / (certain * left);
        let before = self.covariance;
        for at in 0..TERMS {
            for other in 0..=at {
                let known = before[at][other] - gain[at] * shifted[other];
                let forgotten = known + regained * shifted[at] * shifted[other];
                self.covariance[at][other] = forgotten;
                self.covariance[other][at] = forgotten;
            }
        }
        self.bound();
        self.project();
    }

    /// Scales the uncertainty of coefficients down to that of the start.
    fn bound(&mut self) {
        for at in 0..TERMS {
            let excess = self.covariance[at][at] / self.first_variances[at];
            if excess > 1.0 {
                let factor = excess.sqrt();
                for other in 0..TERMS {
                    self.covariance[at][other] /= factor;
                    self.covariance[other][at] /= factor;
                }
            }
        }
    }

    /// Makes negative coefficients zero, and changes the others by as much as the measurements so far let expect.
    fn project(&mut self) {
        for _ in 0..TERMS {
            let Some(at) = (0..TERMS).find(|at| self.coefficients[*at] < 0.0) else { return };
            let excess = self.coefficients[at] / self.covariance[at][at].max(f64::MIN_POSITIVE);
            for (coefficient, row) in self.coefficients.iter_mut().zip(&self.covariance) {
                *coefficient -= row[at] * excess;
            }
            self.coefficients[at] = 0.0;
        }
        self.coefficients = self.coefficients.map(|one| one.max(0.0));
    }

    /// Multiplies all times, and learns from the next measurements as from the first ones.
    pub fn scale(&mut self, factor: f64) {
        self.keep_finite(|regression| {
            let variances = &mut regression.first_variances;
            for (coefficient, variance) in regression.coefficients.iter_mut().zip(variances) {
                *coefficient *= factor;
                *variance = (*variance).max(*coefficient * *coefficient);
            }
            regression.doubt();
        });
    }

    fn doubt(&mut self) {
        for (at, variance) in self.first_variances.into_iter().enumerate() {
            self.covariance[at] = [0.0; TERMS];
            self.covariance[at][at] = variance;
        }
    }
}

/// Whether work can have taken so many seconds: a positive number of less than some days.
pub(super) fn is_time(seconds: f64) -> bool {
    seconds > 0.0 && seconds < 1e6
}

fn dot<const TERMS: usize>(one: &[f64; TERMS], other: &[f64; TERMS]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_from_a_prior_that_is_off_by_five() {
        let mut regression = Regression::new([5e-3, 5e-6], 8.0);
        for step in 0..20 {
            let amount = f64::from(100 + 400 * (step % 5));
            regression.note(&[1.0, amount], 1e-3 + 1e-6 * amount);
        }
        for amount in [100.0, 1000.0, 5000.0] {
            let right = 1e-3 + 1e-6 * amount;
            assert!((regression.time(&[1.0, amount]) / right - 1.0).abs() < 0.02);
        }
    }

    #[test]
    fn a_term_without_effect_takes_nothing_from_the_others() {
        let mut regression = Regression::new([1e-6, 1e-3, 1e-9], 10.0);
        for step in 0..30 {
            let amount = 100.0 + 50.0 * f64::from(step % 7);
            regression.note(&[1.0, amount, amount * amount], 1e-2 + 1e-4 * amount);
        }
        for amount in [100.0, 400.0] {
            let right = 1e-2 + 1e-4 * amount;
            assert!((regression.time(&[1.0, amount, amount * amount]) / right - 1.0).abs() < 0.03);
        }
    }

    #[test]
    fn the_same_work_again_and_again_leaves_no_coefficient_without_bounds() {
        let mut regression = Regression::new([1e-3, 1e-6], 4.0);
        for _ in 0..100_000 {
            regression.note(&[1.0, 500.0], 2e-3);
        }
        assert!((regression.time(&[1.0, 500.0]) / 2e-3 - 1.0).abs() < 0.01);
        assert!(regression.covariance[0][0] <= regression.first_variances[0]);
        assert!(regression.time(&[1.0, 5000.0]) < 0.1);
    }

    #[test]
    fn nonsense_teaches_nothing() {
        let mut regression = Regression::new([1e-3, 1e-6], 4.0);
        let before = regression.clone();
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            regression.note(&[1.0, 5.0], seconds);
        }
        regression.note(&[1.0, f64::NAN], 1.0);
        assert_eq!(regression, before);
    }
}
