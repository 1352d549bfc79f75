//! How the last measurements differed from what was expected of them.
//!
//! Some delays do not grow with the work: a disk with a limited rate brings bytes in bursts, so that each load waits
//! for the next one. The same part of a long load would be far too much.

use std::array;

/// A prediction that is off by this factor is a surprise.
pub(super) const DRIFT: f64 = 1.5;

/// Measurements that are remembered.
const KEPT: usize = 32;
/// So many of the newest ones are enough to show that a slow while has ended, as none was later than predicted then,
/// and that a fast while has begun, as none was as fast.
const NEWEST: usize = 10;
/// The part of measurements that are below a high prediction, and above a low one.
const CONFIDENCE: f64 = 0.8;
/// Of work that takes so many times longer, a delay says nothing of shorter work.
const COMPARABLE: f64 = 2.0;

/// A measurement, and what was expected, in seconds.
#[derive(Clone, Copy, Debug)]
struct Compared<const TERMS: usize> {
    terms: [f64; TERMS],
    expected: f64,
    measured: f64,
}

/// How much measurements usually differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usual {
    /// Seconds by which most short work is late, however short it is.
    pub late_s: f64,
    /// Times the expected time, what most measurements exceed.
    pub low: f64,
    /// Times the expected time, what most measurements do not exceed, but for `late_s`.
    pub high: f64,
}

/// What the last measurements say about the next one, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Precedents {
    /// The longest of work that should not take much longer.
    pub(super) longest: f64,
    /// The shortest of the newest ones of work that should not take much less; infinite without any.
    pub(super) shortest: f64,
    /// By how much work was late that should not take much longer, at most.
    pub(super) delay: f64,
}

/// The last measurements, in a ring. Those that are missing count as perfect predictions.
#[derive(Clone, Debug)]
pub(super) struct Recent<const TERMS: usize> {
    ring: [Option<Compared<TERMS>>; KEPT],
    next: usize,
    /// Measurements since the work has changed. How fast it was before says nothing.
    since: usize,
}

impl<const TERMS: usize> Recent<TERMS> {
    pub(super) fn new() -> Self {
        Self { ring: [None; KEPT], next: 0, since: 0 }
    }

    /// Work takes so many times as long: `time` in seconds. The last measurement is forgotten: it was the first one
    /// after the change.
    pub(super) fn change(&mut self, ratio: f64, time: impl Fn(&[f64; TERMS]) -> f64) {
        self.next = self.place(1);
        self.ring[self.next] = None;
        self.since = 0;
        // What was late just before was so as the work had changed already, if it is not later than that.
        for back in 1..KEPT {
            let at = self.place(back);
            let Some(one) =
                self.ring[at].as_mut().filter(|one| one.measured > DRIFT * one.expected)
            else {
                break;
            };
            one.expected = time(&one.terms).clamp(one.expected, one.measured);
        }
        // Delays of slower work say nothing. Those of faster work may be what they were.
        let ratio = ratio.min(1.0);
        for one in self.ring.iter_mut().flatten() {
            one.expected *= ratio;
            one.measured *= ratio;
        }
    }

    pub(super) fn push(&mut self, terms: [f64; TERMS], expected: f64, measured: f64) {
        self.ring[self.next] = Some(Compared { terms, expected, measured });
        self.next = (self.next + 1) % KEPT;
        self.since = NEWEST.min(self.since + 1);
    }

    /// The last measurement: the terms of the work, and its seconds.
    pub(super) fn last(&self) -> Option<(&[f64; TERMS], f64)> {
        self.ring[self.place(1)].as_ref().map(|one| (&one.terms, one.measured))
    }

    /// Where the last measurement is, or one so many places back.
    fn place(&self, back: usize) -> usize {
        (self.next + KEPT - back) % KEPT
    }

    /// Whether work that should take so long is short, compared with one of the newest ones.
    pub(super) fn is_short(&self, expected: f64, time: impl Fn(&[f64; TERMS]) -> f64) -> bool {
        let mut newest = (1..=NEWEST).filter_map(|back| self.ring[self.place(back)].as_ref());
        newest.any(|one| time(&one.terms) > COMPARABLE * expected)
    }

    fn all(&self) -> impl Iterator<Item = &Compared<TERMS>> {
        self.ring.iter().flatten()
    }

    /// Compares with work that should take `expected` seconds, where `time` is what work should take now. If the last
    /// measurement was a surprise, it is no precedent: the next one confirms it or not.
    pub(super) fn precedents(
        &self,
        expected: f64,
        was_surprise: bool,
        time: impl Fn(&[f64; TERMS]) -> f64,
    ) -> Precedents {
        let mut found = Precedents { longest: 0.0, shortest: f64::INFINITY, delay: 0.0 };
        let skipped = was_surprise.then_some(self.place(1));
        for back in 1..=KEPT {
            let at = self.place(back);
            let Some(one) = self.ring[at].as_ref().filter(|_| Some(at) != skipped) else {
                continue;
            };
            let now_s = time(&one.terms);
            if now_s <= COMPARABLE * expected {
                found.longest = found.longest.max(one.measured);
                found.delay = found.delay.max(one.measured - now_s);
            }
            if back <= self.since && expected <= COMPARABLE * now_s {
                found.shortest = found.shortest.min(one.measured);
            }
        }
        found
    }

    pub(super) fn usual(&self) -> Usual {
        let mut sorted = self.ring;
        // Those that are missing come last.
        sorted.sort_by(|one, other| expected_of(*one).total_cmp(&expected_of(*other)));
        // Of few measurements the shorter half, too.
        let short = self.all().count().div_ceil(2);
        let mut late: [f64; KEPT / 2] = array::from_fn(|at| {
            let one = sorted[at].filter(|_| at < short);
            one.map_or(0.0, |one| one.measured - one.expected)
        });
        late.sort_by(f64::total_cmp);
        let late_s = quantile(&late, CONFIDENCE);
        let late_s = late_s.min(self.newest(|one| one.measured - one.expected)).max(0.0);
        let factors = |less_s: f64| {
            let factor = |one: Compared<TERMS>| (one.measured - less_s) / one.expected;
            let mut factors = self.ring.map(|one| one.map_or(1.0, factor));
            factors.sort_by(f64::total_cmp);
            factors
        };
        let low = quantile(&factors(0.0), 1.0 - CONFIDENCE).min(1.0);
        let high = quantile(&factors(late_s), CONFIDENCE);
        let newest = self.newest(|one| (one.measured - late_s) / one.expected);
        Usual { late_s, low, high: high.min(newest).max(1.0) }
    }

    /// The most of the newest ones; infinite if there are few.
    fn newest(&self, what: impl Fn(&Compared<TERMS>) -> f64) -> f64 {
        let newest = (1..=NEWEST).map(|back| self.ring[self.place(back)].as_ref());
        newest.fold(f64::NEG_INFINITY, |most, one| most.max(one.map_or(f64::INFINITY, &what)))
    }
}

fn expected_of<const TERMS: usize>(one: Option<Compared<TERMS>>) -> f64 {
    one.map_or(f64::INFINITY, |one| one.expected)
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
