//! Blocks that a get failed to read although nothing shows that their bytes are bad (docs/decisions/0015).
//!
//! 1. Such a block stays in the index, because the device may read it again soon. But no put reports it as present: the
//!    put writes it again, and the new extent takes the block over.
//! 2. At most [`MOST_BLOCKS`] are remembered. The oldest are forgotten first; a put then reports them as present.
//! 3. A block is forgotten when a get reads it, or a put has stored it.

use std::collections::HashSet;

use dalsegno_core::{ChainHash, NamespaceId};
use parking_lot::Mutex;

use crate::block_key::BlockKey;

/// Most blocks that are remembered: a megabyte of memory.
const MOST_BLOCKS: usize = 1 << 14;

#[derive(Debug, Default)]
pub(crate) struct FailedReads {
    generations: Mutex<Generations>,
}

/// When the young generation is full it becomes the old one, which is forgotten.
#[derive(Debug, Default)]
struct Generations {
    young: HashSet<BlockKey>,
    old: HashSet<BlockKey>,
}

impl FailedReads {
    /// Remembers blocks that could not be read.
    pub(crate) fn note(&self, namespace: NamespaceId, hashes: &[ChainHash]) {
        if hashes.is_empty() {
            return;
        }
        let generations = &mut *self.generations.lock();
        for hash in hashes {
            if generations.young.len() == MOST_BLOCKS / 2 {
                generations.old = std::mem::take(&mut generations.young);
            }
            generations.young.insert((namespace, *hash));
        }
    }

    /// Forgets blocks that were read or stored.
    pub(crate) fn forget(&self, namespace: NamespaceId, hashes: &[ChainHash]) {
        let generations = &mut *self.generations.lock();
        if generations.young.is_empty() && generations.old.is_empty() {
            return;
        }
        for key in hashes.iter().map(|hash| (namespace, *hash)) {
            generations.young.remove(&key);
            generations.old.remove(&key);
        }
    }

    /// Which of these blocks could not be read, in their order.
    pub(crate) fn among(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Vec<ChainHash> {
        let Generations { young, old } = &*self.generations.lock();
        if young.is_empty() && old.is_empty() {
            return Vec::new();
        }
        let is_noted = |hash: &&ChainHash| {
            let key = (namespace, **hash);
            young.contains(&key) || old.contains(&key)
        };
        hashes.iter().filter(is_noted).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: usize) -> ChainHash {
        let mut hash = ChainHash::default();
        hash.0[..8].copy_from_slice(&(number as u64).to_le_bytes());
        hash
    }

    #[test]
    fn a_bounded_number_of_the_newest_blocks_is_remembered() {
        let failed = FailedReads::default();
        let namespace = NamespaceId([3; 16]);
        let all: Vec<ChainHash> = (0..3 * MOST_BLOCKS).map(hash).collect();
        for some in all.chunks(1000) {
            failed.note(namespace, some);
        }
        let kept = failed.among(namespace, &all);
        assert!(kept.len() <= MOST_BLOCKS && kept.len() >= MOST_BLOCKS / 2, "{}", kept.len());
        assert_eq!(kept, all[all.len() - kept.len()..]);
        assert!(failed.among(NamespaceId::default(), &all).is_empty(), "of another namespace");
        failed.forget(namespace, &kept[1..]);
        assert_eq!(failed.among(namespace, &all), kept[..1]);
    }
}
