//! The recent operations.
//!
//! 1. A window covers only the newest operations. Once full it covers at least `operations`, and at most an eighth and
//!    one delta more.
//! 2. Old operations leave by eighths, so the shares change smoothly and memory is bounded.

use std::collections::VecDeque;

use super::cost::Cost;
use super::facts::number;

/// Parts of a window.
const BUCKETS: u64 = 8;

/// Operations of the tree. Counts add up, so threads may count separately and pass deltas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries written.
    pub writes: u64,
    /// Lookups of one key that found it.
    pub hits: u64,
    /// Lookups of one key that found nothing.
    pub misses: u64,
    /// Ranges read.
    pub ranges: u64,
    /// Entries in all these ranges.
    pub range_entries: u64,
}

impl Counts {
    /// The sum of writes, hits, misses and ranges.
    #[must_use]
    pub fn operations(&self) -> u64 {
        let Self { writes, hits, misses, ranges, .. } = *self;
        writes.saturating_add(hits).saturating_add(misses).saturating_add(ranges)
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            writes: self.writes.saturating_add(other.writes),
            hits: self.hits.saturating_add(other.hits),
            misses: self.misses.saturating_add(other.misses),
            ranges: self.ranges.saturating_add(other.ranges),
            range_entries: self.range_entries.saturating_add(other.range_entries),
        }
    }
}

/// The parts of the operations by kind. The four parts sum to one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Part of the operations that wrote an entry.
    pub writes: f64,
    /// Part that found the wanted entry.
    pub hits: f64,
    /// Part that found nothing.
    pub misses: f64,
    /// Part that read a range.
    pub ranges: f64,
    /// Entries of a range on average.
    pub range_entries: f64,
}

impl Shares {
    /// The shares of operations; `None` if there are none.
    #[must_use]
    pub fn of(counts: &Counts) -> Option<Self> {
        let operations = counts.operations();
        let part = |count: u64| number(count) / number(operations);
        (operations > 0).then(|| Self {
            writes: part(counts.writes),
            hits: part(counts.hits),
            misses: part(counts.misses),
            ranges: part(counts.ranges),
            range_entries: number(counts.range_entries) / number(counts.ranges.max(1)),
        })
    }

    /// The four parts with their names.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); 4] {
        [
            ("writes", self.writes),
            ("hits", self.hits),
            ("misses", self.misses),
            ("ranges", self.ranges),
        ]
    }

    /// The distance of two workloads by cost: 0 for the same, 2 for nothing in common.
    ///
    /// A range may cost a hundred writes, so one operation in fifty can decide which shape is best. A distance by
    /// operations would not show when it doubles.
    #[must_use]
    pub fn distance_by_cost(&self, other: &Self, cost: &Cost) -> f64 {
        let (one, two) = (self.cost_parts(cost), other.cost_parts(cost));
        one.iter().zip(two).map(|(one, two)| (one - two).abs()).sum()
    }

    /// The parts of the cost by kind.
    fn cost_parts(&self, cost: &Cost) -> [f64; 4] {
        let parts = [
            self.writes * cost.write,
            self.hits * cost.hit,
            self.misses * cost.miss,
            self.ranges * cost.range,
        ];
        let sum: f64 = parts.iter().sum();
        parts.map(|part| part / sum.max(f64::MIN_POSITIVE))
    }
}

/// The newest operations, in parts that leave one after the other.
#[derive(Clone, Debug)]
pub struct Window {
    operations: u64,
    /// Parts of at least an eighth each, the oldest first.
    closed: VecDeque<Counts>,
    open: Counts,
}

impl Window {
    /// An empty window that is full after so many operations, at least eight.
    #[must_use]
    pub fn new(operations: u64) -> Self {
        let operations = operations.max(BUCKETS);
        Self { operations, closed: VecDeque::new(), open: Counts::default() }
    }

    /// Adds operations.
    pub fn observe(&mut self, delta: Counts) {
        self.open = self.open.plus(delta);
        if self.open.operations() >= self.operations.div_ceil(BUCKETS) {
            self.closed.push_back(self.open);
            self.open = Counts::default();
        }
        while !self.closed.is_empty() && self.sum_from(1).operations() >= self.operations {
            self.closed.pop_front();
        }
        debug_assert!(self.closed.len() as u64 <= BUCKETS, "{} parts", self.closed.len());
    }

    /// Whether it covers as many operations as it should.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.counts().operations() >= self.operations
    }

    /// All its operations.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.sum_from(0)
    }

    /// All its operations except the oldest parts.
    fn sum_from(&self, part: usize) -> Counts {
        self.closed.iter().skip(part).fold(self.open, |sum, part| sum.plus(*part))
    }

    /// The shares of its operations; `None` while it is empty.
    #[must_use]
    pub fn shares(&self) -> Option<Shares> {
        Shares::of(&self.counts())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writes(writes: u64) -> Counts {
        Counts { writes, ..Counts::default() }
    }

    fn hits(hits: u64) -> Counts {
        Counts { hits, ..Counts::default() }
    }

    #[test]
    fn an_empty_window_has_no_shares() {
        assert_eq!(Window::new(80).shares(), None);
        assert!(!Window::new(80).is_full());
    }

    #[test]
    fn shares_sum_to_one_and_ranges_have_a_mean_length() {
        let counts = Counts { writes: 1, hits: 2, misses: 3, ranges: 4, range_entries: 30 };
        let shares = Shares::of(&counts).unwrap();
        let sum: f64 = shares.named().iter().map(|(_, part)| part).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        assert!((shares.range_entries - 7.5).abs() < 1e-12);
    }

    #[test]
    fn old_operations_leave_by_eighths() {
        let mut window = Window::new(80);
        window.observe(writes(40));
        (0..40).for_each(|_| window.observe(writes(1)));
        assert!(window.is_full());
        (0..79).for_each(|_| window.observe(hits(1)));
        let shares = window.shares().unwrap();
        assert!(shares.hits > 0.85 && shares.writes > 0.0, "{shares:?}");
        (0..11).for_each(|_| window.observe(hits(1)));
        assert_eq!(window.shares().unwrap().writes.to_bits(), 0);
    }

    #[test]
    fn a_delta_larger_than_the_window_replaces_it() {
        let mut window = Window::new(80);
        window.observe(writes(79));
        window.observe(hits(1000));
        assert_eq!(window.counts(), hits(1000));
        window.observe(hits(u64::MAX));
        window.observe(writes(u64::MAX));
        assert!(window.closed.len() <= 8);
    }
}
