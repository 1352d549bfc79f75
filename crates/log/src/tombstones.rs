//! Removals that may still have something to hide, and which blocks they hide.
//!
//! 1. `latest` has an entry for every block, or whole namespace, that a tombstone here removes, with the number of each
//!    such tombstone. So it is bounded with the tombstones, and a question costs one lookup per block that it is about,
//!    however many tombstones there are.

use std::collections::{HashMap, HashSet};

use dalsegno_core::{ChainHash, NamespaceId};

/// A removal that may still have something to hide.
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
        crate::Log::removal_bytes(self.hashes.len())
    }

    /// Behind its record.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.record_bytes()
    }

    /// What it removes, of all that is older than it; no hashes stand for the whole namespace.
    pub(crate) fn removes(&self) -> (NamespaceId, &[ChainHash]) {
        (self.namespace, &self.hashes)
    }
}

/// What a removal is about; without a hash the whole namespace.
type Target = (NamespaceId, Option<ChainHash>);

/// The tombstones of a log, and removals that are announced.
#[derive(Debug, Default)]
pub(crate) struct Tombstones {
    written: Vec<Tombstone>,
    /// Their tombstones are not written yet; their `segment` and `offset` say nothing.
    announced: Vec<Tombstone>,
    /// For what is removed, `kills_before` of every tombstone of either kind that removes it, in ascending order.
    latest: HashMap<Target, Vec<u64>>,
    /// Entries of `latest` that questions have read.
    #[cfg(test)]
    visits: std::cell::Cell<usize>,
}

impl Tombstones {
    /// The tombstones that are written.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Tombstone> {
        self.written.iter()
    }

    /// Notes a tombstone that is written.
    pub(crate) fn push(&mut self, tombstone: Tombstone) {
        self.note(&tombstone);
        self.written.push(tombstone);
    }

    /// Forgets the tombstones of a segment.
    pub(crate) fn drop_segment(&mut self, number: u64) {
        let is_there = |tombstone: &mut Tombstone| tombstone.segment == number;
        let gone: Vec<Tombstone> = self.written.extract_if(.., is_there).collect();
        for tombstone in &gone {
            self.forget(tombstone);
        }
    }

    /// Notes a removal that is about to be written.
    pub(crate) fn announce(&mut self, removal: Tombstone) {
        self.note(&removal);
        self.announced.push(removal);
    }

    /// The removal that was announced under a number.
    pub(crate) fn announced(&self, kills_before: u64) -> Option<&Tombstone> {
        self.announced.iter().find(|removal| removal.kills_before == kills_before)
    }

    /// Forgets an announced removal: it was written, or is not going to be.
    pub(crate) fn call_off(&mut self, kills_before: u64) {
        let is_it = |removal: &mut Tombstone| removal.kills_before == kills_before;
        let gone: Vec<Tombstone> = self.announced.extract_if(.., is_it).collect();
        for removal in &gone {
            self.forget(removal);
        }
    }

    /// Which of these blocks were removed, or are being removed, after sequence number `born` was given out.
    pub(crate) fn removed_since(
        &self,
        namespace: NamespaceId,
        born: u64,
        hashes: &[ChainHash],
    ) -> HashSet<ChainHash> {
        if self.latest.is_empty() {
            return HashSet::new();
        }
        let is_newer = |target| self.latest_of(target).is_some_and(|kills| kills > born);
        if is_newer((namespace, None)) {
            return hashes.iter().copied().collect();
        }
        hashes.iter().filter(|hash| is_newer((namespace, Some(**hash)))).copied().collect()
    }

    /// The number of the last removal of something.
    fn latest_of(&self, target: Target) -> Option<u64> {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        self.latest.get(&target)?.last().copied()
    }

    fn note(&mut self, tombstone: &Tombstone) {
        let number = tombstone.kills_before;
        for target in targets_of(tombstone) {
            let numbers = self.latest.entry(target).or_insert_with(|| Vec::with_capacity(1));
            let at = numbers.partition_point(|other| *other <= number);
            numbers.insert(at, number);
        }
    }

    fn forget(&mut self, tombstone: &Tombstone) {
        for target in targets_of(tombstone) {
            let numbers = self.latest.get_mut(&target).expect("noted when the tombstone came");
            let at = numbers.binary_search(&tombstone.kills_before);
            numbers.remove(at.expect("noted when the tombstone came"));
            if numbers.is_empty() {
                self.latest.remove(&target);
            }
        }
    }
}

fn targets_of(tombstone: &Tombstone) -> impl Iterator<Item = Target> {
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
        /// The definition that `removed_since` must agree with: it looks at every tombstone.
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
        CallOff(u64),
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
            2 => (1_u64..12).prop_map(Step::CallOff),
        ]
    }

    proptest! {
        #[test]
        fn every_answer_is_that_of_the_definition(steps in prop::collection::vec(step(), 0..40)) {
            let mut tombstones = Tombstones::default();
            let asked: Vec<_> = (0..HASHES).map(|hash| ChainHash([hash; 32])).collect();
            for step in steps {
                match step {
                    Step::Push(tombstone) => tombstones.push(tombstone),
                    Step::Announce(removal) => tombstones.announce(removal),
                    Step::DropSegment(number) => tombstones.drop_segment(number),
                    Step::CallOff(number) => tombstones.call_off(number),
                }
                for namespace in (0..NAMESPACES).map(|byte| NamespaceId([byte; 16])) {
                    for born in 0..12 {
                        prop_assert_eq!(
                            tombstones.removed_since(namespace, born, &asked),
                            tombstones.removed_by_definition(namespace, born, &asked)
                        );
                    }
                }
            }
            // Nothing is left of tombstones that are gone.
            for number in 1..12 {
                tombstones.drop_segment(number);
                tombstones.call_off(number);
            }
            prop_assert!(tombstones.latest.is_empty());
        }
    }

    #[test]
    fn regression_a_question_costs_the_same_however_many_tombstones_there_are() {
        let asked: Vec<_> = (0..8).map(|hash| ChainHash([hash; 32])).collect();
        let visits = |count: u64| {
            let mut tombstones = Tombstones::default();
            for number in 1..=count {
                // Others of the same namespace, and the same blocks again and again.
                tombstones.push(tombstone(1, 0, &[100, 101, 102], number));
                tombstones.push(tombstone(2, 0, &[0, 1], number));
            }
            let removed = tombstones.removed_since(NamespaceId([0; 16]), 0, &asked);
            assert_eq!(removed.len(), 2);
            tombstones.visits.get()
        };
        assert_eq!(visits(1), visits(10_000));
    }
}
