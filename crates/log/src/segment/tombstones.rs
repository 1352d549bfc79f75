//! Removals that may still hide blocks.
//!
//! 1. `latest` has an entry for every block, or whole namespace, that a tombstone here removes, with the number of each
//!    such tombstone. So its size is bounded by the tombstones, and a query costs one lookup per block, however many
//!    tombstones there are.

use std::collections::{HashMap, HashSet};

use dalsegno_core::{ChainHash, MAX_EXTENT_BLOCKS, NamespaceId};
use dalsegno_extent::format::record_header_bytes;

/// A removal that may still hide blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tombstone {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    pub(crate) namespace: NamespaceId,
    pub(crate) hashes: Vec<ChainHash>,
    pub(crate) kills_before: u64,
}

impl Tombstone {
    /// Bytes of its record.
    pub(crate) fn record_bytes(&self) -> u64 {
        removal_bytes(self.hashes.len())
    }

    /// Where its record ends.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.record_bytes()
    }

    /// What it removes, if that is older than the tombstone; without hashes, the whole namespace.
    pub(crate) fn removes(&self) -> (NamespaceId, &[ChainHash]) {
        (self.namespace, &self.hashes)
    }
}

/// A removed block; without a hash, the whole namespace.
type RemovedBlock = (NamespaceId, Option<ChainHash>);

/// The tombstones of a log, and its announced removals.
#[derive(Debug, Default)]
pub(crate) struct Tombstones {
    written: Vec<Tombstone>,
    /// Removals without a written tombstone: their `segment` and `offset` mean nothing.
    announced: Vec<Tombstone>,
    /// For each removed block, `kills_before` of every tombstone of either kind that removes it, in ascending order.
    latest: HashMap<RemovedBlock, Vec<u64>>,
    /// Entries of `latest` that queries have read.
    #[cfg(test)]
    visits: std::cell::Cell<usize>,
}

impl Tombstones {
    /// The written tombstones.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Tombstone> {
        self.written.iter()
    }

    /// Adds a written tombstone.
    pub(crate) fn push(&mut self, tombstone: Tombstone) {
        self.add(&tombstone);
        self.written.push(tombstone);
    }

    /// Removes the tombstones of a segment.
    pub(crate) fn drop_segment(&mut self, number: u64) {
        let is_there = |tombstone: &mut Tombstone| tombstone.segment == number;
        let gone: Vec<Tombstone> = self.written.extract_if(.., is_there).collect();
        for tombstone in &gone {
            self.remove(tombstone);
        }
    }

    /// Adds a removal whose tombstone is about to be written.
    pub(crate) fn announce(&mut self, removal: Tombstone) {
        self.add(&removal);
        self.announced.push(removal);
    }

    /// The announced removal with this number.
    pub(crate) fn announced(&self, kills_before: u64) -> Option<&Tombstone> {
        self.announced.iter().find(|removal| removal.kills_before == kills_before)
    }

    /// Ends the announcement of a removal: its tombstone was written, or will not be.
    pub(crate) fn withdraw(&mut self, kills_before: u64) {
        let is_it = |removal: &mut Tombstone| removal.kills_before == kills_before;
        let gone: Vec<Tombstone> = self.announced.extract_if(.., is_it).collect();
        for removal in &gone {
            self.remove(removal);
        }
    }

    /// Which of these blocks were removed, or are being removed, after the log gave out sequence number `born`.
    pub(crate) fn removed_since(
        &self,
        namespace: NamespaceId,
        born: u64,
        hashes: &[ChainHash],
    ) -> HashSet<ChainHash> {
        if self.latest.is_empty() {
            return HashSet::new();
        }
        let is_newer = |block| self.latest_of(block).is_some_and(|kills| kills > born);
        if is_newer((namespace, None)) {
            return hashes.iter().copied().collect();
        }
        hashes.iter().filter(|hash| is_newer((namespace, Some(**hash)))).copied().collect()
    }

    /// The number of the last removal of a block.
    fn latest_of(&self, block: RemovedBlock) -> Option<u64> {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        self.latest.get(&block)?.last().copied()
    }

    fn add(&mut self, tombstone: &Tombstone) {
        let number = tombstone.kills_before;
        for block in removed_blocks(tombstone) {
            let numbers = self.latest.entry(block).or_insert_with(|| Vec::with_capacity(1));
            let at = numbers.partition_point(|other| *other <= number);
            numbers.insert(at, number);
        }
    }

    fn remove(&mut self, tombstone: &Tombstone) {
        for block in removed_blocks(tombstone) {
            let numbers = self.latest.get_mut(&block).expect("added with the tombstone");
            let at = numbers.binary_search(&tombstone.kills_before);
            numbers.remove(at.expect("added with the tombstone"));
            if numbers.is_empty() {
                self.latest.remove(&block);
            }
        }
    }
}

/// Bytes that a removal of `blocks` blocks takes in the log.
pub(super) fn removal_bytes(blocks: usize) -> u64 {
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX).min(MAX_EXTENT_BLOCKS);
    u64::from(record_header_bytes(blocks, 0))
}

fn removed_blocks(tombstone: &Tombstone) -> impl Iterator<Item = RemovedBlock> {
    let namespace = tombstone.namespace;
    let all = tombstone.hashes.is_empty().then_some((namespace, None));
    all.into_iter().chain(tombstone.hashes.iter().map(move |hash| (namespace, Some(*hash))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMESPACES: u8 = 2;
    const HASHES: u8 = 6;

    fn tombstone(segment: u64, namespace: u8, hashes: &[u8], kills_before: u64) -> Tombstone {
        let hashes = hashes.iter().map(|hash| ChainHash([*hash; 32])).collect();
        let namespace = NamespaceId([namespace; 16]);
        Tombstone { segment, offset: 0, namespace, hashes, kills_before }
    }

    impl Tombstones {
        /// The definition of `removed_since`, which looks at every tombstone.
        fn removed_by_definition(
            &self,
            namespace: NamespaceId,
            born: u64,
            hashes: &[ChainHash],
        ) -> HashSet<ChainHash> {
            let all = self.written.iter().chain(&self.announced);
            let newer: Vec<_> =
                all.filter(|t| t.namespace == namespace && t.kills_before > born).collect();
            let is_removed = |hash: &&ChainHash| {
                newer.iter().any(|t| t.hashes.is_empty() || t.hashes.contains(hash))
            };
            hashes.iter().filter(is_removed).copied().collect()
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(Tombstone),
        Announce(Tombstone),
        DropSegment(u64),
        Withdraw(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let hashes = prop::collection::vec(0..HASHES, 0..4);
        let any = (1_u64..4, 0..NAMESPACES, hashes, 1_u64..12);
        let any = any.prop_map(|(segment, namespace, hashes, number)| {
            tombstone(segment, namespace, &hashes, number)
        });
        prop_oneof![
            4 => any.clone().prop_map(Step::Push),
            4 => any.prop_map(Step::Announce),
            1 => (1_u64..4).prop_map(Step::DropSegment),
            2 => (1_u64..12).prop_map(Step::Withdraw),
        ]
    }

    proptest! {
        #[test]
        fn every_result_is_that_of_the_definition(steps in prop::collection::vec(step(), 0..40)) {
            let mut tombstones = Tombstones::default();
            let queried: Vec<_> = (0..HASHES).map(|hash| ChainHash([hash; 32])).collect();
            for step in steps {
                match step {
                    Step::Push(tombstone) => tombstones.push(tombstone),
                    Step::Announce(removal) => tombstones.announce(removal),
                    Step::DropSegment(number) => tombstones.drop_segment(number),
                    Step::Withdraw(number) => tombstones.withdraw(number),
                }
                for namespace in (0..NAMESPACES).map(|byte| NamespaceId([byte; 16])) {
                    for born in 0..12 {
                        prop_assert_eq!(
                            tombstones.removed_since(namespace, born, &queried),
                            tombstones.removed_by_definition(namespace, born, &queried)
                        );
                    }
                }
            }
            // Nothing is left of dropped tombstones.
            for number in 1..12 {
                tombstones.drop_segment(number);
                tombstones.withdraw(number);
            }
            prop_assert!(tombstones.latest.is_empty());
        }
    }

    #[test]
    fn regression_the_cost_of_a_query_does_not_grow_with_the_tombstones() {
        let queried: Vec<_> = (0..8).map(|hash| ChainHash([hash; 32])).collect();
        let visits = |count: u64| {
            let mut tombstones = Tombstones::default();
            for number in 1..=count {
                // Other blocks of the same namespace, and the same blocks repeatedly.
                tombstones.push(tombstone(1, 0, &[100, 101, 102], number));
                tombstones.push(tombstone(2, 0, &[0, 1], number));
            }
            let removed = tombstones.removed_since(NamespaceId([0; 16]), 0, &queried);
            assert_eq!(removed.len(), 2);
            tombstones.visits.get()
        };
        assert_eq!(visits(1), visits(10_000));
    }
}
