//! Properties of the model and of the division of filter memory, for any tree.

use dalsegno_core::Shape;
use dalsegno_policy::fluid::{Level, divide_filter_bits, mean_levels};
use dalsegno_policy::tuning::{Bounds, Constants, Facts, Shares, best_shape, cost};
use proptest::prelude::*;

use crate::dose::dose;

/// The tolerance for rounding of sums.
const CLOSE: f64 = 1e-9;

fn constants() -> impl Strategy<Value = Constants> {
    prop_oneof![Just(Constants::io()), Just(Constants::device_ns()), Just(Constants::cached_ns())]
}

prop_compose! {
    fn facts()(
        entries in 1_u64..500_000_000,
        entry_bytes in 16_u64..400,
        memtable_shift in 12_u32..27,
        filter_bits_per_entry in 0.0_f64..20.0,
        constants in constants(),
    ) -> Facts {
        let memtable_bytes = 1 << memtable_shift;
        let page_bytes = 4096;
        let levels = Vec::new();
        Facts { levels, entries, entry_bytes, page_bytes, memtable_bytes, filter_bits_per_entry, constants }
    }
}

prop_compose! {
    fn shares()(
        weights in [0.001_f64..1.0, 0.0_f64..1.0, 0.0_f64..1.0, 0.0_f64..1.0],
        range_entries in 0.0_f64..500.0,
    ) -> Shares {
        let sum: f64 = weights.iter().sum();
        let [writes, hits, misses, ranges] = weights.map(|weight| weight / sum);
        Shares { writes, hits, misses, ranges, range_entries }
    }
}

prop_compose! {
    fn shape()(size_ratio in 2_u32..=32)(
        size_ratio in Just(size_ratio),
        runs in 1..size_ratio,
        last_runs in 1..size_ratio,
    ) -> Shape {
        Shape::new(size_ratio, runs, last_runs).expect("all are within bounds")
    }
}

fn levels() -> impl Strategy<Value = Vec<Level>> {
    let level = (1_u32..1_000_000, 1_u32..20).prop_map(|(entries, runs)| (entries.max(runs), runs));
    let level = level
        .prop_map(|(entries, runs)| Level { entries: f64::from(entries), runs: f64::from(runs) });
    prop::collection::vec(level, 1..8)
}

/// The sum of false-positive rates, which the division minimizes.
fn sum_of_rates(levels: &[Level], bits: &[f64]) -> f64 {
    let rate = |bits: f64| (-bits * std::f64::consts::LN_2.powi(2)).exp();
    levels.iter().zip(bits).map(|(level, bits)| level.runs * rate(*bits)).sum()
}

fn memory(levels: &[Level], bits: &[f64]) -> f64 {
    levels.iter().zip(bits).map(|(level, bits)| level.entries * bits).sum()
}

proptest! {
    #[test]
    fn one_run_more_saves_writes_and_costs_misses_and_ranges(
        shape in shape(), facts in facts(), shares in shares(),
    ) {
        let [ratio, runs, last] = [shape.size_ratio(), shape.runs(), shape.last_runs()];
        let less = cost(shape, &facts, &shares);
        let more_shapes = [Shape::new(ratio, runs + 1, last), Shape::new(ratio, runs, last + 1)];
        for more in more_shapes.into_iter().flatten() {
            let more = cost(more, &facts, &shares);
            prop_assert!(more.write <= less.write * (1.0 + CLOSE), "{less:?} {more:?}");
            prop_assert!(more.miss >= less.miss * (1.0 - CLOSE), "{less:?} {more:?}");
            prop_assert!(more.range >= less.range * (1.0 - CLOSE), "{less:?} {more:?}");
        }
    }

    #[test]
    fn more_filter_memory_never_costs_more(shape in shape(), facts in facts(), shares in shares()) {
        let more = Facts { filter_bits_per_entry: facts.filter_bits_per_entry + 1.0, ..facts.clone() };
        let (less, more) = (cost(shape, &facts, &shares), cost(shape, &more, &shares));
        prop_assert!(more.miss <= less.miss * (1.0 + CLOSE));
        prop_assert_eq!((less.write, less.range), (more.write, more.range));
    }

    #[test]
    fn the_filters_use_the_whole_budget_and_no_more(levels in levels(), mean in 0.0_f64..20.0) {
        let bits = divide_filter_bits(&levels, mean);
        let budget = mean * levels.iter().map(|level| level.entries).sum::<f64>();
        prop_assert!(bits.iter().all(|bits| *bits >= 0.0), "{bits:?}");
        prop_assert!((memory(&levels, &bits) - budget).abs() <= budget * 1e-6 + 1e-6);
    }

    #[test]
    fn no_other_division_is_better(
        levels in levels(), mean in 0.0_f64..20.0, from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(), part in 0.0_f64..1.0,
    ) {
        let bits = divide_filter_bits(&levels, mean);
        let best = sum_of_rates(&levels, &bits);
        let uniform = vec![mean; levels.len()];
        prop_assert!(best <= sum_of_rates(&levels, &uniform) * (1.0 + CLOSE));
        let (from, to) = (from.index(levels.len()), to.index(levels.len()));
        let mut other = bits.clone();
        let moved = bits[from] * part;
        other[from] -= moved;
        other[to] += moved * levels[from].entries / levels[to].entries;
        prop_assert!(best <= sum_of_rates(&levels, &other) * (1.0 + CLOSE), "{bits:?} {other:?}");
    }

    #[test]
    fn a_tree_of_the_shape_gets_bits_for_each_level_the_upper_ones_more(
        shape in shape(), memtables in 1.0_f64..1e6, mean in 0.0_f64..20.0,
    ) {
        let bits = divide_filter_bits(&mean_levels(shape, memtables), mean);
        // The last level may have fewer entries per run if it has many runs and is new.
        let upper = &bits[..bits.len() - 1];
        prop_assert!(upper.windows(2).all(|pair| pair[0] >= pair[1] - CLOSE), "{bits:?}");
    }

    #[test]
    fn the_best_shape_is_within_bounds_and_none_within_is_better(
        from in shape(), other in shape(), facts in facts(), shares in shares(),
        size_ratio_max in 2_u32..=16, horizon_operations in 1.0_f64..1e9,
    ) {
        let bounds = Bounds { size_ratio_max, horizon_operations };
        let best = best_shape(from, &facts, &shares, bounds).best;
        prop_assert!(best.shape == from || best.shape.size_ratio() <= size_ratio_max);
        prop_assert!(best.total_from_here <= cost(from, &facts, &shares).total * (1.0 + CLOSE));
        if other.size_ratio() <= size_ratio_max && other.last_runs() <= other.runs() {
            let free = Bounds { horizon_operations: f64::INFINITY, ..bounds };
            let best = best_shape(from, &facts, &shares, free).best;
            let total = cost(other, &facts, &shares).total;
            prop_assert!(best.total_from_here <= total * (1.0 + CLOSE));
        }
    }

    #[test]
    fn the_best_shape_never_costs_more_than_staying_and_a_second_search_agrees(
        from in shape(), facts in facts(), shares in shares(), size_ratio_max in 2_u32..=16,
        levels in prop::collection::vec(prop::collection::vec(1_u64..1 << 30, 0..12), 1..5),
    ) {
        let bounds = Bounds { size_ratio_max, horizon_operations: 524_288.0 };
        let facts = Facts { levels, ..facts };
        let found = best_shape(from, &facts, &shares, bounds);
        prop_assert!(found.best.total_from_here.is_finite());
        prop_assert!(found.best.total_from_here <= found.stay.total_from_here);
        prop_assert_eq!(found.stay.shape, from);
        prop_assert_eq!(best_shape(from, &facts, &shares, bounds), found);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(dose(64, 256)))]

    #[test]
    fn more_runs_in_the_last_level_than_above_are_never_much_better(
        facts in facts(), shares in shares(), other in shape(),
    ) {
        let bounds = Bounds { size_ratio_max: 32, horizon_operations: f64::INFINITY };
        let best = best_shape(Shape::default(), &facts, &shares, bounds).best.total_from_here;
        let other = cost(other, &facts, &shares).total;
        prop_assert!(other >= best * 0.97, "{other} {best}");
    }
}
