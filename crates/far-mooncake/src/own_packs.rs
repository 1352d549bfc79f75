//! The packs that were published through a tier, and which of them the cluster lost.
//!
//! 1. A cluster evicts without a word, and a question for an object makes it count as used. So a few packs are looked
//!    at in turn, and more only if most of those were lost, as after a restart of the master.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use dalsegno_far::ObjectName;
use parking_lot::Mutex;

/// Packs that are looked at together.
pub(crate) const SAMPLE: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct OwnPacks(Mutex<Packs>);

#[derive(Debug, Default)]
struct Packs {
    /// Their sizes in bytes.
    there: BTreeMap<ObjectName, u64>,
    /// Those that were lost, until they are removed.
    lost: BTreeSet<ObjectName>,
    /// The one that was looked at last.
    looked: Option<ObjectName>,
    /// How often some were found to be lost.
    losses: u64,
}

/// What is known of a pack without a question to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It was published here, with so many bytes.
    There(u64),
    /// It was published here, and is lost.
    Lost,
    /// Nothing.
    Unknown,
}

impl OwnPacks {
    pub(crate) fn note_published(&self, name: ObjectName, bytes: u64) {
        let mut packs = self.0.lock();
        packs.there.insert(name, bytes);
        packs.lost.remove(&name);
    }

    pub(crate) fn note_removed(&self, name: ObjectName) {
        let mut packs = self.0.lock();
        packs.there.remove(&name);
        packs.lost.remove(&name);
    }

    /// How often packs were found to be lost.
    pub(crate) fn losses(&self) -> u64 {
        self.0.lock().losses
    }

    pub(crate) fn known(&self, name: ObjectName) -> Known {
        let packs = self.0.lock();
        match packs.there.get(&name) {
            Some(bytes) => Known::There(*bytes),
            None if packs.lost.contains(&name) => Known::Lost,
            None => Known::Unknown,
        }
    }

    /// The packs to be looked at next, in turn.
    pub(crate) fn next_sample(&self) -> Vec<ObjectName> {
        let mut packs = self.0.lock();
        let after = packs.looked.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = packs.there.range((after, Bound::Unbounded)).map(|(name, _)| *name);
        let mut sample: Vec<ObjectName> = rest.take(SAMPLE).collect();
        let others = packs.there.keys().copied().filter(|name| !sample.contains(name));
        let begin: Vec<ObjectName> = others.take(SAMPLE - sample.len()).collect();
        sample.extend(begin);
        packs.looked = sample.last().copied();
        sample
    }

    /// Notes which packs are lost. Those that were removed meanwhile are not.
    pub(crate) fn note_lost(&self, lost: &[ObjectName]) {
        let mut packs = self.0.lock();
        let mut any = false;
        for name in lost {
            if packs.there.remove(name).is_some() {
                packs.lost.insert(*name);
                any = true;
            }
        }
        packs.losses += u64::from(any);
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_core::StoreId;
    use dalsegno_far::{Object, WriterId};

    use super::*;

    #[test]
    fn samples_go_round_and_what_is_lost_is_known_until_it_is_removed() {
        let writer = WriterId { store: StoreId([1; 16]), open: 1 };
        let name = |number| writer.object(Object::Pack(number));
        let own = OwnPacks::default();
        assert!(own.next_sample().is_empty());
        for number in 0..24 {
            own.note_published(name(number), 4096);
        }
        let mut seen = own.next_sample();
        assert_eq!(seen.len(), SAMPLE);
        seen.extend(own.next_sample());
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 24, "all within two samples");
        own.note_removed(name(3));
        own.note_lost(&[name(3)]);
        assert_eq!((own.losses(), own.known(name(3))), (0, Known::Unknown));
        own.note_lost(&[name(4), name(5)]);
        assert_eq!((own.losses(), own.known(name(4))), (1, Known::Lost));
        assert_eq!(own.known(name(6)), Known::There(4096));
        own.note_removed(name(4));
        assert_eq!(own.known(name(4)), Known::Unknown);
    }
}
