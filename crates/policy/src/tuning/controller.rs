//! When to search for another shape, and whether a change pays.
//!
//! The controller searches when the first window is full, when the workload has shifted, and when the tree has grown or
//! shrunk. It also searches each time the same workload has lasted twice as long: at first because the window may have
//! held two workloads, later because an expensive change pays in the end if nothing changes.

use std::collections::VecDeque;

use dalsegno_core::Shape;

use super::cost_model::cost;
use super::decision::Decision;
use super::facts::{Facts, number};
use super::reason::{Cause, explain};
use super::search::{Bounds, best_shape};
use super::window::{Counts, Shares, Window};

/// Decisions that are kept for display.
const DECISIONS_KEPT: usize = 16;
/// A tree that grew or shrank by this factor may have another number of levels.
const GROWTH: f64 = 1.5;

/// Whether the shape follows the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It follows them.
    Adaptive,
    /// It keeps this shape.
    Pinned(Shape),
}

/// How the controller decides. Tests and benches use other values than the defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControllerOptions {
    /// Whether it decides at all.
    pub mode: Mode,
    /// The shape to start with, unless pinned.
    pub start: Shape,
    /// Operations of a full window.
    pub window_operations: u64,
    /// How far the workload must move for an immediate search, as [`Shares::distance_by_cost`].
    pub shift: f64,
    /// The part of the cost that a change must save.
    pub margin: f64,
    /// Operations between two searches, at least.
    pub pause_operations: u64,
    /// Operations that a workload is expected to last, unless it has lasted longer already. Within these a change must
    /// pay for what it rewrites.
    pub horizon_operations: u64,
    /// Largest size ratio to choose.
    pub size_ratio_max: u32,
}

impl Default for ControllerOptions {
    /// A window is some hundred prompts of a hundred blocks. With fewer, a few hits look like a shift. The horizon is a
    /// compromise: on simulated trees a longer one was better for long stages and worse for short ones, by some percent
    /// either way.
    fn default() -> Self {
        Self {
            mode: Mode::Adaptive,
            start: Shape::default(),
            window_operations: 65_536,
            shift: 0.1,
            margin: 0.1,
            pause_operations: 32_768,
            horizon_operations: 524_288,
            size_ratio_max: 16,
        }
    }
}

/// The workload and the tree at the last search.
#[derive(Clone, Copy, Debug)]
struct LastSearch {
    operations: u64,
    shares: Shares,
    entries: u64,
    memtables: f64,
    /// When to search again even if nothing moves.
    again_at: u64,
}

/// Observes operations and decides when another shape is better.
#[derive(Debug)]
pub struct Controller {
    options: ControllerOptions,
    shape: Shape,
    window: Window,
    operations: u64,
    /// Operations observed when the workload last shifted.
    shifted_at: u64,
    last_search: Option<LastSearch>,
    decisions: VecDeque<Decision>,
}

impl Controller {
    /// A controller that has observed nothing yet.
    #[must_use]
    pub fn new(options: ControllerOptions) -> Self {
        let shape = match options.mode {
            Mode::Adaptive => options.start,
            Mode::Pinned(shape) => shape,
        };
        let window = Window::new(options.window_operations);
        let decisions = VecDeque::new();
        Self { options, shape, window, operations: 0, shifted_at: 0, last_search: None, decisions }
    }

    /// Adds any number of operations, at the cost of a few additions.
    pub fn observe(&mut self, delta: Counts) {
        self.operations = self.operations.saturating_add(delta.operations());
        self.window.observe(delta);
    }

    /// Searches for another shape if it is time to, and changes to it if that pays. Mostly returns `None` after a few
    /// comparisons. A search computes the cost of some hundred shapes.
    pub fn decide(&mut self, facts: &Facts) -> Option<Decision> {
        let adaptive = self.options.mode == Mode::Adaptive;
        if !adaptive || !self.window.is_full() || !facts.usable() {
            return None;
        }
        let shares = self.window.shares()?;
        let cause = self.cause(facts, &shares)?;
        if matches!(cause, Cause::First | Cause::Shift { .. }) {
            self.shifted_at = self.operations;
        }
        let lasted = self.operations - self.shifted_at;
        let (operations, entries) = (self.operations, facts.entries);
        let memtables = facts.memtables();
        let again_at = operations.saturating_add(lasted.max(self.options.window_operations));
        self.last_search = Some(LastSearch { operations, shares, entries, memtables, again_at });

        let bounds = Bounds {
            size_ratio_max: self.options.size_ratio_max,
            horizon_operations: number(self.options.horizon_operations.max(lasted).max(1)),
        };
        let found = best_shape(self.shape, facts, &shares, bounds);
        // Written so that a cost that is not a number never causes a change.
        let (stay, best) = (found.stay, found.best);
        let pays = best.total_from_here < stay.total_from_here * (1.0 - self.options.margin);
        if !pays || best.shape == self.shape {
            return None;
        }
        let mut decision = Decision {
            from: self.shape,
            to: best.shape,
            operations,
            shares,
            cost_before: stay.total_from_here,
            cost_after: best.total_from_here,
            unit: facts.constants.unit,
            reason: String::new(),
        };
        decision.reason = explain(&cause, &decision);
        self.shape = best.shape;
        if self.decisions.len() == DECISIONS_KEPT {
            self.decisions.pop_front();
        }
        self.decisions.push_back(decision.clone());
        Some(decision)
    }

    /// Why it is time to search, if it is.
    fn cause(&self, facts: &Facts, shares: &Shares) -> Option<Cause> {
        let Some(last) = &self.last_search else { return Some(Cause::First) };
        if self.operations.saturating_sub(last.operations) < self.options.pause_operations {
            return None;
        }
        let cost = cost(self.shape, facts, shares);
        if shares.distance_by_cost(&last.shares, &cost) > self.options.shift {
            return Some(Cause::Shift { before: last.shares });
        }
        let growth = facts.memtables() / last.memtables;
        if !(1.0 / GROWTH..=GROWTH).contains(&growth) {
            return Some(Cause::Growth { before: last.entries, now: facts.entries });
        }
        let again = self.operations >= last.again_at;
        again.then_some(Cause::Stayed { before: last.shares })
    }

    /// Changes the mode. Pinning adopts the given shape immediately. An adaptive controller continues with the present
    /// shape.
    pub fn set_mode(&mut self, mode: Mode) {
        self.options.mode = mode;
        if let Mode::Pinned(shape) = mode {
            self.shape = shape;
        }
        self.last_search = None;
    }

    /// The mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.options.mode
    }

    /// The shape that the tree should have.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The shares of the newest operations; `None` before the first one.
    #[must_use]
    pub fn shares(&self) -> Option<Shares> {
        self.window.shares()
    }

    /// The last changes, at most sixteen, the oldest first.
    pub fn decisions(&self) -> impl ExactSizeIterator<Item = &Decision> {
        self.decisions.iter()
    }
}
