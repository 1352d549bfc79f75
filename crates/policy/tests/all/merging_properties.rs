//! The cost and the result of merging, on typical and on skewed puts.

use std::collections::BTreeMap;
use std::time::Duration;

use dalsegno_core::{ChainHash, NamespaceId, Nanos};
use dalsegno_policy::merging::{
    Due, LineageKey, MergeRules, Piece, Piles, SmallExtent, choose, fresh_and_moved,
};
use proptest::prelude::*;

const BLOCK_BYTES: u64 = 64 << 10;
const MOST_BLOCKS: u32 = 4096;
const NAMESPACE: NamespaceId = NamespaceId([1; 16]);
const FRESH: Piece =
    Piece { blocks: 1, bytes: BLOCK_BYTES, is_moved: false, is_whole: true, follows: true };

/// Lineages as a store keeps them, merged whenever one is due.
struct Model {
    rules: MergeRules,
    piles: Piles,
    lineages: BTreeMap<LineageKey, Vec<Piece>>,
    now: Nanos,
    spare_bytes: u64,
    put_bytes: u64,
    rewritten_bytes: u64,
}

fn lineage(number: u16) -> LineageKey {
    let mut hash = [0; 32];
    hash[..2].copy_from_slice(&number.to_be_bytes());
    (NAMESPACE, ChainHash(hash))
}

impl Model {
    fn new() -> Self {
        let rules = MergeRules::default();
        Self {
            rules,
            piles: Piles::new(rules),
            lineages: BTreeMap::new(),
            now: Nanos(0),
            spare_bytes: 0,
            put_bytes: 0,
            rewritten_bytes: 0,
        }
    }

    fn put(&mut self, number: u16, blocks: u32) {
        let lineage = lineage(number);
        let bytes = u64::from(blocks) * BLOCK_BYTES;
        let pieces = self.lineages.entry(lineage).or_default();
        let first = pieces.iter().map(|piece| piece.blocks).sum();
        pieces.push(Piece { blocks, bytes, ..FRESH });
        self.put_bytes += bytes;
        if self.rules.is_small(bytes) {
            self.piles.note(lineage, SmallExtent { first, blocks, bytes }, self.now);
        }
        self.merge();
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.merge();
    }

    fn merge(&mut self) {
        while let Some(due) = self.piles.next(self.now) {
            while self.merge_once(&due) {}
        }
    }

    fn merge_once(&mut self, due: &Due) -> bool {
        let pieces = self.lineages.get_mut(&due.lineage).expect("it was put");
        let spare = self.spare_bytes;
        let Some(run) = choose(pieces, due.is_quiet, &self.rules, MOST_BLOCKS, spare) else {
            return false;
        };
        let (fresh, moved) = fresh_and_moved(&pieces[run.clone()]);
        self.spare_bytes = self.spare_bytes - moved + self.rules.spared(fresh);
        self.rewritten_bytes += fresh + moved;
        let blocks = pieces[run.clone()].iter().map(|piece| piece.blocks).sum();
        let one = Piece { blocks, bytes: fresh + moved, is_moved: true, ..FRESH };
        pieces.splice(run, [one]);
        true
    }

    /// Most extents of a lineage.
    fn most_extents(&self) -> usize {
        self.lineages.values().map(Vec::len).max().unwrap_or(0)
    }

    fn check_cost(&self) {
        assert!(
            self.rewritten_bytes * 10 <= self.put_bytes * 13,
            "{} bytes rewritten of {}",
            self.rewritten_bytes,
            self.put_bytes
        );
    }
}

#[test]
fn single_blocks_of_many_lineages_end_in_four_extents_each() {
    let mut model = Model::new();
    for _ in 0..200 {
        for number in 0..500 {
            model.put(number, 1);
            model.now = model.now.after(Duration::from_micros(100));
        }
    }
    model.wait(Duration::from_secs(20));
    assert!(model.most_extents() <= 4, "{}", model.most_extents());
    model.check_cost();
    let total: u32 = model.lineages.values().flatten().map(|piece| piece.blocks).sum();
    assert_eq!(total, 100_000, "nothing is lost");
}

#[test]
fn no_skewed_lineage_is_left_in_more_than_four_extents() {
    // Zipf's law: lineage n gets a share of 1 / n of the blocks, and one may grow a hundred times as long as most.
    let mut model = Model::new();
    let mut left: Vec<u32> = (1..=400).map(|rank| 200 / rank + 1).collect();
    while left.iter().any(|count| *count > 0) {
        for number in 0..400_u16 {
            let count = &mut left[usize::from(number)];
            if *count > 0 {
                *count -= 1;
                model.put(number, 1);
            }
        }
    }
    model.wait(Duration::from_secs(20));
    assert!(model.most_extents() <= 4, "{}", model.most_extents());
    model.check_cost();
}

#[test]
fn a_long_lineage_has_few_extents_while_it_grows() {
    let mut model = Model::new();
    for _ in 0..20_000 {
        model.put(0, 1);
    }
    model.wait(Duration::from_secs(20));
    // 16 MiB hold 256 blocks, so 79 extents are the least.
    assert!(model.most_extents() <= 110, "{}", model.most_extents());
    model.check_cost();
}

#[test]
fn a_lineage_that_grows_after_every_pause_has_at_most_one_extent_per_pause() {
    // Each pause costs a merge of what came before it, and of those only a quarter can be merged once more.
    let mut model = Model::new();
    for _ in 0..100 {
        for _ in 0..8 {
            model.put(0, 1);
        }
        model.wait(Duration::from_secs(20));
    }
    assert!(model.most_extents() <= 90, "{}", model.most_extents());
    model.check_cost();
}

proptest! {
    #[test]
    fn no_sequence_of_puts_is_rewritten_beyond_the_bound(
        steps in prop::collection::vec((0_u16..12, 1_u32..40, 0_u64..6), 1..400),
    ) {
        let mut model = Model::new();
        for (number, count, pause_s) in steps {
            for turn in 0..count {
                model.put(number, if count % 7 == 0 { turn * turn + 1 } else { 1 });
            }
            model.wait(Duration::from_secs(pause_s * pause_s));
            model.check_cost();
        }
        model.wait(Duration::from_secs(20));
        model.check_cost();
    }

    #[test]
    fn chosen_pieces_can_be_merged(
        pieces in prop::collection::vec(
            (1_u32..200, any::<bool>(), prop::bool::weighted(0.9), prop::bool::weighted(0.9)), 0..80,
        ),
        is_quiet: bool,
        spare_bytes in 0_u64..100 << 20,
    ) {
        let pieces: Vec<Piece> = pieces.into_iter().map(|(blocks, is_moved, is_whole, follows)| {
            let bytes = u64::from(blocks) * BLOCK_BYTES;
            Piece { blocks, bytes, is_moved, is_whole, follows }
        }).collect();
        let rules = MergeRules::default();
        if let Some(run) = choose(&pieces, is_quiet, &rules, 300, spare_bytes) {
            let run = &pieces[run];
            prop_assert!(run.len() >= 2 && run.iter().all(|piece| piece.is_whole));
            prop_assert!(run[1..].iter().all(|piece| piece.follows));
            prop_assert!(run.iter().map(|piece| piece.blocks).sum::<u32>() <= 300);
            let (fresh, moved) = fresh_and_moved(run);
            prop_assert!(fresh + moved <= rules.most_bytes);
            prop_assert!(moved == 0 || (moved <= spare_bytes && is_quiet));
        } else if is_quiet && pieces.len() > rules.most_extents {
            let joins = |pair: &[Piece]| pair.iter().all(|p| p.is_whole && !p.is_moved)
                && pair[1].follows && pair[0].blocks + pair[1].blocks <= 256
                && pair.iter().all(|p| rules.is_small(p.bytes));
            prop_assert!(!pieces.windows(2).any(joins), "something was left undone");
        }
    }
}
