//! Chooses the shape of the index's tree for the present workload.
//!
//! 1. Nothing changes before the first window is full, nor within a pause after the last search.
//! 2. A change must save more than the margin, by the model and from the present tree, for the operations of the
//!    window. The pages that it rewrites sooner are counted against it.
//! 3. Every decision is within the bounds: a valid shape, with a size ratio of at most the one in the options.
//! 4. A pinned controller counts but decides nothing.
//!
//! The figures below are printed by `DALSEGNO_DOSE=long cargo test -p dalsegno-policy tuning_stages -- --nocapture`, on
//! simulated trees that count pages.
//!
//! # Why this model
//!
//! The tree is the fluid LSM tree of Dostoevsky: levels grow by T, each but the last has at most K runs, the last one
//! Z. The papers (Monkey, Dostoevsky, and the KV-cache store whose controller this is) compute with bounds: K runs in
//! every level, `(T - 1) / (K + 1)` merges per level, a full last level. Bounds mislead when shapes are compared. In a
//! leveled tree with T = 2 that grows from 1M to 2M entries, each entry was written 11.6 times where the bound says 5.
//! Tiered with T = 8, there were 17.7 runs, not 28. So the terms here are means:
//!
//! - T arrivals from above form a cycle, and the last of them empties the level. The planner's rule gives what the
//!   others write and the runs that they leave ([`crate::fluid::Filling`]).
//! - The last level holds the rest, `x` arrivals, and is not emptied. An arrival is written once, and again with the
//!   run that it joins; with Z = 1 that is the whole level. So the cost does not jump where a tree outgrows its levels.
//!
//! Over 138 simulated trees, the writes are off by 6% in the median and 65% at worst, the runs by 2% and 21%. The worst
//! cases are trees whose last level is new and gets no arrival while they are observed.
//!
//! Point lookups are as in Monkey, with the filter memory divided so that the sum of false-positive rates is smallest.
//! A range visits every run.
//!
//! # Why a shift is measured in cost
//!
//! Filling the store writes a hundred entries for each range that is read. If ranges double, one operation in a hundred
//! changes. But if ranges were half of the cost before, they are two thirds now. So shares are compared with each
//! operation weighted by its cost.
//!
//! # Why the present tree counts
//!
//! Under a smaller K or Z the next arrival joins the excess runs, so they cost little more than the new shape does.
//! What costs is the wait: the last level keeps its runs until something arrives there, and a larger size ratio merges
//! several levels, with all their runs, into one. A model of average trees does not show that. A controller that used
//! such a model alone kept eight runs where one is allowed, at 2.1 times the pages of the best constant shape. So a
//! search follows the planner from the present tree until the last level gets an arrival (`search.rs`). The additional
//! cost is spread over a horizon. A workload that has lasted long is expected to last as long again, so the horizon
//! grows with it.
//!
//! # What it is worth
//!
//! The cost has a flat minimum. With writes as `w / x` and reads as `r x`, take two workloads whose ratio of reads to
//! writes differs by a factor `f`. A common compromise costs `(f^(1/4) + f^(-1/4)) / 2` of their optima: 4% more for f
//! = 3, 30% more for f = 21. Consider the best shape of each of the ten stages of the KV-cache paper, changed for free.
//! It would save 0.5% over the best single shape if every prompt shares a part of its blocks, and 4% if prompts are
//! present completely or not at all. On simulated trees the controller took 2 to 10% more pages than the best of 28
//! shapes chosen in hindsight. It took 4% more in the mean, and 14% fewer than their median, without knowing the stages
//! beforehand.
//!
//! On the real index it takes fewer pages than every constant shape (`make bench NAME=controller`, counted I/O;
//! docs/decisions/0010 has the figures). Between stages the gain is as small as above; the rest comes from growth. The
//! useless reads of a lookup are proportional to `exp` of the entropy of the runs' sizes ([`useless_reads`]). Which
//! shape keeps that low depends on how full its last level is.

mod controller;
mod cost;
mod cost_model;
mod decision;
mod facts;
mod reason;
mod search;
mod useless_reads;
mod window;

pub use controller::{Controller, ControllerOptions, Mode};
pub use cost::Cost;
pub use cost_model::cost;
pub use decision::Decision;
pub use facts::{Constants, Facts, Unit};
pub use search::{Bounds, Choice, Found, best_shape};
pub use useless_reads::useless_reads;
pub use window::{Counts, Shares, Window};
