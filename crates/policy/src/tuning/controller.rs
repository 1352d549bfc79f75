//! When to look for another shape, and whether it is worth a change.
//!
//! It looks when the first window is full, when the workload has shifted, when the tree has grown
//! or shrunk, and each time the same workload has lasted twice as long: first because the window
//! may have held two workloads, then because a dear change pays in the end where nothing changes.

use std::collections::VecDeque;

use dalsegno_core::Shape;

use super::cost::cost;
use super::facts::{Facts, Unit, number};
use super::reason::{Cause, explain};
use super::search::{Bounds, best_shape};
use super::{Counts, Shares, Window};

/// Decisions kept to be shown.
const DECISIONS_KEPT: usize = 16;
/// A tree that grew or shrank by this factor may have another number of levels.
const GROWTH: f64 = 1.5;

/// Whether the shape follows the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It does.
    Adaptive,
    /// It stays as it is told.
    Pinned(Shape),
}

/// How the controller decides. The defaults serve; tests and benches use others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControllerOptions {
    /// Whether it decides at all.
    pub mode: Mode,
    /// The shape to begin with, unless pinned.
    pub start: Shape,
    /// Operations of a full window.
    pub window_operations: u64,
    /// How far the workload must move before another shape is looked for at once:
    /// [`Shares::distance_by_cost`].
    pub shift: f64,
    /// Which part of the cost a change must save.
    pub margin: f64,
    /// Operations that must pass between one look for another shape and the next.
    pub pause_operations: u64,
    /// Operations a workload is expected to last, if it has not lasted longer already; within these
    /// a change must earn what it rewrites.
    pub horizon_operations: u64,
    /// Largest size ratio to choose.
    pub size_ratio_max: u32,
}

impl Default for ControllerOptions {
    /// A window is some hundred prompts of a hundred blocks: with fewer, prompts that happen to hit
    /// look like a shift. The horizon is a compromise: on simulated trees a longer one was better
    /// for long stages and worse for short ones, by some percent either way.
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

/// A change of shape, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The shape until now.
    pub from: Shape,
    /// The shape from now on; the tree takes it as flushes and compactions come.
    pub to: Shape,
    /// Operations seen so far.
    pub operations: u64,
    /// The window that it was decided on.
    pub shares: Shares,
    /// What one of its operations costs from here if the shape stays, by the model.
    pub cost_before: f64,
    /// What it costs with the new one.
    pub cost_after: f64,
    /// In what these are counted.
    pub unit: Unit,
    /// One sentence for people.
    pub reason: String,
}

/// What was seen when another shape was last looked for.
#[derive(Clone, Copy, Debug)]
struct Look {
    operations: u64,
    shares: Shares,
    entries: u64,
    memtables: f64,
    /// When to look again even if nothing moves.
    again_at: u64,
}

/// Watches operations and says when another shape is better.
#[derive(Debug)]
pub struct Controller {
    options: ControllerOptions,
    shape: Shape,
    window: Window,
    operations: u64,
    /// Operations seen when the workload last became another one.
    shifted_at: u64,
    look: Option<Look>,
    decisions: VecDeque<Decision>,
}

impl Controller {
    /// A controller that has seen nothing yet.
    #[must_use]
    pub fn new(options: ControllerOptions) -> Self {
        let shape = match options.mode {
            Mode::Adaptive => options.start,
            Mode::Pinned(shape) => shape,
        };
        let window = Window::new(options.window_operations);
        let decisions = VecDeque::new();
        Self { options, shape, window, operations: 0, shifted_at: 0, look: None, decisions }
    }

    /// Takes operations in: any number at once, in a few additions.
    pub fn observe(&mut self, delta: Counts) {
        self.operations = self.operations.saturating_add(delta.operations());
        self.window.observe(delta);
    }

    /// Looks for another shape if it is time to, and changes to it if that pays. Mostly answers
    /// `None` after a few comparisons; a look computes the cost of some hundred shapes.
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
        self.look = Some(Look { operations, shares, entries, memtables, again_at });

        let bounds = Bounds {
            size_ratio_max: self.options.size_ratio_max,
            horizon_operations: number(self.options.horizon_operations.max(lasted).max(1)),
        };
        let found = best_shape(self.shape, facts, &shares, bounds);
        // Written so that a cost that is not a number never leads to a change.
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

    /// Why it is time to look for another shape, if it is.
    fn cause(&self, facts: &Facts, shares: &Shares) -> Option<Cause> {
        let Some(look) = &self.look else { return Some(Cause::First) };
        if self.operations.saturating_sub(look.operations) < self.options.pause_operations {
            return None;
        }
        let cost = cost(self.shape, facts, shares);
        if shares.distance_by_cost(&look.shares, &cost) > self.options.shift {
            return Some(Cause::Shift { before: look.shares });
        }
        let growth = facts.memtables() / look.memtables;
        if !(1.0 / GROWTH..=GROWTH).contains(&growth) {
            return Some(Cause::Growth { before: look.entries, now: facts.entries });
        }
        let again = self.operations >= look.again_at;
        again.then_some(Cause::Stayed { before: look.shares })
    }

    /// Changes the mode. Pinning takes the given shape at once; an adaptive controller goes on from
    /// the shape it has.
    pub fn set_mode(&mut self, mode: Mode) {
        self.options.mode = mode;
        if let Mode::Pinned(shape) = mode {
            self.shape = shape;
        }
        self.look = None;
    }

    /// Whether it decides.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.options.mode
    }

    /// The shape that the tree should have.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The shares of the newest operations, `None` before the first.
    #[must_use]
    pub fn shares(&self) -> Option<Shares> {
        self.window.shares()
    }

    /// The last changes, the oldest first; at most sixteen.
    pub fn decisions(&self) -> impl ExactSizeIterator<Item = &Decision> {
        self.decisions.iter()
    }
}
