//! An ancestor never ranks below its descendants, after any sequence of puts, uses, moves and merges.

use std::cell::RefCell;
use std::collections::BTreeMap;

use dalsegno_policy::recency::{Ancestry, Use, raise_chain};
use dalsegno_policy::reclaim::{LiveExtent, Ranks, SegmentFacts};
use proptest::prelude::*;

/// What callers and the store do.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A put behind the extent of this number (modulo their count), or of a new root.
    Put { behind: Option<usize> },
    /// A get, lookup or touch of a chain that ends with this extent.
    Use { last: usize },
    /// A merge of an extent with the one before it.
    Merge { last: usize },
    /// The open segment is full.
    Round,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::option::weighted(0.9, 0_usize..1000).prop_map(|behind| Step::Put { behind }),
        4 => (0_usize..1000).prop_map(|last| Step::Use { last }),
        1 => (0_usize..1000).prop_map(|last| Step::Merge { last }),
        3 => Just(Step::Round),
    ]
}

/// Extents with their parents, as an index has them.
#[derive(Debug, Default)]
struct Tree {
    extents: RefCell<BTreeMap<usize, (Option<usize>, Use)>>,
    /// Where each extent starts in its chain.
    depths: BTreeMap<usize, u32>,
    round: u64,
    /// How many extents the uses visited.
    looks: RefCell<usize>,
}

impl Ancestry for Tree {
    type Extent = usize;

    fn raise(&self, extent: &usize) -> bool {
        *self.looks.borrow_mut() += 1;
        self.extents.borrow_mut().get_mut(extent).unwrap().1.raise(self.round)
    }

    fn parent(&self, extent: &usize) -> Option<usize> {
        self.extents.borrow()[extent].0
    }
}

impl Tree {
    fn pick(&self, number: usize) -> Option<usize> {
        let extents = self.extents.borrow();
        extents.keys().nth(number.checked_rem(extents.len())?).copied()
    }

    fn act(&mut self, number: usize, step: Step) {
        match step {
            Step::Round => self.round += 1,
            Step::Put { behind } => {
                let parent = behind.and_then(|behind| self.pick(behind));
                parent.inspect(|parent| raise_chain(self, parent));
                let depth = parent.map_or(0, |parent| self.depths[&parent] + 1);
                self.depths.insert(number, depth);
                let written = (parent, Use::written(self.round).at_depth(depth));
                self.extents.borrow_mut().insert(number, written);
            }
            Step::Use { last } => drop(self.pick(last).map(|last| raise_chain(self, &last))),
            Step::Merge { last } => {
                let Some(last) = self.pick(last) else { return };
                let Some(parent) = self.parent(&last) else { return };
                let mut extents = self.extents.borrow_mut();
                let (_, used) = extents.remove(&last).unwrap();
                let of_parent = &mut extents.get_mut(&parent).unwrap().1;
                *of_parent = of_parent.joined(used);
                for (before, _) in extents.values_mut() {
                    if *before == Some(last) {
                        *before = Some(parent);
                    }
                }
            }
        }
    }

    /// All extents in one segment.
    fn ranks(&self) -> Ranks {
        let extents = self.extents.borrow();
        let live = extents.values().map(|(_, used)| LiveExtent { bytes: 4096, used: *used });
        let facts = SegmentFacts {
            segment: 1,
            written_bytes: 4096 * extents.len() as u64,
            live: live.collect(),
            newest_sequence: self.round,
            pinned: false,
        };
        Ranks::of(&[facts])
    }
}

proptest! {
    #[test]
    fn an_ancestor_never_ranks_below_its_descendants(steps in prop::collection::vec(step(), 1..200)) {
        let mut tree = Tree::default();
        for (number, step) in steps.into_iter().enumerate() {
            tree.act(number, step);
        }
        let ranks = tree.ranks();
        for (parent, used) in tree.extents.borrow().values() {
            let Some(parent) = parent else { continue };
            let of_parent = tree.extents.borrow()[parent].1;
            prop_assert!(of_parent.last() >= used.last());
            prop_assert!(of_parent.recency() > used.recency(), "the end of a chain goes first");
            prop_assert!(ranks.share_older(of_parent) >= ranks.share_older(*used));
            prop_assert!(ranks.is_worth_keeping(of_parent) || !ranks.is_worth_keeping(*used));
        }
    }

    #[test]
    fn all_uses_of_a_round_look_at_each_extent_once_and_at_one_more_each(
        behind in prop::collection::vec(prop::option::weighted(0.95, 0_usize..1000), 1..60),
        uses in prop::collection::vec(0_usize..1000, 1..200),
    ) {
        let mut tree = Tree::default();
        for (number, behind) in behind.into_iter().enumerate() {
            tree.act(number, Step::Put { behind });
        }
        tree.act(0, Step::Round);
        *tree.looks.borrow_mut() = 0;
        for last in &uses {
            tree.act(0, Step::Use { last: *last });
        }
        let bound = tree.extents.borrow().len() + uses.len();
        prop_assert!(*tree.looks.borrow() <= bound, "{} looks", tree.looks.borrow());
    }
}

#[test]
fn an_orphan_ranks_lowest_until_it_is_used() {
    let mut used = Use::written(7);
    assert!(used.orphan() && !used.orphan());
    assert!(used.recency() < Use::written(0).at_depth(1000).recency());
    assert!(used.raise(7), "in the same round, too");
    assert_eq!(used.recency(), Use::written(7).recency());
    assert!(!used.is_repeated(), "it is the use of the round it was written in");
}

#[test]
fn a_second_use_in_a_round_does_not_count() {
    let mut used = Use::written(7);
    assert!(!used.raise(7) && !used.is_repeated());
    assert!(used.raise(8) && used.is_repeated());
    assert!(!used.raise(8));
}
