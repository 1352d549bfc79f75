//! The shape of the tree, and what has to be done to keep it.
//!
//! Fluid, as in Dostoevsky: level `i` holds up to `buffer x T^(i+1)` bytes in at most `K` runs, the last one in at most
//! `Z`. K = Z = 1 is leveling, K = T - 1 with Z = 1 lazy leveling, K = Z = T - 1 tiering.
//!
//! 1. Nothing is rewritten because the shape changed: the next step that is due anyway follows the new one. A larger K
//!    lets runs stay, or move down as they are; a smaller one merges them when their level is touched next.
//! 2. Steps never change the order of runs by age.
//! 3. As long as no data comes in, repeating steps comes to an end.

/// How the tree trades writes for reads. Each may change while the tree is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TreeShape {
    /// How many times larger each level is than the one above it; T, at least 2.
    pub size_ratio: u32,
    /// Most runs in a level; K, at least 1.
    pub runs: u32,
    /// Most runs in the last level; Z, at least 1.
    pub last_runs: u32,
}

impl Default for TreeShape {
    /// Leveled where most data lies, lazy above: reads stay cheap and writes cost half of full leveling.
    fn default() -> Self {
        Self { size_ratio: 8, runs: 3, last_runs: 1 }
    }
}

impl TreeShape {
    /// The nearest shape that makes sense: `T >= 2`, `1 <= K, Z <= T - 1`.
    #[must_use]
    pub fn clamped(self) -> Self {
        let size_ratio = self.size_ratio.clamp(2, 64);
        let within = |runs: u32| runs.clamp(1, size_ratio - 1);
        Self { size_ratio, runs: within(self.runs), last_runs: within(self.last_runs) }
    }
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Merge neighbouring runs of a level, counted from the newest, into one in their place.
    Within { level: usize, runs: std::ops::Range<usize> },
    /// Merge all runs of a level into one, together with the newest `joined` runs of the next level, as whose newest
    /// run it goes on.
    Down { level: usize, joined: usize },
    /// Move all runs of a level to the next one as they are.
    Move { level: usize },
}

/// With so many bits per key one look-up in 100,000 is in vain.
const MOST_FILTER_BITS: f64 = 24.0;

/// Bytes a level may hold.
fn capacity(shape: TreeShape, buffer: u64, level: usize) -> u64 {
    let power = u32::try_from(level + 1).unwrap_or(u32::MAX);
    buffer.saturating_mul(u64::from(shape.size_ratio).saturating_pow(power))
}

/// The next step, if any is due. `levels` are the bytes of the runs of each level, newest first; `buffer` those of a
/// run that a full memtable becomes.
pub(crate) fn next_step(shape: TreeShape, buffer: u64, levels: &[Vec<u64>]) -> Option<Step> {
    let deepest = levels.iter().rposition(|runs| !runs.is_empty())?;
    let most = |level: usize| {
        let runs = if level >= deepest { shape.last_runs } else { shape.runs };
        runs as usize
    };
    for (level, runs) in levels.iter().enumerate().take(deepest + 1) {
        let bytes: u64 = runs.iter().sum();
        if bytes > capacity(shape, buffer, level) {
            if level == deepest {
                // A new last level: its bound is larger, and nothing has to be rewritten for that.
                return Some(Step::Move { level });
            }
            let next = &levels[level + 1];
            if runs.len() == 1 && next.len() < most(level + 1) {
                return Some(Step::Move { level });
            }
            return Some(Step::Down { level, joined: joined(next, bytes, most(level + 1)) });
        }
        if runs.len() > most(level) {
            let at = smallest_pair(runs);
            return Some(Step::Within { level, runs: at..at + 2 });
        }
    }
    None
}

/// Bits of filter per key for tables of a level, of `levels` in all, so that all tables together have `mean` bits per
/// key.
///
/// Monkey: a false positive costs the same in every level, so smaller levels get more bits per key. The chance of one
/// falls by the factor T from each level to the one above it, which is `ln(T) / ln(2)^2` more bits.
pub(crate) fn filter_bits(shape: TreeShape, mean: f64, level: usize, levels: usize) -> f64 {
    let ratio = f64::from(shape.size_ratio);
    let more = ratio.ln() / std::f64::consts::LN_2.powi(2);
    let number = |levels: usize| f64::from(u32::try_from(levels).unwrap_or(u32::MAX));
    // Which share of the keys lies so many levels above the last one.
    let shares = (0..levels.max(1)).map(number).map(|up| (up, ratio.powf(-up)));
    let (keys, weighted) =
        shares.fold((0.0, 0.0), |(keys, sum), (up, share)| (keys + share, sum + up * share));
    let last = mean - more * weighted / keys;
    (last + more * number(levels.saturating_sub(level + 1))).clamp(0.0, MOST_FILTER_BITS)
}

/// How many of the next level's newest runs to merge with an arriving one of `bytes`, so that not more than `most`
/// stay.
fn joined(next: &[u64], bytes: u64, most: usize) -> usize {
    if next.len() < most {
        return 0;
    }
    let all: Vec<u64> = std::iter::once(bytes).chain(next.iter().copied()).collect();
    // If the pair to merge is another one, that is a step of its own.
    usize::from(all.len() > 1 && smallest_pair(&all) == 0)
}

/// Position of the neighbours that are cheapest to merge; the newer ones if there are several.
fn smallest_pair(runs: &[u64]) -> usize {
    let sums = runs.windows(2).map(|pair| pair[0] + pair[1]).enumerate();
    sums.min_by_key(|(_, sum)| *sum).map_or(0, |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Carries a step out on sizes; returns the bytes rewritten.
    fn apply(levels: &mut Vec<Vec<u64>>, step: &Step) -> u64 {
        match step.clone() {
            Step::Within { level, runs } => {
                let merged: u64 = levels[level][runs.clone()].iter().sum();
                levels[level].splice(runs, [merged]);
                merged
            }
            Step::Down { level, joined } => {
                let mut merged: u64 = levels[level].drain(..).sum();
                merged += levels[level + 1].drain(..joined).sum::<u64>();
                levels[level + 1].insert(0, merged);
                merged
            }
            Step::Move { level } => {
                if levels.len() == level + 1 {
                    levels.push(Vec::new());
                }
                let moved = std::mem::take(&mut levels[level]);
                levels[level + 1].splice(0..0, moved);
                0
            }
        }
    }

    fn settle(shape: TreeShape, levels: &mut Vec<Vec<u64>>) -> u64 {
        let mut rewritten = 0;
        for _ in 0..1000 {
            let Some(step) = next_step(shape, 1000, levels) else { return rewritten };
            rewritten += apply(levels, &step);
        }
        panic!("no end: {levels:?}");
    }

    /// Bytes written per byte that came in, after `flushes` memtables.
    fn write_amplification(shape: TreeShape, flushes: u64) -> f64 {
        let mut levels: Vec<Vec<u64>> = vec![Vec::new()];
        let mut written = 0;
        for _ in 0..flushes {
            levels[0].insert(0, 1000);
            written += 1000 + settle(shape, &mut levels);
        }
        #[expect(clippy::cast_precision_loss, reason = "a ratio of small numbers")]
        let ratio = written as f64 / (flushes * 1000) as f64;
        ratio
    }

    fn shape(size_ratio: u32, runs: u32, last_runs: u32) -> TreeShape {
        TreeShape { size_ratio, runs, last_runs }
    }

    #[test]
    fn more_runs_cost_fewer_writes() {
        let leveled = write_amplification(shape(4, 1, 1), 4000);
        let lazy = write_amplification(shape(4, 3, 1), 4000);
        let tiered = write_amplification(shape(4, 3, 3), 4000);
        assert!(tiered < lazy && lazy < leveled, "{tiered} {lazy} {leveled}");
        assert!(leveled < 16.0 && tiered < 8.0, "{tiered} {leveled}");
    }

    #[test]
    fn a_larger_k_rewrites_nothing_and_a_smaller_one_merges_what_is_touched_next() {
        let mut levels = vec![vec![1000, 3000], vec![9000]];
        assert_eq!(next_step(shape(4, 3, 1), 1000, &levels), None);
        assert_eq!(settle(shape(4, 1, 1), &mut levels), 4000);
        assert_eq!(levels, [vec![4000], vec![9000]]);
    }

    #[test]
    fn a_single_run_moves_down_as_it_is_where_there_is_room_for_another() {
        let levels = [vec![5000], vec![9000], vec![40_000]];
        assert_eq!(next_step(shape(4, 2, 1), 1000, &levels), Some(Step::Move { level: 0 }));
        let down = Step::Down { level: 0, joined: 1 };
        assert_eq!(next_step(shape(4, 1, 1), 1000, &levels), Some(down));
    }

    #[test]
    fn smaller_levels_get_more_bits_and_the_mean_is_kept() {
        let shape = shape(10, 1, 1);
        let bits: Vec<f64> = (0..4).map(|level| filter_bits(shape, 10.0, level, 4)).collect();
        assert!(bits.windows(2).all(|pair| pair[0] > pair[1] + 4.7), "{bits:?}");
        let keys = [0.001, 0.01, 0.1, 1.0];
        let sum: f64 = bits.iter().zip(keys).map(|(bits, keys)| bits * keys).sum();
        assert!((sum / 1.111 - 10.0).abs() < 0.01, "{bits:?}");
        assert!((filter_bits(shape, 10.0, 0, 1) - 10.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn steps_come_to_an_end_and_keep_every_bound(
            flushes in prop::collection::vec((1_u64..3000, 2_u32..9, 1_u32..9, 1_u32..9), 1..120),
        ) {
            let mut levels: Vec<Vec<u64>> = vec![Vec::new()];
            let mut total = 0;
            for (bytes, size_ratio, runs, last_runs) in flushes {
                let shape = shape(size_ratio, runs, last_runs).clamped();
                levels[0].insert(0, bytes);
                total += bytes;
                settle(shape, &mut levels);
                prop_assert_eq!(levels.iter().flatten().sum::<u64>(), total);
                let deepest = levels.iter().rposition(|runs| !runs.is_empty()).unwrap();
                for (level, sizes) in levels.iter().enumerate() {
                    let most = if level == deepest { shape.last_runs } else { shape.runs };
                    prop_assert!(sizes.len() <= most as usize, "{shape:?} {levels:?}");
                    prop_assert!(sizes.iter().sum::<u64>() <= capacity(shape, 1000, level));
                }
            }
        }
    }
}
