//! The tombstones that outlive their segment.
//!
//! A tombstone, or a later one that removes the same, outlives every segment that may hold what it removed.

use std::collections::{HashMap, HashSet};

use dalsegno_core::{ChainHash, NamespaceId, SECTOR_BYTES};

use super::slot::Slot;
use super::table::SegmentTable;
use super::tombstones::Tombstone;

/// The tombstones of a segment that goes.
pub(super) struct SegmentTombstones {
    /// All of them, by place.
    pub(super) all: Vec<Tombstone>,
    /// Those that may hide blocks in another segment.
    pub(super) carried: Vec<Tombstone>,
}

impl SegmentTombstones {
    pub(super) fn of(table: &SegmentTable, number: u64) -> Self {
        let others = table.slots.values().filter(|slot| slot.segment.number != number);
        let oldest_known = others.map(Slot::oldest_born).min().unwrap_or(u64::MAX);
        let oldest_elsewhere = if table.unread.unopened > 0 { 0 } else { oldest_known };
        let here = table.tombstones.iter().filter(|tombstone| tombstone.segment == number);
        let mut all: Vec<Tombstone> = here.cloned().collect();
        all.sort_unstable_by_key(|tombstone| tombstone.offset);
        let mut latest: HashMap<(NamespaceId, &[ChainHash]), u64> = HashMap::new();
        for tombstone in table.tombstones.iter() {
            let kills_before = latest.entry(tombstone.removes()).or_default();
            *kills_before = tombstone.kills_before.max(*kills_before);
        }
        let hides = |tombstone: &&Tombstone| {
            oldest_elsewhere < tombstone.kills_before
                && tombstone.kills_before == latest[&tombstone.removes()]
        };
        let mut carried: Vec<&Tombstone> = all.iter().filter(hides).collect();
        // A damaged segment may hold a tombstone and its copies.
        let mut seen = HashSet::new();
        carried.retain(|tombstone| seen.insert(tombstone.removes()));
        let carried = carried.into_iter().cloned().collect();
        Self { all, carried }
    }

    /// Gives the carried tombstones places in their order, clear of all present ones. `None` if they would end behind
    /// `limit`.
    pub(super) fn place_copies(self, limit: u64) -> Option<Vec<Tombstone>> {
        let Self { all, mut carried } = self;
        let (mut offset, mut ahead) = (SECTOR_BYTES, &all[..]);
        for tombstone in &mut carried {
            while let Some((next, behind)) = ahead.split_first()
                && offset + tombstone.record_bytes() > next.offset
            {
                offset = offset.max(next.end());
                ahead = behind;
            }
            tombstone.offset = offset;
            offset = tombstone.end();
        }
        carried.last().is_none_or(|last| last.end() <= limit).then_some(carried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tombstone(offset: u64, blocks: usize) -> Tombstone {
        let (segment, namespace, kills_before) = (1, NamespaceId::default(), 7);
        let hashes = vec![ChainHash::default(); blocks];
        Tombstone { segment, offset, namespace, hashes, kills_before }
    }

    #[test]
    fn copies_never_overlap_the_tombstones_that_they_copy() {
        let places = |all: &[Tombstone], carried: &[Tombstone], limit| {
            let found = SegmentTombstones { all: all.to_vec(), carried: carried.to_vec() };
            let placed = found.place_copies(limit);
            placed.map(|placed| placed.iter().map(|t| t.offset).collect::<Vec<_>>())
        };
        let all = [tombstone(4096, 1), tombstone(12_288, 1), tombstone(40_960, 1)];
        assert_eq!(places(&all, &all[..0], 1 << 20), Some(vec![]));
        assert_eq!(places(&all, &all[..1], 1 << 20), Some(vec![8192]));
        assert_eq!(places(&all, &all, 1 << 20), Some(vec![8192, 16_384, 20_480]));
        // With a gap between any two, as after a put between any two removals.
        let spread: Vec<_> = (0..20).map(|at| tombstone(4096 + at * 8192, 1)).collect();
        assert_eq!(places(&spread, &spread, 1 << 20).unwrap()[19], 8192 + 19 * 8192);
        let large = [tombstone(4096, 4096)];
        assert_eq!(places(&large, &large, 1 << 20), Some(vec![large[0].end()]));
        assert_eq!(places(&large, &large, 1 << 17), None);
    }
}
