//! How long blocks of a tier take to arrive.
//!
//! 1. After a load was given up, none is predicted to have more bytes per second than the largest one that was measured
//!    since: a few small ones say little of a large one.

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

/// The largest load since one was given up.
#[derive(Clone, Copy, Debug)]
struct Proven {
    bytes: f64,
    /// Seconds of a byte, on average.
    byte_s: f64,
}

/// The time of loads from one tier, as it was measured.
#[derive(Clone, Debug)]
pub struct TransferModel {
    learned: Learned<2>,
    /// None if no load was given up.
    proven: Option<Proven>,
}

impl TransferModel {
    /// Starts with what is assumed.
    #[must_use]
    pub fn new(prior: TransferPrior) -> Self {
        let learned = Learned::new([prior.latency_s, 1.0 / prior.bytes_per_s.max(1.0)], SPREAD);
        Self { learned, proven: None }
    }

    /// Learns that a load took so many seconds.
    ///
    /// `bytes` are its own and those that were queued before it, as they take turns.
    pub fn note(&mut self, bytes: f64, seconds: f64) {
        self.learned.note(&[1.0, bytes], seconds);
        if let Some(proven) = &mut self.proven
            && seconds.is_finite()
            && seconds > 0.0
            && bytes > 0.0
            && bytes >= proven.bytes / 2.0
        {
            *proven = Proven { bytes, byte_s: seconds / bytes };
        }
    }

    /// Learns that a load was given up. Until one is measured again, none is predicted to be worth it.
    pub fn note_given_up(&mut self) {
        self.learned.note_given_up();
        self.proven = Some(Proven { bytes: 0.0, byte_s: 0.0 });
    }

    /// The seconds that most loads of so many bytes do not exceed.
    #[must_use]
    pub fn load_s(&self, bytes: f64) -> f64 {
        self.learned.high(&[1.0, bytes]).max(bytes * self.proven_byte_s())
    }

    /// The seconds that so many more bytes take, behind `before` others.
    #[must_use]
    pub fn more_s(&self, before: f64, bytes: f64) -> f64 {
        let more_s = self.load_s(before + bytes) - self.load_s(before);
        more_s.max(bytes * self.proven_byte_s())
    }

    fn proven_byte_s(&self) -> f64 {
        self.proven.map_or(0.0, |proven| proven.byte_s)
    }

    /// What was learned.
    #[must_use]
    pub fn learned(&self) -> &Learned<2> {
        &self.learned
    }
}
