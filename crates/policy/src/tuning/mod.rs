//! Which shape the index's tree should have for what is asked of it.
//!
//! 1. Nothing changes before a full window was seen, nor sooner than a pause after the last look.
//! 2. A change must promise more than the margin, by the model and from the tree as it is, for the operations of the
//!    window; what it rewrites sooner is counted against it.
//! 3. No decision leaves the bounds: a valid shape, its size ratio at most what the options say.
//! 4. A pinned controller counts but decides nothing.
//!
//! The figures below are printed by `cargo test -p dalsegno-policy --test tuning_stages --
//! --nocapture`, on simulated trees that count pages.
//!
//! # Why this model
//!
//! The tree is the fluid LSM tree of Dostoevsky: levels grow by T, each but the last has at most K
//! runs, the last one Z. The papers (Monkey, Dostoevsky, and the KV-cache store whose controller
//! this is) reckon with bounds: K runs in every level, `(T - 1) / (K + 1)` merges per level, a last
//! level that is full. Between shapes these mislead. In a tree that grows from 1M to 2M entries
//! with T = 2, leveled, each entry was written 11.6 times where the bound says 5; tiered with
//! T = 8, there were 17.7 runs, not 28. So the terms here are means:
//!
//! - Arrivals from above come T to a cycle, the last of which empties the level. What the others write and the runs
//!   they leave are reckoned with the planner's own rule ([`crate::fluid::Filling`]).
//! - The last level holds the rest, `x` arrivals, and is not emptied: an arrival is written once and again with the run
//!   that it joins, all of the level if Z = 1. So the cost does not jump where a tree outgrows its levels.
//!
//! Over 138 simulated trees writes are off by 6% in the median and 65% at worst, runs by 2% and 21%. At worst are trees
//! whose last level has just begun and gets no arrival while they are watched.
//!
//! Point look-ups are as in Monkey, with the memory for filters divided so that the sum of
//! false-positive rates is least; a range visits every run.
//!
//! # Why a shift is measured in cost
//!
//! Filling writes a hundred entries for each range that is read. When ranges double, operations
//! move by one part in a hundred, but if ranges were half of the cost they are two thirds now. So
//! shares are compared with each operation weighted by its cost.
//!
//! # Why the tree as it is counts
//!
//! Runs that are too many under a smaller K or Z are joined by the next arrival, so they cost little more than the new
//! shape does anyhow. What costs is waiting: the last level keeps its runs until something arrives there, and a larger
//! size ratio makes several levels, with all their runs, one. A model of average trees does not see that; who went by
//! it alone sat on eight runs where one is allowed, at 2.1 times the pages of the best shape that stays. So a search
//! follows the planner from the tree as it is until the last level gets an arrival (`search.rs`). What that adds is
//! spread over a horizon; since a workload that has lasted long may be expected to last as long again, it grows with
//! it.
//!
//! # What it is worth
//!
//! The cost has a flat bottom. With writes as `w / x` and reads as `r x`, two mixtures whose ratio
//! of reads to writes differs by a factor `f` cost a common compromise only
//! `(f^(1/4) + f^(-1/4)) / 2` of their optima: 4% where f = 3, 30% where f = 21. On the ten stages
//! of the KV-cache paper the best shape of each stage, changed for free, would save 0.5% over the
//! best single shape where every prompt shares a part of its blocks, 4% where prompts are there as
//! a whole or not at all. On simulated trees the controller took 2 to 10% more pages than the best of 28 shapes chosen
//! in hindsight, 4% more in the mean, and 14% fewer than their median: nobody has to know the stages beforehand.
//!
//! On the real index it takes fewer pages than every shape that stays (`make bench NAME=controller`, counted I/O;
//! docs/decisions/0010 has the figures). Between stages there is as little to win as above. What there is to win is
//! growth: a look-up reads in vain in proportion to `exp` of the entropy of the runs' sizes ([`reads_in_vain`]), and
//! which shape keeps that low depends on how full its last level is.

mod controller;
mod cost;
mod facts;
mod reason;
mod search;
mod vain;
mod window;

pub use controller::{Controller, ControllerOptions, Decision, Mode};
pub use cost::{Cost, cost};
pub use facts::{Constants, Facts, Unit};
pub use search::{Bounds, Choice, Found, best_shape};
pub use vain::reads_in_vain;
pub use window::{Counts, Shares, Window};
