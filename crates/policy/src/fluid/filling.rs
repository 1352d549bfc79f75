//! The mean state of a level between two flushes, computed with the planner's rule.

use super::filters::{Level, divide_filter_bits};
use super::plan::joined;
use dalsegno_core::Shape;

/// Bytes of an arrival, for the rule.
const ARRIVAL: u64 = 1 << 16;

/// The mean of a level over a cycle of arrivals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filling {
    /// Its runs.
    pub runs: f64,
    /// How often an arriving entry is written in the level.
    pub writes: f64,
    /// How many of these writes merge it with an existing run.
    pub rewrites: f64,
}

/// Mean number of arrivals that a new last level holds before the first one arrives.
const BEGINNING: f64 = 1.5;

impl Filling {
    /// A level that `size_ratio - 1` arrivals fill, in at most `most` runs, and that the next one empties.
    #[must_use]
    pub fn of_cycle(size_ratio: u32, most: u32) -> Self {
        let capacity = u64::from(size_ratio - 1) * ARRIVAL;
        let mut runs: Vec<u64> = Vec::new();
        let (mut present, mut written, mut rewritten) = (0, 0, 0);
        for _ in 1..size_ratio {
            let count = joined(&runs, ARRIVAL, most as usize, capacity);
            let merged = ARRIVAL + runs.drain(..count).sum::<u64>();
            runs.insert(0, merged);
            written += merged / ARRIVAL;
            rewritten += if count > 0 { merged / ARRIVAL } else { 0 };
            present += runs.len() as u64;
        }
        let per_arrival = |sum: u64| number(sum) / f64::from(size_ratio);
        let [runs, writes, rewrites] = [present, written, rewritten].map(per_arrival);
        Self { runs, writes, rewrites }
    }

    /// The last level with so many arrivals, in at most `most` runs. It is not emptied, so there is no cycle.
    #[must_use]
    pub fn of_last(size_ratio: u32, most: u32, arrivals: f64) -> Self {
        let share = f64::from(size_ratio - 1) / f64::from(most);
        let (runs, active) = if most == 1 {
            (1.0, arrivals)
        } else {
            let runs = (arrivals / share + 0.5).clamp(1.0, f64::from(most));
            // Until something arrives, it has the runs of the level that it was before.
            let runs = if arrivals < BEGINNING { f64::from(most) } else { runs };
            (runs, arrivals.min((share - 1.0) / 2.0))
        };
        let active = active.max(0.0);
        Self { runs, writes: 1.0 + active, rewrites: active }
    }
}

/// The mean levels of a tree of so many full memtables, the newest first. Their entries are counted in memtables. There
/// are as few levels as can hold everything, and those above the last are half full.
#[must_use]
pub fn mean_levels(shape: Shape, memtables: f64) -> Vec<Level> {
    let ratio = f64::from(shape.size_ratio());
    let above = Filling::of_cycle(shape.size_ratio(), shape.runs());
    let (mut unit, mut rest) = (1.0, memtables);
    let mut levels = Vec::new();
    // The levels above are half full on average.
    while rest > unit * (ratio - 0.5) {
        let entries = unit * (ratio - 1.0) / 2.0;
        levels.push(Level { entries, runs: above.runs });
        rest -= entries;
        unit *= ratio;
    }
    let last = Filling::of_last(shape.size_ratio(), shape.last_runs(), rest / unit);
    levels.push(Level { entries: rest, runs: last.runs });
    levels
}

/// Bits of filter per entry for a run of a level, the newest 0, of a tree of so many memtables, so that all together
/// have `mean` bits per entry: see [`divide_filter_bits`].
///
/// Computed from the mean levels: when a run is written, the levels above may be empty, but will not stay so.
#[must_use]
pub fn filter_bits(shape: Shape, memtables: f64, level: usize, mean: f64) -> f64 {
    let bits = divide_filter_bits(&mean_levels(shape, memtables), mean);
    bits[level.min(bits.len() - 1)].min(MOST_FILTER_BITS)
}

/// With so many bits per key, one lookup of an absent key in 100,000 reads a block.
const MOST_FILTER_BITS: f64 = 24.0;

#[expect(clippy::cast_precision_loss, reason = "small counts")]
fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T = 4: 0 to 3 arrivals. K = 1 writes 1 + 2 + 3 of 4, and has one run in three of four moments; K = 3 writes
    /// each but the last once, and has 0 + 1 + 2 + 3 runs.
    #[test]
    fn a_cycle_matches_a_calculation_by_hand() {
        let one = Filling { runs: 0.75, writes: 1.5, rewrites: 1.25 };
        let three = Filling { runs: 1.5, writes: 0.75, rewrites: 0.0 };
        assert_eq!([1, 3].map(|most| Filling::of_cycle(4, most)), [one, three]);
    }

    #[test]
    fn all_levels_together_hold_everything() {
        for shape in Shape::all(12) {
            for memtables in [1.0, 3.0, 57.0, 5000.0] {
                let levels = mean_levels(shape, memtables);
                let sum: f64 = levels.iter().map(|level| level.entries).sum();
                assert!((sum - memtables).abs() < 1e-9 * memtables, "{shape} {levels:?}");
                assert!(levels.iter().all(|level| level.entries > 0.0), "{shape} {levels:?}");
            }
        }
    }

    #[test]
    fn smaller_levels_get_more_bits() {
        let shape = Shape::leveled(10).unwrap();
        let bits: Vec<f64> = (0..4).map(|level| filter_bits(shape, 5000.0, level, 10.0)).collect();
        assert!(bits.windows(2).all(|pair| pair[0] > pair[1]), "{bits:?}");
        assert!((8.0..10.0).contains(&bits[3]), "{bits:?}");
        assert!((filter_bits(shape, 0.1, 0, 10.0) - 10.0).abs() < 1e-9);
    }
}
