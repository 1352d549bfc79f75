//! What was written since the last table: in memory, found at once by readers.
//!
//! 1. A batch becomes visible whole.
//! 2. Once it is frozen nothing changes any more.
//! 3. A block takes eight bytes here besides its hash: points lead to the extents that the batches brought.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{ChainHash, Extent, NamespaceId};
use hashbrown::HashTable;
use parking_lot::{RwLock, RwLockReadGuard};

use super::keys::{ForkKey, OrderKey, Point, PointKey, Record, short};

/// What an entry of order or a fork costs besides what it holds, roughly: key, pointers, allocations.
const ENTRY_BYTES: u64 = 160;
/// What an extent costs besides its hashes.
const EXTENT_BYTES: u64 = 240;
/// A point in a hash table that is two thirds full.
const POINT_BYTES: u64 = 26;

/// Blocks of an extent that lead to it now, or to nothing any more.
#[derive(Debug)]
pub(crate) struct PointChange {
    pub(crate) extent: Arc<Extent>,
    pub(crate) blocks: Vec<u32>,
    pub(crate) are_removed: bool,
}

/// Changes that become visible together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) points: Vec<PointChange>,
    /// Nothing for an extent that is gone.
    pub(crate) orders: Vec<(OrderKey, Option<Arc<Record>>)>,
    pub(crate) forks: Vec<ForkKey>,
}

/// Where a block is, in few bytes.
#[derive(Clone, Copy, Debug)]
struct PointSlot {
    hash: u64,
    /// Position in `extents`.
    extent: u32,
    /// Position in the extent; below [`dalsegno_core::MAX_EXTENT_BLOCKS`].
    block: u16,
    is_removed: bool,
}

#[derive(Debug, Default)]
struct Entries {
    points: HashTable<PointSlot>,
    /// What points lead to, in the order of arrival.
    extents: Vec<Arc<Extent>>,
    orders: BTreeMap<OrderKey, Option<Arc<Record>>>,
    forks: BTreeSet<ForkKey>,
}

/// The newest entries of the tree.
#[derive(Debug, Default)]
pub(crate) struct Memtable {
    entries: RwLock<Entries>,
    bytes: AtomicU64,
}

/// Eight bytes of a cryptographic hash spread as well as a hash of all; the namespace keeps those apart that use the
/// same hashes.
fn hash_of(namespace: &NamespaceId, hash: &[u8]) -> u64 {
    let word = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().expect("16 bytes"));
    word(hash) ^ word(&namespace.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Entries {
    fn hash_at(&self, slot: &PointSlot) -> &ChainHash {
        &self.extents[slot.extent as usize].hashes[usize::from(slot.block)]
    }

    fn find(&self, hash: u64, key: &PointKey) -> Option<&PointSlot> {
        self.points.find(hash, |slot| {
            slot.hash == hash
                && self.extents[slot.extent as usize].namespace == key.namespace
                && self.hash_at(slot).0[..key.hash.len()] == key.hash
        })
    }

    fn change_points(&mut self, change: PointChange) {
        let PointChange { extent, blocks, are_removed } = change;
        let number = u32::try_from(self.extents.len()).expect("a memtable is far below 4 GiB");
        let namespace = extent.namespace;
        self.extents.push(Arc::clone(&extent));
        for block in blocks {
            let chain_hash = &extent.hashes[block as usize];
            let hash = hash_of(&namespace, &chain_hash.0);
            let key = PointKey::of(namespace, chain_hash);
            let block = u16::try_from(block).expect("at most MAX_EXTENT_BLOCKS");
            let slot = PointSlot { hash, extent: number, block, is_removed: are_removed };
            let extents = &self.extents;
            let is_same = |found: &PointSlot| {
                let extent = &extents[found.extent as usize];
                found.hash == hash
                    && extent.namespace == namespace
                    && short(&extent.hashes[usize::from(found.block)]) == key.hash
            };
            match self.points.find_mut(hash, is_same) {
                Some(found) => *found = slot,
                None => drop(self.points.insert_unique(hash, slot, |slot| slot.hash)),
            }
        }
    }

    /// Sorted points of each namespace: the first bytes of their hash, and where they are.
    fn sorted_points(&self) -> BTreeMap<NamespaceId, Vec<(u64, PointSlot)>> {
        let mut sorted: BTreeMap<NamespaceId, Vec<(u64, PointSlot)>> = BTreeMap::new();
        for slot in &self.points {
            let namespace = self.extents[slot.extent as usize].namespace;
            let first = u64::from_be_bytes(*self.hash_at(slot).0.first_chunk().expect("longer"));
            sorted.entry(namespace).or_default().push((first, *slot));
        }
        for points in sorted.values_mut() {
            points.sort_unstable_by(|(one, one_slot), (two, two_slot)| {
                one.cmp(two).then_with(|| self.hash_at(one_slot).0.cmp(&self.hash_at(two_slot).0))
            });
        }
        sorted
    }
}

impl Memtable {
    /// Makes a batch visible.
    pub(crate) fn apply(&self, batch: Batch) {
        let mut bytes = 0;
        let mut entries = self.entries.write();
        for change in batch.points {
            bytes += EXTENT_BYTES + 32 * change.extent.hashes.len() as u64;
            bytes += POINT_BYTES * change.blocks.len() as u64;
            entries.change_points(change);
        }
        for (key, record) in batch.orders {
            bytes += ENTRY_BYTES;
            entries.orders.insert(key, record);
        }
        for key in batch.forks {
            bytes += ENTRY_BYTES;
            entries.forks.insert(key);
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of memory, roughly.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// For several look-ups in one state.
    pub(crate) fn look(&self) -> MemtableView<'_> {
        MemtableView(self.entries.read())
    }

    /// `Some(None)` if the extent was removed.
    pub(crate) fn order(&self, key: &OrderKey) -> Option<Option<Arc<Record>>> {
        self.entries.read().orders.get(key).cloned()
    }

    /// At most `limit` entries of order from `from` on.
    pub(crate) fn orders(
        &self,
        from: &OrderKey,
        limit: usize,
    ) -> Vec<(OrderKey, Option<Arc<Record>>)> {
        let entries = self.entries.read();
        let range = entries.orders.range(from..).take(limit);
        range.map(|(key, record)| (*key, record.clone())).collect()
    }

    /// At most `limit` forks from `from` on.
    pub(crate) fn forks(&self, from: &ForkKey, limit: usize) -> Vec<ForkKey> {
        self.entries.read().forks.range(from..).take(limit).copied().collect()
    }

    /// Everything in the order of keys, encoded, as a table takes it. For a frozen memtable.
    pub(crate) fn drain_sorted(&self, mut each: impl FnMut(&[u8], &[u8])) {
        let entries = self.entries.read();
        for key in &entries.forks {
            each(&key.encode(), &[]);
        }
        let mut value = Vec::new();
        for (key, record) in &entries.orders {
            value.clear();
            if let Some(record) = record {
                record.encode_to(&mut value);
            }
            each(&key.encode(), &value);
        }
        for (namespace, points) in entries.sorted_points() {
            for (_, slot) in points {
                value.clear();
                if !slot.is_removed {
                    let extent = &entries.extents[slot.extent as usize];
                    Point::to(extent, slot.block.into()).encode(&mut value);
                }
                each(&PointKey::of(namespace, entries.hash_at(&slot)).encode(), &value);
            }
        }
    }
}

/// A memtable at a moment.
pub(crate) struct MemtableView<'a>(RwLockReadGuard<'a, Entries>);

impl MemtableView<'_> {
    /// Where a block is; `Some(None)` if it was removed.
    pub(crate) fn point(&self, key: &PointKey) -> Option<Option<Point>> {
        if self.0.points.is_empty() {
            return None;
        }
        let slot = self.0.find(hash_of(&key.namespace, &key.hash), key)?;
        let extent = &self.0.extents[slot.extent as usize];
        Some((!slot.is_removed).then(|| Point::to(extent, slot.block.into())))
    }
}
