//! The piles of small extents at the ends of lineages. They are hints in bounded memory: the index has the extents that
//! merging finally chooses from.

use std::collections::{BTreeSet, HashMap};

use dalsegno_core::{ChainHash, NamespaceId, Nanos};

use super::MergeRules;

/// Identifies a lineage.
pub type LineageKey = (NamespaceId, ChainHash);

/// A small extent that was put, or found when extents were walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallExtent {
    /// Position of its first block in the lineage's numbering.
    pub first: u32,
    /// Its blocks.
    pub blocks: u32,
    /// Bytes of its blocks.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pile {
    /// Position of its first block.
    first: u32,
    extents: usize,
    blocks: u64,
    bytes: u64,
    /// Blocks of earlier piles of the lineage that were merged.
    merged_blocks: u64,
    last_put: Nanos,
}

/// A lineage whose extents may be merged now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The lineage.
    pub lineage: LineageKey,
    /// Whether nothing was put to it for long. Then all of it may be merged, not only the pile.
    pub is_quiet: bool,
    /// Position of the pile's first block.
    pub first: u32,
    /// Approximate number of extents in the pile.
    pub extents: usize,
}

/// Piles by lineage.
#[derive(Debug)]
pub struct Piles {
    rules: MergeRules,
    known: HashMap<LineageKey, Pile>,
    by_age: BTreeSet<(Nanos, LineageKey)>,
    full: BTreeSet<LineageKey>,
    forgotten: u64,
}

impl Piles {
    /// No piles.
    #[must_use]
    pub fn new(rules: MergeRules) -> Self {
        let (known, by_age, full) = (HashMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { rules, known, by_age, full, forgotten: 0 }
    }

    /// Number of lineages that have a pile.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether no lineage has a pile.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Number of lineages forgotten since the last call. If there are any, extents should be walked again.
    pub fn take_forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
    }

    /// Notes a new small extent. Returns whether its lineage is due now.
    pub fn note(&mut self, lineage: LineageKey, extent: SmallExtent, now: Nanos) -> bool {
        let before = self.known.get(&lineage).copied();
        if before.is_none() && self.known.len() >= self.rules.most_lineages {
            self.forget_oldest();
        }
        let mut pile = before.unwrap_or_default();
        pile.first = if pile.extents == 0 { extent.first } else { pile.first.min(extent.first) };
        pile.extents += 1;
        pile.blocks += u64::from(extent.blocks);
        pile.bytes += extent.bytes;
        self.by_age.remove(&(pile.last_put, lineage));
        pile.last_put = now;
        self.by_age.insert((now, lineage));
        self.known.insert(lineage, pile);
        let is_pile =
            pile.extents >= self.rules.pile_extents && pile.blocks >= pile.merged_blocks / 2;
        let is_full = is_pile || pile.bytes >= self.rules.most_bytes;
        is_full && self.full.insert(lineage)
    }

    /// A lineage that is due. It is not due again before another put to it.
    pub fn next(&mut self, now: Nanos) -> Option<Due> {
        if let Some(lineage) = self.full.pop_first() {
            let pile = self.known.get_mut(&lineage)?;
            let due = Due { lineage, is_quiet: false, first: pile.first, extents: pile.extents };
            pile.merged_blocks += std::mem::take(&mut pile.blocks);
            (pile.extents, pile.bytes) = (0, 0);
            return Some(due);
        }
        let (last_put, lineage) = self.by_age.first().copied()?;
        if now < last_put.after(self.rules.quiet) {
            return None;
        }
        let pile = self.take(lineage)?;
        Some(Due { lineage, is_quiet: true, first: pile.first, extents: pile.extents })
    }

    /// Schedules a lineage again that could not be merged now, as a quiet lineage.
    pub fn put_back(&mut self, due: &Due, now: Nanos) {
        let pile = self.known.entry(due.lineage).or_default();
        self.by_age.remove(&(pile.last_put, due.lineage));
        pile.first = if pile.extents == 0 { due.first } else { pile.first.min(due.first) };
        pile.extents += due.extents;
        pile.last_put = now;
        self.by_age.insert((now, due.lineage));
    }

    /// When [`Self::next`] returns something, if nothing more is put.
    #[must_use]
    pub fn next_at(&self) -> Option<Nanos> {
        if !self.full.is_empty() {
            return Some(Nanos(0));
        }
        self.by_age.first().map(|(last_put, _)| last_put.after(self.rules.quiet))
    }

    fn take(&mut self, lineage: LineageKey) -> Option<Pile> {
        let pile = self.known.remove(&lineage)?;
        self.by_age.remove(&(pile.last_put, lineage));
        self.full.remove(&lineage);
        Some(pile)
    }

    fn forget_oldest(&mut self) {
        if let Some((_, lineage)) = self.by_age.first().copied() {
            self.take(lineage);
            self.forgotten += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    fn lineage(number: u8) -> LineageKey {
        (NamespaceId([1; 16]), ChainHash([number; 32]))
    }

    fn block(first: u32) -> SmallExtent {
        SmallExtent { first, blocks: 1, bytes: 1000 }
    }

    fn rules() -> MergeRules {
        MergeRules { pile_extents: 4, most_lineages: 3, ..MergeRules::default() }
    }

    #[test]
    fn a_full_pile_is_due_immediately_and_a_small_one_when_its_lineage_is_quiet() {
        let mut piles = Piles::new(rules());
        let start = Nanos(5);
        for first in 0..3 {
            assert!(!piles.note(lineage(1), block(first), start));
            assert_eq!(piles.next(start), None);
        }
        assert!(piles.note(lineage(1), block(3), start));
        assert_eq!(piles.next_at(), Some(Nanos(0)));
        let due = piles.next(start).expect("a pile is full");
        assert_eq!((due.is_quiet, due.first, due.extents), (false, 0, 4));
        let later = start.after(SECOND);
        assert!(!piles.note(lineage(1), block(4), later));
        assert_eq!(piles.next(start.after(10 * SECOND)), None);
        let due = piles.next(later.after(10 * SECOND)).expect("it is quiet");
        assert_eq!((due.is_quiet, due.first, due.extents), (true, 4, 1));
        assert!(piles.is_empty() && piles.next_at().is_none());
    }

    #[test]
    fn piles_grow_with_the_number_of_blocks_merged_before() {
        let mut piles = Piles::new(rules());
        let sizes = (0..40).filter_map(|first| {
            piles.note(lineage(1), block(first), Nanos(1)).then(|| piles.next(Nanos(1)))?
        });
        let sizes: Vec<usize> = sizes.map(|due| due.extents).collect();
        assert_eq!(sizes, [4, 4, 4, 6, 9, 13]);
    }

    #[test]
    fn beyond_the_bound_the_oldest_is_forgotten_and_counted() {
        let mut piles = Piles::new(rules());
        for number in 0..5 {
            piles.note(lineage(number), block(0), Nanos(u64::from(number)));
        }
        assert_eq!((piles.len(), piles.take_forgotten(), piles.take_forgotten()), (3, 2, 0));
        let first = piles.next(Nanos(u64::MAX)).expect("all are quiet");
        assert_eq!(first.lineage, lineage(2));
    }

    #[test]
    fn a_lineage_that_is_put_back_is_due_again_later() {
        let mut piles = Piles::new(rules());
        piles.note(lineage(1), block(7), Nanos(0));
        let due = piles.next(Nanos(0).after(10 * SECOND)).expect("it is quiet");
        let now = Nanos(0).after(11 * SECOND);
        piles.put_back(&due, now);
        assert_eq!(piles.next(now.after(9 * SECOND)), None);
        assert_eq!(piles.next(now.after(10 * SECOND)), Some(due));
    }
}
