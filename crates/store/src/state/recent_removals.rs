//! The removals since the store was opened, for work that looked blocks up before a removal and keeps them after it.
//!
//! 1. Work takes a [`RemovalMark`] before it looks blocks up. What was removed since then must not enter DRAM, the log
//!    or a pack afterwards.
//! 2. A removal is noted twice: before its blocks leave the index, so that a put in progress sees it, and when they
//!    have left, so that the mark of every lookup that still found them is older.
//! 3. Memory is bounded. The oldest removals are widened to their whole namespace, which delays or drops other work in
//!    progress and returns no removed block.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{ChainHash, NamespaceId};
use parking_lot::Mutex;

use crate::block_key::BlockKey;

/// Blocks that are known by themselves.
const MOST_BLOCKS: usize = 1 << 16;
/// Namespaces that are known by themselves.
const MOST_NAMESPACES: usize = 4096;

/// A moment between two removals. Marks are ordered by time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RemovalMark(u64);

/// The removals of an open store.
#[derive(Debug, Default)]
pub(crate) struct RecentRemovals {
    /// The number of the last one.
    newest: AtomicU64,
    table: Mutex<RemovalTable>,
}

/// The number of the last removal of each block and namespace.
#[derive(Debug, Default)]
struct RemovalTable {
    blocks: HashMap<BlockKey, u64>,
    /// The removals of `blocks`, the oldest first. One of a block that was removed again since is out of date.
    order: VecDeque<(u64, BlockKey)>,
    namespaces: HashMap<NamespaceId, u64>,
    /// The number up to which all blocks count as removed.
    everything: u64,
}

impl RecentRemovals {
    /// The present moment.
    pub(crate) fn mark(&self) -> RemovalMark {
        RemovalMark(self.newest.load(Ordering::Acquire))
    }

    /// Notes a removal of blocks, or of a whole namespace if there are none.
    pub(crate) fn note(&self, namespace: NamespaceId, hashes: &[ChainHash]) {
        let mut table = self.table.lock();
        let number = self.newest.load(Ordering::Relaxed) + 1;
        if hashes.is_empty() {
            table.namespaces.insert(namespace, number);
        }
        for hash in hashes {
            table.blocks.insert((namespace, *hash), number);
            table.order.push_back((number, (namespace, *hash)));
        }
        table.bound();
        self.newest.store(number, Ordering::Release);
    }

    /// Which of these blocks were removed after `mark`.
    pub(crate) fn removed_since(
        &self,
        mark: RemovalMark,
        namespace: NamespaceId,
        hashes: &[ChainHash],
    ) -> HashSet<ChainHash> {
        if self.mark() == mark {
            return HashSet::new();
        }
        let table = self.table.lock();
        let is_removed = |hash: &&ChainHash| table.newest_of(namespace, hash) > mark.0;
        hashes.iter().filter(is_removed).copied().collect()
    }

    /// Whether a block was removed after `mark`.
    pub(crate) fn is_removed_since(&self, mark: RemovalMark, (namespace, hash): &BlockKey) -> bool {
        self.mark() != mark && self.table.lock().newest_of(*namespace, hash) > mark.0
    }
}

impl RemovalTable {
    fn newest_of(&self, namespace: NamespaceId, hash: &ChainHash) -> u64 {
        let of_block = self.blocks.get(&(namespace, *hash)).copied().unwrap_or_default();
        let of_namespace = self.namespaces.get(&namespace).copied().unwrap_or_default();
        of_block.max(of_namespace).max(self.everything)
    }

    fn bound(&mut self) {
        while self.order.len() > MOST_BLOCKS {
            let Some((number, key)) = self.order.pop_front() else { break };
            if self.blocks.get(&key) == Some(&number) {
                self.blocks.remove(&key);
                let of_namespace = self.namespaces.entry(key.0).or_default();
                *of_namespace = number.max(*of_namespace);
            }
        }
        if self.namespaces.len() > MOST_NAMESPACES {
            let newest = self.namespaces.values().max().copied().unwrap_or_default();
            self.everything = newest.max(self.everything);
            self.namespaces.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: NamespaceId = NamespaceId([1; 16]);

    fn hash(number: u64) -> ChainHash {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        ChainHash(bytes)
    }

    fn namespace(number: u64) -> NamespaceId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        NamespaceId(bytes)
    }

    #[test]
    fn only_removals_after_a_mark_count() {
        let removals = RecentRemovals::default();
        let first = removals.mark();
        removals.note(NAMESPACE, &[hash(1), hash(2)]);
        let second = removals.mark();
        assert!(second > first);
        let hashes = [hash(1), hash(2), hash(3)];
        let removed = |mark| removals.removed_since(mark, NAMESPACE, &hashes).len();
        assert_eq!([removed(first), removed(second)], [2, 0]);
        removals.note(NAMESPACE, &[hash(2)]);
        assert_eq!([removed(first), removed(second)], [2, 1]);
        removals.note(NAMESPACE, &[]);
        assert_eq!([removed(first), removed(second), removed(removals.mark())], [3, 3, 0]);
        assert!(removals.is_removed_since(second, &(NAMESPACE, hash(9))));
        assert!(!removals.is_removed_since(second, &(namespace(7), hash(9))));
    }

    #[test]
    fn removals_beyond_the_bound_are_widened_and_none_is_forgotten() {
        let removals = RecentRemovals::default();
        let first = removals.mark();
        let count = 2 * MOST_BLOCKS as u64;
        for number in 0..count {
            removals.note(NAMESPACE, &[hash(number)]);
        }
        let key = |number| (NAMESPACE, hash(number));
        assert!((0..count).step_by(999).all(|one| removals.is_removed_since(first, &key(one))));
        let late = RemovalMark(count - 10);
        assert!(!removals.is_removed_since(late, &key(0)));
        assert!(removals.is_removed_since(late, &key(count - 1)));
        for number in 0..2 * MOST_NAMESPACES as u64 {
            removals.note(namespace(number), &[]);
        }
        let table = removals.table.lock();
        assert!(table.order.len() <= MOST_BLOCKS && table.blocks.len() <= MOST_BLOCKS);
        assert!(table.namespaces.len() <= MOST_NAMESPACES);
        drop(table);
        let key = |number| (namespace(number), hash(1));
        assert!((0..MOST_NAMESPACES as u64).all(|one| removals.is_removed_since(late, &key(one))));
    }
}
