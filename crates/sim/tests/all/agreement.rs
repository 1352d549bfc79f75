//! A running store and an open of its files list the same blocks, after any eviction.

use dalsegno_core::Durability;
use dalsegno_sim::{
    Action, Blocks, Common, HISTORIES, Label, Part, Plan, Random, Style, chain_hashes, live,
};

/// Blocks of the system prompt with which every prompt begins, and of what follows in each.
const ROOT_BLOCKS: usize = 3;
const PROMPT_BLOCKS: usize = 4;

/// Runs a history that is compared with its files after every reclaimed segment. Returns the number of segments.
fn life(seed: u64, style: &Style, actions: &[Action]) -> u64 {
    let _label = Label(format!("seed {seed}"));
    let mut world = Common::new(Blocks::default()).world(style, seed, 0);
    world.expect_agreement();
    assert_eq!(live(&mut world, actions), actions.len());
    world.check_agreement();
    world.check_all();
    world.close();
    world.totals().recycled_segments
}

#[test]
fn every_history_agrees_with_its_files() {
    let recycled: u64 = (1..=HISTORIES)
        .map(|seed| {
            let plan = Plan::of(seed);
            life(seed, &plan.style, &plan.actions)
        })
        .sum();
    assert!(recycled > 100, "{recycled} segments were recycled");
}

/// Callers whose prompts share their beginning, which only the first of them stores; some come back.
fn prompts(seed: u64, style: &Style) -> Vec<Action> {
    let mut random = Random::new(seed);
    let root = chain_hashes(1, ROOT_BLOCKS);
    let chain = |prompt: usize| {
        let tail = chain_hashes(1000 + 2 * prompt as u64, PROMPT_BLOCKS);
        root.iter().copied().chain(tail).collect::<Vec<_>>()
    };
    let mut actions = Vec::new();
    for prompt in 0..style.actions {
        let first = if prompt == 0 { 0 } else { ROOT_BLOCKS };
        let part = |prompt, first| Part { namespace: 0, chain: chain(prompt), first };
        // A prompt comes in two puts, so that it has an extent with another one behind it.
        let mut beginning = part(prompt, first);
        beginning.chain.truncate(ROOT_BLOCKS + 2);
        actions.push(Action::Put(beginning, false));
        actions.push(Action::Put(part(prompt, ROOT_BLOCKS + 2), false));
        let earlier = prompt - random.below(prompt.min(20) + 1);
        match random.below(10) {
            0 => actions.push(Action::Get(part(earlier, ROOT_BLOCKS), false)),
            1 => actions.push(Action::Get(part(earlier, 0), false)),
            2 => actions.push(Action::Remove(part(earlier, ROOT_BLOCKS + 1))),
            3 if prompt % 7 == 0 => actions.push(Action::Reopen),
            _ => {}
        }
    }
    actions
}

#[test]
fn shared_prefixes_are_never_cut_and_agree_with_their_files() {
    for seed in 1..=4 {
        let mut style = Style::crowded(Durability::None);
        style.config.capacity = Some(9 << 20);
        style.shapes = vec![(1, 60_000)];
        style.actions = 120;
        if seed % 2 == 0 {
            style = style.flushing_often();
        }
        let actions = prompts(seed, &style);
        let recycled = life(seed, &style, &actions);
        assert!(recycled > 10, "{recycled} segments were recycled");
        // The root is still there, though nobody stores it again, and so is what was stored last behind it.
        let mut world = Common::new(Blocks::default()).world(&style, seed, 0);
        live(&mut world, &actions);
        let last = actions.iter().rev().find_map(|action| match action {
            Action::Put(part, _) => Some(part.clone()),
            _ => None,
        });
        let last = last.expect("there are puts");
        let whole = Part { first: 0, ..last };
        assert_eq!(world.get(&whole, false), whole.chain.len(), "seed {seed}");
    }
}
