//! What holds for every decision of reclaim, whatever the facts.

use std::collections::BTreeMap;

use dalsegno_core::{ChainHash, ExtentId};
use dalsegno_policy::reclaim::{ExtentFacts, SegmentFacts, choose_victim, keep};
use proptest::prelude::*;

prop_compose! {
    fn segment()(
        segment in 0_u64..50,
        sizes in [0_u64..=4096, 0_u64..=4096, 0_u64..=4096],
        newest_sequence in 0_u64..1000,
        mean_use_sequence in 0_u64..1000,
        pinned in prop::bool::weighted(0.2),
    ) -> SegmentFacts {
        let mut sizes = sizes;
        sizes.sort_unstable();
        let [hit_bytes, live_bytes, written_bytes] = sizes;
        SegmentFacts {
            segment,
            written_bytes,
            live_bytes,
            hit_bytes,
            newest_sequence,
            mean_use_sequence,
            pinned,
        }
    }
}

prop_compose! {
    fn extent()(
        lineage in 0_u8..4,
        depth in 0_u32..8,
        bytes in 1_u64..100,
        hits in 0_u32..4,
        last in 0_u64..6,
        descendant_hit_sequence in 0_u64..4,
    ) -> ExtentFacts {
        let last_hit_sequence = if hits > 0 { last } else { 0 };
        let lineage = ChainHash([lineage; 32]);
        let id = ExtentId(0);
        ExtentFacts { id, lineage, depth, bytes, hits, last_hit_sequence, descendant_hit_sequence }
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

/// The extents worth keeping of each lineage, in prefix order.
fn worth_keeping(extents: &[ExtentFacts]) -> BTreeMap<ChainHash, Vec<ExtentFacts>> {
    let mut lineages: BTreeMap<ChainHash, Vec<ExtentFacts>> = BTreeMap::new();
    for facts in extents {
        lineages.entry(facts.lineage).or_default().push(*facts);
    }
    for lineage in lineages.values_mut() {
        lineage.sort_by_key(|facts| (facts.depth, facts.id));
        let end =
            lineage.iter().rposition(|facts| facts.hits > 0 || facts.descendant_hit_sequence > 0);
        lineage.truncate(end.map_or(0, |last| last + 1));
    }
    lineages
}

proptest! {
    #[test]
    fn a_victim_is_unpinned_and_dead_if_any_is(segments in prop::collection::vec(segment(), 0..30)) {
        let free: Vec<&SegmentFacts> = segments.iter().filter(|facts| !facts.pinned).collect();
        let victim = choose_victim(&segments);
        prop_assert_eq!(victim.is_some(), !free.is_empty());
        let chosen: Vec<_> = free.iter().filter(|facts| Some(facts.segment) == victim).collect();
        prop_assert_eq!(chosen.is_empty(), free.is_empty());
        if free.iter().any(|facts| facts.live_bytes == 0) {
            prop_assert!(chosen.iter().any(|facts| facts.live_bytes == 0));
        }
    }

    #[test]
    fn the_order_of_the_facts_does_not_matter(
        segments in prop::collection::vec(segment(), 0..30),
        extents in extents(),
        budget in 0_u64..2000,
    ) {
        let reversed: Vec<_> = segments.iter().rev().copied().collect();
        prop_assert_eq!(choose_victim(&segments), choose_victim(&reversed));
        let reversed: Vec<_> = extents.iter().rev().copied().collect();
        prop_assert_eq!(keep(&extents, budget), keep(&reversed, budget));
    }

    #[test]
    fn what_is_kept_fits_the_budget_and_nothing_is_kept_twice(
        extents in extents(),
        budget in 0_u64..2000,
    ) {
        let mut kept = keep(&extents, budget);
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
        let kept = keep(&extents, budget);
        for lineage in worth_keeping(&extents).values() {
            let order: Vec<ExtentId> = lineage.iter().map(|facts| facts.id).collect();
            let ours: Vec<ExtentId> =
                kept.iter().copied().filter(|id| order.contains(id)).collect();
            prop_assert_eq!(&ours[..], &order[..ours.len()]);
        }
    }

    #[test]
    fn with_room_for_all_exactly_the_worthy_are_kept(extents in extents()) {
        let kept = keep(&extents, u64::MAX);
        let worthy: usize = worth_keeping(&extents).values().map(Vec::len).sum();
        prop_assert_eq!(kept.len(), worthy);
    }
}
