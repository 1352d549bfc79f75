//! The blocks of the DRAM tier, and which of them are pool-only.
//!
//! 1. A pool-only block is held. It is pool-only until it leaves, or until the index has it.
//! 2. The number of pool-only blocks is read without the lock: a lookup takes none if there are none.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dalsegno_core::NamespaceId;
use dalsegno_policy::S3Fifo;

use super::arena::PlacedBlock;
use crate::block_key::BlockKey;
use crate::keep::Keep;

/// The blocks of the tier. They are locked together.
#[derive(Debug)]
pub(super) struct TierBlocks {
    cache: S3Fifo<BlockKey, Arc<PlacedBlock>>,
    pool_only: HashSet<BlockKey>,
    /// The length of `pool_only`.
    pool_only_count: Arc<AtomicUsize>,
}

/// Blocks that left to free memory.
#[derive(Debug)]
pub(super) struct LeftBlocks {
    pub(super) blocks: Vec<(BlockKey, Arc<PlacedBlock>)>,
    /// Those of them that were pool-only.
    pub(super) pool_only: Vec<BlockKey>,
}

impl TierBlocks {
    /// No blocks, and at most `capacity_bytes` of them.
    pub(super) fn new(capacity_bytes: u64, pool_only_count: &Arc<AtomicUsize>) -> Self {
        Self {
            cache: S3Fifo::new(capacity_bytes),
            pool_only: HashSet::new(),
            pool_only_count: Arc::clone(pool_only_count),
        }
    }

    /// How many blocks there are, and their bytes.
    pub(super) fn size(&self) -> (u64, u64) {
        (self.cache.len() as u64, self.cache.bytes())
    }

    /// Whether a block is here; this does not count as a use.
    pub(super) fn holds(&self, key: &BlockKey) -> bool {
        self.cache.peek(key).is_some()
    }

    /// Which of some blocks are here; this does not count as a use.
    pub(super) fn holds_each(&self, keys: impl Iterator<Item = BlockKey>) -> Vec<bool> {
        self.cache.holds_each(keys)
    }

    /// Those of some blocks that are here, and their uses counted.
    pub(super) fn get_each(
        &mut self,
        keys: impl ExactSizeIterator<Item = BlockKey>,
    ) -> Vec<Option<Arc<PlacedBlock>>> {
        self.cache.get_each(keys)
    }

    /// A block if it is pool-only; this does not count as a use.
    pub(super) fn pool_only(&self, key: &BlockKey) -> Option<Arc<PlacedBlock>> {
        let is_pool_only = self.pool_only.contains(key);
        is_pool_only
            .then(|| self.cache.peek(key).map(Arc::clone).expect("a pool-only block is held"))
    }

    /// Notes of a block that is here that a put keeps it.
    pub(super) fn note_put(&mut self, key: BlockKey, keep: Keep) {
        if keep == Keep::PoolOnly {
            debug_assert!(self.holds(&key), "a pool-only block is held");
            self.pool_only.insert(key);
            self.count();
        }
    }

    /// Notes that a block is not pool-only. Returns whether it was.
    pub(super) fn unmark(&mut self, key: &BlockKey) -> bool {
        let was_pool_only = self.pool_only.remove(key);
        if was_pool_only {
            self.count();
        }
        was_pool_only
    }

    /// Adds a block that is not here.
    pub(super) fn insert(
        &mut self,
        key: BlockKey,
        block: Arc<PlacedBlock>,
        bytes: u64,
        keep: Keep,
    ) -> LeftBlocks {
        let blocks = self.cache.insert(key, block, bytes);
        let left = self.left(blocks);
        self.note_put(key, keep);
        left
    }

    /// Evicts the block that the policy drops next.
    pub(super) fn evict(&mut self) -> Option<LeftBlocks> {
        self.cache.evict().map(|block| self.left(vec![block]))
    }

    /// Evicts a block that was not requested since it entered.
    pub(super) fn evict_newcomer(&mut self) -> Option<LeftBlocks> {
        self.cache.evict_newcomer().map(|block| self.left(vec![block]))
    }

    /// Removes a block. Returns whether it was pool-only.
    pub(super) fn remove(&mut self, key: &BlockKey) -> bool {
        self.cache.remove(key);
        self.unmark(key)
    }

    /// Removes a block unless it is pool-only.
    pub(super) fn remove_copy(&mut self, key: &BlockKey) {
        if !self.pool_only.contains(key) {
            self.cache.remove(key);
        }
    }

    /// Removes all blocks of a namespace. Returns how many were pool-only.
    pub(super) fn remove_namespace(&mut self, namespace: NamespaceId) -> usize {
        let before = self.pool_only.len();
        self.cache.remove_all(|(of, _)| *of == namespace);
        self.pool_only.retain(|(of, _)| *of != namespace);
        self.count();
        before - self.pool_only.len()
    }

    fn left(&mut self, blocks: Vec<(BlockKey, Arc<PlacedBlock>)>) -> LeftBlocks {
        let mut pool_only = Vec::new();
        if !self.pool_only.is_empty() {
            let keys = blocks.iter().map(|(key, _)| *key);
            pool_only.extend(keys.filter(|key| self.pool_only.remove(key)));
            self.count();
        }
        LeftBlocks { blocks, pool_only }
    }

    fn count(&self) {
        self.pool_only_count.store(self.pool_only.len(), Ordering::Release);
    }
}
