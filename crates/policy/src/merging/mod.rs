//! Which small extents of a lineage are merged into one large extent, and when.
//!
//! Decoding writes one block at a time, so a lineage becomes a row of small extents, with a header, an index entry and
//! a request for each block. Merging rewrites adjacent extents as one.
//!
//! 1. An extent that was never merged may be merged once. A merged one is merged again only from a budget: a share
//!    ([`MergeRules::spare_percent`]) of the bytes merged for the first time. So at most `1 + spare_percent / 100`
//!    bytes are rewritten per byte put, for every workload.
//! 2. A lineage of at most [`MergeRules::most_extents`] extents is left alone.
//! 3. Only adjacent extents are merged: see [`Piece::follows`].
//! 4. Memory is bounded: beyond [`MergeRules::most_lineages`], the lineage with the oldest put is forgotten until
//!    extents are walked again.
//!
//! # Why piles
//!
//! Merging at every put, or whenever two extents have equal sizes, writes each block as often as its lineage doubles.
//! With this small budget a block can be rewritten about once, so it waits for others. A pile is due when it has half
//! the size of what was merged before it, but at least 64 extents. It is also due when its lineage is quiet, because
//! then no more may come. Extents that grow by half leave a logarithmic number of them.

mod bucket;
mod piles;

use std::ops::Range;
use std::time::Duration;

pub use bucket::Bucket;
pub use piles::{Due, LineageKey, Piles, SmallExtent};

/// Longest window of extents that are merged again.
const WINDOW: usize = 64;

/// Parameters of merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeRules {
    /// A lineage with at most this many extents is left alone.
    pub most_extents: usize,
    /// So many small adjacent extents are merged while their lineage still grows.
    pub pile_extents: usize,
    /// A lineage is quiet when nothing was put to it for this long.
    pub quiet: Duration,
    /// Largest merged extent, in bytes of blocks. An extent larger than half of it is not small.
    pub most_bytes: u64,
    /// Bytes that may be merged again, in percent of those merged for the first time.
    pub spare_percent: u64,
    /// Most lineages whose piles are tracked.
    pub most_lineages: usize,
}

impl Default for MergeRules {
    fn default() -> Self {
        Self {
            most_extents: 4,
            pile_extents: 64,
            quiet: Duration::from_secs(10),
            most_bytes: 16 << 20,
            spare_percent: 25,
            most_lineages: 1 << 15,
        }
    }
}

impl MergeRules {
    /// Whether an extent with so many bytes of blocks is worth merging.
    #[must_use]
    pub fn is_small(&self, bytes: u64) -> bool {
        bytes <= self.most_bytes / 2
    }

    /// The bytes that may be merged again after these bytes were merged for the first time.
    #[must_use]
    pub fn spared(&self, fresh_bytes: u64) -> u64 {
        fresh_bytes / 100 * self.spare_percent
    }
}

/// An extent of a lineage, in the order of the lineage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its blocks.
    pub blocks: u32,
    /// Bytes of its blocks.
    pub bytes: u64,
    /// Whether it was rewritten before: merged or relocated.
    pub is_moved: bool,
    /// Whether all its blocks are visible.
    pub is_whole: bool,
    /// Whether it starts where the one before it ends, with the same layout.
    pub follows: bool,
}

/// The next pieces of a lineage to merge into one, at least two; `None` if nothing is to be merged.
///
/// `is_quiet` says that the lineage no longer grows. While it grows, only a full pile of pieces that were never merged
/// is chosen. `most_blocks` is the capacity of one extent, `spare_bytes` the budget for merging again.
#[must_use]
pub fn choose(
    pieces: &[Piece],
    is_quiet: bool,
    rules: &MergeRules,
    most_blocks: u32,
    spare_bytes: u64,
) -> Option<Range<usize>> {
    let bounds = MergeBounds { rules, most_blocks };
    let fresh = bounds.longest(pieces, |piece| !piece.is_moved);
    if !is_quiet {
        return fresh.filter(|run| bounds.is_pile(&pieces[run.clone()]));
    }
    if pieces.len() <= rules.most_extents {
        return None;
    }
    fresh.or_else(|| bounds.cheapest(pieces, spare_bytes))
}

/// Bytes of the pieces that were never rewritten, and of those that were.
#[must_use]
pub fn fresh_and_moved(pieces: &[Piece]) -> (u64, u64) {
    let of = |moved| pieces.iter().filter(|p| p.is_moved == moved).map(|p| p.bytes).sum();
    (of(false), of(true))
}

struct MergeBounds<'a> {
    rules: &'a MergeRules,
    most_blocks: u32,
}

impl MergeBounds<'_> {
    fn may_merge(&self, piece: &Piece) -> bool {
        piece.is_whole && self.rules.is_small(piece.bytes)
    }

    /// Whether a run is worth merging while it may still grow.
    fn is_pile(&self, run: &[Piece]) -> bool {
        let bytes: u64 = run.iter().map(|piece| piece.bytes).sum();
        let blocks: u32 = run.iter().map(|piece| piece.blocks).sum();
        let is_full = bytes >= self.rules.most_bytes / 2 || blocks >= self.most_blocks / 2;
        run.len() >= self.rules.pile_extents || is_full
    }

    /// The end of the longest run from `start` that fits one extent.
    fn run_at(&self, pieces: &[Piece], start: usize, wanted: impl Fn(&Piece) -> bool) -> usize {
        let (mut bytes, mut blocks) = (0, 0_u32);
        let mut end = start;
        while let Some(piece) = pieces.get(end) {
            bytes += piece.bytes;
            blocks = blocks.saturating_add(piece.blocks);
            let fits = bytes <= self.rules.most_bytes && blocks <= self.most_blocks;
            let joins = end == start || piece.follows;
            if !(fits && joins && wanted(piece) && self.may_merge(piece)) {
                break;
            }
            end += 1;
        }
        end
    }

    /// The longest run of matching pieces, the first one of several.
    fn longest(&self, pieces: &[Piece], kind: impl Fn(&Piece) -> bool) -> Option<Range<usize>> {
        let mut best: Option<Range<usize>> = None;
        let mut start = 0;
        while start < pieces.len() {
            let end = self.run_at(pieces, start, &kind);
            if end - start >= 2 && best.as_ref().is_none_or(|best| best.len() < end - start) {
                best = Some(start..end);
            }
            start = end.max(start + 1);
        }
        best
    }

    /// The window that saves the most extents per byte merged again.
    fn cheapest(&self, pieces: &[Piece], spare_bytes: u64) -> Option<Range<usize>> {
        let mut best: Option<(u128, u128, Range<usize>)> = None;
        for start in 0..pieces.len() {
            let end = self.run_at(pieces, start, |_| true).min(start + WINDOW);
            for end in start + 2..=end {
                let cost = u128::from(fresh_and_moved(&pieces[start..end]).1);
                let gain = (end - start - 1) as u128;
                if cost > u128::from(spare_bytes) {
                    break;
                }
                let is_better = |(best_gain, best_cost, _): &(u128, u128, _)| {
                    gain * best_cost.max(&1) > best_gain * cost.max(1)
                };
                if best.as_ref().is_none_or(is_better) {
                    best = Some((gain, cost, start..end));
                }
            }
        }
        best.map(|(_, _, window)| window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Piece =
        Piece { blocks: 1, bytes: 1000, is_moved: false, is_whole: true, follows: true };

    fn rules() -> MergeRules {
        MergeRules { most_bytes: 1 << 20, ..MergeRules::default() }
    }

    fn merged(blocks: u32) -> Piece {
        Piece { blocks, bytes: 1000 * u64::from(blocks), is_moved: true, ..FRESH }
    }

    #[test]
    fn a_growing_lineage_waits_for_a_whole_pile() {
        let few = vec![FRESH; 63];
        assert_eq!(choose(&few, false, &rules(), 4096, 0), None);
        assert_eq!(choose(&few, true, &rules(), 4096, 0), Some(0..63));
        let pile = vec![FRESH; 70];
        assert_eq!(choose(&pile, false, &rules(), 4096, 0), Some(0..70));
    }

    #[test]
    fn large_blocks_are_a_pile_when_they_fill_an_extent() {
        let large = Piece { bytes: 300_000, ..FRESH };
        assert_eq!(choose(&[large, large], false, &rules(), 4096, 0), Some(0..2));
        assert_eq!(choose(&[large], false, &rules(), 4096, 0), None);
        let too_large = Piece { bytes: 600_000, ..FRESH };
        assert_eq!(choose(&[too_large; 9], true, &rules(), 4096, u64::MAX), None);
    }

    #[test]
    fn a_lineage_of_few_extents_is_left_alone() {
        assert_eq!(choose(&[FRESH; 4], true, &rules(), 4096, u64::MAX), None);
        assert_eq!(choose(&[FRESH; 5], true, &rules(), 4096, u64::MAX), Some(0..5));
    }

    #[test]
    fn only_whole_neighbours_are_merged() {
        let mut pieces = vec![FRESH; 9];
        pieces[3].is_whole = false;
        assert_eq!(choose(&pieces, true, &rules(), 4096, 0), Some(4..9));
        pieces[6].follows = false;
        assert_eq!(choose(&pieces, true, &rules(), 4096, 0), Some(0..3));
    }

    #[test]
    fn no_run_is_longer_than_an_extent() {
        assert_eq!(choose(&[FRESH; 100], true, &rules(), 30, 0), Some(0..30));
        let bytes = Piece { bytes: 100_000, ..FRESH };
        assert_eq!(choose(&[bytes; 100], true, &rules(), 4096, 0), Some(0..10));
    }

    #[test]
    fn merged_pieces_are_merged_again_only_within_the_budget() {
        let pieces = [merged(64), merged(64), merged(8), merged(8), merged(8)];
        assert_eq!(choose(&pieces, true, &rules(), 4096, 15_999), None);
        assert_eq!(choose(&pieces, true, &rules(), 4096, 16_000), Some(2..4));
        assert_eq!(choose(&pieces, true, &rules(), 4096, 24_000), Some(2..5));
        assert_eq!(choose(&pieces, false, &rules(), 4096, 24_000), None, "it still grows");
    }

    #[test]
    fn a_fresh_piece_joins_merged_ones_at_their_cost() {
        let alone = Piece { follows: false, ..FRESH };
        let pieces = [merged(64), merged(64), merged(64), merged(8), FRESH, alone];
        assert_eq!(choose(&pieces, true, &rules(), 4096, 8000), Some(3..5));
    }
}
