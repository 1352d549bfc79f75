//! Searches for the best shape, starting from the present tree.
//!
//! 1. A shape is not judged by its mean tree alone, because the present tree takes time to adopt it. Until something
//!    arrives in the last level, that level keeps its runs. With a larger size ratio it also gets those of the levels
//!    that it is merged with. The present shape is judged by the same rule.
//! 2. If a change rewrites the last level sooner, it pays for the part of the time that the last rewrite was to serve
//!    and now does not.
//! 3. Both costs are spread over the horizon.
//! 4. The result depends on the arguments only.

use crate::fluid::{Step, carry_out, false_positive_rates, next_step};
use dalsegno_core::Shape;

use super::cost_model::{cost, mean_tree};
use super::facts::{Facts, number};
use super::useless_reads::useless_reads;
use super::window::Shares;

/// So many shapes, the cheapest ones on average, are examined from the present tree.
const EXAMINED: usize = 24;
/// Most flushes that are simulated, also as a part of the tree's memtables.
const MOST_FLUSHES: f64 = 256.0;
const MOST_GROWTH: f64 = 0.5;
/// Most steps after a flush. Further ones are ignored.
const MOST_STEPS: u32 = 64;

/// The bounds of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Largest size ratio.
    pub size_ratio_max: u32,
    /// Operations that pay for a change; infinite if a change is free.
    pub horizon_operations: f64,
}

/// A shape and its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The shape.
    pub shape: Shape,
    /// The mean cost of all operations over the horizon, from the present tree.
    pub total_from_here: f64,
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The present shape.
    pub stay: Choice,
    /// The cheapest shape from here; `stay` if none is cheaper.
    pub best: Choice,
}

/// The costs until something arrives in the last level, in the unit of the constants.
#[derive(Clone, Copy, Debug)]
struct Transition {
    /// Flushes until then, or as many as were simulated.
    flushes: f64,
    /// The additional cost of lookups until then, compared with the mean tree; may be negative.
    additional: f64,
    /// The cost of compacting the arrival.
    arrival: f64,
}

/// Finds the shape that costs least from here.
///
/// # Panics
///
/// Like [`cost`].
#[must_use]
pub fn best_shape(from: Shape, facts: &Facts, shares: &Shares, bounds: Bounds) -> Found {
    let transition_to = |shape: Shape| Transition::to(shape, facts, shares);
    let mean = |shape: Shape| cost(shape, facts, shares).total;
    let staying = transition_to(from);
    let judge = |shape: Shape, mean: f64, transition: Option<Transition>| {
        let both = transition.zip(staying);
        let once = both.map_or(0.0, |(transition, staying)| {
            transition.additional + transition.early_rewrite(&staying, facts)
        });
        Choice { shape, total_from_here: mean + once / bounds.horizon_operations }
    };
    let stay = judge(from, mean(from), staying);
    let others = Shape::all(bounds.size_ratio_max).filter(|shape| *shape != from);
    let mut others: Vec<(f64, Shape)> = others.map(|shape| (mean(shape), shape)).collect();
    others.sort_by(|one, two| one.0.total_cmp(&two.0));
    let mut best = stay;
    for (mean, shape) in others.into_iter().take(EXAMINED) {
        let next = judge(shape, mean, transition_to(shape));
        if next.total_from_here < best.total_from_here {
            best = next;
        }
    }
    Found { stay, best }
}

impl Transition {
    /// Simulates the transition to a shape; `None` if the tree is not known or nothing is written.
    fn to(shape: Shape, facts: &Facts, shares: &Shares) -> Option<Self> {
        if facts.levels.is_empty() || shares.writes <= 0.0 {
            return None;
        }
        let constants = &facts.constants;
        let reads = |miss: f64, runs: f64| {
            shares.misses
                * (miss * (constants.seek + constants.false_positive) + runs * constants.filter)
                + shares.ranges * runs * (constants.seek + constants.begin)
        };
        let mean = mean_tree(shape, facts);
        let rates = false_positive_rates(&mean, facts.filter_bits_per_entry);
        let miss = mean.iter().zip(&rates).map(|(level, rate)| level.runs * rate).sum();
        let usual = reads(miss, mean.iter().map(|level| level.runs).sum());

        let most = (facts.memtables() * MOST_GROWTH).clamp(1.0, MOST_FLUSHES);
        let mut levels = facts.levels.clone();
        let (mut flushes, mut additional, mut arrived) = (0.0, 0.0, None);
        while flushes < most && arrived.is_none() {
            let (miss, _) = useless_reads(&levels, facts.filter_bits_per_entry);
            let runs = levels.iter().map(Vec::len).sum::<usize>();
            additional += reads(miss, number(runs as u64)) - usual;
            arrived = flush(shape, facts.memtable_bytes, &mut levels);
            flushes += 1.0;
        }
        Some(Self {
            flushes,
            additional: additional * facts.memtable_entries() / shares.writes,
            arrival: number(arrived.unwrap_or(0)) / number(facts.page_bytes) * constants.merge,
        })
    }

    /// The part of the arrival's cost that would not be due yet if the shape stayed: an arrival serves until the next
    /// one.
    fn early_rewrite(&self, staying: &Self, facts: &Facts) -> f64 {
        let last = facts.levels.iter().rposition(|runs| !runs.is_empty()).unwrap_or(0);
        let since: u64 = facts.levels[..last].iter().flatten().sum();
        let since = number(since) / number(facts.memtable_bytes);
        self.arrival * (1.0 - (since + self.flushes) / (since + staying.flushes)).max(0.0)
    }
}

/// Simulates a flush and the steps after it. Returns the compacted bytes if something arrived in the last level.
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

    fn transition(shape: Shape, levels: &[&[u64]]) -> Transition {
        Transition::to(shape, &facts(levels), &SHARES).unwrap()
    }

    #[test]
    fn runs_of_another_shape_count_until_something_arrives_in_their_level() {
        let leveled = Shape::leveled(16).unwrap();
        let (left, joined): (&[&[u64]], &[&[u64]]) = (&[&[], &[16; 8]], &[&[], &[128]]);
        let [of_left, of_joined] = [left, joined].map(|levels| transition(leveled, levels));
        // 15 stay above, and the 16th moves all of them down.
        assert!((of_left.flushes - 16.0).abs() < 1e-9 && (of_joined.flushes - 16.0).abs() < 1e-9);
        assert!((of_left.arrival - (128.0 + 16.0) * 8.0).abs() < 1e-9, "{of_left:?}");
        assert!(of_left.additional > of_joined.additional + 1000.0, "{of_left:?} {of_joined:?}");
        let sooner = transition(leveled, &[&[12], &[16; 8]]);
        assert!((sooner.flushes - 4.0).abs() < 1e-9);
        assert!(sooner.additional < of_left.additional / 3.0, "{sooner:?} {of_left:?}");
    }

    /// The last arrival was 8 flushes ago, and the next comes in 8, so it serves for 16. If it comes in 4, a quarter of
    /// its time is lost.
    #[test]
    fn rewriting_the_last_level_sooner_costs_the_rest_of_its_time() {
        let facts = facts(&[&[8], &[128]]);
        let arriving_in = |flushes: f64| Transition { flushes, additional: 0.0, arrival: 1000.0 };
        let staying = arriving_in(8.0);
        assert!((arriving_in(4.0).early_rewrite(&staying, &facts) - 250.0).abs() < 1e-9);
        assert!(arriving_in(8.0).early_rewrite(&staying, &facts).abs() < 1e-9);
        assert!(arriving_in(20.0).early_rewrite(&staying, &facts).abs() < 1e-9);
    }

    #[test]
    fn with_many_old_runs_a_shape_that_joins_them_soon_is_best() {
        let from = Shape::new(16, 15, 1).unwrap();
        let facts = facts(&[&[], &[64; 8]]);
        let bounds = Bounds { size_ratio_max: 16, horizon_operations: 524_288.0 };
        let found = best_shape(from, &facts, &SHARES, bounds);
        assert!(found.best.total_from_here < 0.9 * found.stay.total_from_here, "{found:?}");
        let (stay, best) =
            (transition(from, &[&[], &[64; 8]]), transition(found.best.shape, &[&[], &[64; 8]]));
        assert!(best.flushes < stay.flushes, "{found:?}");
    }
}
