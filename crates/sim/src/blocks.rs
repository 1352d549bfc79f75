//! Chains and the bytes of their blocks. The bytes are a function of hash and namespace, so wrong bytes are detected.

use std::collections::HashMap;
use std::sync::Arc;

use dalsegno_core::ChainHash;
use parking_lot::Mutex;

use crate::random::Random;

/// Blocks that two adjacent chains (2k and 2k + 1) share.
const SHARED_BLOCKS: usize = 3;

/// The hashes of a chain. Chains come in pairs that fork after a few blocks.
#[must_use]
pub fn chain_hashes(chain: u64, blocks: usize) -> Vec<ChainHash> {
    (0..blocks).map(|block| hash(chain, block)).collect()
}

fn hash(chain: u64, block: usize) -> ChainHash {
    let stem = if block < SHARED_BLOCKS { chain & !1 } else { chain };
    let mut random = Random::new(stem << 16 | block as u64);
    let mut bytes = [0; 32];
    for part in bytes.chunks_exact_mut(8) {
        part.copy_from_slice(&random.bits().to_le_bytes());
    }
    ChainHash(bytes)
}

type Cache = Mutex<HashMap<(u64, ChainHash), Arc<[u8]>>>;

/// The contents of blocks, cached. Clones share the cache.
#[derive(Clone, Debug, Default)]
pub struct Blocks(Arc<Cache>);

impl Blocks {
    /// The bytes of a block in the namespace with this `salt`.
    ///
    /// # Panics
    ///
    /// If the same block is requested with another length.
    #[must_use]
    pub fn bytes(&self, salt: u64, hash: ChainHash, len: usize) -> Arc<[u8]> {
        let mut made = self.0.lock();
        let block = made.entry((salt, hash)).or_insert_with(|| make(salt, hash, len));
        assert_eq!(block.len(), len, "a block has one length");
        Arc::clone(block)
    }
}

fn make(salt: u64, hash: ChainHash, len: usize) -> Arc<[u8]> {
    let (head, _) = hash.0.split_first_chunk::<8>().expect("32 bytes");
    let mut random = Random::new(u64::from_le_bytes(*head) ^ salt << 48);
    let mut bytes = vec![0; len];
    for part in bytes.chunks_mut(8) {
        part.copy_from_slice(&random.bits().to_le_bytes()[..part.len()]);
    }
    // Half of them are compressible: the upper bytes of their numbers vary little.
    if hash.0[9].is_multiple_of(2) {
        bytes.iter_mut().skip(1).step_by(2).for_each(|byte| *byte &= 3);
    }
    Arc::from(bytes)
}
