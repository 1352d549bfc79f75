//! A cache bounded in bytes that resists scans: S3-FIFO (Yang et al., "FIFO queues are all you need for cache
//! eviction", SOSP 2023), with bytes in place of item counts.
//!
//! A new item enters a small queue. It moves to the main queue if it was requested meanwhile, or if it returns soon
//! after it was dropped (a ghost remembers its name). In the main queue each hit buys another lap.
//!
//! 1. `small + main <= capacity` in bytes, before and after every call.
//! 2. A key is in exactly one place: small, main, ghost or nowhere. One map points to one slot on one list.
//! 3. The ghost holds only names: at most [`GHOST_COUNT`], and never for more bytes than the capacity.
//! 4. Amortised O(1): an earlier hit pays for each lap of an item, at most [`MAX_FREQUENCY`].
//! 5. An item remembers which one was wanted after it. That is a guess: the key in the slot decides.

use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::lists::{Lists, Slot};

/// Share of the capacity that new items may fill before the small queue evicts, as a divisor (the paper's 10%).
const SMALL_SHARE: u64 = 10;
/// Most hits that an item remembers.
const MAX_FREQUENCY: u8 = 3;
/// Hits in the small queue that lead to the main queue. The paper's text requires two. A block is hit once per turn of
/// a conversation, and on replayed chains of real requests one and two differ by about a point, either way.
const PROMOTION_FREQUENCY: u8 = 1;
/// Most names in the ghost. It bounds the ghost even if items are tiny.
const GHOST_COUNT: usize = 1 << 16;

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOST: usize = 2;

/// Counters of a cache since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct S3FifoStats {
    /// Calls of [`S3Fifo::get`] that found their key.
    pub hits: u64,
    /// Calls of [`S3Fifo::get`] that did not.
    pub misses: u64,
    /// Items inserted, including replacements.
    pub inserted: u64,
    /// Inserted items that the ghost still remembered.
    pub returned: u64,
    /// Items that moved from the small to the main queue.
    pub promoted: u64,
    /// Items dropped for space.
    pub evicted: u64,
    /// Items larger than the whole cache.
    pub refused: u64,
}

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    /// `None` in the ghost.
    value: Option<V>,
    bytes: u64,
    frequency: u8,
    /// The item that was wanted, or inserted, after this one.
    next: Slot,
}

/// A byte-weighted S3-FIFO cache. It holds the values and decides only which ones to drop.
///
/// ```
/// use dalsegno_policy::S3Fifo;
///
/// let mut cache = S3Fifo::new(10);
/// cache.insert("a", 1, 4);
/// cache.insert("b", 2, 4);
/// assert_eq!(cache.get(&"a"), Some(&1));
/// // "c" does not fit: "a" was hit, so "b" leaves.
/// assert_eq!(cache.insert("c", 3, 4), [("b", 2)]);
/// ```
#[derive(Debug)]
pub struct S3Fifo<K, V> {
    // Never iterated in an order that matters, so the random seed cannot reach a decision. It has slots and not keys:
    // a lookup reads a few bytes here, and then the item that it wants anyway.
    slots: HashTable<Slot>,
    hasher: DefaultHashBuilder,
    /// The item that was inserted last; [`Slot::NONE`] before the first.
    newest: Slot,
    lists: Lists<Entry<K, V>, 3>,
    /// Bytes on each list.
    held_bytes: [u64; 3],
    capacity_bytes: u64,
    ghost_count: usize,
    stats: S3FifoStats,
}

impl<K: Copy + Eq + Hash, V> S3Fifo<K, V> {
    /// An empty cache of at most `capacity_bytes`. With 0 it refuses every item.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            slots: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            newest: Slot::NONE,
            lists: Lists::new(),
            held_bytes: [0; 3],
            capacity_bytes,
            ghost_count: GHOST_COUNT,
            stats: S3FifoStats::default(),
        }
    }

    /// Inserts an item of `bytes`. Returns every pair that left for it, oldest first.
    ///
    /// An earlier value of the key is among the returned pairs, and its hits are kept. An item larger than the capacity
    /// is returned as the last pair, so a caller that frees returned pairs needs no second path. An item weighs at
    /// least one byte, so that the number of items is bounded as well.
    pub fn insert(&mut self, key: K, value: V, bytes: u64) -> Vec<(K, V)> {
        let bytes = bytes.max(1);
        let mut leaving = Vec::new();
        let (mut list, mut frequency) = (SMALL, 0);
        if let Some((was_on, entry)) = self.take_out(&key) {
            if was_on == GHOST {
                list = MAIN;
                self.stats.returned += u64::from(bytes <= self.capacity_bytes);
            } else {
                (list, frequency) = (was_on, entry.frequency);
            }
            leaving.extend(entry.value.map(|value| (key, value)));
        }
        if bytes > self.capacity_bytes {
            self.stats.refused += 1;
            leaving.push((key, value));
        } else {
            self.make_space(bytes, &mut leaving);
            self.held_bytes[list] += bytes;
            let next = Slot::NONE;
            let entry = Entry { key, value: Some(value), bytes, frequency, next };
            let slot = self.lists.push(list, entry);
            self.name(slot);
            self.follow(self.newest, slot);
            self.newest = slot;
            self.stats.inserted += 1;
        }
        self.check();
        leaving
    }

    /// The value of a key. Counts as a hit or a miss.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        let slot = self.slot_of(key).filter(|slot| self.hit(*slot));
        self.stats.misses += u64::from(slot.is_none());
        self.lists.item(slot?).value.as_ref()
    }

    /// The values of some keys, as [`S3Fifo::get`] finds each. Keys in an order in which they were wanted before, or
    /// inserted, are found without a lookup.
    pub fn get_each(&mut self, keys: impl ExactSizeIterator<Item = K>) -> Vec<Option<V>>
    where
        V: Clone,
    {
        let mut slots = Vec::with_capacity(keys.len());
        let mut before = Slot::NONE;
        for key in keys {
            let guess = self.slot_behind(before, &key);
            let slot = guess.or_else(|| self.slot_of(&key));
            if let Some(slot) = slot {
                if guess.is_none() {
                    self.follow(before, slot);
                }
                before = slot;
            }
            let slot = slot.filter(|slot| self.hit(*slot));
            self.stats.misses += u64::from(slot.is_none());
            slots.push(slot);
        }
        // Apart from the search, so that counting references does not stop the processor from reading ahead there.
        slots.into_iter().map(|slot| self.lists.item(slot?).value.clone()).collect()
    }

    /// The value of a key, without counting: a probe cannot keep an item alive.
    pub fn peek(&self, key: &K) -> Option<&V> {
        self.lists.item(self.resident(key)?).value.as_ref()
    }

    /// Which of some keys have a value, without counting. Keys in an order in which they were wanted before, or
    /// inserted, are found without a lookup.
    pub fn holds_each(&self, keys: impl Iterator<Item = K>) -> Vec<bool> {
        let mut before = Slot::NONE;
        let holds = |key: K| {
            let slot = self.slot_behind(before, &key).or_else(|| self.slot_of(&key));
            before = slot.unwrap_or(before);
            slot.is_some_and(|slot| self.lists.list_of(slot) != GHOST)
        };
        keys.map(holds).collect()
    }

    /// Removes an item and forgets its key, in the ghost as well.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (_, entry) = self.take_out(key)?;
        self.check();
        entry.value
    }

    /// Removes every item whose key is gone and forgets these keys, in the ghost as well. Visits every key.
    pub fn remove_all(&mut self, is_gone: impl Fn(&K) -> bool) {
        let keys = self.slots.iter().map(|slot| self.lists.item(*slot).key);
        let gone: Vec<K> = keys.filter(|key| is_gone(key)).collect();
        // The order in which they leave does not matter: the others keep theirs.
        for key in &gone {
            self.take_out(key);
        }
        self.check();
    }

    /// Drops the pair that would leave next, or returns `None` if nothing is held.
    pub fn evict(&mut self) -> Option<(K, V)> {
        let mut leaving = Vec::new();
        while leaving.is_empty() && !self.is_empty() {
            self.step(&mut leaving);
        }
        self.check();
        leaving.pop()
    }

    /// Drops the next pair of the small queue, or returns `None` if it holds none that was not requested again. The
    /// main queue drops nothing, so memory for items that are not inserted yet costs none of its items.
    pub fn evict_newcomer(&mut self) -> Option<(K, V)> {
        let mut leaving = Vec::new();
        while leaving.is_empty() && self.lists.len(SMALL) > 0 {
            self.step_small(&mut leaving);
        }
        self.check();
        leaving.pop()
    }

    /// Number of items, without names in the ghost.
    pub fn len(&self) -> usize {
        self.lists.len(SMALL) + self.lists.len(MAIN)
    }

    /// Whether no item is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.held_bytes[SMALL] + self.held_bytes[MAIN]
    }

    /// Largest number of bytes held.
    pub fn capacity(&self) -> u64 {
        self.capacity_bytes
    }

    /// The counters so far.
    pub fn stats(&self) -> S3FifoStats {
        self.stats
    }

    /// The slot of a key, in the ghost as well.
    fn slot_of(&self, key: &K) -> Option<Slot> {
        let is_key = |slot: &Slot| self.lists.item(*slot).key == *key;
        self.slots.find(self.hasher.hash_one(key), is_key).copied()
    }

    /// The slot of a key that was wanted after the item of `before`, if it was. This is no lookup.
    fn slot_behind(&self, before: Slot, key: &K) -> Option<Slot> {
        let (_, entry) = self.lists.occupant(before)?;
        let is_right = self.lists.occupant(entry.next).is_some_and(|(_, next)| next.key == *key);
        is_right.then_some(entry.next)
    }

    fn resident(&self, key: &K) -> Option<Slot> {
        self.slot_of(key).filter(|slot| self.lists.list_of(*slot) != GHOST)
    }

    /// Counts a request for an item; false if it is only a name in the ghost.
    fn hit(&mut self, slot: Slot) -> bool {
        if self.lists.list_of(slot) == GHOST {
            return false;
        }
        self.stats.hits += 1;
        let entry = self.lists.item_mut(slot);
        entry.frequency = MAX_FREQUENCY.min(entry.frequency + 1);
        true
    }

    /// Remembers that `next` was wanted after the item of `before`, if there still is one.
    fn follow(&mut self, before: Slot, next: Slot) {
        if self.lists.occupant(before).is_some() {
            self.lists.item_mut(before).next = next;
        }
    }

    /// Makes a new item findable.
    fn name(&mut self, slot: Slot) {
        let (lists, hasher) = (&self.lists, &self.hasher);
        let hash_of = |slot: &Slot| hasher.hash_one(lists.item(*slot).key);
        self.slots.insert_unique(hash_of(&slot), slot, hash_of);
    }

    /// Removes an item from its list and from the table.
    fn take(&mut self, slot: Slot) -> (usize, Entry<K, V>) {
        let list = self.lists.list_of(slot);
        let entry = self.lists.take(slot);
        self.held_bytes[list] -= entry.bytes;
        let named = self.slots.find_entry(self.hasher.hash_one(entry.key), |one| *one == slot);
        named.expect("every item is in the table").remove();
        (list, entry)
    }

    fn take_out(&mut self, key: &K) -> Option<(usize, Entry<K, V>)> {
        let slot = self.slot_of(key)?;
        Some(self.take(slot))
    }

    fn make_space(&mut self, wanted_bytes: u64, leaving: &mut Vec<(K, V)>) {
        debug_assert!(wanted_bytes <= self.capacity_bytes, "the item can never fit");
        while wanted_bytes > self.capacity_bytes - self.bytes() {
            self.step(leaving);
        }
    }

    /// Moves or drops one item. Some item is held.
    fn step(&mut self, leaving: &mut Vec<(K, V)>) {
        let newcomers_overflow = self.held_bytes[SMALL] > self.capacity_bytes / SMALL_SHARE;
        if newcomers_overflow || self.lists.len(MAIN) == 0 {
            self.step_small(leaving);
        } else {
            self.step_main(leaving);
        }
    }

    /// Promotes or drops the oldest item of the small queue.
    fn step_small(&mut self, leaving: &mut Vec<(K, V)>) {
        let slot = self.lists.oldest(SMALL).expect("bytes are held, so an item is");
        let entry = self.lists.item_mut(slot);
        if entry.frequency < PROMOTION_FREQUENCY {
            let value = entry.value.take().expect("a resident item has its value");
            leaving.push((entry.key, value));
            self.move_to(slot, GHOST);
            self.stats.evicted += 1;
            self.trim_ghost();
        } else {
            // Its hits in the small queue paid for the move. Laps in the main queue need new ones.
            entry.frequency = 0;
            self.move_to(slot, MAIN);
            self.stats.promoted += 1;
        }
    }

    /// Spends a hit of the main queue's oldest item on another lap, or drops it.
    fn step_main(&mut self, leaving: &mut Vec<(K, V)>) {
        let slot = self.lists.oldest(MAIN).expect("checked by the caller");
        let entry = self.lists.item_mut(slot);
        if entry.frequency > 0 {
            entry.frequency -= 1;
            self.lists.relink(slot, MAIN);
            return;
        }
        let (_, entry) = self.take(slot);
        self.stats.evicted += 1;
        leaving.push((entry.key, entry.value.expect("a resident item has its value")));
    }

    fn move_to(&mut self, slot: Slot, list: usize) {
        let (from, bytes) = (self.lists.list_of(slot), self.lists.item(slot).bytes);
        self.held_bytes[from] -= bytes;
        self.held_bytes[list] += bytes;
        self.lists.relink(slot, list);
    }

    fn trim_ghost(&mut self) {
        while self.lists.len(GHOST) > self.ghost_count
            || self.held_bytes[GHOST] > self.capacity_bytes
        {
            let slot = self.lists.oldest(GHOST).expect("a bound is exceeded, so a name is there");
            self.take(slot);
        }
    }

    /// Checks the invariants that can be checked in O(1).
    fn check(&self) {
        debug_assert!(self.bytes() <= self.capacity_bytes, "more bytes than the capacity");
        debug_assert!(
            self.held_bytes[GHOST] <= self.capacity_bytes,
            "the ghost outgrows its bytes"
        );
        debug_assert!(self.lists.len(GHOST) <= self.ghost_count, "the ghost outgrows its count");
        let listed: usize = [SMALL, MAIN, GHOST].map(|list| self.lists.len(list)).iter().sum();
        debug_assert_eq!(self.slots.len(), listed, "a key is in two places or in none");
    }
}

#[cfg(test)]
mod tests;
