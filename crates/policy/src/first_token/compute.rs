//! How long a step computes.
//!
//! The terms are those of a layer: a fixed part, a part for each token (its matrices), a part for each pair of a token
//! and one that it attends to, and a part for each token whose keys and values are read. All layers of a model take
//! about as long as each other.

use super::learned::{Learned, Single};

/// A prior may be wrong by this factor.
const SPREAD: f64 = 10.0;

/// What a step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepWork {
    /// New tokens of all requests.
    pub tokens: f64,
    /// Pairs of a new token and one before it in its request, or itself.
    pub pairs: f64,
    /// Tokens of all requests whose keys and values are read, the new ones included.
    pub read: f64,
}

impl StepWork {
    /// The work of the next `new` tokens of a request behind `before` others.
    #[must_use]
    pub fn of_request(new: f64, before: f64) -> Self {
        Self { tokens: new, pairs: new * (before + new / 2.0), read: before + new }
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            pairs: self.pairs + other.pairs,
            read: self.read + other.read,
        }
    }

    fn terms(self) -> [f64; 4] {
        [1.0, self.tokens, self.pairs, self.read]
    }
}

/// Seconds that are assumed until steps were measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComputePrior {
    /// Of a step, whatever it computes.
    pub step_s: f64,
    /// Of a token.
    pub token_s: f64,
    /// Of a pair of tokens.
    pub pair_s: f64,
    /// Of a token that is read.
    pub read_s: f64,
}

/// The time of steps, as it was measured.
#[derive(Clone, Debug)]
pub struct ComputeModel(Learned<4>);

impl ComputeModel {
    /// Starts with what is assumed.
    #[must_use]
    pub fn new(prior: ComputePrior) -> Self {
        let ComputePrior { step_s, token_s, pair_s, read_s } = prior;
        Self(Learned::new([step_s, token_s, pair_s, read_s], SPREAD, Single::Learned))
    }

    /// Learns that a step took so many seconds. A step that waited for a load says nothing about computing.
    pub fn note(&mut self, work: StepWork, seconds: f64) {
        self.0.note(&work.terms(), seconds, true);
    }

    /// The seconds of a step.
    #[must_use]
    pub fn step_s(&self, work: StepWork) -> f64 {
        self.0.time(&work.terms())
    }

    /// The seconds in which a request computes its tokens from one position to another, so many in a step.
    #[must_use]
    pub fn request_s(&self, from: f64, to: f64, chunk: f64) -> f64 {
        let new = (to - from).max(0.0);
        if new == 0.0 {
            return 0.0;
        }
        // The pairs do not depend on where the steps end, what is read does.
        let count = (new / chunk).ceil();
        let read = count * from + (count - 1.0) * count / 2.0 * chunk + new;
        let terms = [count, new, StepWork::of_request(new, from).pairs, read];
        self.0.time(&terms)
    }

    /// What was learned.
    #[must_use]
    pub fn learned(&self) -> &Learned<4> {
        &self.0
    }
}
