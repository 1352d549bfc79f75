//! Entries in memory that no table holds yet.
//!
//! 1. A batch becomes visible as a whole.
//! 2. A frozen memtable does not change.
//! 3. Records are encoded as in tables, and a point references the record that it came with. A block takes 16 bytes in
//!    addition to its hash. All memory except the order of extents returns to the system with the memtable.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::NamespaceId;
use dalsegno_io::{PageAllocator, PageBuffer, PageVec};
use hashbrown::HashTable;
use parking_lot::{RwLock, RwLockReadGuard};

use crate::lsm::format::keys::{ForkKey, HASH_BYTES, OrderKey, Point, PointKey, Record};
use crate::lsm::memtable::batch::{Batch, Change, Newest, PointChange};

/// Approximate memory of a record in addition to its bytes: its slot, and its place in the order.
const RECORD_BYTES: u64 = 200;
/// Memory of a point in a hash table that is two thirds full.
const POINT_BYTES: u64 = 26;
const FORK_BYTES: u64 = 120;
/// Records are stored in chunks of so many bytes, or of their own size if that is larger.
const CHUNK_BYTES: usize = 1 << 20;
/// Points that are fetched together when a memtable is flushed.
const GATHERED: usize = 32;

/// Where a record is, and the fields that points need.
#[derive(Clone, Copy, Debug)]
struct RecordSlot {
    key: OrderKey,
    segment: u64,
    epoch: u64,
    chunk: u32,
    at: u32,
    bytes: u32,
    /// The offset of the hashes in the record.
    hashes_at: u32,
    is_removed: bool,
}

/// A point in few bytes.
#[derive(Clone, Copy, Debug)]
struct PointSlot {
    hash: u64,
    slot: u32,
    /// Position in the extent; below [`dalsegno_core::MAX_EXTENT_BLOCKS`].
    block: u16,
    is_removed: bool,
}

#[derive(Debug)]
struct Entries {
    chunks: Vec<PageBuffer>,
    slots: PageVec<RecordSlot>,
    points: HashTable<PointSlot, PageAllocator>,
    orders: BTreeMap<OrderKey, u32>,
    forks: BTreeSet<ForkKey>,
}

/// The newest entries of the tree.
#[derive(Debug)]
pub(crate) struct Memtable {
    entries: RwLock<Entries>,
    bytes: AtomicU64,
}

impl Default for Memtable {
    fn default() -> Self {
        let entries = Entries {
            chunks: Vec::new(),
            slots: PageVec::new_in(PageAllocator),
            points: HashTable::new_in(PageAllocator),
            orders: BTreeMap::new(),
            forks: BTreeSet::new(),
        };
        Self { entries: RwLock::new(entries), bytes: AtomicU64::new(0) }
    }
}

/// Eight bytes of a cryptographic hash spread as well as all of it. The namespace separates namespaces that use the
/// same hashes.
fn hash_of(key: &PointKey) -> u64 {
    let word = |bytes: &[u8; 16]| u64::from_le_bytes(*bytes.first_chunk().expect("16 bytes"));
    word(&key.hash) ^ word(&key.namespace.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn small(number: usize) -> u32 {
    u32::try_from(number).expect("a memtable is far below 4 GiB")
}

/// The block of a point.
fn key_of(slots: &[RecordSlot], chunks: &[PageBuffer], point: &PointSlot) -> PointKey {
    let slot = &slots[point.slot as usize];
    let at = slot.at as usize + slot.hashes_at as usize + HASH_BYTES * usize::from(point.block);
    let hash = chunks[slot.chunk as usize][at..].first_chunk().expect("inside");
    PointKey { namespace: slot.key.namespace, hash: *hash }
}

impl Entries {
    fn record(&self, slot: &RecordSlot) -> &[u8] {
        &self.chunks[slot.chunk as usize][slot.at as usize..][..slot.bytes as usize]
    }

    fn key_of(&self, point: &PointSlot) -> PointKey {
        key_of(&self.slots, &self.chunks, point)
    }

    fn point_of(&self, point: &PointSlot) -> Newest<Point> {
        if point.is_removed {
            return Newest::Removed;
        }
        let RecordSlot { key, segment, epoch, .. } = self.slots[point.slot as usize];
        let OrderKey { lineage, first, sequence, .. } = key;
        let block = u32::from(point.block);
        Newest::Present(Point { lineage, first, sequence, block, segment, epoch })
    }

    fn find(&self, hash: u64, key: &PointKey) -> Option<&PointSlot> {
        self.points.find(hash, |point| point.hash == hash && self.key_of(point) == *key)
    }

    /// Stores a record and returns its slot.
    fn store(&mut self, record: &Record, value: &[u8]) -> u32 {
        if self.chunks.last().is_none_or(|chunk| chunk.len() + value.len() > chunk.capacity()) {
            let capacity = CHUNK_BYTES.max(value.len());
            self.chunks.push(PageBuffer::with_capacity(capacity));
        }
        let number = small(self.chunks.len() - 1);
        let chunk = self.chunks.last_mut().expect("just made");
        let location = record.extent.location;
        self.slots.push(RecordSlot {
            key: OrderKey::of(&record.extent),
            segment: location.segment,
            epoch: location.epoch,
            chunk: number,
            at: small(chunk.len()),
            bytes: small(value.len()),
            hashes_at: small(value.len() - HASH_BYTES * record.extent.hashes.len()),
            is_removed: record.live.count() == 0,
        });
        chunk.extend_from_slice(value);
        small(self.slots.len() - 1)
    }

    fn change(&mut self, change: &Change, value: &[u8]) {
        let slot = self.store(&change.record, value);
        let extent = &change.record.extent;
        self.orders.insert(OrderKey::of(extent), slot);
        for block in &change.blocks {
            let key = PointKey::of(extent.namespace, &extent.hashes[*block as usize]);
            let hash = hash_of(&key);
            let block = u16::try_from(*block).expect("at most MAX_EXTENT_BLOCKS");
            let point =
                PointSlot { hash, slot, block, is_removed: change.points == PointChange::Remove };
            let (slots, chunks) = (&self.slots, &self.chunks);
            let is_same = |old: &PointSlot| old.hash == hash && key_of(slots, chunks, old) == key;
            match self.points.find_mut(hash, is_same) {
                Some(old) => *old = point,
                None => drop(self.points.insert_unique(hash, point, |point| point.hash)),
            }
        }
    }

    /// The points of each namespace in order, each with the first bytes of its hash.
    fn sorted_points(&self) -> BTreeMap<NamespaceId, PageVec<(u64, PointSlot)>> {
        let mut sorted: BTreeMap<NamespaceId, PageVec<(u64, PointSlot)>> = BTreeMap::new();
        for point in &self.points {
            let PointKey { namespace, hash } = self.key_of(point);
            let first = u64::from_be_bytes(*hash.first_chunk().expect("16 bytes"));
            let of_namespace = sorted.entry(namespace);
            of_namespace.or_insert_with(|| PageVec::new_in(PageAllocator)).push((first, *point));
        }
        for points in sorted.values_mut() {
            points.sort_unstable_by(|(one, one_point), (two, two_point)| {
                let in_full = || self.key_of(one_point).cmp(&self.key_of(two_point));
                one.cmp(two).then_with(in_full)
            });
        }
        sorted
    }
}

impl Memtable {
    /// Makes a batch visible.
    pub(crate) fn apply(&self, batch: Batch) {
        let mut encoded = Vec::new();
        let encode = |change: &Change| {
            let from = encoded.len();
            change.record.encode_to(&mut encoded);
            from..encoded.len()
        };
        let values: Vec<_> = batch.changes.iter().map(encode).collect();
        let mut bytes = encoded.len() as u64;
        let mut entries = self.entries.write();
        for (change, value) in batch.changes.iter().zip(values) {
            bytes += RECORD_BYTES + POINT_BYTES * change.blocks.len() as u64;
            entries.change(change, &encoded[value]);
        }
        bytes += FORK_BYTES * batch.forks.len() as u64;
        entries.forks.extend(batch.forks);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Approximate bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// A view for several lookups, between which nothing changes.
    pub(crate) fn view(&self) -> MemtableView<'_> {
        MemtableView(self.entries.read())
    }

    /// An extent's record.
    pub(crate) fn order(&self, key: &OrderKey) -> Option<Newest<Record>> {
        let entries = self.entries.read();
        let slot = &entries.slots[*entries.orders.get(key)? as usize];
        if slot.is_removed {
            return Some(Newest::Removed);
        }
        let record = Record::decode(key, entries.record(slot)).expect("it was encoded here");
        Some(Newest::Present(record))
    }

    /// At most `limit` order entries from `from` on, with the slots of their values.
    pub(crate) fn orders(&self, from: &OrderKey, limit: usize) -> Vec<(OrderKey, u32)> {
        let entries = self.entries.read();
        entries.orders.range(from..).take(limit).map(|(key, slot)| (*key, *slot)).collect()
    }

    /// Appends the value in a slot that [`Self::orders`] returned; nothing for a removed extent.
    pub(crate) fn value_to(&self, slot: u32, out: &mut Vec<u8>) {
        let entries = self.entries.read();
        let slot = &entries.slots[slot as usize];
        if !slot.is_removed {
            out.extend_from_slice(entries.record(slot));
        }
    }

    /// At most `limit` forks in a range.
    pub(crate) fn forks(&self, range: &Range<ForkKey>, limit: usize) -> Vec<ForkKey> {
        self.entries.read().forks.range(range.clone()).take(limit).copied().collect()
    }

    /// All entries in the order of their keys, encoded as in a table. For a frozen memtable.
    pub(crate) fn drain_sorted(&self, mut each: impl FnMut(&[u8], &[u8])) {
        let entries = self.entries.read();
        for key in &entries.forks {
            each(&key.encode(), &[]);
        }
        for (key, slot) in &entries.orders {
            let slot = &entries.slots[*slot as usize];
            each(&key.encode(), if slot.is_removed { &[] } else { entries.record(slot) });
        }
        let (mut value, mut gathered) = (Vec::new(), Vec::with_capacity(GATHERED));
        for points in entries.sorted_points().values() {
            // Neighbours by hash are far apart in memory. Fetching several together takes the time of one.
            for points in points.chunks(GATHERED) {
                let gather = |point| (entries.key_of(point), entries.point_of(point));
                gathered.clear();
                gathered.extend(points.iter().map(|(_, point)| gather(point)));
                for (key, point) in &gathered {
                    value.clear();
                    if let Newest::Present(point) = point {
                        point.encode(&mut value);
                    }
                    each(&key.encode(), &value);
                }
            }
        }
    }
}

/// A memtable at one moment.
pub(crate) struct MemtableView<'a>(RwLockReadGuard<'a, Entries>);

impl MemtableView<'_> {
    /// Where a block is stored.
    pub(crate) fn point(&self, key: &PointKey) -> Option<Newest<Point>> {
        if self.0.points.is_empty() {
            return None;
        }
        self.0.find(hash_of(key), key).map(|point| self.0.point_of(point))
    }
}
