//! The mean cost of an operation in a tree of a given shape.
//!
//! 1. More runs never make writes more expensive, nor misses and ranges cheaper.
//! 2. The entries of all levels together are those of the tree.
//! 3. A hit is equally likely for every entry.

use crate::fluid::{Filling, Level, false_positive_rates, mean_levels};
use dalsegno_core::Shape;

use super::cost::Cost;
use super::facts::{Facts, number};
use super::window::Shares;

/// The mean tree of a given shape between two flushes.
struct MeanTree {
    /// The levels, the newest first.
    levels: Vec<Level>,
    /// How often an entry is written until it is in the last level, its flush included.
    writes: f64,
}

impl MeanTree {
    /// The documentation of `tuning` derives the terms.
    fn new(shape: Shape, facts: &Facts) -> Self {
        let memtables = facts.memtables();
        let mut levels = mean_levels(shape, memtables);
        let memtable_entries = number(facts.entries) / memtables;
        let last = levels.len() - 1;
        let unit = f64::from(shape.size_ratio()).powf(number(last as u64));
        let arrivals = levels[last].entries / unit;
        let filling = |level: usize| {
            if level == last {
                Filling::of_last(shape.size_ratio(), shape.last_runs(), arrivals)
            } else {
                Filling::of_cycle(shape.size_ratio(), shape.runs())
            }
        };
        let below: f64 = (1..=last).map(|level| filling(level).writes).sum();
        let writes = 1.0 + filling(0).rewrites + below;
        for level in &mut levels {
            level.entries *= memtable_entries;
        }
        Self { levels, writes }
    }
}

/// The mean levels of a tree of this shape, the newest first.
pub(super) fn mean_tree(shape: Shape, facts: &Facts) -> Vec<Level> {
    MeanTree::new(shape, facts).levels
}

/// The cost of operations with these shares in a tree of this shape.
///
/// # Panics
///
/// If there are no entries, or a size in the facts is zero.
#[must_use]
pub fn cost(shape: Shape, facts: &Facts, shares: &Shares) -> Cost {
    assert!(facts.usable(), "the model needs entries and sizes: {facts:?}");
    let tree = MeanTree::new(shape, facts);
    let rates = false_positive_rates(&tree.levels, facts.filter_bits_per_entry);
    let constants = &facts.constants;
    let [found, useless] =
        [constants.read, constants.false_positive].map(|read| constants.seek + read);
    let (mut runs, mut miss, mut hit) = (0.0, 0.0, 0.0);
    for (level, rate) in tree.levels.iter().zip(&rates) {
        let useless = constants.filter + rate * useless;
        let part = level.entries / number(facts.entries);
        // Half of the other runs of the level are newer than the one that holds the entry.
        let newer = miss + useless * (level.runs - 1.0).max(0.0) / 2.0;
        hit += part * (newer + constants.filter + found);
        miss += useless * level.runs;
        runs += level.runs;
    }
    let write = (constants.flush + (tree.writes - 1.0) * constants.merge) / facts.page_entries();
    let range = runs * (constants.seek + constants.begin)
        + shares.range_entries / facts.page_entries() * constants.scan;
    let total =
        shares.writes * write + shares.hits * hit + shares.misses * miss + shares.ranges * range;
    Cost { write, hit, miss, range, total }
}

#[cfg(test)]
mod tests {
    use super::super::Constants;
    use super::*;

    fn close(one: f64, two: f64) -> bool {
        (one - two).abs() < 1e-9
    }

    /// T = 4, K = 3, Z = 1; 10,000 entries of 40 bytes, pages of 4,000, a memtable of 1,000 entries, no filters.
    ///
    /// The tree holds 10 memtables. One level would hold 3.5, two hold 14: two levels. The upper one has 0, 1, 2 or 3
    /// runs of a memtable, 1.5 on average. The last one has the other 8.5 in one run, 8.5 / 4 = 2.125 arrivals.
    ///
    /// Writes: the flush, nothing in the level above, 1 + 2.125 in the last level: 4.125, for a hundredth of a page
    /// each. Misses and ranges visit 2.5 runs; a range of 50 entries reads half a page more. Hits: 15% are above and
    /// read (1.5 - 1) / 2 = 0.25 runs before theirs, 85% are in the last level after 1.5 runs: 0.15 x 1.25 + 0.85 x 2.5
    /// = 2.3125 reads.
    #[test]
    fn the_cost_matches_a_calculation_by_hand() {
        let shape = Shape::lazy_leveled(4).unwrap();
        let facts = Facts {
            levels: Vec::new(),
            entries: 10_000,
            entry_bytes: 40,
            page_bytes: 4000,
            memtable_bytes: 40_000,
            filter_bits_per_entry: 0.0,
            constants: Constants::io(),
        };
        let shares =
            Shares { writes: 0.5, hits: 0.2, misses: 0.2, ranges: 0.1, range_entries: 50.0 };
        let cost = cost(shape, &facts, &shares);
        assert_eq!(MeanTree::new(shape, &facts).levels.len(), 2);
        assert!(close(cost.write, 0.041_25), "{cost:?}");
        assert!(close(cost.miss, 2.5), "{cost:?}");
        assert!(close(cost.range, 3.0), "{cost:?}");
        assert!(close(cost.hit, 2.3125), "{cost:?}");
        assert!(close(cost.total, 0.020_625 + 0.4625 + 0.5 + 0.3), "{cost:?}");

        // Filters: r p is 1.5 p above and 1 p below; entries per run are 1,000 and 8,500, so the
        // rates are as 1 to 8.5. With 10 bits the mean of ln p is -10 ln(2)^2 = -4.805.
        let facts = Facts { filter_bits_per_entry: 10.0, ..facts };
        let below = (-10.0 * std::f64::consts::LN_2.powi(2) + 0.15 * 8.5_f64.ln()).exp();
        let miss = super::cost(shape, &facts, &shares).miss;
        assert!(close(miss, below + 1.5 * below / 8.5), "{miss} {below}");
    }

    #[test]
    fn a_tree_smaller_than_its_memtable_has_one_level() {
        let constants = Constants::io();
        let (entries, entry_bytes, page_bytes, memtable_bytes) = (3, 80, 4096, 1 << 20);
        let filter_bits_per_entry = 10.0;
        let facts = Facts {
            levels: Vec::new(),
            entries,
            entry_bytes,
            page_bytes,
            memtable_bytes,
            filter_bits_per_entry,
            constants,
        };
        assert_eq!(MeanTree::new(Shape::default(), &facts).levels.len(), 1);
        assert!(cost(Shape::default(), &facts, &Shares::default()).hit.is_finite());
    }
}
