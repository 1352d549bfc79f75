//! The three numbers that make an LSM tree leveled, tiered or anything between.
//!
//! 1. A shape that exists is valid: `2 <= T <= 32`, `1 <= K < T`, `1 <= Z < T`.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::{Error, Result};

/// How the tree trades writes for reads (the fluid LSM tree of Dostoevsky, SIGMOD 2018).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Shape {
    size_ratio: u32,
    runs: u32,
    last_runs: u32,
}

impl Shape {
    /// Smallest size ratio. With a smaller one, levels would not grow.
    pub const SIZE_RATIO_MIN: u32 = 2;
    /// Largest size ratio. Above it the number of levels hardly falls, but leveled compaction gets more expensive.
    pub const SIZE_RATIO_MAX: u32 = 32;

    /// A tree whose levels grow by `size_ratio`, with at most `runs` runs in each level but the
    /// last and at most `last_runs` in that one.
    ///
    /// # Errors
    ///
    /// `Invalid` if a number is out of bounds (invariant 1).
    pub fn new(size_ratio: u32, runs: u32, last_runs: u32) -> Result<Self> {
        if !(Self::SIZE_RATIO_MIN..=Self::SIZE_RATIO_MAX).contains(&size_ratio) {
            return Err(Error::invalid(format!(
                "size ratio {size_ratio} is out of bounds: give {} to {}",
                Self::SIZE_RATIO_MIN,
                Self::SIZE_RATIO_MAX
            )));
        }
        for (name, count) in [("runs per level", runs), ("runs of the last level", last_runs)] {
            if !(1..size_ratio).contains(&count) {
                return Err(Error::invalid(format!(
                    "{name} {count} is out of bounds: with size ratio {size_ratio} give 1 to {}, \
                     a larger count is never reached",
                    size_ratio - 1
                )));
            }
        }
        Ok(Self { size_ratio, runs, last_runs })
    }

    /// The valid shape nearest to these numbers, for numbers read from a file.
    #[must_use]
    pub fn nearest(size_ratio: u32, runs: u32, last_runs: u32) -> Self {
        let size_ratio = size_ratio.clamp(Self::SIZE_RATIO_MIN, Self::SIZE_RATIO_MAX);
        let [runs, last_runs] = [runs, last_runs].map(|runs| runs.clamp(1, size_ratio - 1));
        Self { size_ratio, runs, last_runs }
    }

    /// One run per level: reads cost least, writes most.
    ///
    /// # Errors
    ///
    /// As [`Shape::new`].
    pub fn leveled(size_ratio: u32) -> Result<Self> {
        Self::new(size_ratio, 1, 1)
    }

    /// One run in the last level, which has most entries, and as many as fit in the others. Writes cost nearly as
    /// little as tiered, point lookups nearly as little as leveled, but range reads cost more.
    ///
    /// # Errors
    ///
    /// As [`Shape::new`].
    pub fn lazy_leveled(size_ratio: u32) -> Result<Self> {
        Self::new(size_ratio, size_ratio.saturating_sub(1), 1)
    }

    /// As many runs as fit in every level: writes cost least, reads most.
    ///
    /// # Errors
    ///
    /// As [`Shape::new`].
    pub fn tiered(size_ratio: u32) -> Result<Self> {
        Self::new(size_ratio, size_ratio.saturating_sub(1), size_ratio.saturating_sub(1))
    }

    /// Every shape with a size ratio of at most `size_ratio_max`, smallest numbers first.
    ///
    /// Shapes with `Z > K` are excluded: in the cost model none costs 3% less than the best of the others
    /// (`tuning_properties.rs` of the policy crate).
    pub fn all(size_ratio_max: u32) -> impl Iterator<Item = Self> {
        let size_ratio_max = size_ratio_max.clamp(Self::SIZE_RATIO_MIN, Self::SIZE_RATIO_MAX);
        (Self::SIZE_RATIO_MIN..=size_ratio_max).flat_map(|size_ratio| {
            (1..size_ratio).flat_map(move |runs| {
                (1..=runs).map(move |last_runs| Self { size_ratio, runs, last_runs })
            })
        })
    }

    /// T: how many times larger each level is than the one above it.
    #[must_use]
    pub fn size_ratio(self) -> u32 {
        self.size_ratio
    }

    /// K: most runs in each level but the last.
    #[must_use]
    pub fn runs(self) -> u32 {
        self.runs
    }

    /// Z: most runs in the last level.
    #[must_use]
    pub fn last_runs(self) -> u32 {
        self.last_runs
    }
}

impl Default for Shape {
    /// Leveled in the last level, lazy above. Without knowledge of the workload, no operation is expensive.
    fn default() -> Self {
        Self { size_ratio: 8, runs: 3, last_runs: 1 }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size_ratio, runs, last_runs } = self;
        write!(out, "T={size_ratio} K={runs} Z={last_runs}")
    }
}

impl FromStr for Shape {
    type Err = Error;

    /// Parses the output of [`Display`](fmt::Display), with commas or blanks between: `"T=8,K=3,Z=1"`. Z defaults to 1.
    fn from_str(text: &str) -> Result<Self> {
        let unreadable =
            || Error::invalid(format!("{text:?} is not a shape; write it like \"T=8,K=3,Z=1\""));
        let mut numbers = [None, None, Some(1)];
        let mut is_given = [false; 3];
        for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
            let (name, number) = part.split_once('=').ok_or_else(unreadable)?;
            let at = ["T", "K", "Z"].iter().position(|known| known.eq_ignore_ascii_case(name));
            let at = at.filter(|at| !is_given[*at]).ok_or_else(unreadable)?;
            is_given[at] = true;
            numbers[at] = Some(number.parse().map_err(|_| unreadable())?);
        }
        let [Some(size_ratio), Some(runs), Some(last_runs)] = numbers else {
            return Err(unreadable());
        };
        Self::new(size_ratio, runs, last_runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_out_of_bounds_is_refused_with_the_allowed_values() {
        let message = |shape: Result<Shape>| shape.unwrap_err().to_string();
        assert!(message(Shape::new(1, 1, 1)).contains("size ratio 1 is out of bounds"));
        assert!(message(Shape::new(33, 1, 1)).contains("give 2 to 32"));
        assert!(message(Shape::new(4, 4, 1)).contains("runs per level 4"));
        assert!(message(Shape::new(4, 0, 1)).contains("give 1 to 3"));
        assert!(message(Shape::new(4, 1, 4)).contains("runs of the last level 4"));
        assert!(message(Shape::tiered(0)).contains("size ratio 0"));
    }

    #[test]
    fn every_shape_parses_from_its_text() {
        for shape in Shape::all(6) {
            assert_eq!(shape.to_string().parse::<Shape>().unwrap(), shape);
        }
        assert_eq!("t=8,k=3".parse::<Shape>().unwrap(), Shape::default());
        for text in ["", "T=8", "T=8,K", "T=8,K=x", "T=8,K=3,Q=1", "T=8,K=3,K=4", "T=8;K=3"] {
            let error = text.parse::<Shape>().unwrap_err().to_string();
            assert!(error.contains("write it like"), "{text}: {error}");
        }
        let error = "T=4,K=9,Z=1".parse::<Shape>().unwrap_err().to_string();
        assert!(error.contains("runs per level 9"), "{error}");
    }

    #[test]
    fn the_nearest_shape_is_valid() {
        assert_eq!(Shape::nearest(0, 0, 9), Shape::leveled(2).unwrap());
        assert_eq!(Shape::nearest(64, 3, 99), Shape::new(32, 3, 31).unwrap());
    }

    #[test]
    fn the_named_shapes_are_those_of_the_paper() {
        let numbers = |shape: Shape| (shape.size_ratio(), shape.runs(), shape.last_runs());
        assert_eq!(numbers(Shape::leveled(5).unwrap()), (5, 1, 1));
        assert_eq!(numbers(Shape::lazy_leveled(5).unwrap()), (5, 4, 1));
        assert_eq!(numbers(Shape::tiered(5).unwrap()), (5, 4, 4));
        assert_eq!(Shape::tiered(2).unwrap(), Shape::leveled(2).unwrap());
    }

    #[test]
    fn all_shapes_are_valid_and_different() {
        let shapes: Vec<Shape> = Shape::all(16).collect();
        assert_eq!(shapes.len(), 680);
        assert!(shapes.windows(2).all(|pair| pair[0] < pair[1]));
        for shape in shapes {
            assert_eq!(Shape::new(shape.size_ratio, shape.runs, shape.last_runs).unwrap(), shape);
        }
    }
}
