//! Blocks that left the store, for a caller that publishes what it holds.
//!
//! 1. A block is noted after the index dropped it, and [`RemovalWatch::take`] asks the index again. What it returns is
//!    absent at that moment, so a block that was stored again is not reported.
//! 2. Each watch has a bounded queue. A block that does not fit, and a loss whose blocks are unknown, leave a gap: the
//!    caller then compares everything it published with the store.
//! 3. Without a watch, a removal costs one atomic load.
//! 4. Nothing here waits for a device that does not respond.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use dalsegno_core::{ChainHash, Error, NamespaceId, Result};
use dalsegno_index::{Index, Scope};
use parking_lot::Mutex;

use crate::look_up::{LOOK_UP_PATIENCE, are_found};
use crate::store::{Door, Inner, Store};

/// The largest queue that a watch may ask for: 48 bytes for each block.
pub const MAX_WATCHED_BLOCKS: usize = 1 << 24;

type Key = (NamespaceId, ChainHash);

/// A subscription to the blocks that leave a store. It ends when it is dropped, and does not keep the store open.
#[derive(Debug)]
pub struct RemovalWatch {
    queue: Arc<Queue>,
    door: Weak<Door>,
    /// How much the index had lost at the last call of [`RemovalWatch::take`].
    losses: Mutex<u64>,
}

/// Blocks that left a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removals {
    /// The blocks, oldest first, each at most once. None of them is in the store now.
    pub blocks: Vec<Key>,
    /// Whether these are all that left since the last call, or the oldest of them. If not, other blocks left too, and
    /// nothing says which.
    pub is_complete: bool,
}

#[derive(Debug)]
struct Queue {
    capacity: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    blocks: VecDeque<Key>,
    has_gap: bool,
}

/// The watches of a store.
#[derive(Debug, Default)]
pub(crate) struct RemovalFeed {
    is_watched: AtomicBool,
    queues: Mutex<Vec<Weak<Queue>>>,
}

impl Store {
    /// Starts to note the blocks that leave the store: evicted, quarantined or removed, in any namespace. At most
    /// `capacity` wait to be taken.
    ///
    /// # Errors
    ///
    /// `Invalid` if `capacity` is 0 or above [`MAX_WATCHED_BLOCKS`]; `Closed`.
    pub fn watch_removals(&self, capacity: usize) -> Result<RemovalWatch> {
        if !(1..=MAX_WATCHED_BLOCKS).contains(&capacity) {
            return Err(Error::invalid(format!(
                "capacity is {capacity}; a watch of removals holds 1 to {MAX_WATCHED_BLOCKS} blocks"
            )));
        }
        let inner = self.enter()?;
        let queue = Arc::new(Queue { capacity, waiting: Mutex::default() });
        let losses = Mutex::new(inner.index.losses());
        inner.removal_feed.subscribe(&queue);
        Ok(RemovalWatch { queue, door: Arc::downgrade(&self.door), losses })
    }
}

impl RemovalWatch {
    /// How many blocks wait to be taken; a gap counts as one, and as long as the device does not respond none waits.
    /// Never waits for the store.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let Some(store) = self.enter().filter(|store| !store.watch.is_suspended()) else {
            return 0;
        };
        let is_lost = store.index.losses() != *self.losses.lock();
        let waiting = self.queue.waiting.lock();
        waiting.blocks.len() + usize::from(waiting.has_gap || is_lost)
    }

    /// Takes the oldest blocks, at most `limit`. Waits a moment for files of an on-disk index; if they cannot be read
    /// in time there are none, and they are there at the next call. After the store was closed, and in a forked child,
    /// there are none, and a gap.
    #[must_use]
    pub fn take(&self, limit: usize) -> Removals {
        let Some(store) = self.enter() else {
            return Removals { blocks: Vec::new(), is_complete: false };
        };
        if store.watch.is_suspended() {
            return Removals { blocks: Vec::new(), is_complete: true };
        }
        let (taken, has_gap) = {
            let waiting = &mut *self.queue.waiting.lock();
            let count = limit.min(waiting.blocks.len());
            let taken: Vec<Key> = waiting.blocks.drain(..count).collect();
            (taken, std::mem::take(&mut waiting.has_gap))
        };
        let lost = store.index.losses();
        let lost_before = std::mem::replace(&mut *self.losses.lock(), lost);
        let is_complete = !has_gap && lost == lost_before;
        let began = store.clock.now();
        let blocks = store.look_up(|index| absent(index, &taken));
        if store.clock.now() >= began.after(LOOK_UP_PATIENCE) {
            // What was not found in time may be there.
            self.queue.put_back(taken);
            return Removals { blocks: Vec::new(), is_complete };
        }
        Removals { blocks, is_complete }
    }

    /// The store, unless it was closed or this is a forked child.
    fn enter(&self) -> Option<Arc<Inner>> {
        self.door.upgrade()?.enter()
    }
}

impl Queue {
    /// Puts blocks back to where they were taken from, as far as they fit.
    fn put_back(&self, taken: Vec<Key>) {
        let waiting = &mut *self.waiting.lock();
        let free = self.capacity.saturating_sub(waiting.blocks.len());
        waiting.has_gap |= free < taken.len();
        for key in taken.into_iter().take(free).rev() {
            waiting.blocks.push_front(key);
        }
    }
}

/// Those of some blocks that the index does not have, each once.
fn absent(index: &dyn Index, taken: &[Key]) -> Vec<Key> {
    let mut seen = std::collections::HashSet::with_capacity(taken.len());
    let mut gone = Vec::with_capacity(taken.len());
    // Blocks of an extent leave together, so neighbours mostly share a namespace.
    for group in taken.chunk_by(|a, b| a.0 == b.0) {
        let (namespace, hashes) = (group[0].0, group.iter().map(|key| key.1).collect::<Vec<_>>());
        let found = are_found(hashes.len(), &index.resolve(namespace, &hashes, Scope::Each));
        let left = group.iter().zip(found).filter(|(_, is_found)| !is_found);
        gone.extend(left.map(|(key, _)| *key).filter(|key| seen.insert(*key)));
    }
    gone
}

impl RemovalFeed {
    fn subscribe(&self, queue: &Arc<Queue>) {
        let queues = &mut *self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
        self.is_watched.store(true, Ordering::Release);
    }

    /// Notes blocks that the index dropped just now.
    pub(crate) fn note(&self, namespace: NamespaceId, hashes: &[ChainHash]) {
        self.for_each(|queue| {
            let waiting = &mut *queue.waiting.lock();
            let free = queue.capacity - waiting.blocks.len();
            let fitting = &hashes[..hashes.len().min(free)];
            waiting.blocks.extend(fitting.iter().map(|hash| (namespace, *hash)));
            waiting.has_gap |= fitting.len() < hashes.len();
        });
    }

    /// Notes that blocks left of which only the number is known.
    pub(crate) fn note_gap(&self) {
        self.for_each(|queue| queue.waiting.lock().has_gap = true);
    }

    fn for_each(&self, note: impl Fn(&Queue)) {
        if !self.is_watched.load(Ordering::Acquire) {
            return;
        }
        let queues = &mut *self.queues.lock();
        queues.retain(|queue| {
            queue.upgrade().is_some_and(|queue| {
                note(&queue);
                true
            })
        });
        if queues.is_empty() {
            self.is_watched.store(false, Ordering::Release);
        }
    }
}
