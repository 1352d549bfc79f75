//! Rows: neighbours of a lineage that are written again as one extent.
//!
//! 1. Only neighbours are joined: each continues the lineage where the one before it ends, names that one's last block
//!    as its parent, and has the same shape of blocks.
//! 2. A joined extent is as old as its newest part, and no block of it was removed after that part was born. So a
//!    tombstone hides exactly the blocks that it hid before.

use std::ops::Range;

use dalsegno_core::{ChainHash, Extent, Limits, MAX_EXTENT_BLOCKS, MAX_EXTENT_SLICES};
use dalsegno_extent::NewExtent;

/// A block of a row of extents: which extent, and which block of it.
pub(crate) type Spot = (usize, u32);

/// Whether `next` continues where `before` ends.
pub(crate) fn follows(before: &Extent, next: &Extent) -> bool {
    let end = before.first_block_index.checked_add(before.block_count());
    (before.namespace, before.lineage) == (next.namespace, next.lineage)
        && end == Some(next.first_block_index)
        && before.hashes.last() == Some(&next.parent)
        && before.layout == next.layout
}

/// Most blocks of one extent.
pub(crate) fn most_blocks(layers: u32) -> u32 {
    (MAX_EXTENT_SLICES / layers).clamp(1, MAX_EXTENT_BLOCKS)
}

/// Sorts extents into rows of neighbours, none larger than an extent may be. A row takes the place of its first member.
pub(crate) fn rows<'a>(extents: &[&'a Extent], limits: &Limits) -> Vec<Vec<&'a Extent>> {
    let place = |extent: &Extent| (extent.namespace, extent.lineage, extent.first_block_index);
    let mut order: Vec<usize> = (0..extents.len()).collect();
    order.sort_by_key(|at| place(extents[*at]));
    let mut rows: Vec<(usize, Vec<&Extent>)> = Vec::new();
    for at in order {
        let extent = extents[at];
        match rows.last_mut() {
            Some((first, row)) if joins(row, extent, limits) => {
                *first = at.min(*first);
                row.push(extent);
            }
            _ => rows.push((at, vec![extent])),
        }
    }
    rows.sort_by_key(|(first, _)| *first);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn joins(row: &[&Extent], next: &Extent, limits: &Limits) -> bool {
    let blocks: u32 =
        row.iter().map(|extent| extent.block_count()).sum::<u32>() + next.block_count();
    let bytes = u64::from(blocks) * next.layout.block_bytes();
    row.last().is_some_and(|last| follows(last, next))
        && bytes <= limits.extent_bytes
        && blocks <= most_blocks(next.layout.layers())
}

/// Runs of wanted blocks that are neighbours and good, as ranges of `wanted`.
pub(crate) fn runs_of(row: &[&Extent], wanted: &[Spot], good: &[bool]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for at in (0..wanted.len()).filter(|at| good[*at]) {
        match runs.last_mut() {
            Some(run) if run.end == at && is_next(row, wanted[at - 1], wanted[at]) => run.end += 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

fn is_next(row: &[&Extent], before: Spot, next: Spot) -> bool {
    let is_last = before.1 + 1 == row[before.0].block_count();
    next == (before.0, before.1 + 1) || (is_last && next == (before.0 + 1, 0))
}

/// A run of neighbours as an extent of its own, at the same place in the lineage. Without `born` it is as old as the
/// newest of them.
pub(crate) fn part_of(row: &[&Extent], run: &[Spot], born: Option<u64>) -> NewExtent {
    let (at, block) = run[0];
    let extent = row[at];
    let parent = match block.checked_sub(1) {
        Some(before) => extent.hashes[before as usize],
        None => extent.parent,
    };
    let hash_of = |(at, block): &Spot| -> ChainHash { row[*at].hashes[*block as usize] };
    NewExtent {
        namespace: extent.namespace,
        lineage: extent.lineage,
        first_block_index: extent.first_block_index.saturating_add(block),
        parent,
        layout: extent.layout,
        hashes: run.iter().map(hash_of).collect(),
        born: born.or_else(|| run.iter().map(|(at, _)| row[*at].born).max()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dalsegno_core::{Config, ExtentId, KvLayout, Location, NamespaceId, SpaceFacts};

    fn extent(id: u64, lineage: u8, first: u8, blocks: u8) -> Extent {
        let hash = |block: u8| ChainHash([lineage.wrapping_mul(16).wrapping_add(block + 1); 32]);
        Extent {
            id: ExtentId(id),
            born: id,
            namespace: NamespaceId::default(),
            lineage: hash(0),
            first_block_index: first.into(),
            parent: first.checked_sub(1).map(hash).unwrap_or_default(),
            layout: KvLayout::new(1, 4096).unwrap(),
            location: Location {
                segment: 1,
                epoch: 1,
                offset: 4096,
                header_bytes: 4096,
                compressed_bytes: 0,
            },
            hashes: (first..first + blocks).map(hash).collect(),
        }
    }

    fn ids(rows: &[Vec<&Extent>]) -> Vec<Vec<u64>> {
        rows.iter().map(|row| row.iter().map(|extent| extent.id.0).collect()).collect()
    }

    fn limits(extent_bytes: u64) -> Limits {
        let config =
            Config { capacity: Some(64 << 20), extent: Some(extent_bytes), ..Config::default() };
        let space = SpaceFacts { free_bytes: 1 << 30, own_bytes: 0, existing_segment_bytes: None };
        config.validate(space).unwrap()
    }

    #[test]
    fn neighbours_form_a_row_in_any_order_of_arrival() {
        let all = [extent(5, 1, 2, 1), extent(9, 2, 0, 1), extent(3, 1, 0, 2), extent(7, 1, 4, 1)];
        let rows = rows(&all.iter().collect::<Vec<_>>(), &limits(256 << 10));
        assert_eq!(ids(&rows), [vec![3, 5], vec![9], vec![7]]);
    }

    #[test]
    fn no_row_exceeds_an_extent_or_joins_another_branch() {
        let mut all: Vec<Extent> = (0..6).map(|at| extent(at.into(), 1, at, 1)).collect();
        let rows_of =
            |all: &[Extent]| ids(&rows(&all.iter().collect::<Vec<_>>(), &limits(12 << 10)));
        assert_eq!(rows_of(&all), [vec![0, 1, 2], vec![3, 4, 5]]);
        all[1].parent = ChainHash([0xee; 32]);
        assert_eq!(rows_of(&all), [vec![0], vec![1, 2, 3], vec![4, 5]]);
    }

    #[test]
    fn runs_break_at_gaps_and_bad_blocks_and_continue_across_extents() {
        let all = [extent(1, 1, 0, 3), extent(2, 1, 3, 2)];
        let row: Vec<&Extent> = all.iter().collect();
        let wanted = [(0, 0), (0, 2), (1, 0), (1, 1)];
        assert_eq!(runs_of(&row, &wanted, &[true; 4]), [0..1, 1..4]);
        assert_eq!(runs_of(&row, &wanted, &[true, true, false, true]), [0..1, 1..2, 3..4]);
        let part = part_of(&row, &wanted[1..4], None);
        assert_eq!((part.first_block_index, part.born), (2, Some(2)));
        assert_eq!((part.parent, part.hashes.len()), (all[0].hashes[1], 3));
        let gap = [(0, 1), (1, 0)];
        assert_eq!(runs_of(&row, &gap, &[true; 2]), [0..1, 1..2]);
    }
}
