//! Properties of every reclaim decision, for any facts.

use std::collections::BTreeMap;

use dalsegno_core::{ChainHash, ExtentId};
use dalsegno_policy::recency::Use;
use dalsegno_policy::reclaim::{ExtentFacts, LiveExtent, Ranks, SegmentFacts, choose_victim, keep};
use proptest::prelude::*;

prop_compose! {
    fn used()(first in 0_u64..8, later in 0_u64..8, orphan in prop::bool::weighted(0.1)) -> Use {
        let mut used = Use::written(first);
        used.raise(later);
        if orphan {
            used.orphan();
        }
        used
    }
}

prop_compose! {
    fn live()(bytes in 1_u64..=400, used in used()) -> LiveExtent {
        LiveExtent { bytes, used }
    }
}

prop_compose! {
    fn segment()(
        segment in 0_u64..50,
        live in prop::collection::vec(live(), 0..10),
        dead_bytes in 0_u64..=4096,
        newest_sequence in 0_u64..1000,
        pinned in prop::bool::weighted(0.2),
    ) -> SegmentFacts {
        let written_bytes = live.iter().map(|extent| extent.bytes).sum::<u64>() + dead_bytes;
        SegmentFacts { segment, written_bytes, live, newest_sequence, pinned }
    }
}

fn segments() -> impl Strategy<Value = Vec<SegmentFacts>> {
    prop::collection::vec(segment(), 0..30).prop_map(|mut segments| {
        segments.sort_by_key(|facts| facts.segment);
        segments.dedup_by_key(|facts| facts.segment);
        segments
    })
}

prop_compose! {
    fn extent()(lineage in 0_u8..4, depth in 0_u32..8, bytes in 1_u64..100, used in used()) -> ExtentFacts {
        ExtentFacts { id: ExtentId(0), lineage: ChainHash([lineage; 32]), depth, bytes, used }
    }
}

fn extents() -> impl Strategy<Value = Vec<ExtentFacts>> {
    prop::collection::vec(extent(), 0..40).prop_map(|mut extents| {
        for (number, facts) in (0..).zip(&mut extents) {
            facts.id = ExtentId(number);
        }
        extents
    })
}

/// Ranks of the extents themselves and of as many that were never used.
fn ranks_of(extents: &[ExtentFacts]) -> Ranks {
    let live = |facts: &ExtentFacts| LiveExtent { bytes: facts.bytes, used: facts.used };
    let idle = |facts: &ExtentFacts| LiveExtent { bytes: facts.bytes, used: Use::written(0) };
    let live = extents.iter().map(live).chain(extents.iter().map(idle)).collect();
    let facts = SegmentFacts {
        segment: 1,
        written_bytes: 1 << 20,
        live,
        newest_sequence: 1,
        pinned: false,
    };
    Ranks::of(&[facts])
}

/// The extents worth keeping of each lineage, in prefix order: up to the last one that is itself worth keeping.
fn worth_keeping(extents: &[ExtentFacts], ranks: &Ranks) -> BTreeMap<ChainHash, Vec<ExtentFacts>> {
    let mut lineages: BTreeMap<ChainHash, Vec<ExtentFacts>> = BTreeMap::new();
    for facts in extents {
        lineages.entry(facts.lineage).or_default().push(*facts);
    }
    for lineage in lineages.values_mut() {
        lineage.sort_by_key(|facts| (facts.depth, facts.id));
        let end = lineage.iter().rposition(|facts| ranks.is_worth_keeping(facts.used));
        lineage.truncate(end.map_or(0, |last| last + 1));
    }
    lineages
}

proptest! {
    #[test]
    fn a_victim_is_unpinned_and_dead_if_any_is(segments in segments(), budget in 0_u64..2000) {
        let free: Vec<&SegmentFacts> = segments.iter().filter(|facts| !facts.pinned).collect();
        let victim = choose_victim(&segments, &Ranks::of(&segments), budget);
        prop_assert_eq!(victim.is_some(), !free.is_empty());
        let chosen: Vec<_> = free.iter().filter(|facts| Some(facts.segment) == victim).collect();
        prop_assert_eq!(chosen.is_empty(), free.is_empty());
        if free.iter().any(|facts| facts.live.is_empty()) {
            prop_assert!(chosen.iter().any(|facts| facts.live.is_empty()));
        }
    }

    #[test]
    fn the_order_of_the_facts_does_not_matter(
        segments in segments(),
        extents in extents(),
        budget in 0_u64..2000,
    ) {
        let reversed: Vec<_> = segments.iter().rev().cloned().collect();
        let ranks = Ranks::of(&segments);
        prop_assert_eq!(&ranks, &Ranks::of(&reversed));
        let (one, two) = (choose_victim(&segments, &ranks, budget), choose_victim(&reversed, &ranks, budget));
        prop_assert_eq!(one, two);
        let ranks = ranks_of(&extents);
        let reversed: Vec<_> = extents.iter().rev().copied().collect();
        prop_assert_eq!(keep(&extents, &ranks, budget), keep(&reversed, &ranks, budget));
    }

    #[test]
    fn kept_extents_fit_the_budget_and_none_is_kept_twice(
        extents in extents(),
        budget in 0_u64..2000,
    ) {
        let mut kept = keep(&extents, &ranks_of(&extents), budget);
        let bytes_of = |id: &ExtentId| extents.iter().find(|facts| facts.id == *id).unwrap().bytes;
        prop_assert!(kept.iter().map(bytes_of).sum::<u64>() <= budget);
        let count = kept.len();
        kept.sort();
        kept.dedup();
        prop_assert_eq!(kept.len(), count);
    }

    #[test]
    fn a_suffix_never_outlives_its_prefix_and_comes_after_it(
        extents in extents(),
        budget in 0_u64..2000,
    ) {
        let ranks = ranks_of(&extents);
        let kept = keep(&extents, &ranks, budget);
        for lineage in worth_keeping(&extents, &ranks).values() {
            let order: Vec<ExtentId> = lineage.iter().map(|facts| facts.id).collect();
            let ours: Vec<ExtentId> =
                kept.iter().copied().filter(|id| order.contains(id)).collect();
            prop_assert_eq!(&ours[..], &order[..ours.len()]);
        }
    }

    #[test]
    fn with_space_for_all_at_least_the_worthy_are_kept(extents in extents()) {
        let ranks = ranks_of(&extents);
        let kept = keep(&extents, &ranks, u64::MAX);
        for facts in worth_keeping(&extents, &ranks).values().flatten() {
            prop_assert!(kept.contains(&facts.id));
        }
        let unused = |id: &ExtentId| {
            let facts = extents.iter().find(|facts| facts.id == *id).unwrap();
            let behind = |other: &&ExtentFacts| {
                other.lineage == facts.lineage && other.depth >= facts.depth && other.used.is_repeated()
            };
            extents.iter().find(behind).is_none()
        };
        prop_assert!(!kept.iter().any(unused), "nothing is kept that no repeated use needs");
    }
}
