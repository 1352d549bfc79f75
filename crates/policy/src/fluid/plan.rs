//! Plans the step that keeps the tree in its shape.
//!
//! Level `i` holds up to `T - 1` arrivals of `buffer x T^i` bytes in at most `K` runs, the last level in at most `Z`
//! runs. K = Z = 1 is leveling, K = T - 1 with Z = 1 lazy leveling, K = Z = T - 1 tiering (Dostoevsky, SIGMOD 2018).
//! The levels count like an odometer. An arrival that does not fit into a level moves with everything above into the
//! first level with enough space. So each entry is written once on its way, however many levels it passes.
//!
//! 1. A change of shape rewrites nothing, and nothing is rewritten before a flush. A level is compacted when something
//!    arrives in it. A larger K keeps its runs; under a smaller K the next arrival joins them.
//! 2. There are as few levels as can hold everything. Runs that a change of shape leaves in the wrong level move
//!    without being rewritten. The oldest level moves down when an arrival does not fit into it, and up when one level
//!    fewer is enough. Others move down to an empty level.
//! 3. Steps never change the order of runs by age.
//! 4. After an arrival a level has at most K runs, the last one at most Z. An arrival joins the newest run until that
//!    has its share of the space that older runs leave, to the nearest whole arrival. So the runs of a level are about
//!    equally large.
//! 5. Without new data, repeated steps come to an end.
//!
//! Why shares: if arrivals join the cheapest neighbours instead, the newest of two runs absorbs every arrival until it
//! is as large as the older one. That costs as much as one run.

use std::ops::Range;

use dalsegno_core::Shape;

/// A step of maintenance. Levels and runs are counted from the newest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Merge some of the newest runs of level 0 into one.
    Join {
        /// How many runs.
        runs: usize,
    },
    /// Merge all runs above a level, and the newest `joined` runs of the level, into its newest run.
    Down {
        /// The level.
        level: usize,
        /// How many of its runs are merged.
        joined: usize,
    },
    /// Move runs to another level without rewriting them. The levels between the two are empty.
    Move {
        /// Their level.
        from: usize,
        /// The runs.
        runs: Range<usize>,
        /// Their new level.
        to: usize,
    },
}

/// A tree for the planner.
struct Plan<'a> {
    shape: Shape,
    buffer: u64,
    levels: &'a [Vec<u64>],
    deepest: usize,
}

/// The next step, if any is due after a flush. `levels` are the bytes of the runs of each level, newest first, with the
/// flushed run. `buffer` is the size of the run that a full memtable becomes.
#[must_use]
pub fn next_step(shape: Shape, buffer: u64, levels: &[Vec<u64>]) -> Option<Step> {
    let deepest = levels.iter().rposition(|runs| !runs.is_empty())?;
    let plan = Plan { shape, buffer, levels, deepest };
    plan.misplaced().or_else(|| plan.fit_arrival())
}

impl Plan<'_> {
    /// Bytes of an arrival in a level.
    fn unit(&self, level: usize) -> u64 {
        let power = u32::try_from(level).unwrap_or(u32::MAX);
        self.buffer.saturating_mul(u64::from(self.shape.size_ratio()).saturating_pow(power))
    }

    /// Bytes that a level can hold.
    fn capacity(&self, level: usize) -> u64 {
        self.unit(level).saturating_mul(u64::from(self.shape.size_ratio() - 1))
    }

    /// Arrivals differ in size, so half of one more is accepted.
    fn fits(&self, level: usize, bytes: u64) -> bool {
        bytes <= self.capacity(level).saturating_add(self.unit(level) / 2)
    }

    fn bytes(&self, level: usize) -> u64 {
        self.levels[level].iter().sum()
    }

    fn move_all(&self, from: usize, to: usize) -> Step {
        Step::Move { from, runs: 0..self.levels[from].len(), to }
    }

    /// The step that moves runs which another shape left in the wrong level.
    fn misplaced(&self) -> Option<Step> {
        let deepest = self.deepest;
        let total = (0..=deepest).map(|level| self.bytes(level)).sum();
        if deepest > 0 && self.fits(deepest - 1, total) {
            return Some(self.move_all(deepest, deepest - 1));
        }
        let outgrown = |level: &usize| {
            !self.fits(*level, self.bytes(*level)) && self.levels[level + 1].is_empty()
        };
        (1..deepest).rev().find(outgrown).map(|level| self.move_all(level, level + 1))
    }

    /// The step that the flushed run makes necessary.
    fn fit_arrival(&self) -> Option<Step> {
        let (mut level, mut bytes) = (0, self.bytes(0));
        let mut above = 0;
        while !self.fits(level, bytes) {
            if level == self.deepest {
                // A new last level can hold more, and nothing has to be rewritten for that.
                let runs = self.levels[level].len();
                let flushed = usize::from(level == 0 && runs > 1);
                return Some(Step::Move { from: level, runs: flushed..runs, to: level + 1 });
            }
            above = bytes;
            level += 1;
            bytes += self.bytes(level);
        }
        if level == 0 {
            let (flushed, rest) = self.levels[0].split_first()?;
            let joined = self.joined(0, rest, *flushed);
            return (joined > 0).then_some(Step::Join { runs: joined + 1 });
        }
        let joined = self.joined(level, &self.levels[level], above);
        let mut sources = (0..level).filter(|above| !self.levels[*above].is_empty());
        match (sources.next(), sources.next()) {
            (Some(from), None) if joined == 0 && self.levels[from].len() == 1 => {
                Some(self.move_all(from, level))
            }
            _ => Some(Step::Down { level, joined }),
        }
    }

    /// How many of the newest runs of a level an arrival is merged with.
    fn joined(&self, level: usize, runs: &[u64], arriving: u64) -> usize {
        let last = level >= self.deepest;
        let most = if last { self.shape.last_runs() } else { self.shape.runs() } as usize;
        joined(runs, arriving, most, self.capacity(level))
    }
}

/// How many of these runs, newest first, an arrival is merged with, so that at most `most` runs remain and share the
/// capacity about equally. Runs that are too small for their share, because another level left them, are merged too.
pub(super) fn joined(runs: &[u64], arriving: u64, most: usize, capacity: u64) -> usize {
    let mut rest = runs;
    while let Some((active, older)) = rest.split_first() {
        if rest.len() < most {
            let left = capacity.saturating_sub(older.iter().sum());
            let share = left / (most - older.len()) as u64;
            if active.saturating_add(arriving / 2) > share {
                break;
            }
        }
        rest = older;
    }
    runs.len() - rest.len()
}

/// Applies a step to sizes, as if no key occurred twice. Returns the rewritten bytes. For simulations.
///
/// # Panics
///
/// If the step does not fit the tree.
pub fn carry_out(step: &Step, levels: &mut Vec<Vec<u64>>) -> u64 {
    match step.clone() {
        Step::Join { runs } => {
            let merged = levels[0].drain(..runs).sum();
            levels[0].insert(0, merged);
            merged
        }
        Step::Down { level, joined } => {
            let above: u64 = levels[..level].iter_mut().flat_map(|runs| runs.drain(..)).sum();
            let merged = above + levels[level].drain(..joined).sum::<u64>();
            levels[level].insert(0, merged);
            merged
        }
        Step::Move { from, runs, to } => {
            levels.resize(levels.len().max(to + 1), Vec::new());
            let moved: Vec<u64> = levels[from].drain(runs).collect();
            let at = if to > from { 0 } else { levels[to].len() };
            levels[to].splice(at..at, moved);
            while levels.len() > 1 && levels.last().is_some_and(Vec::is_empty) {
                levels.pop();
            }
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUFFER: u64 = 1000;

    fn settle(shape: Shape, levels: &mut Vec<Vec<u64>>) -> u64 {
        let mut rewritten = 0;
        for _ in 0..1000 {
            let Some(step) = next_step(shape, BUFFER, levels) else { return rewritten };
            rewritten += carry_out(&step, levels);
        }
        panic!("no end: {shape} {levels:?}");
    }

    fn flush(shape: Shape, levels: &mut Vec<Vec<u64>>, bytes: u64) -> u64 {
        levels[0].insert(0, bytes);
        bytes + settle(shape, levels)
    }

    fn filled(shape: Shape, flushes: u64) -> Vec<Vec<u64>> {
        let mut levels = vec![Vec::new()];
        for _ in 0..flushes {
            flush(shape, &mut levels, BUFFER);
        }
        levels
    }

    /// Bytes written per byte of input, and the mean number of runs, while a tree grows to so many memtables.
    #[expect(clippy::cast_precision_loss, reason = "ratios of small numbers")]
    fn amplification(shape: Shape, flushes: u64) -> (f64, f64) {
        let (mut levels, mut written, mut runs) = (vec![Vec::new()], 0, 0);
        for _ in 0..flushes {
            written += flush(shape, &mut levels, BUFFER);
            runs += levels.iter().map(Vec::len).sum::<usize>();
        }
        (written as f64 / (flushes * BUFFER) as f64, runs as f64 / flushes as f64)
    }

    fn shape(size_ratio: u32, runs: u32, last_runs: u32) -> Shape {
        Shape::new(size_ratio, runs, last_runs).unwrap()
    }

    #[test]
    fn each_further_run_saves_writes() {
        for (ratio, flushes) in [(4, 4000), (8, 4000), (16, 8000)] {
            let lazy = (1..ratio).map(|runs| amplification(shape(ratio, runs, 1), flushes).0);
            let lazy: Vec<f64> = lazy.collect();
            assert!(lazy.windows(2).all(|pair| pair[1] < pair[0]), "{ratio}: {lazy:?}");
            let tiered = amplification(shape(ratio, ratio - 1, ratio - 1), flushes).0;
            assert!(tiered < lazy[lazy.len() - 1], "{ratio}: {tiered} {lazy:?}");
        }
    }

    /// Joining the cheapest neighbours took 24.4 and 22.6 writes with these.
    #[test]
    fn two_runs_cost_far_fewer_writes_than_one() {
        let (one, two) = (shape(16, 1, 1), shape(16, 2, 1));
        let (one, two) = (amplification(one, 4000), amplification(two, 4000));
        assert!(two.0 < 0.75 * one.0 && two.1 < one.1 + 2.0, "{one:?} {two:?}");
    }

    #[test]
    fn the_last_arrival_of_a_cycle_moves_the_level_down() {
        let tiered = shape(3, 2, 2);
        assert_eq!(filled(tiered, 2), [[BUFFER, BUFFER]]);
        assert_eq!(filled(tiered, 3), [vec![BUFFER], vec![BUFFER, BUFFER]]);
        assert_eq!(filled(tiered, 9 + 3 + 1).len(), 3);
        // Everything above moves into the first level with enough space, in one step.
        let levels = [vec![1000; 3], vec![3000, 3000], vec![9000]];
        assert_eq!(next_step(tiered, BUFFER, &levels), Some(Step::Down { level: 2, joined: 0 }));
    }

    #[test]
    fn runs_of_a_level_are_about_equally_large() {
        let sizes = |flushes: u64| filled(shape(13, 4, 4), flushes)[0].clone();
        assert_eq!(sizes(12), [3000; 4]);
        assert_eq!(sizes(7), [1000, 3000, 3000]);
    }

    #[test]
    fn a_larger_k_rewrites_nothing_and_a_smaller_one_joins_at_the_next_arrival() {
        let (wide, narrow) = (shape(4, 3, 3), shape(4, 1, 1));
        let mut levels = vec![vec![1000; 2], vec![4000; 2], vec![16_000; 2]];
        // Only the level that the flush arrives in is compacted.
        assert_eq!(flush(narrow, &mut levels, BUFFER), 1000 + 3000);
        assert_eq!(levels, [vec![3000], vec![4000; 2], vec![16_000; 2]]);
        assert_eq!(flush(narrow, &mut levels, BUFFER), 1000 + 4000 + 8000);
        assert_eq!(levels, [vec![], vec![12_000], vec![16_000; 2]]);
        let back = (0..3).map(|_| flush(wide, &mut levels, BUFFER)).sum::<u64>();
        assert_eq!((back, levels[0].len()), (3000, 3));
    }

    #[test]
    fn a_smaller_size_ratio_moves_levels_apart_and_a_larger_one_together() {
        let (small, large) = (shape(4, 1, 1), shape(8, 1, 1));
        let mut levels = vec![vec![7000], vec![48_000], vec![384_000]];
        // The flush empties level 0. The levels below move without being rewritten.
        assert_eq!(flush(small, &mut levels, BUFFER), 1000 + 8000);
        assert_eq!(levels, [vec![], vec![8000], vec![48_000], vec![384_000]]);

        let mut levels = vec![vec![3000], vec![12_000], vec![48_000], vec![192_000]];
        assert_eq!(flush(large, &mut levels, BUFFER), 1000 + 4000);
        assert_eq!(levels, [vec![4000], vec![12_000], vec![48_000, 192_000]]);
    }

    #[test]
    fn a_flush_as_large_as_a_level_fits() {
        let mut levels = vec![Vec::new()];
        for bytes in [3000, 1, 40_000, 1, 90_000, 2000] {
            flush(shape(2, 1, 1), &mut levels, bytes);
        }
        assert_eq!(levels.iter().flatten().sum::<u64>(), 135_002);
    }

    proptest! {
        #[test]
        fn steps_end_and_an_arrival_leaves_at_most_the_allowed_runs(
            flushes in prop::collection::vec((1_u64..3000, 2_u32..9, 1_u32..9, 1_u32..9), 1..120),
        ) {
            let mut levels: Vec<Vec<u64>> = vec![Vec::new()];
            let mut total = 0;
            for (bytes, size_ratio, runs, last_runs) in flushes {
                let shape = Shape::nearest(size_ratio, runs, last_runs);
                levels[0].insert(0, bytes);
                total += bytes;
                for _ in 0..1000 {
                    let Some(step) = next_step(shape, BUFFER, &levels) else { break };
                    carry_out(&step, &mut levels);
                    let (Step::Down { level, .. } | Step::Move { to: level, .. }) = step else {
                        continue;
                    };
                    if matches!(step, Step::Down { .. }) {
                        let last = level + 1 == levels.len();
                        let most = if last { shape.last_runs() } else { shape.runs() };
                        prop_assert!(levels[level].len() <= most as usize, "{shape} {levels:?}");
                    }
                }
                prop_assert_eq!(next_step(shape, BUFFER, &levels), None);
                prop_assert_eq!(levels.iter().flatten().sum::<u64>(), total);
                prop_assert!(levels[0].len() <= shape.runs().max(shape.last_runs()) as usize);
            }
        }

        #[test]
        fn with_one_shape_every_level_keeps_its_bounds(
            flushes in prop::collection::vec(500_u64..1100, 1..400), numbers in [2_u32..9, 1..9, 1..9],
        ) {
            let shape = Shape::nearest(numbers[0], numbers[1], numbers[2]);
            let mut levels: Vec<Vec<u64>> = vec![Vec::new()];
            for bytes in flushes {
                flush(shape, &mut levels, bytes);
                let plan = Plan { shape, buffer: BUFFER, levels: &levels, deepest: levels.len() - 1 };
                for (level, runs) in levels.iter().enumerate() {
                    let last = level + 1 == levels.len();
                    // Before the step, another level may have been the last.
                    let most = if last { shape.last_runs() } else { shape.runs().max(shape.last_runs()) };
                    prop_assert!(runs.len() <= most as usize, "{shape} {levels:?}");
                    prop_assert!(plan.fits(level, plan.bytes(level)), "{shape} {levels:?}");
                }
            }
        }
    }
}
