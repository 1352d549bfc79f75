//! How many runs lookups read without finding the key, in a given tree.

use std::f64::consts::LN_2;

use super::facts::number;

/// The mean number of runs that a lookup reads without finding the key: of an absent key, and of an entry, if all
/// entries are looked up equally often. `levels` are the bytes of the runs of each level, newest first.
///
/// The filters share their memory with the fewest false positives ([`crate::fluid::divide_filter_bits`]). Then the rate
/// of each is proportional to the size of its run. The sum of the rates is the rate of one filter over everything,
/// times `exp` of the entropy of the sizes. So `n` equal runs have the rate of `n` such filters.
#[must_use]
pub fn useless_reads(levels: &[Vec<u64>], filter_bits: f64) -> (f64, f64) {
    let sizes = || levels.iter().flatten().map(|bytes| number((*bytes).max(1)));
    let all: f64 = sizes().sum();
    let entropy: f64 = sizes().map(|bytes| bytes / all).map(|part| -part * part.ln()).sum();
    let rate = (entropy - filter_bits * LN_2 * LN_2).exp();
    let (mut miss, mut hit) = (0.0, 0.0);
    for part in sizes().map(|bytes| bytes / all) {
        hit += part * miss;
        miss += (rate * part).min(1.0);
    }
    (miss, hit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With 4.8 bits one absent key in ten passes a filter: ln(10) = 2.3 = 4.8 x 0.48.
    const BITS: f64 = std::f64::consts::LN_10 / (LN_2 * LN_2);

    #[test]
    fn equal_runs_have_equal_rates_and_a_small_one_hardly_any() {
        let (miss, hit) = useless_reads(&[vec![500, 500], vec![500, 500]], BITS);
        assert!((miss - 0.4).abs() < 1e-9, "{miss}");
        // After 0, 1, 2 and 3 others.
        assert!((hit - 0.15).abs() < 1e-9, "{hit}");
        let (miss, _) = useless_reads(&[vec![1], vec![1_000_000]], BITS);
        assert!((0.1..0.101).contains(&miss), "{miss}");
    }

    #[test]
    fn without_filters_every_run_is_read_and_without_runs_none() {
        assert!((useless_reads(&[vec![10; 3]], 0.0).0 - 3.0).abs() < 1e-9);
        assert_eq!(useless_reads(&[], 10.0), (0.0, 0.0));
    }
}
