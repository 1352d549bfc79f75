//! How long blocks of a tier take to arrive.

use super::learned::Learned;

/// A prior may be wrong by this factor.
const SPREAD: f64 = 10.0;

/// What is assumed of a tier until it was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferPrior {
    /// Seconds before the first byte arrives.
    pub latency_s: f64,
    /// Bytes in a second.
    pub bytes_per_s: f64,
}

/// The time of loads from one tier, as it was measured.
#[derive(Clone, Debug)]
pub struct TransferModel(Learned<2>);

impl TransferModel {
    /// Starts with what is assumed.
    #[must_use]
    pub fn new(prior: TransferPrior) -> Self {
        Self(Learned::new([prior.latency_s, 1.0 / prior.bytes_per_s.max(1.0)], SPREAD))
    }

    /// Learns that a load took so many seconds.
    ///
    /// `bytes` are its own and those that were queued before it, as they take turns.
    pub fn note(&mut self, bytes: f64, seconds: f64) {
        self.0.note(&[1.0, bytes], seconds);
    }

    /// The seconds that most loads of so many bytes do not exceed.
    #[must_use]
    pub fn load_s(&self, bytes: f64) -> f64 {
        self.0.high(&[1.0, bytes])
    }

    /// What was learned.
    #[must_use]
    pub fn learned(&self) -> &Learned<2> {
        &self.0
    }
}
