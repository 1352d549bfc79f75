//! A fixed set of histories, each with an outage at every operation of the device.
//!
//! 1. What a seed stands for never depends on another seed, on threads or on earlier results.
//! 2. A violation is a panic of a world's check or of the store. It ends its own run only.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dalsegno_core::{Durability, IndexTuning, Shape};
use parking_lot::Mutex;

use crate::blocks::Blocks;
use crate::crash::{Common, crash_at, live};
use crate::habits::Habit;
use crate::history::{Action, Style};
use crate::random::Random;
use crate::totals::Totals;
use crate::world::World;

/// The set consists of the seeds 1 to this one.
pub const HISTORIES: u64 = 50;
/// Runs per crash point. In each, other unsynced data survives.
pub const FATES: u64 = 2;

/// The history of a seed.
#[derive(Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The store's settings and the sizes of blocks.
    pub style: Style,
    /// What callers do.
    pub actions: Vec<Action>,
    /// A description of it.
    pub words: String,
    blocks: Blocks,
}

impl Plan {
    /// Derives settings from remainders of the seed, so that each meets every other.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let habit = match seed % 5 {
            1 | 4 => Habit::Churning,
            2 => Habit::Growing,
            _ => Habit::Mixed,
        };
        let durability = if seed.is_multiple_of(3) { Durability::None } else { Durability::Batch };
        let is_crowded = habit == Habit::Churning || seed / 5 % 2 == 1;
        let mut style =
            if is_crowded { Style::crowded(durability) } else { Style::roomy(durability) };
        let mut words = format!("{habit:?}, {}", if is_crowded { "crowded" } else { "roomy" });
        if durability == Durability::None {
            words.push_str(", not durable");
        }
        if seed % 2 == 1 {
            style = style.flushing_often();
            // Trees of few runs and of many.
            let number = u32::try_from(seed % 12).expect("below 12");
            let shape = Shape::nearest(2 + number % 4, 1 + number % 3, 1 + number % 2);
            style.config.index_tuning = IndexTuning::Pinned(shape);
            words.push_str(", index in files");
        }
        if habit == Habit::Growing || seed / 2 % 4 == 1 {
            style = style.merging_at_once();
            words.push_str(", merging");
        }
        if seed % 7 == 3 {
            style = style.compressed();
            words.push_str(", compressed");
        }
        // The smallest allowed value, so that extents need several requests.
        style.config.io_request = Some(256 << 10);
        style.actions = if habit == Habit::Mixed { 36 } else { 24 };
        if seed % 4 == 1 && habit != Habit::Churning {
            // So little that removals and the points that they remove are in different runs, which are merged.
            style.memtable_bytes = Some(1 << 8);
            words.push_str(", tiny memtables");
        }
        let mut actions = habit.history(seed, &style);
        // An outage may also come during a close.
        actions.push(Action::Reopen);
        Self { seed, style, actions, words, blocks: Blocks::default() }
    }
}

/// A violated guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The history.
    pub seed: u64,
    /// The operation at which the outage came; `None` if the history failed without one.
    pub at: Option<u64>,
    /// The message of the failed check.
    pub what: String,
}

/// Results of an exploration.
#[derive(Clone, Debug, Default)]
pub struct Explored {
    /// Operations of all histories at which an outage came.
    pub crash_points: u64,
    /// Number of runs: several per crash point.
    pub lives: u64,
    /// Answers of stores that were compared.
    pub checks: u64,
    /// Work of the histories without an outage.
    pub totals: Totals,
    /// All violations.
    pub violations: Vec<Violation>,
}

/// Settings of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// Number of threads.
    pub threads: usize,
    /// Whether to stop at the first violation. Crash points are then in random order, to find one soon.
    pub stops: bool,
}

/// Receives progress: runs so far, runs in all, and the results so far.
pub type Watch<'a> = &'a (dyn Fn(u64, u64, &Explored) + Sync);

/// Runs every plan, then each of them with an outage at every operation.
#[must_use]
pub fn explore(plans: &[Plan], course: Course, watch: Watch<'_>) -> Explored {
    let explored = Mutex::new(Explored::default());
    let points = Mutex::new(Vec::new());
    let stop = AtomicBool::new(false);
    spread(plans, course, &stop, |pool, plan| {
        let mut world = pool.world(plan, 0);
        let changes = guarded(&mut world, |world| whole(world, plan));
        let mut explored = explored.lock();
        explored.checks += world.checks();
        match changes {
            Ok(changes) => {
                explored.totals += world.totals();
                points.lock().extend((1..=changes).map(|change| (plan, change)));
            }
            Err(what) => explored.violations.push(Violation { seed: plan.seed, at: None, what }),
        }
    });
    stop.store(course.stops && !explored.lock().violations.is_empty(), Ordering::Relaxed);
    let mut points = points.into_inner();
    points.sort_by_key(|(plan, change)| (plan.seed, *change));
    if course.stops {
        shuffle(&mut points);
    }
    let all = points.len() as u64 * FATES;
    watch(0, all, &explored.lock());
    spread(&points, course, &stop, |pool, (plan, change)| {
        for fate in 0..FATES {
            let mut world = pool.world(plan, *change << 8 | fate);
            let lived = guarded(&mut world, |world| crash(world, plan, *change, fate));
            let mut explored = explored.lock();
            explored.checks += world.checks();
            explored.lives += 1;
            explored.crash_points += u64::from(fate == 0);
            if let Err(what) = lived {
                stop.fetch_or(course.stops, Ordering::Relaxed);
                let at = Some(*change);
                explored.violations.push(Violation { seed: plan.seed, at, what });
            }
            watch(explored.lives, all, &explored);
        }
    });
    explored.into_inner()
}

/// Repeats one outage with a trace of the calls and the operations of the device. Of all runs of that crash point, it
/// is the first with a violation, or the last.
#[must_use]
pub fn replay(plan: &Plan, at: u64) -> (Vec<String>, Explored) {
    let mut explored = Explored { crash_points: 1, ..Explored::default() };
    let pool = Pool::new();
    let mut trace = Vec::new();
    for fate in 0..FATES {
        let mut world = pool.world(plan, at << 8 | fate);
        world.device.start_trace();
        let lived = guarded(&mut world, |world| crash(world, plan, at, fate));
        trace = world.device.trace();
        explored.checks += world.checks();
        explored.lives += 1;
        if let Err(what) = lived {
            explored.violations.push(Violation { seed: plan.seed, at: Some(at), what });
            break;
        }
    }
    (trace, explored)
}

/// Runs a plan without an outage. Returns its number of operations.
fn whole(world: &mut World, plan: &Plan) -> u64 {
    world.expect_agreement();
    live(world, &plan.actions);
    world.check_agreement();
    world.check_all();
    world.check_bounds();
    let changes = world.device.changes();
    world.close();
    world.verify();
    changes
}

fn crash(world: &mut World, plan: &Plan, at: u64, fate: u64) {
    let mut chance = Random::new(plan.seed ^ at << 20 ^ fate << 56);
    crash_at(world, &plan.actions, at, &mut chance);
}

/// Runs a world and returns the message of a failed check.
fn guarded<T>(world: &mut World, life: impl FnOnce(&mut World) -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(|| life(world))).map_err(|payload| words_of(payload.as_ref()))
}

fn words_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words").to_owned()
}

/// What the runs of one thread share.
struct Pool(Common);

impl Pool {
    fn new() -> Self {
        Self(Common::new(Blocks::default()))
    }

    fn world(&self, plan: &Plan, chance: u64) -> World {
        let common = Common { pool: self.0.pool.clone(), blocks: plan.blocks.clone() };
        common.world(&plan.style, plan.seed, chance)
    }
}

/// Distributes items to threads, one at a time, until `stop`.
fn spread<'a, T: Sync>(
    items: &'a [T],
    course: Course,
    stop: &AtomicBool,
    work: impl Fn(&Pool, &'a T) + Sync,
) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..course.threads {
            scope.spawn(|| {
                let pool = Pool::new();
                while !stop.load(Ordering::Relaxed)
                    && let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    work(&pool, item);
                }
            });
        }
    });
}

/// The same order in every run.
fn shuffle<T>(items: &mut [T]) {
    let mut random = Random::new(1);
    for at in (1..items.len()).rev() {
        items.swap(at, random.below(at + 1));
    }
}
