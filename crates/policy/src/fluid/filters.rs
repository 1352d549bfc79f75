//! How the memory for filters is divided among the levels.
//!
//! 1. Together the filters take no more memory than the budget, and all of it unless there is
//!    nothing to filter.
//! 2. No other division has a smaller sum of false-positive rates.
//! 3. A level whose share would be negative gets none, and every lookup reads its runs.
//!
//! # Why not the same bits for every key
//!
//! A false positive costs one read, whether its run is large or small, but the filter of a small run takes little
//! memory. So small levels get more bits per key (Monkey, SIGMOD 2017). With `n` entries in a level of `r` runs, `r x
//! p` is its part of the sum and `-n ln p / ln(2)^2` the bits that it takes. Lagrange's condition makes `p`
//! proportional to `n / r`. A level for which that exceeds 1 gets no filter, and the memory is divided again among the
//! others.

use std::f64::consts::LN_2;

/// One level, for the division of filter memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Entries in all its runs; the mean need not be whole.
    pub entries: f64,
    /// Its runs, all of one size.
    pub runs: f64,
}

/// Bits per entry for the filters of each level, if all levels together have `bits_per_entry` on average. A level may
/// have any number of entries and runs.
#[must_use]
pub fn divide_filter_bits(levels: &[Level], bits_per_entry: f64) -> Vec<f64> {
    let rates = false_positive_rates(levels, bits_per_entry);
    rates.into_iter().map(|rate| -rate.ln() / (LN_2 * LN_2)).map(|bits| bits.max(0.0)).collect()
}

/// The false-positive rate of each level's filters under the best division.
#[must_use]
pub fn false_positive_rates(levels: &[Level], bits_per_entry: f64) -> Vec<f64> {
    let entries: f64 = levels.iter().map(|level| level.entries).sum();
    let budget = entries * bits_per_entry.max(0.0) * LN_2 * LN_2;
    let per_run = |level: &Level| level.entries / level.runs;
    let mut rates = vec![1.0; levels.len()];
    let mut filtered: Vec<usize> = (0..levels.len())
        .filter(|at| levels[*at].entries > 0.0 && levels[*at].runs > 0.0)
        .collect();
    // Leaving out a level only raises the rates of the others, so it stays out.
    while !filtered.is_empty() && budget > 0.0 {
        let sum = |part: &dyn Fn(&Level) -> f64| -> f64 {
            filtered.iter().map(|at| part(&levels[*at])).sum()
        };
        let logs = sum(&|level| level.entries * per_run(level).ln());
        let factor = (-(budget + logs) / sum(&|level| level.entries)).exp();
        let before = filtered.len();
        for at in &filtered {
            rates[*at] = (factor * per_run(&levels[*at])).min(1.0);
        }
        filtered.retain(|at| rates[*at] < 1.0);
        if filtered.len() == before {
            break;
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(entries: f64, runs: f64) -> Level {
        Level { entries, runs }
    }

    #[test]
    fn equal_levels_get_equal_bits() {
        let bits = divide_filter_bits(&[level(100.0, 1.0), level(100.0, 1.0)], 10.0);
        assert!(bits.iter().all(|bits| (bits - 10.0).abs() < 1e-9), "{bits:?}");
    }

    #[test]
    fn a_level_ten_times_smaller_gets_ln_10_by_ln_2_squared_bits_more() {
        let bits = divide_filter_bits(&[level(100.0, 1.0), level(1000.0, 1.0)], 8.0);
        assert!((bits[0] - bits[1] - 10_f64.ln() / LN_2 / LN_2).abs() < 1e-9, "{bits:?}");
        assert!(((bits[0] + 10.0 * bits[1]) / 11.0 - 8.0).abs() < 1e-9, "{bits:?}");
    }

    #[test]
    fn with_little_memory_the_largest_level_gets_no_filter() {
        let bits = divide_filter_bits(&[level(1.0, 1.0), level(1000.0, 1.0)], 0.01);
        assert!(bits[1].abs() < 1e-12, "{bits:?}");
        assert!((bits[0] - 10.01).abs() < 1e-9, "the whole budget goes to the other: {bits:?}");
    }

    #[test]
    fn without_memory_or_entries_no_level_gets_bits() {
        assert_eq!(divide_filter_bits(&[level(5.0, 1.0), level(50.0, 2.0)], 0.0), [0.0, 0.0]);
        assert_eq!(divide_filter_bits(&[level(0.0, 0.0)], 10.0), [0.0]);
        assert!(divide_filter_bits(&[], 10.0).is_empty());
    }
}
