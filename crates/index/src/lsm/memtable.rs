//! What was written since the last table: in memory, found at once by readers.
//!
//! 1. Points are hints and may come before what they lead to; an entry of order and forks comes whole with its batch.
//! 2. Once it is frozen nothing changes any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::keys::{ForkKey, OrderKey, Point, PointKey};

/// Writers and readers of different shards do not meet.
const SHARDS: usize = 16;
/// What an entry costs besides its value, roughly: key, pointers, allocation.
const ENTRY_BYTES: u64 = 120;
/// A point with its place in a hash table that is three quarters full.
const POINT_BYTES: u64 = 120;

/// What a key of order holds: an encoded record, or nothing once the extent was removed.
pub(crate) type OrderValue = std::sync::Arc<[u8]>;

/// Changes that become visible together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) points: Vec<(PointKey, Point)>,
    pub(crate) orders: Vec<(OrderKey, Option<Vec<u8>>)>,
    pub(crate) forks: Vec<ForkKey>,
}

#[derive(Debug, Default)]
struct Ordered {
    orders: BTreeMap<OrderKey, OrderValue>,
    forks: BTreeSet<ForkKey>,
}

/// Point keys hold the bytes of a cryptographic hash: eight of them spread as well as a hash of all.
#[derive(Default)]
pub(crate) struct PointHasher(u64);

impl Hasher for PointHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

type Points = HashMap<PointKey, Point, BuildHasherDefault<PointHasher>>;

/// The newest entries of the tree.
#[derive(Debug)]
pub(crate) struct Memtable {
    points: Vec<RwLock<Points>>,
    ordered: RwLock<Ordered>,
    bytes: AtomicU64,
}

impl Default for Memtable {
    fn default() -> Self {
        Self {
            points: (0..SHARDS).map(|_| RwLock::default()).collect(),
            ordered: RwLock::default(),
            bytes: AtomicU64::new(0),
        }
    }
}

fn shard_of(key: &PointKey) -> usize {
    usize::from(key.hash[0]) % SHARDS
}

impl Memtable {
    /// Makes a batch visible: all of its entries of order and forks at once.
    pub(crate) fn apply(&self, batch: Batch) {
        let mut bytes = POINT_BYTES * batch.points.len() as u64;
        for (key, point) in batch.points {
            self.points[shard_of(&key)].write().insert(key, point);
        }
        let mut ordered = self.ordered.write();
        for (key, value) in batch.orders {
            let value = OrderValue::from(value.unwrap_or_default());
            bytes += ENTRY_BYTES + value.len() as u64;
            ordered.orders.insert(key, value);
        }
        for key in batch.forks {
            bytes += ENTRY_BYTES;
            ordered.forks.insert(key);
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of memory, roughly.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn point(&self, key: &PointKey) -> Option<Point> {
        self.points[shard_of(key)].read().get(key).copied()
    }

    /// `Some` of an empty value if the extent was removed.
    pub(crate) fn order(&self, key: &OrderKey) -> Option<OrderValue> {
        self.ordered.read().orders.get(key).cloned()
    }

    /// At most `limit` entries of order from `from` on.
    pub(crate) fn orders(&self, from: &OrderKey, limit: usize) -> Vec<(OrderKey, OrderValue)> {
        let ordered = self.ordered.read();
        let range = ordered.orders.range(from..).take(limit);
        range.map(|(key, value)| (*key, value.clone())).collect()
    }

    /// At most `limit` forks from `from` on.
    pub(crate) fn forks(&self, from: &ForkKey, limit: usize) -> Vec<ForkKey> {
        self.ordered.read().forks.range(from..).take(limit).copied().collect()
    }

    /// Everything in the order of keys, encoded, as a table takes it. For a frozen memtable.
    pub(crate) fn drain_sorted(&self, mut each: impl FnMut(&[u8], &[u8])) {
        let ordered = self.ordered.read();
        for key in &ordered.forks {
            each(&key.encode(), &[]);
        }
        for (key, value) in &ordered.orders {
            each(&key.encode(), value);
        }
        let mut points: Vec<(PointKey, Point)> = Vec::new();
        for shard in &self.points {
            points.extend(shard.read().iter().map(|(key, point)| (*key, *point)));
        }
        points.sort_unstable_by_key(|(key, _)| *key);
        let mut value = Vec::with_capacity(64);
        for (key, point) in points {
            value.clear();
            point.encode(&mut value);
            each(&key.encode(), &value);
        }
    }
}
