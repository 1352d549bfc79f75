//! The model of compute learns the measured layers of an H200, and choices keep their promises for any costs.

use dalsegno_core::BlockTier;
use dalsegno_policy::first_token::{
    Ahead, ComputeModel, ComputePrior, CostModel, Others, Overlap, Question, Run, Shown, Situation,
    StepWork, StoredRuns, TierRun, TransferModel, TransferPrior, Way, choose,
};
use proptest::prelude::*;

/// Milliseconds of one layer of Llama-3-8B on an H200, by tokens before (rows) and new tokens (columns).
const NEW: [f64; 6] = [1.0, 16.0, 128.0, 512.0, 2048.0, 8192.0];
const BEFORE: [f64; 6] = [0.0, 4096.0, 16_384.0, 32_768.0, 65_536.0, 122_880.0];
const LAYER_MS: [[f64; 6]; 6] = [
    [0.28, 0.29, 0.30, 0.44, 1.44, 7.57],
    [0.32, 0.33, 0.29, 0.59, 1.93, 9.06],
    [0.32, 0.31, 0.37, 0.98, 3.15, 13.8],
    [0.30, 0.34, 0.48, 1.46, 4.64, 20.1],
    [0.32, 0.46, 0.69, 2.35, 7.56, 31.4],
    [0.51, 0.66, 1.09, 4.01, 13.0, 52.1],
];

/// A prior that is too slow by this factor.
fn prior(factor: f64) -> ComputePrior {
    ComputePrior {
        step_s: 0.3e-3 * factor,
        token_s: 0.8e-6 * factor,
        pair_s: 4e-11 * factor,
        read_s: 2e-9 * factor,
    }
}

#[test]
fn the_measured_layers_are_learned_from_any_prior() {
    for factor in [0.2, 1.0, 5.0] {
        let mut model = ComputeModel::new(prior(factor));
        for round in 0..5 {
            for cell in 0..36 {
                let at = (cell * 7 + round * 5) % 36;
                let (row, column) = (at / 6, at % 6);
                let work = StepWork::of_request(NEW[column], BEFORE[row]);
                model.note(work, LAYER_MS[row][column] / 1e3);
            }
        }
        let mut errors = Vec::new();
        for (row, before) in BEFORE.iter().enumerate() {
            for (column, new) in NEW.iter().enumerate() {
                let found = model.step_s(StepWork::of_request(*new, *before));
                errors.push((found * 1e3 / LAYER_MS[row][column] - 1.0).abs());
            }
        }
        errors.sort_by(f64::total_cmp);
        assert!(errors[18] < 0.11, "from {factor}: the median error is {}", errors[18]);
        assert!(errors[35] < 0.22, "from {factor}: the worst error is {}", errors[35]);
    }
}

/// Requests with prompts and answers, one after the other: the same kinds of steps thousands of times.
#[test]
fn a_model_stays_right_however_often_the_same_is_measured() {
    let right = |work: StepWork| {
        (1e-2 + 4e-5 * work.tokens + 2e-9 * work.pairs + 6e-8 * work.read).max(1.1e-2)
    };
    let mut model = ComputeModel::new(prior(5.0));
    for request in 0_u32..200 {
        let prompt = f64::from(16_384 << (request % 3));
        let mut before = prompt * [0.0, 0.5, 0.9][request as usize % 3];
        while before < prompt {
            let new = (prompt - before).min(8192.0);
            let work = StepWork::of_request(new, before);
            model.note(work, right(work));
            before += new;
        }
        for token in 0..16 + request % 48 {
            let work = StepWork::of_request(1.0, prompt + f64::from(token));
            model.note(work, right(work));
        }
        let chunks = (0..4).map(|at| StepWork::of_request(8192.0, 8192.0 * f64::from(at)));
        let ratio = model.request_s(0.0, 32_768.0, 8192.0) / chunks.map(right).sum::<f64>();
        assert!(request < 5 || (0.8..1.25).contains(&ratio), "request {request}: {ratio}");
    }
}

#[test]
fn a_tier_whose_load_was_given_up_is_not_worth_it_until_a_load_is_measured() {
    let mut tier = TransferModel::new(TransferPrior { latency_s: 2e-3, bytes_per_s: 1e9 });
    for _ in 0..10 {
        tier.note(1e9, 1.0);
    }
    let usual = tier.load_s(1e6);
    tier.note_given_up(1e9);
    assert!(tier.load_s(1e6) > 1e3 && tier.load_s(1e9).is_finite());
    tier.note(1e6, usual);
    assert!(tier.load_s(1e6) < 1.1 * usual);
}

#[test]
fn after_a_load_was_given_up_small_ones_say_little_of_large_ones() {
    let mut tier = TransferModel::new(TransferPrior { latency_s: 1e-4, bytes_per_s: 6e10 });
    tier.note_given_up(1e9);
    // It takes 2 ms and 3 GB/s.
    for bytes in [2e6, 8e6] {
        tier.note(bytes, 2e-3 + bytes / 3e9);
    }
    assert!(tier.load_s(4e9) > 4e9 / 3e9);
    assert!(tier.more_s(0.0, 2e6) > 2e6 / 3e9);
    // Large ones say more.
    tier.note(1e9, 2e-3 + 1e9 / 3e9);
    assert!(tier.load_s(4e9) < 2.0 * 4e9 / 3e9);
}

#[test]
fn a_tier_that_is_fast_for_small_loads_only_has_few_late_loads() {
    let mut tier = TransferModel::new(TransferPrior { latency_s: 2e-3, bytes_per_s: 3e9 });
    let right = |bytes: f64| 1e-3 + bytes / 1e10 + (bytes - 1e8).max(0.0) / 5e8;
    let mut late = 0;
    for round in 0..2000 {
        let (small, large) = (1e7 * f64::from(1 + round % 5), 4e8);
        tier.note(small, right(small));
        // It is worth loading if it is twice as slow as most.
        if tier.load_s(large) < 0.1 {
            late += 1;
            tier.note(large, right(large));
        }
    }
    assert!((1..=8).contains(&late), "{late}");
    // It is found that the tier became fast.
    for _ in 0..1100 {
        tier.note(5e7, 1e-3 + 5e7 / 1e10);
    }
    assert!(tier.load_s(4e8) < 0.1);
}

/// A disk with a limited rate: small loads wait for the next burst, and large ones hardly notice.
#[test]
fn a_delay_that_does_not_grow_with_a_load_makes_no_large_one_slow() {
    let mut tier = TransferModel::new(TransferPrior { latency_s: 2e-3, bytes_per_s: 1e9 });
    let (rate, large) = (1e9, 2e9);
    for at in 0..200_u32 {
        let wait_s = f64::from(at * 37 % 100) / 1e3;
        let bytes = if at % 4 == 0 { 5e8 } else { 2e6 };
        tier.note(bytes, bytes / rate + wait_s);
        if at > 20 {
            let ratio = tier.load_s(large) / (large / rate);
            assert!((0.8..2.0).contains(&ratio), "after {at}: {ratio}");
            // Most loads are in time.
            assert!(at < 40 || tier.load_s(2e6) > 0.05);
        }
    }
    // A disk that became slow is noticed.
    tier.note(2e6, 1.0);
    assert!(tier.load_s(large) > 10.0 * large / rate);
}

#[test]
fn a_load_that_was_late_for_its_step_says_nothing_of_large_ones() {
    let mut tier = TransferModel::new(TransferPrior { latency_s: 2e-3, bytes_per_s: 1e9 });
    for _ in 0..10 {
        tier.note(1e9, 1.0);
    }
    let usual = tier.load_s(1e9);
    for _ in 0..20 {
        tier.note_late_in_step();
        assert!(tier.load_s(1e6) > 1e3);
        tier.note_read(1e8, 0.1, true);
        assert!(tier.load_s(1e9) < 1.1 * usual && tier.large().is_none());
    }
}

/// A tier at a rate that it has had for longer than what counts as a precedent.
fn slow() -> TransferModel {
    let mut tier = TransferModel::new(TransferPrior { latency_s: 1e-3, bytes_per_s: 1e9 });
    for at in 1..=20 {
        let bytes = 1e6 * f64::from(1 + at % 4);
        tier.note(bytes, 1e-3 + bytes / 1e7);
    }
    tier
}

#[test]
fn two_reads_show_that_a_tier_became_faster_or_one_behind_an_early_sample() {
    let fast = |bytes: f64| 1e-3 + bytes / 1e9;
    for has_sample in [false, true] {
        let mut tier = slow();
        if has_sample {
            tier.note_early_sample(1e6);
        } else {
            assert_eq!(tier.note_read(4e6, fast(4e6), true), Shown::Surprise);
        }
        assert!(tier.load_s(4e6) > 0.3);
        assert_eq!(tier.note_read(4e6, fast(4e6), true), Shown::Change);
        assert!(tier.load_s(4e6) < 2.0 * fast(4e6));
    }
    // A read that is hardly larger than a sample, or than the one before, may be early as that was.
    let mut tier = slow();
    tier.note_early_sample(2e6);
    assert_eq!(tier.note_read(4e6, fast(4e6), true), Shown::Surprise);
    assert_eq!(tier.note_read(1e6, fast(4e6), true), Shown::Surprise);
    assert!(tier.load_s(4e6) > 0.3);
    // The small one does not undo what the large one has shown.
    assert_eq!(tier.note_read(4e6, fast(4e6), true), Shown::Change);
    let mut tier = slow();
    // A sample says nothing of reads behind a load that was given up.
    tier.note_early_sample(1e6);
    tier.note_given_up(1e6);
    assert_ne!(tier.note_read(4e6, 0.2, true), Shown::Change);
    // A sample alone changes nothing.
    let mut tier = slow();
    tier.note_early_sample(1e6);
    assert_eq!(tier.note_read(4e6, 0.4, true), Shown::Nothing);
    assert_eq!(tier.note_read(4e6, fast(4e6), true), Shown::Surprise);
    assert_eq!(tier.learned().drifts(), slow().learned().drifts());
}

/// A read that is given up took at least so long, and does not show that the tier responds.
#[test]
fn a_read_that_is_given_up_makes_no_tier_fast() {
    let mut tier = slow();
    for _ in 0..20 {
        tier.note_read(4e6, 0.2, false);
        tier.note_early_sample(1e6);
        tier.note_read(4e6, 0.2, false);
        assert_ne!(tier.note_read(1e6, 2e-3, true), Shown::Change);
        assert!(tier.load_s(4e6) > 0.2, "{}", tier.load_s(4e6));
    }
    for _ in 0..3 {
        tier.note_read(4e6, 4.0, false);
    }
    assert!(tier.load_s(4e6) > 3.0);
    tier.note_given_up(4e6);
    for _ in 0..20 {
        tier.note_read(4e6, 5.0, false);
        assert!(tier.load_s(1e6) > 1e3);
    }
}

/// A disk that has a few bytes at once is as slow as it was for all others.
#[test]
fn what_comes_at_once_again_and_again_makes_no_tier_fast() {
    let mut tier = slow();
    for at in 0..40 {
        tier.note_read(1e6, 1e-3, true);
        tier.note_read(4e6, 0.4, true);
        let seconds = tier.learned().time(&[1.0, 4e6]);
        assert!(seconds > 0.2, "after {at}: {seconds}");
        assert!(tier.load_s(4e6) > 0.3, "after {at}: {}", tier.load_s(4e6));
    }
}

#[test]
fn small_loads_that_are_early_make_no_large_one_fast() {
    let mut tier = slow();
    for _ in 0..8 {
        tier.note(1e8, 10.0);
        for _ in 0..4 {
            tier.note(1e6, 2e-3);
        }
        assert!(tier.load_s(1e8) > 3.0, "{}", tier.load_s(1e8));
    }
}

#[test]
fn large_loads_from_a_tier_that_became_faster_are_tried_again() {
    let mut tier = slow();
    for _ in 0..3 {
        tier.note_given_up(1e8);
        for _ in 0..64 {
            tier.note_read(4e6, 0.4, true);
        }
    }
    tier.note_given_up(1e8);
    for _ in 0..4 {
        tier.note_read(4e6, 0.4, true);
        assert!(tier.load_s(1e8) > 1e6);
    }
    for _ in 0..2 {
        tier.note_read(4e6, 1e-3 + 4e6 / 1e9, true);
    }
    assert!(tier.large().is_none() && tier.load_s(1e8) < 1.0);
}

/// A tier that is known to be fast for small loads only.
fn fast_for_small_loads() -> TransferModel {
    let mut tier = TransferModel::new(TransferPrior { latency_s: 1e-3, bytes_per_s: 1e9 });
    for _ in 0..4 {
        for _ in 0..100 {
            tier.note(4e6, 5e-3);
        }
        tier.note_given_up(1e8);
    }
    tier
}

/// What shows that a tier is slow for all loads says nothing of how it treats large ones.
#[test]
fn reads_that_are_late_as_well_leave_no_doubt_of_large_loads() {
    for (read_s, is_large_slow) in [(5e-3, true), (0.4, false)] {
        let mut tier = fast_for_small_loads();
        for _ in 0..3 {
            tier.note_read(4e6, read_s, true);
        }
        assert_eq!(tier.large().is_some(), is_large_slow, "{read_s} s");
    }
}

#[test]
fn one_read_that_is_late_leaves_the_doubt_of_large_loads() {
    let mut tier = fast_for_small_loads();
    for round in 0..20 {
        if round % 2 == 0 {
            tier.note_read(4e6, 5e-3, true);
        } else {
            tier.note(4e6, 5e-3);
        }
        tier.note_read(4e6, 0.1, true);
        assert!(tier.large().is_some());
    }
}

/// Some disks bring bytes in bursts: a load may wait for the next one.
#[test]
fn a_delay_that_is_usual_makes_no_tier_slow() {
    let mut tier = TransferModel::new(TransferPrior { latency_s: 1e-3, bytes_per_s: 1e9 });
    for at in 0..12 {
        tier.note(4e6, if at % 6 == 5 { 0.05 } else { 5e-3 });
    }
    let before = tier.learned().time(&[1.0, 4e6]);
    assert_eq!(tier.note_read(4e6, 0.2, true), Shown::Surprise);
    assert_ne!(tier.note_read(4e6, 0.05, true), Shown::Change);
    assert!(tier.learned().time(&[1.0, 4e6]) < 2.0 * before);
}

/// Larger loads took as long before, so that no single one is a surprise.
#[test]
fn four_late_loads_in_a_row_show_that_a_tier_became_slower() {
    let mut tier = TransferModel::new(TransferPrior { latency_s: 1e-3, bytes_per_s: 1e8 });
    for bytes in [1e7, 2e7].repeat(8) {
        tier.note(bytes, 1e-3 + bytes / 1e8);
    }
    let late = [0.18, 0.19, 0.2].map(|seconds| tier.note(1e7, seconds));
    assert_eq!(late, [Shown::Nothing; 3]);
    assert_eq!(tier.note(1e7, 0.05), Shown::Surprise, "one in time ends them");
    let late = [0.18, 0.19, 0.2, 0.18].map(|seconds| tier.note(1e7, seconds));
    assert_eq!(late, [Shown::Nothing, Shown::Nothing, Shown::Nothing, Shown::Change]);
    assert!((0.15..0.19).contains(&tier.learned().time(&[1.0, 1e7])));
}

#[test]
fn the_last_of_four_late_loads_alone_says_not_by_how_much() {
    let mut tier = TransferModel::new(TransferPrior { latency_s: 1e-3, bytes_per_s: 1e8 });
    for bytes in [1e7, 2e7].repeat(8) {
        tier.note(bytes, 1e-3 + bytes / 1e8);
    }
    for seconds in [0.18, 0.18, 0.18, 3.0] {
        tier.note(1e7, seconds);
    }
    let expected = tier.learned().time(&[1.0, 1e7]);
    assert!(expected < 0.5, "{expected}");
}

/// A burst of a disk with a limited rate was awaited by each third load.
#[test]
fn four_loads_that_wait_as_usual_make_no_large_one_slow() {
    let mut tier = TransferModel::new(TransferPrior { latency_s: 1e-3, bytes_per_s: 1e9 });
    for at in 0..48 {
        let bytes = if at % 6 == 0 { 5e8 } else { 2e6 };
        tier.note(bytes, 1e-3 + bytes / 1e9 + if at % 3 == 2 { 0.09 } else { 0.0 });
    }
    for seconds in [0.09, 0.08, 0.095, 0.085] {
        tier.note(2e6, seconds);
    }
    assert!(tier.load_s(2e9) < 4.0, "{}", tier.load_s(2e9));
}

#[test]
fn four_slow_steps_that_decode_leave_the_time_of_prompts() {
    let right = |work: StepWork| 1e-2 + 4e-5 * work.tokens + 2e-9 * work.pairs + 6e-8 * work.read;
    let mut model = ComputeModel::new(prior(1.0));
    for prompt in [16_384.0, 32_768.0, 65_536.0].repeat(20) {
        for step in 0_u32.. {
            let before = 8192.0 * f64::from(step);
            if before >= prompt {
                break;
            }
            let work = StepWork::of_request(8192.0, before);
            model.note(work, right(work));
        }
        for token in 0_u32..16 {
            let work = StepWork::of_request(1.0, prompt + f64::from(token));
            model.note(work, right(work));
        }
    }
    let slow = [2.6, 1.0, 1.0, 1.0, 1.0, 1.0, 2.2, 2.0, 2.1, 2.3];
    for (token, times) in (0_u32..).zip([1.0; 12].into_iter().chain(slow).chain([1.0; 100])) {
        let work = StepWork::of_request(1.0, 16_384.0 + f64::from(token));
        model.note(work, times * right(work));
    }
    let chunks = (0..4).map(|at| StepWork::of_request(8192.0, 8192.0 * f64::from(at)));
    let ratio = model.request_s(0.0, 32_768.0, 8192.0) / chunks.map(right).sum::<f64>();
    assert!((0.8..1.25).contains(&ratio), "{ratio}");
}

/// A tier that became slower is first taken for one whose loads are sometimes late.
#[test]
fn what_was_late_as_a_tier_had_changed_is_no_usual_delay() {
    let mut tier = TransferModel::new(TransferPrior { latency_s: 1e-2, bytes_per_s: 1e8 });
    let seconds = |bytes: f64, rate: f64| 1e-2 + bytes / rate;
    for bytes in [1e7, 1.5e7, 2e7, 4.5e7].repeat(6) {
        tier.note(bytes, seconds(bytes, 1e8));
    }
    for bytes in [1e7, 1.5e7, 1e7, 1e7, 4e7, 4e7] {
        tier.note(bytes, seconds(bytes, 5e7));
    }
    assert_eq!(tier.learned().drifts(), 1);
    assert!(tier.learned().usual().late_s < 0.02, "{:?}", tier.learned().usual());
    assert!(tier.load_s(5e6) < 1.3 * seconds(5e6, 5e7));
}

#[test]
fn large_loads_behind_others_are_late_with_them() {
    let tier = TransferPrior { latency_s: 1e-3, bytes_per_s: 1e9 };
    let mut model = CostModel::new(prior(1.0), [tier; 3]);
    for count in [20, 20, 1] {
        for _ in 0..count {
            model.note_load(BlockTier::Log, 1e6, 2e-3);
        }
        if count > 1 {
            model.note_load(BlockTier::Log, 1e8, 0.4);
        }
    }
    let expected = model.tier(BlockTier::Log).load_s(4e8);
    for before in [0_u32, 100, 300] {
        let blocks = 400 - before;
        let question = Question {
            found: StoredRuns::default(),
            block_tokens: 16.0,
            computed: 0.0,
            prompt: 16.0 * f64::from(blocks + 1),
            chunk: 8192.0,
            layers: 32.0,
            overlap: Overlap { most_blocks: 0, most_copied: 0, most_wait_s: 0.0 },
            ahead: Ahead { notice_s: 0.0, most_s: f64::INFINITY },
            others: Others { backlog_s: 0.0, waiting: 0.0, are_delayed: true },
            guard_s: 0.005,
        };
        for parts in [1, 4] {
            let part = |tier, blocks: u32| TierRun { tier, blocks: blocks as usize };
            let log = part(BlockTier::Log, blocks / parts);
            let runs = [log, part(BlockTier::Dram, 1)].repeat(parts as usize);
            let situation = Situation {
                runs: &runs,
                block_bytes: 1e6,
                queued: [0.0, 1e6 * f64::from(before), 0.0],
                both_ends: false,
                question,
            };
            let load_s = model.load_all(&situation).load_s;
            assert!((load_s / expected - 1.0).abs() < 0.02, "{load_s} s instead of {expected} s");
        }
    }
}

#[test]
fn loads_of_two_sizes_that_disagree_are_both_known_soon() {
    let time_s = |bytes: f64| 2e-2 + bytes / 1e10;
    let mut tier = TransferModel::new(TransferPrior { latency_s: 2e-2, bytes_per_s: 1e10 });
    // A tier that was slow for long: all of its latency seems to be that of bytes.
    for _ in 0..40 {
        tier.note(2e9, 2.2);
        tier.note(1e9, 1.1);
    }
    for _ in 0..4 {
        tier.note(2e9, time_s(2e9));
        tier.note(1e9, time_s(1e9));
        tier.note(1e7, time_s(1e7));
        tier.note(6e7, time_s(6e7));
    }
    for bytes in [1e7, 6e7, 1e9, 2e9] {
        let expected = tier.expected_s(bytes);
        assert!((expected / time_s(bytes) - 1.0).abs() < 0.2, "{bytes}: {expected} s");
    }
}

#[test]
fn loads_larger_than_one_that_was_late_are_late_in_proportion() {
    let mut tier = TransferModel::new(TransferPrior { latency_s: 1e-3, bytes_per_s: 1e9 });
    for count in [20, 20, 1] {
        for _ in 0..count {
            tier.note(1e6, 2e-3);
        }
        if count > 1 {
            tier.note(1e8, 0.4);
        }
    }
    let large = tier.large().unwrap();
    assert!(large.late_s > 0.2, "{large:?}");
    for (times, late) in [(0.4, 0.0), (0.5, 1.0), (1.0, 1.0), (4.0, 4.0), (100.0, 16.0)] {
        let late_s = tier.load_s(times * 1e8) - tier.usual_s(times * 1e8);
        assert!((late_s - late * large.late_s).abs() < 1e-9, "{times} times as large: {late_s} s");
    }
}

fn runs() -> impl Strategy<Value = Vec<Run>> {
    let run = (1_usize..300, 0.0..0.1, 0.0..0.02).prop_map(|(blocks, latency_s, block_s)| Run {
        blocks,
        latency_s,
        block_s,
        large: None,
    });
    proptest::collection::vec(run, 1..5)
}

/// The seconds in which so many leading blocks arrive.
fn load_s(runs: &[Run], mut blocks: usize) -> f64 {
    let mut seconds = 0.0;
    for run in runs {
        let count = blocks.min(run.blocks);
        if count > 0 {
            seconds += run.latency_s + f64::from(u32::try_from(count).unwrap()) * run.block_s;
        }
        blocks -= count;
    }
    seconds
}

proptest! {
    #[test]
    fn a_choice_is_never_slower_than_computing_or_loading_all_by_more_than_the_guard(
        runs in runs(),
        factor in 0.01_f64..100.0,
        computed in 0_u32..100,
        more in 1_u32..5000,
        chunk in 64_u32..8192,
        most_blocks in 0_usize..1000,
        most_copied in 0_usize..1000,
        most_wait_s in 0.0..1.0,
        are_delayed: bool,
        both_ends: bool,
    ) {
        let back: Vec<Run> = runs.iter().rev().filter(|_| both_ends).copied().collect();
        let blocks: usize = runs.iter().map(|run| run.blocks).sum();
        let block_tokens = 16.0;
        let computed = f64::from(computed) * block_tokens;
        let prompt = computed + f64::from(u32::try_from(blocks).unwrap()) * block_tokens + f64::from(more);
        let question = Question {
            found: StoredRuns { runs: &runs, back: &back },
            block_tokens,
            computed,
            prompt,
            chunk: f64::from(chunk),
            layers: 32.0,
            overlap: Overlap { most_blocks, most_copied, most_wait_s },
            ahead: Ahead { notice_s: 0.0, most_s: f64::INFINITY },
            others: Others { backlog_s: 0.0, waiting: 0.0, are_delayed },
            guard_s: 0.005,
            };
        let choice = choose(&question, &ComputeModel::new(prior(factor)));
        prop_assert!(choice.first_token_s <= choice.computed_s + 1e-12);
        prop_assert!(choice.first_token_s <= choice.loaded_s + 0.005);
        prop_assert!(choice.blocks <= blocks);
        if choice.way == Way::Overlapped {
            let load_s = load_s(&runs, choice.blocks);
            let computed = computed + f64::from(u32::try_from(choice.blocks).unwrap()) * block_tokens;
            let end = prompt.min(computed + f64::from(chunk));
            let step_s = ComputeModel::new(prior(factor)).request_s(computed, end, f64::from(chunk));
            // The first layer is waited for, and so is what a load takes longer than the other ones.
            // That is so for a load that is a little slower than predicted, too.
            prop_assert!(1.2 * load_s / 32.0 <= choice.wait_s);
            prop_assert!(1.2 * load_s <= choice.wait_s + step_s);
            // A request that is alone waits longer, but no longer than computing the blocks would take.
            let alone_s = if are_delayed { 0.0 } else { choice.saved_s.min(10.0 * most_wait_s) };
            prop_assert!(choice.wait_s <= most_wait_s.max(alone_s) + 1e-9);
        }
        if let Way::BothEnds { front } = choice.way {
            prop_assert!(both_ends && (1..blocks).contains(&front) && choice.blocks == blocks);
            // Wherever else both ends could meet, they would not meet sooner.
            let model = ComputeModel::new(prior(factor));
            let end = |count: usize| {
                (computed + f64::from(u32::try_from(count).unwrap()) * block_tokens).min(prompt - 1.0)
            };
            let front_s = |count| model.request_s(computed, end(count), f64::from(chunk));
            let met_s = |count| f64::max(front_s(count), load_s(&back, blocks - count));
            let rest_s = model.request_s(end(blocks), prompt, f64::from(chunk));
            let least_s = (1..blocks).map(met_s).fold(f64::INFINITY, f64::min);
            let lost_s = choice.first_token_s - rest_s - met_s(front);
            prop_assert!(met_s(front) <= least_s + 1e-12);
            prop_assert!(lost_s >= 0.0);
            // No other way loads so much in less time, and a part of it is lost at most.
            prop_assert!(choice.first_token_s <= choice.loaded_s + 1e-12);
            prop_assert!(lost_s <= load_s(&back, blocks) / 2.0 + 1e-12);
        }
    }
}
