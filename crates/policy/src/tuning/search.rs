//! Which shape to change to, from the tree as it is.
//!
//! 1. No shape is taken for what it is on average before the tree can have become so. Until something arrives in the
//!    last level that keeps its runs, and with a larger size ratio those of levels that become one with it; the present
//!    shape is judged by the runs that are there like any other.
//! 2. A change that has the last level rewritten sooner pays for the part of the time that this was to last and now
//!    does not.
//! 3. Both are spread over the horizon.
//! 4. The answer depends on what is given and nothing else.

use crate::fluid::{Step, carry_out, false_positive_rates, next_step};
use dalsegno_core::Shape;

use super::cost::{cost, mean_tree};
use super::facts::number;
use super::{Facts, Shares, reads_in_vain};

/// So many shapes, those that cost least on average, are looked at from the tree as it is.
const CLOSER: usize = 24;
/// Flushes that are gone through at most, and part of the tree's memtables.
const MOST_FLUSHES: f64 = 256.0;
const MOST_GROWTH: f64 = 0.5;
/// Steps after a flush; a planner that needs more is cut off.
const MOST_STEPS: u32 = 64;

/// How far a search goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Largest size ratio to look at.
    pub size_ratio_max: u32,
    /// Operations that pay for a change; infinite if it is free.
    pub horizon_operations: f64,
}

/// A shape as a search sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The shape.
    pub shape: Shape,
    /// The mean of all operations over the horizon, from the tree as it is.
    pub total_from_here: f64,
}

/// What a search found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The shape at hand.
    pub stay: Choice,
    /// The one that costs least from here: `stay` if none costs less.
    pub best: Choice,
}

/// What comes until something arrives in the last level, in the unit of the constants.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// Flushes until then, or as many as were gone through.
    flushes: f64,
    /// What look-ups until then cost more than usual in the shape; less if it is negative.
    more: f64,
    /// What the arrival itself merges.
    arrival: f64,
}

/// Looks for the shape that costs least from here.
///
/// # Panics
///
/// As [`cost`].
#[must_use]
pub fn best_shape(from: Shape, facts: &Facts, shares: &Shares, bounds: Bounds) -> Found {
    let ahead_of = |shape: Shape| Ahead::of(shape, facts, shares);
    let mean = |shape: Shape| cost(shape, facts, shares).total;
    let staying = ahead_of(from);
    let judge = |shape: Shape, mean: f64, ahead: Option<Ahead>| {
        let both = ahead.zip(staying);
        let once = both.map_or(0.0, |(ahead, staying)| ahead.more + ahead.hurry(&staying, facts));
        Choice { shape, total_from_here: mean + once / bounds.horizon_operations }
    };
    let stay = judge(from, mean(from), staying);
    let others = Shape::all(bounds.size_ratio_max).filter(|shape| *shape != from);
    let mut others: Vec<(f64, Shape)> = others.map(|shape| (mean(shape), shape)).collect();
    others.sort_by(|one, two| one.0.total_cmp(&two.0));
    let mut best = stay;
    for (mean, shape) in others.into_iter().take(CLOSER) {
        let next = judge(shape, mean, ahead_of(shape));
        if next.total_from_here < best.total_from_here {
            best = next;
        }
    }
    Found { stay, best }
}

impl Ahead {
    /// Goes through what comes in that shape; `None` if the tree is not known or nothing is written.
    fn of(shape: Shape, facts: &Facts, shares: &Shares) -> Option<Self> {
        if facts.levels.is_empty() || shares.writes <= 0.0 {
            return None;
        }
        let constants = &facts.constants;
        let reads = |miss: f64, runs: f64| {
            shares.misses * (miss * (constants.seek + constants.vain) + runs * constants.filter)
                + shares.ranges * runs * (constants.seek + constants.begin)
        };
        let mean = mean_tree(shape, facts);
        let rates = false_positive_rates(&mean, facts.filter_bits_per_entry);
        let miss = mean.iter().zip(&rates).map(|(level, rate)| level.runs * rate).sum();
        let usual = reads(miss, mean.iter().map(|level| level.runs).sum());

        let most = (facts.memtables() * MOST_GROWTH).clamp(1.0, MOST_FLUSHES);
        let mut levels = facts.levels.clone();
        let (mut flushes, mut more, mut arrived) = (0.0, 0.0, None);
        while flushes < most && arrived.is_none() {
            let (miss, _) = reads_in_vain(&levels, facts.filter_bits_per_entry);
            let runs = levels.iter().map(Vec::len).sum::<usize>();
            more += reads(miss, number(runs as u64)) - usual;
            arrived = flush(shape, facts.memtable_bytes, &mut levels);
            flushes += 1.0;
        }
        Some(Self {
            flushes,
            more: more * facts.memtable_entries() / shares.writes,
            arrival: number(arrived.unwrap_or(0)) / number(facts.page_bytes) * constants.merge,
        })
    }

    /// The part of the arrival that is not yet due if the shape stays: it was to serve from the last one to the next.
    fn hurry(&self, staying: &Self, facts: &Facts) -> f64 {
        let last = facts.levels.iter().rposition(|runs| !runs.is_empty()).unwrap_or(0);
        let since: u64 = facts.levels[..last].iter().flatten().sum();
        let since = number(since) / number(facts.memtable_bytes);
        self.arrival * (1.0 - (since + self.flushes) / (since + staying.flushes)).max(0.0)
    }
}

/// Flushes a memtable into a tree of sizes, with all that follows. Returns the bytes merged if something arrived in the
/// last level.
fn flush(shape: Shape, bytes: u64, levels: &mut Vec<Vec<u64>>) -> Option<u64> {
    levels[0].insert(0, bytes);
    let (mut merged, mut has_arrived) = (0, false);
    for _ in 0..MOST_STEPS {
        let Some(step) = next_step(shape, bytes, levels) else { break };
        has_arrived |= matches!(step, Step::Down { level, .. } if level + 1 >= levels.len());
        merged += carry_out(&step, levels);
    }
    has_arrived.then_some(merged)
}

#[cfg(test)]
mod tests {
    use super::super::Constants;
    use super::*;

    const MEMTABLE: u64 = 32 << 10;

    /// A tree of so many memtables in each run; entries of 32 bytes, pages of 4 KiB, four bits of filter.
    fn facts(levels: &[&[u64]]) -> Facts {
        let bytes = |runs: &&[u64]| runs.iter().map(|memtables| memtables * MEMTABLE).collect();
        let levels: Vec<Vec<u64>> = levels.iter().map(bytes).collect();
        Facts {
            entries: levels.iter().flatten().sum::<u64>() / 32,
            levels,
            entry_bytes: 32,
            page_bytes: 4096,
            memtable_bytes: MEMTABLE,
            filter_bits_per_entry: 4.0,
            constants: Constants::io(),
        }
    }

    const SHARES: Shares =
        Shares { writes: 0.5, hits: 0.0, misses: 0.5, ranges: 0.0, range_entries: 0.0 };

    fn ahead(shape: Shape, levels: &[&[u64]]) -> Ahead {
        Ahead::of(shape, &facts(levels), &SHARES).unwrap()
    }

    #[test]
    fn runs_that_another_shape_left_count_until_something_arrives_with_them() {
        let leveled = Shape::leveled(16).unwrap();
        let (left, joined): (&[&[u64]], &[&[u64]]) = (&[&[], &[16; 8]], &[&[], &[128]]);
        let [of_left, of_joined] = [left, joined].map(|levels| ahead(leveled, levels));
        // 15 stay above, the 16th takes all along.
        assert!((of_left.flushes - 16.0).abs() < 1e-9 && (of_joined.flushes - 16.0).abs() < 1e-9);
        assert!((of_left.arrival - (128.0 + 16.0) * 8.0).abs() < 1e-9, "{of_left:?}");
        assert!(of_left.more > of_joined.more + 1000.0, "{of_left:?} {of_joined:?}");
        let sooner = ahead(leveled, &[&[12], &[16; 8]]);
        assert!((sooner.flushes - 4.0).abs() < 1e-9);
        assert!(sooner.more < of_left.more / 3.0, "{sooner:?} {of_left:?}");
    }

    /// The last arrival was 8 flushes ago, the next comes in 8: it serves for 16. Who has it come in 4 loses a quarter.
    #[test]
    fn who_has_the_last_level_rewritten_sooner_pays_for_the_rest_of_its_time() {
        let facts = facts(&[&[8], &[128]]);
        let arriving_in = |flushes: f64| Ahead { flushes, more: 0.0, arrival: 1000.0 };
        let staying = arriving_in(8.0);
        assert!((arriving_in(4.0).hurry(&staying, &facts) - 250.0).abs() < 1e-9);
        assert!(arriving_in(8.0).hurry(&staying, &facts).abs() < 1e-9);
        assert!(arriving_in(20.0).hurry(&staying, &facts).abs() < 1e-9);
    }

    #[test]
    fn what_was_left_makes_a_shape_that_joins_it_soon_the_best() {
        let from = Shape::new(16, 15, 1).unwrap();
        let facts = facts(&[&[], &[64; 8]]);
        let bounds = Bounds { size_ratio_max: 16, horizon_operations: 524_288.0 };
        let found = best_shape(from, &facts, &SHARES, bounds);
        assert!(found.best.total_from_here < 0.9 * found.stay.total_from_here, "{found:?}");
        let (stay, best) =
            (ahead(from, &[&[], &[64; 8]]), ahead(found.best.shape, &[&[], &[64; 8]]));
        assert!(best.flushes < stay.flushes, "{found:?}");
    }
}
