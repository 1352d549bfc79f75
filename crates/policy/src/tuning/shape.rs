//! The three numbers that make a tree of runs leveled, tiered or anything between.
//!
//! 1. A shape that exists is valid: `2 <= T <= 32`, `1 <= K < T`, `1 <= Z < T`.

use std::fmt;

use dalsegno_core::{Error, Result};

/// How the tree trades writes for reads (the fluid LSM tree of Dostoevsky, SIGMOD 2018).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    size_ratio: u32,
    runs: u32,
    last_runs: u32,
}

impl Shape {
    /// Smallest size ratio: with less, levels would not grow.
    pub const SIZE_RATIO_MIN: u32 = 2;
    /// Largest size ratio: above it levels hardly get fewer, but a leveled one costs more and more.
    pub const SIZE_RATIO_MAX: u32 = 32;

    /// A tree whose levels grow by `size_ratio`, with at most `runs` runs in each level but the
    /// last and at most `last_runs` in that one.
    ///
    /// # Errors
    ///
    /// `Invalid` if a number is out of the bounds at the head of this file.
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
                     more would never be reached",
                    size_ratio - 1
                )));
            }
        }
        Ok(Self { size_ratio, runs, last_runs })
    }

    /// One run per level: reads cost least, writes most.
    ///
    /// # Errors
    ///
    /// As [`Shape::new`].
    pub fn leveled(size_ratio: u32) -> Result<Self> {
        Self::new(size_ratio, 1, 1)
    }

    /// One run where most entries lie, as many as fit above it: nearly tiered writes with nearly
    /// leveled look-ups, at the price of ranges.
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
    /// Shapes with `Z > K` are left out: by the model none was found that costs 3% less than the
    /// best of the others (`tests/tuning_properties.rs`).
    pub(super) fn all(size_ratio_max: u32) -> impl Iterator<Item = Self> {
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
    /// Leveled where most entries lie, lazy above: where nothing is known yet, no operation is
    /// expensive.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_out_of_bounds_is_refused_and_told_what_would_do() {
        let message = |shape: Result<Shape>| shape.unwrap_err().to_string();
        assert!(message(Shape::new(1, 1, 1)).contains("size ratio 1 is out of bounds"));
        assert!(message(Shape::new(33, 1, 1)).contains("give 2 to 32"));
        assert!(message(Shape::new(4, 4, 1)).contains("runs per level 4"));
        assert!(message(Shape::new(4, 0, 1)).contains("give 1 to 3"));
        assert!(message(Shape::new(4, 1, 4)).contains("runs of the last level 4"));
        assert!(message(Shape::tiered(0)).contains("size ratio 0"));
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
