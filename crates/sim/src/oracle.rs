//! Which blocks a store must, may and must not have.
//!
//! 1. A block is `Kept` after a put reported it, or after the store listed it at an outage, until an operation starts
//!    that may lose it.
//! 2. A block is `Gone` after a removal succeeded, until a later put of it starts.
//! 3. Every other block is undecided: its put or its removal was in progress at an outage.

use std::collections::BTreeMap;

use dalsegno_core::{ChainHash, Durability};
use dalsegno_store::PutOutcome;

/// The expected result of a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// A hit.
    Hit,
    /// A miss.
    Miss,
    /// Either.
    Either,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fact {
    Unsure,
    Kept,
    Gone,
}

/// A block: the number of its namespace, and its hash.
type Key = (usize, ChainHash);

/// The state of every block that was ever put.
#[derive(Clone, Debug)]
pub struct Oracle {
    durability: Durability,
    facts: BTreeMap<Key, Fact>,
}

impl Oracle {
    /// An oracle without blocks.
    #[must_use]
    pub fn new(durability: Durability) -> Self {
        Self { durability, facts: BTreeMap::new() }
    }

    /// Notes the start of a put of these blocks.
    pub fn put_begins(&mut self, namespace: usize, hashes: &[ChainHash]) {
        for hash in hashes {
            let fact = self.facts.entry((namespace, *hash)).or_insert(Fact::Unsure);
            if *fact == Fact::Gone {
                *fact = Fact::Unsure;
            }
        }
    }

    /// Notes the end of a put.
    pub fn put_ended(&mut self, namespace: usize, hash: ChainHash, outcome: PutOutcome) {
        if outcome == PutOutcome::Stored {
            self.facts.insert((namespace, hash), Fact::Kept);
        }
    }

    /// Notes that the store dropped a block for space, or may have.
    pub fn dropped(&mut self, namespace: usize, hash: ChainHash) {
        let fact = self.facts.get_mut(&(namespace, hash));
        if let Some(fact) = fact.filter(|fact| **fact == Fact::Kept) {
            *fact = Fact::Unsure;
        }
    }

    /// Notes that the store listed a block at the moment of an outage, so a caller may rely on it.
    pub fn listed(&mut self, namespace: usize, hash: ChainHash) {
        let fact = self.facts.get_mut(&(namespace, hash));
        if let Some(fact) = fact.filter(|fact| **fact == Fact::Unsure) {
            *fact = Fact::Kept;
        }
    }

    /// Notes the start of a removal, of all blocks of the namespace if `hashes` is `None`.
    pub fn removal_begins(&mut self, namespace: usize, hashes: Option<&[ChainHash]>) {
        self.each(namespace, hashes, |fact| {
            if *fact == Fact::Kept {
                *fact = Fact::Unsure;
            }
        });
    }

    /// Notes a successful removal.
    pub fn removed(&mut self, namespace: usize, hashes: Option<&[ChainHash]>) {
        self.each(namespace, hashes, |fact| *fact = Fact::Gone);
    }

    fn each(&mut self, namespace: usize, hashes: Option<&[ChainHash]>, change: impl Fn(&mut Fact)) {
        for (key, fact) in &mut self.facts {
            if key.0 == namespace && hashes.is_none_or(|hashes| hashes.contains(&key.1)) {
                change(fact);
            }
        }
    }

    /// Notes a power cut: unsynced data may be lost.
    pub fn power_cut(&mut self) {
        if self.durability == Durability::None {
            self.facts
                .values_mut()
                .filter(|fact| **fact == Fact::Kept)
                .for_each(|fact| *fact = Fact::Unsure);
        }
    }

    /// Notes possible damage: no block must be a hit any more, and a removal may be lost with its record.
    pub fn damaged(&mut self) {
        self.facts.values_mut().for_each(|fact| *fact = Fact::Unsure);
    }

    /// The expected result of a get.
    #[must_use]
    pub fn expects(&self, namespace: usize, hash: ChainHash) -> Expect {
        match self.facts.get(&(namespace, hash)) {
            None | Some(Fact::Gone) => Expect::Miss,
            Some(Fact::Unsure) => Expect::Either,
            Some(Fact::Kept) => Expect::Hit,
        }
    }

    /// Every block of a namespace that was ever put.
    #[must_use]
    pub fn hashes(&self, namespace: usize) -> Vec<ChainHash> {
        self.facts.keys().filter(|key| key.0 == namespace).map(|key| key.1).collect()
    }

    /// The blocks of a namespace that must be hits.
    #[must_use]
    pub fn kept(&self, namespace: usize) -> Vec<ChainHash> {
        let kept = self.facts.iter().filter(|(_, fact)| **fact == Fact::Kept);
        kept.map(|(key, _)| *key).filter(|key| key.0 == namespace).map(|key| key.1).collect()
    }

    /// How many blocks must be hits.
    #[must_use]
    pub fn kept_count(&self) -> usize {
        self.facts.values().filter(|fact| **fact == Fact::Kept).count()
    }
}
