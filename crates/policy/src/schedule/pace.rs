//! How fast writes go while engines decode: as fast as steps allow, found by trying.
//!
//! The rate grows by a constant while steps are as short as without writes, and is halved when they are longer
//! (additive increase, multiplicative decrease, as of TCP). A decrease needs several steps to show, so no second one
//! follows for some of them.
//!
//! How long a step is without writes, over what its engine predicts, is measured on those beside no write: the engine's
//! model learns from all steps.

use std::time::Duration;

use dalsegno_core::Nanos;

use super::numbers::{real, whole};
use crate::merging::Bucket;

/// A step beside writes may take this much longer than one without.
const TOLERANCE: f64 = 1.05;
/// Steps after a decrease that say nothing yet.
const PAUSE: u32 = 8;
/// The first rate, its raise for each step and the lowest rate, as parts of the highest one.
const FIRST: f64 = 1.0 / 8.0;
const RAISE: f64 = 1.0 / 64.0;
const LEAST: f64 = 1.0 / 256.0;
/// Weight of the newest step beside no write.
const NEWEST: f64 = 1.0 / 16.0;
/// What may be written without a pause.
const BURST: Duration = Duration::from_millis(10);
/// The longest pause for what was written before: the rate may have grown since.
const LONGEST: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct WritePace {
    most: u64,
    /// The rate as a part of the highest one.
    part: f64,
    paused: u32,
    bucket: Bucket,
    /// The usual ratio of steps beside no write.
    alone: f64,
}

impl WritePace {
    /// Of a device that writes so many bytes per second.
    pub(super) fn new(most: u64) -> Self {
        let mut pace = Self {
            most: 0,
            part: FIRST,
            paused: 0,
            bucket: Bucket::with_burst(0, BURST),
            alone: 1.0,
        };
        pace.set_most(most);
        pace
    }

    /// The device writes so many bytes per second, as far as is known now.
    pub(super) fn set_most(&mut self, most: u64) {
        self.most = most.max(1);
        self.bucket.set_rate(self.rate());
    }

    /// Bytes per second.
    pub(super) fn rate(&self) -> u64 {
        whole(real(self.most) * self.part).max(1)
    }

    /// A step was measured. `ratio` is its time over what the model of the engine predicts.
    pub(super) fn note_step(&mut self, ratio: f64, is_beside: bool) {
        if !ratio.is_finite() || ratio <= 0.0 {
            return;
        }
        if !is_beside {
            self.alone += (ratio.clamp(0.25, 4.0) - self.alone) * NEWEST;
            return;
        }
        if self.paused > 0 {
            self.paused -= 1;
            return;
        }
        let part = if ratio > self.alone * TOLERANCE {
            self.paused = PAUSE;
            self.part / 2.0
        } else {
            self.part + RAISE
        };
        self.part = part.clamp(LEAST, 1.0);
        self.bucket.set_rate(self.rate());
    }

    /// How long the next write waits.
    pub(super) fn wait(&self, now: Nanos) -> Duration {
        self.bucket.wait(now).unwrap_or(Duration::ZERO)
    }

    /// A write starts.
    pub(super) fn spend(&mut self, bytes: u64, now: Nanos) {
        self.bucket.forgive(LONGEST, now);
        self.bucket.spend(bytes, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of 20 ms that become longer in proportion to what was written beside them, above a rate that delays none.
    fn settle(most: u64, harmless: u64, steps: u64) -> (f64, Vec<f64>) {
        let mut pace = WritePace::new(most);
        let (mut written, mut ratios) = (0_u64, Vec::new());
        for step in 0..steps {
            let begun = Nanos(step * 20_000_000);
            let mut beside = 0_u64;
            for part in 0..20 {
                let now = begun.after(Duration::from_millis(part));
                if pace.wait(now).is_zero() {
                    pace.spend(1 << 20, now);
                    beside += 1 << 20;
                }
            }
            let over = (real(beside) * 50.0 / real(harmless) - 1.0).max(0.0);
            let ratio = 1.0 + 0.3 * over;
            pace.note_step(ratio, true);
            written += beside;
            ratios.push(ratio);
        }
        (real(written) / (real(steps) * 0.02), ratios)
    }

    #[test]
    fn it_finds_the_rate_that_delays_no_step() {
        let (rate, ratios) = settle(4 << 30, 500 << 20, 2_000);
        assert!(rate > 0.4 * real(500 << 20), "{rate}");
        let late = ratios[200..].iter().filter(|ratio| **ratio > TOLERANCE).count();
        assert!(late < 1_800 / 8, "{late}");
    }

    #[test]
    fn where_writes_delay_nothing_the_rate_is_the_highest() {
        let mut pace = WritePace::new(1 << 30);
        for _ in 0..1_000 {
            pace.note_step(1.0, true);
        }
        assert_eq!(pace.rate(), 1 << 30);
    }

    #[test]
    fn a_model_that_is_wrong_about_all_steps_changes_nothing() {
        let mut pace = WritePace::new(1 << 30);
        for _ in 0..200 {
            pace.note_step(1.5, false);
            pace.note_step(1.5, true);
        }
        assert!(pace.rate() > 1 << 29, "{}", pace.rate());
    }

    #[test]
    fn it_never_stops_and_ignores_what_is_no_ratio() {
        let mut pace = WritePace::new(1 << 30);
        for _ in 0..10_000 {
            pace.note_step(100.0, true);
        }
        assert_eq!(pace.rate(), (1 << 30) / 256);
        for ratio in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            pace.note_step(ratio, true);
        }
        assert_eq!(pace.rate(), (1 << 30) / 256);
    }
}
