//! What callers were promised, and what a get may return.
//!
//! 1. Each put has a version of its own in its bytes. So whatever a get returns names its put.
//! 2. A put has what its host knew: the removals that the host had applied when it accepted the put.
//! 3. A removal covers every put of its blocks that did not know it. No get on a host that knows the removal returns
//!    such a put. A put that no removal covers is in the store that accepted it.

use std::collections::{BTreeMap, BTreeSet};

use dalsegno_core::{ChainHash, Nanos};
use dalsegno_far::{Applied, WriterId};
use dalsegno_sim::Random;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// The number of a namespace, and a block's hash.
pub(crate) type Key = (usize, ChainHash);

/// A number of a removal, in the order of the calls.
pub(crate) type RemovalNumber = usize;

/// A put of a block.
#[derive(Clone, Debug)]
pub(crate) struct PutFact {
    pub(crate) key: Key,
    pub(crate) host: usize,
    pub(crate) knew: BTreeSet<RemovalNumber>,
    /// Removals that its host may have carried out in part: they may or may not cover it.
    pub(crate) unsure: BTreeSet<RemovalNumber>,
}

/// How far a removal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Its caller got an error, and its host still publishes it.
    Pending,
    /// Every poll that begins from now on finds it.
    Published,
    /// A disk failed during the call, so nothing was promised.
    Unsure,
}

/// A removal.
#[derive(Clone, Debug)]
pub(crate) struct RemovalFact {
    pub(crate) by: WriterId,
    pub(crate) number: u64,
    pub(crate) host: usize,
    pub(crate) namespace: usize,
    /// All blocks of the namespace if there are none.
    pub(crate) hashes: Option<Vec<ChainHash>>,
    pub(crate) reach: Reach,
    /// The location's time of the call.
    pub(crate) issued: Nanos,
}

/// All puts and removals.
#[derive(Debug, Default)]
pub(crate) struct Model {
    puts: BTreeMap<u64, PutFact>,
    pub(crate) removals: Vec<RemovalFact>,
    /// Gets and presence that were compared.
    pub(crate) checks: u64,
    /// Hits of blocks that another host put.
    pub(crate) far_hits: u64,
}

impl RemovalFact {
    fn covers(&self, (namespace, hash): Key) -> bool {
        let names = |hashes: &Vec<ChainHash>| hashes.contains(&hash);
        self.namespace == namespace && self.hashes.as_ref().is_none_or(names)
    }
}

/// The bytes of a block: its version, then noise.
pub(crate) fn bytes_of(version: u64, (namespace, hash): Key) -> Vec<u8> {
    let (head, _) = hash.0.split_first_chunk::<8>().expect("32 bytes");
    let mut random = Random::new(version ^ u64::from_le_bytes(*head) ^ (namespace as u64) << 56);
    let noise = std::iter::repeat_with(|| random.bits().to_le_bytes()).flatten();
    version.to_le_bytes().into_iter().chain(noise).take(BLOCK_BYTES).collect()
}

impl Model {
    /// Notes that a host begins to put a block; returns the version.
    pub(crate) fn put(&mut self, put: PutFact) -> u64 {
        let version = self.puts.len() as u64 + 1;
        self.puts.insert(version, put);
        version
    }

    /// A removal that covers a put, of those that `among` has.
    fn covering(&self, put: &PutFact, among: impl Fn(RemovalNumber) -> bool) -> Option<usize> {
        let mut all = self.removals.iter().enumerate();
        all.find(|(number, removal)| {
            among(*number) && removal.covers(put.key) && !put.knew.contains(number)
        })
        .map(|(number, _)| number)
    }

    /// Compares a block that a get returned on a host that knew these removals when the get began.
    ///
    /// # Panics
    ///
    /// If the get must not return it.
    pub(crate) fn check_hit(
        &mut self,
        (host, key): (usize, Key),
        bytes: &[u8],
        known: &BTreeSet<RemovalNumber>,
    ) {
        self.checks += 1;
        let version = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        let put = self.puts.get(&version).filter(|put| put.key == key);
        let Some(put) = put.filter(|_| bytes == bytes_of(version, key)) else {
            panic!("host {host}: wrong bytes for {} of namespace {}", key.1, key.0);
        };
        self.far_hits += u64::from(put.host != host);
        let is_sure = |number| known.contains(&number) && !put.unsure.contains(&number);
        if let Some(number) = self.covering(put, is_sure) {
            panic!(
                "host {host} returned {:.8} of namespace {}, version {version} that host {} put: removal {number} \
                 covers it",
                key.1.to_string(),
                key.0,
                put.host
            );
        }
    }

    /// Whether no removal covers a put, published or not.
    pub(crate) fn lives(&self, version: u64) -> bool {
        self.covering(&self.puts[&version], |_| true).is_none()
    }

    /// The block of a put.
    pub(crate) fn key(&self, version: u64) -> Key {
        self.puts[&version].key
    }

    /// The removals that every poll finds that begins now.
    pub(crate) fn published(&self) -> BTreeSet<RemovalNumber> {
        let all = self.removals.iter().enumerate();
        all.filter(|(_, one)| one.reach == Reach::Published).map(|(number, _)| number).collect()
    }

    /// The removals that a store says to have applied.
    pub(crate) fn among(&self, applied: &Applied) -> BTreeSet<RemovalNumber> {
        let has = |one: &RemovalFact| one.number <= applied.number(one.by);
        let all = self.removals.iter().enumerate();
        all.filter(|(_, one)| has(one)).map(|(number, _)| number).collect()
    }
}
