//! Which small extents of a lineage are merged into one long one, and when.
//!
//! Decode writes a block at a time, so a lineage becomes a row of small extents: as many headers, index entries and
//! requests as blocks. Merging writes neighbours once more, as one extent.
//!
//! 1. What was never merged may be merged once. What was merged already is merged again only out of what is spared: a
//!    share ([`MergeRules::spare_percent`]) of the bytes that were merged for the first time. So of every byte put at
//!    most `1 + spare_percent / 100` are written again, whatever the puts look like.
//! 2. A lineage of at most [`MergeRules::most_extents`] extents is left alone.
//! 3. Only neighbours are merged: see [`Piece::follows`].
//! 4. Memory is bounded: beyond [`MergeRules::most_lineages`] the lineage that waited longest for a put is forgotten
//!    until extents are walked again.
//!
//! # Why piles
//!
//! Merging with every put, or as soon as two extents are of a size, writes each block as often as its lineage doubles.
//! With so little to spare a block can be rewritten about once, so it waits until many wait with it: until a pile is as
//! large as half of what was merged before it, 64 extents at least; or until its lineage is quiet, for then nothing
//! more may come. Extents that grow by half leave a logarithm of them.

mod bucket;
mod piles;

use std::ops::Range;
use std::time::Duration;

pub use bucket::Bucket;
pub use piles::{Due, LineageKey, Piles, SmallExtent};

/// How far from its first piece a window of what is merged again may reach.
const WINDOW: usize = 64;

/// What merging aims at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeRules {
    /// A lineage with no more extents is left alone.
    pub most_extents: usize,
    /// So many small neighbours are merged while their lineage still grows.
    pub pile_extents: usize,
    /// A lineage is quiet when nothing was put behind it for so long.
    pub quiet: Duration,
    /// Largest extent that merging makes, in bytes of blocks; one of half of it is not small any more.
    pub most_bytes: u64,
    /// Of what is merged for the first time, how much more may be merged again.
    pub spare_percent: u64,
    /// Most lineages whose piles are known.
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

    /// What these bytes, merged for the first time, allow to be merged again.
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
    /// Whether it was written again already: merged or moved on.
    pub is_moved: bool,
    /// Whether all its blocks are visible.
    pub is_whole: bool,
    /// Whether it goes on where the one before it ends, with the same shape of blocks.
    pub follows: bool,
}

/// The next pieces of a lineage to merge into one, at least two; `None` if it is as it should be.
///
/// `is_quiet` says whether the lineage still grows: while it does, only what was never merged is, and only a whole pile
/// of it. `most_blocks` is what one extent can hold, `spare_bytes` what may be merged again.
#[must_use]
pub fn choose(
    pieces: &[Piece],
    is_quiet: bool,
    rules: &MergeRules,
    (most_blocks, spare_bytes): (u32, u64),
) -> Option<Range<usize>> {
    let limits = Limits { rules, most_blocks };
    let fresh = limits.longest(pieces, |piece| !piece.is_moved);
    if !is_quiet {
        return fresh.filter(|run| limits.is_pile(&pieces[run.clone()]));
    }
    if pieces.len() <= rules.most_extents {
        return None;
    }
    fresh.or_else(|| limits.cheapest(pieces, spare_bytes))
}

/// The bytes of these pieces that were merged never before, and those that were.
#[must_use]
pub fn fresh_and_moved(pieces: &[Piece]) -> (u64, u64) {
    let of = |moved| pieces.iter().filter(|p| p.is_moved == moved).map(|p| p.bytes).sum();
    (of(false), of(true))
}

struct Limits<'a> {
    rules: &'a MergeRules,
    most_blocks: u32,
}

impl Limits<'_> {
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

    /// As many pieces from `start` on as fit one extent.
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

    /// The run of the most pieces of a kind, the first one of several.
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

    /// The window that saves the most extents for the bytes that are merged again.
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
        assert_eq!(choose(&few, false, &rules(), (4096, 0)), None);
        assert_eq!(choose(&few, true, &rules(), (4096, 0)), Some(0..63));
        let pile = vec![FRESH; 70];
        assert_eq!(choose(&pile, false, &rules(), (4096, 0)), Some(0..70));
    }

    #[test]
    fn large_blocks_are_a_pile_when_they_fill_an_extent() {
        let large = Piece { bytes: 300_000, ..FRESH };
        assert_eq!(choose(&[large, large], false, &rules(), (4096, 0)), Some(0..2));
        assert_eq!(choose(&[large], false, &rules(), (4096, 0)), None);
        let too_large = Piece { bytes: 600_000, ..FRESH };
        assert_eq!(choose(&[too_large; 9], true, &rules(), (4096, u64::MAX)), None);
    }

    #[test]
    fn a_lineage_of_few_extents_is_left_alone() {
        assert_eq!(choose(&[FRESH; 4], true, &rules(), (4096, u64::MAX)), None);
        assert_eq!(choose(&[FRESH; 5], true, &rules(), (4096, u64::MAX)), Some(0..5));
    }

    #[test]
    fn only_whole_neighbours_are_merged() {
        let mut pieces = vec![FRESH; 9];
        pieces[3].is_whole = false;
        assert_eq!(choose(&pieces, true, &rules(), (4096, 0)), Some(4..9));
        pieces[6].follows = false;
        assert_eq!(choose(&pieces, true, &rules(), (4096, 0)), Some(0..3));
    }

    #[test]
    fn no_run_is_longer_than_an_extent() {
        assert_eq!(choose(&[FRESH; 100], true, &rules(), (30, 0)), Some(0..30));
        let bytes = Piece { bytes: 100_000, ..FRESH };
        assert_eq!(choose(&[bytes; 100], true, &rules(), (4096, 0)), Some(0..10));
    }

    #[test]
    fn what_was_merged_is_merged_again_only_out_of_what_is_spared() {
        let pieces = [merged(64), merged(64), merged(8), merged(8), merged(8)];
        assert_eq!(choose(&pieces, true, &rules(), (4096, 15_999)), None);
        assert_eq!(choose(&pieces, true, &rules(), (4096, 16_000)), Some(2..4));
        assert_eq!(choose(&pieces, true, &rules(), (4096, 24_000)), Some(2..5));
        assert_eq!(choose(&pieces, false, &rules(), (4096, 24_000)), None, "it still grows");
    }

    #[test]
    fn what_is_fresh_joins_what_was_merged_for_the_latters_cost() {
        let alone = Piece { follows: false, ..FRESH };
        let pieces = [merged(64), merged(64), merged(64), merged(8), FRESH, alone];
        assert_eq!(choose(&pieces, true, &rules(), (4096, 8000)), Some(3..5));
    }
}
