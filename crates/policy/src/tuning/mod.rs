//! Which shape the index's tree should have for what is asked of it.
//!
//! 1. Nothing changes before a full window was seen, nor sooner than a pause after the last look.
//! 2. A change must promise more than the margin, by the model, for the operations of the window,
//!    and what it rewrites is counted against it.
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
//! - Arrivals from above come T to a cycle, the last of which empties the level. So it has 0 to
//!   T - 1 of them, `(T - 1) / 2` on average, in `K (1 - (K + 1) / 2T)` runs.
//! - Of a cycle's entries each is written once on arrival, and again when runs have to make room:
//!   together about `T / (K + 1)` times.
//! - The last level holds the rest, `x` arrivals, and is not emptied: an arrival is written once
//!   and merges with about `x / Z`. So the cost does not jump where a tree outgrows its levels.
//!
//! The two that say "about" were chosen because they fit simulations; over 138 trees, most of
//! other shapes and sizes, writes are off by 7% in the median and 33% at worst, runs by 3% and 14%.
//! At worst is K = 2, where the index merges the cheapest pair of neighbours: the newest run then
//! swallows each arrival until it is as large as the other, which costs nearly what K = 1 costs.
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
//! # Why a change has to earn what it rewrites
//!
//! Lowering K or Z merges what is there, so going back and forth writes the tree anew each time. A
//! change must earn that within the horizon; and since a workload that has lasted long may be
//! expected to last as long again, the horizon grows with it.
//!
//! # What it is worth
//!
//! The cost has a flat bottom. With writes as `w / x` and reads as `r x`, two mixtures whose ratio
//! of reads to writes differs by a factor `f` cost a common compromise only
//! `(f^(1/4) + f^(-1/4)) / 2` of their optima: 4% where f = 3, 30% where f = 21. On the ten stages
//! of the KV-cache paper the best shape of each stage, changed for free, would save 2% over the
//! best single shape where every prompt shares a part of its blocks, 4% where prompts are there as
//! a whole or not at all. Changes cost more than that: the controller took 0.3% to 9% *more* pages
//! than the best of 28 shapes chosen in hindsight, 5% in the mean, and 10% fewer than their median.
//! What it gives is that nobody has to know the stages beforehand. It is not a gain over a shape
//! that happens to be right, nor always over the default: from 13% fewer pages to 4% more.

mod controller;
mod cost;
mod facts;
mod reason;
mod window;

pub use controller::{Controller, ControllerOptions, Decision, Mode};
pub use cost::{Bounds, Choice, Cost, best_shape, cost, transition_cost};
pub use facts::{Constants, Facts, Unit};
pub use window::{Counts, Shares, Window};
