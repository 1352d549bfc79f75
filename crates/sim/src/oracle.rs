//! What a store must, may and must not have.
//!
//! 1. A block is `Kept` once a put has said so, or the store listed it when an outage came, and as long as nothing that
//!    may lose it was even tried.
//! 2. A block is `Gone` once a removal has said so and as long as no later put of it was even tried.
//! 3. Of every other block nothing is known: its put or its removal was under way when an outage came.

use std::collections::BTreeMap;

use dalsegno_core::{ChainHash, Durability};
use dalsegno_store::PutOutcome;

/// What a get of a block must say.
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

/// What is known of every block that was ever put.
#[derive(Clone, Debug)]
pub struct Oracle {
    durability: Durability,
    facts: BTreeMap<Key, Fact>,
}

impl Oracle {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(durability: Durability) -> Self {
        Self { durability, facts: BTreeMap::new() }
    }

    /// A put of these blocks begins.
    pub fn put_begins(&mut self, namespace: usize, hashes: &[ChainHash]) {
        for hash in hashes {
            let fact = self.facts.entry((namespace, *hash)).or_insert(Fact::Unsure);
            if *fact == Fact::Gone {
                *fact = Fact::Unsure;
            }
        }
    }

    /// A put has ended like this.
    pub fn put_ended(&mut self, namespace: usize, hash: ChainHash, outcome: PutOutcome) {
        if outcome == PutOutcome::Stored {
            self.facts.insert((namespace, hash), Fact::Kept);
        }
    }

    /// The store has dropped a block to make room, or may have.
    pub fn dropped(&mut self, namespace: usize, hash: ChainHash) {
        let fact = self.facts.get_mut(&(namespace, hash));
        if let Some(fact) = fact.filter(|fact| **fact == Fact::Kept) {
            *fact = Fact::Unsure;
        }
    }

    /// The store tells of a block at the moment of an outage, so somebody may have relied on it.
    pub fn listed(&mut self, namespace: usize, hash: ChainHash) {
        let fact = self.facts.get_mut(&(namespace, hash));
        if let Some(fact) = fact.filter(|fact| **fact == Fact::Unsure) {
            *fact = Fact::Kept;
        }
    }

    /// A removal begins, of all blocks of the namespace if `hashes` is `None`.
    pub fn removal_begins(&mut self, namespace: usize, hashes: Option<&[ChainHash]>) {
        self.each(namespace, hashes, |fact| {
            if *fact == Fact::Kept {
                *fact = Fact::Unsure;
            }
        });
    }

    /// A removal has succeeded.
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

    /// The power went: what was not synced may be lost.
    pub fn power_cut(&mut self) {
        if self.durability == Durability::None {
            self.facts
                .values_mut()
                .filter(|fact| **fact == Fact::Kept)
                .for_each(|fact| *fact = Fact::Unsure);
        }
    }

    /// Bytes may be bad from now on: nothing must be a hit any more, and a removal may be forgotten with the record
    /// that said so.
    pub fn damaged(&mut self) {
        self.facts.values_mut().for_each(|fact| *fact = Fact::Unsure);
    }

    /// What a get must say.
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
