//! Blocks that are being removed, and that an on-disk index still has because it waits for the device.
//!
//! Lookups skip them. So removed blocks are not found from the beginning of the removal, with either index.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dalsegno_core::{ChainHash, NamespaceId};
use parking_lot::Mutex;

use crate::block_key::BlockKey;

/// The hidden blocks of a store.
#[derive(Debug, Default)]
pub(crate) struct HiddenBlocks {
    /// How many removals hide blocks.
    removals: AtomicUsize,
    table: Mutex<HiddenTable>,
}

/// How many removals hide each block, and each namespace.
#[derive(Debug, Default)]
struct HiddenTable {
    blocks: HashMap<BlockKey, usize>,
    namespaces: HashMap<NamespaceId, usize>,
}

/// Hides the blocks of one removal until it is dropped.
#[derive(Debug)]
pub(crate) struct HidingRemoval {
    hidden: Arc<HiddenBlocks>,
    namespace: NamespaceId,
    hashes: Vec<ChainHash>,
}

impl HiddenBlocks {
    /// Hides blocks, or a whole namespace if there are none.
    pub(crate) fn hide(
        self: &Arc<Self>,
        namespace: NamespaceId,
        hashes: &[ChainHash],
    ) -> HidingRemoval {
        let mut table = self.table.lock();
        if hashes.is_empty() {
            *table.namespaces.entry(namespace).or_default() += 1;
        }
        for hash in hashes {
            *table.blocks.entry((namespace, *hash)).or_default() += 1;
        }
        drop(table);
        self.removals.fetch_add(1, Ordering::Release);
        HidingRemoval { hidden: Arc::clone(self), namespace, hashes: hashes.to_vec() }
    }

    /// The parts of a chain that are not hidden, in order and without empty ones.
    pub(crate) fn shown(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Vec<Range<usize>> {
        let mut shown = Vec::with_capacity(1);
        let mut start = 0;
        if self.removals.load(Ordering::Acquire) > 0 {
            let table = self.table.lock();
            if table.namespaces.contains_key(&namespace) {
                return shown;
            }
            for (at, hash) in chain.iter().enumerate() {
                if table.blocks.contains_key(&(namespace, *hash)) {
                    shown.push(start..at);
                    start = at + 1;
                }
            }
        }
        shown.push(start..chain.len());
        shown.retain(|part| !part.is_empty());
        shown
    }

    /// Which of some blocks are hidden.
    pub(crate) fn are_hidden(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Vec<bool> {
        let mut hidden = vec![true; hashes.len()];
        self.shown(namespace, hashes).into_iter().for_each(|part| hidden[part].fill(false));
        hidden
    }
}

impl HidingRemoval {
    pub(crate) fn namespace(&self) -> NamespaceId {
        self.namespace
    }

    /// None for the whole namespace.
    pub(crate) fn hashes(&self) -> &[ChainHash] {
        &self.hashes
    }
}

impl Drop for HidingRemoval {
    fn drop(&mut self) {
        let mut table = self.hidden.table.lock();
        if self.hashes.is_empty() {
            decrement(&mut table.namespaces, self.namespace);
        }
        for hash in &self.hashes {
            decrement(&mut table.blocks, (self.namespace, *hash));
        }
        drop(table);
        self.hidden.removals.fetch_sub(1, Ordering::Release);
    }
}

fn decrement<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: K) {
    if let Entry::Occupied(mut entry) = counts.entry(key) {
        *entry.get_mut() -= 1;
        if *entry.get() == 0 {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: NamespaceId = NamespaceId([1; 16]);

    #[test]
    fn blocks_are_hidden_until_the_last_removal_of_them_ends() {
        let chain: Vec<ChainHash> = (0..6).map(|number| ChainHash([number; 32])).collect();
        let hidden = Arc::new(HiddenBlocks::default());
        let shown_of = |namespace| {
            let parts = hidden.shown(namespace, &chain).into_iter();
            parts.map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        let shown = || shown_of(NAMESPACE);
        assert_eq!(shown(), [(0, 6)]);
        let first = hidden.hide(NAMESPACE, &chain[1..3]);
        assert_eq!(shown(), [(0, 1), (3, 6)]);
        let second = hidden.hide(NAMESPACE, &[chain[2], chain[2], chain[5]]);
        drop(first);
        assert_eq!(shown(), [(0, 2), (3, 5)]);
        let all = hidden.hide(NAMESPACE, &[]);
        assert_eq!(shown(), []);
        assert_eq!(shown_of(NamespaceId([2; 16])), [(0, 6)]);
        drop((second, all));
        assert_eq!(shown(), [(0, 6)]);
        assert!(hidden.table.lock().blocks.is_empty());
        assert_eq!(hidden.shown(NAMESPACE, &[]), []);
    }
}
