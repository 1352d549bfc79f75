//! When the controller changes the shape, and when it does not.

use dalsegno_core::Shape;
use dalsegno_policy::tuning::{
    Constants, Controller, ControllerOptions, Counts, Decision, Facts, Mode,
};
use proptest::prelude::*;

const WINDOW: u64 = 8192;

fn facts(entries: u64) -> Facts {
    Facts {
        levels: Vec::new(),
        entries,
        entry_bytes: 80,
        page_bytes: 4096,
        memtable_bytes: 1 << 20,
        filter_bits_per_entry: 10.0,
        constants: Constants::io(),
    }
}

fn options() -> ControllerOptions {
    ControllerOptions {
        window_operations: WINDOW,
        pause_operations: WINDOW,
        ..ControllerOptions::default()
    }
}

/// Prompts that are written: few lookups and ranges.
const FILLING: [u64; 4] = [970, 4, 20, 6];
/// Prompts that are read back.
const SERVING: [u64; 4] = [300, 350, 50, 300];

/// A generator that gives the same numbers everywhere (`SplitMix64`).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound
    }

    /// One operation, drawn with the given weights.
    fn operation(&mut self, weights: [u64; 4]) -> Counts {
        let mut rest = self.below(weights.iter().sum());
        let mut drawn = 3;
        for (kind, weight) in weights.iter().enumerate() {
            if rest < *weight {
                drawn = kind;
                break;
            }
            rest -= weight;
        }
        let one = |kind: usize| u64::from(drawn == kind);
        let range_entries = one(3) * (32 + self.below(64));
        Counts { writes: one(0), hits: one(1), misses: one(2), ranges: one(3), range_entries }
    }
}

/// Feeds operations in deltas of 32, and calls `decide` after each.
fn feed(
    controller: &mut Controller,
    numbers: &mut Numbers,
    weights: [u64; 4],
    operations: u64,
) -> Vec<Decision> {
    let mut decisions = Vec::new();
    for _ in 0..operations / 32 {
        let delta = (0..32).fold(Counts::default(), |sum, _| sum.plus(numbers.operation(weights)));
        controller.observe(delta);
        decisions.extend(controller.decide(&facts(1_000_000)));
    }
    decisions
}

#[test]
fn nothing_is_decided_before_a_window_is_full() {
    let mut controller = Controller::new(options());
    assert!(feed(&mut controller, &mut Numbers(1), FILLING, WINDOW - 32).is_empty());
    assert_eq!(feed(&mut controller, &mut Numbers(2), FILLING, 32).len(), 1);
}

#[test]
fn filling_needs_many_runs_and_serving_needs_few() {
    let (mut controller, mut numbers) = (Controller::new(options()), Numbers(3));
    feed(&mut controller, &mut numbers, FILLING, 2 * WINDOW);
    let filling = controller.shape();
    feed(&mut controller, &mut numbers, SERVING, 2 * WINDOW);
    let serving = controller.shape();
    assert!(filling.runs() > 1 && filling.runs() == filling.size_ratio() - 1, "{filling}");
    assert_eq!((serving.runs(), serving.last_runs()), (1, 1), "{serving}");
}

#[test]
fn a_shift_changes_the_shape_within_two_windows_and_only_once() {
    let (mut controller, mut numbers) = (Controller::new(options()), Numbers(4));
    feed(&mut controller, &mut numbers, FILLING, 10 * WINDOW);
    for weights in [SERVING, FILLING, SERVING, FILLING] {
        let soon = feed(&mut controller, &mut numbers, weights, 2 * WINDOW);
        assert!(!soon.is_empty(), "no answer to {weights:?}");
        assert!(soon.len() <= 2, "{soon:?}");
        let later = feed(&mut controller, &mut numbers, weights, 10 * WINDOW);
        assert!(later.is_empty(), "{later:?}");
    }
}

#[test]
fn a_pinned_controller_keeps_its_shape_until_it_is_adaptive_again() {
    let shape = Shape::tiered(5).unwrap();
    let mut controller =
        Controller::new(ControllerOptions { mode: Mode::Pinned(shape), ..options() });
    let mut numbers = Numbers(5);
    assert!(feed(&mut controller, &mut numbers, SERVING, 10 * WINDOW).is_empty());
    assert_eq!(controller.shape(), shape);
    assert!(controller.shares().is_some(), "it counts nevertheless");

    controller.set_mode(Mode::Adaptive);
    let decisions = feed(&mut controller, &mut numbers, SERVING, WINDOW);
    assert_eq!(decisions[0].from, shape);
    controller.set_mode(Mode::Pinned(shape));
    assert_eq!(controller.shape(), shape);
}

#[test]
fn the_controller_searches_again_when_the_tree_grows() {
    // This tests whether it searches, not how much a change saves.
    let options = ControllerOptions { margin: 0.0, ..options() };
    let (mut controller, mut numbers) = (Controller::new(options), Numbers(6));
    feed(&mut controller, &mut numbers, FILLING, 3 * WINDOW);
    let looks = |controller: &mut Controller, numbers: &mut Numbers, entries: u64| {
        let mut decisions = Vec::new();
        for _ in 0..3 * WINDOW / 32 {
            let delta =
                (0..32).fold(Counts::default(), |sum, _| sum.plus(numbers.operation(FILLING)));
            controller.observe(delta);
            decisions.extend(controller.decide(&facts(entries)));
        }
        decisions
    };
    let decisions = looks(&mut controller, &mut numbers, 100_000_000);
    assert!(
        decisions.iter().any(|decision| decision.reason.starts_with("the tree grew from 1000000")),
        "{decisions:?}"
    );
}

#[test]
fn at_most_sixteen_decisions_are_kept_each_explained_in_one_line() {
    let (mut controller, mut numbers) = (Controller::new(options()), Numbers(7));
    let mut all = Vec::new();
    for _ in 0..12 {
        all.extend(feed(&mut controller, &mut numbers, SERVING, 3 * WINDOW));
        all.extend(feed(&mut controller, &mut numbers, FILLING, 3 * WINDOW));
    }
    assert!(all.len() > 16);
    assert_eq!(controller.decisions().len(), 16);
    assert!(controller.decisions().eq(&all[all.len() - 16..]));
    for decision in &all {
        assert!(decision.cost_after < decision.cost_before, "{decision:?}");
        assert!(decision.reason.contains("I/O per operation)"), "{}", decision.reason);
        assert!(!decision.reason.contains('\n'));
    }
}

#[test]
fn invalid_facts_change_nothing() {
    let mut controller = Controller::new(options());
    controller.observe(Counts { writes: 10 * WINDOW, ..Counts::default() });
    assert_eq!(controller.decide(&facts(0)), None);
    assert_eq!(controller.decide(&Facts { memtable_bytes: 0, ..facts(1000) }), None);
    let constants = Constants { merge: f64::NAN, ..Constants::io() };
    assert_eq!(controller.decide(&Facts { constants, ..facts(1000) }), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_steady_workload_changes_the_shape_once(seed: u64, weights in [1_u64..1000, 0..300, 0..300, 0..300]) {
        let (mut controller, mut numbers) = (Controller::new(options()), Numbers(seed));
        feed(&mut controller, &mut numbers, weights, WINDOW + 64);
        let later = feed(&mut controller, &mut numbers, weights, 60 * WINDOW);
        // An expensive change may come later, when the workload has lasted. No change is reverted.
        prop_assert!(later.len() <= 1, "{:?}", later);
    }

    #[test]
    fn the_same_history_gives_the_same_decisions_within_bounds(
        seed: u64,
        phases in prop::collection::vec([0_u64..1000, 0..300, 0..300, 1..300], 1..6),
        size_ratio_max in 2_u32..=16,
    ) {
        let run = || {
            let start = Shape::leveled(2).unwrap();
            let options = ControllerOptions { size_ratio_max, start, ..options() };
            let (mut controller, mut numbers) = (Controller::new(options), Numbers(seed));
            let feed = |weights: &[u64; 4]| feed(&mut controller, &mut numbers, *weights, 3 * WINDOW);
            phases.iter().flat_map(feed).collect::<Vec<Decision>>()
        };
        let decisions = run();
        prop_assert_eq!(&decisions, &run());
        for pair in decisions.windows(2) {
            prop_assert!(pair[1].operations - pair[0].operations >= WINDOW);
            prop_assert_eq!(pair[0].to, pair[1].from);
        }
        for decision in &decisions {
            prop_assert!(decision.to.size_ratio() <= size_ratio_max);
        }
    }
}
