//! How many runs look-ups read in vain in a tree as it is now.

use std::f64::consts::LN_2;

use super::facts::number;

/// Runs that are read in vain, on average: by a look-up of what is not there, and by one of an entry, all being asked
/// for equally often. `levels` are the bytes of the runs of each level, newest first.
///
/// Where filters share their memory so that they err least ([`crate::fluid::divide_filter_bits`]), each errs in
/// proportion to its run's size, and all together as often as one filter over everything, times `exp` of the entropy of
/// the sizes: `n` equal runs as `n` such filters.
#[must_use]
pub fn reads_in_vain(levels: &[Vec<u64>], filter_bits: f64) -> (f64, f64) {
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

    /// With 4.8 bits a filter errs once in ten times, for ln(10) = 2.3 = 4.8 x 0.48.
    const BITS: f64 = std::f64::consts::LN_10 / (LN_2 * LN_2);

    #[test]
    fn equal_runs_err_alike_and_a_small_one_hardly() {
        let (miss, hit) = reads_in_vain(&[vec![500, 500], vec![500, 500]], BITS);
        assert!((miss - 0.4).abs() < 1e-9, "{miss}");
        // Behind 0, 1, 2 and 3 others.
        assert!((hit - 0.15).abs() < 1e-9, "{hit}");
        let (miss, _) = reads_in_vain(&[vec![1], vec![1_000_000]], BITS);
        assert!((0.1..0.101).contains(&miss), "{miss}");
    }

    #[test]
    fn without_filters_every_run_is_read_and_without_runs_none() {
        assert!((reads_in_vain(&[vec![10; 3]], 0.0).0 - 3.0).abs() < 1e-9);
        assert_eq!(reads_in_vain(&[], 10.0), (0.0, 0.0));
    }
}
