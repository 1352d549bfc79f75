//! The blocks that leave the store, for the watches of it.
//!
//! 1. A block is noted after the index dropped it.
//! 2. Each watch has a bounded queue. A block that does not fit leaves a gap, and so does a loss whose blocks are
//!    unknown.
//! 3. Without a watch, a removal costs one atomic load.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use dalsegno_core::{ChainHash, NamespaceId};
use parking_lot::Mutex;

use crate::block_key::BlockKey;

/// The blocks that wait for one watch.
#[derive(Debug)]
pub(crate) struct RemovalQueue {
    capacity: usize,
    waiting: Mutex<WaitingBlocks>,
}

#[derive(Debug, Default)]
struct WaitingBlocks {
    blocks: VecDeque<BlockKey>,
    has_gap: bool,
}

/// The watches of a store.
#[derive(Debug, Default)]
pub(crate) struct RemovalFeed {
    is_watched: AtomicBool,
    queues: Mutex<Vec<Weak<RemovalQueue>>>,
}

impl RemovalQueue {
    /// How many blocks wait; a gap counts as one, and so does `is_lost`.
    pub(crate) fn waiting(&self, is_lost: bool) -> usize {
        let waiting = self.waiting.lock();
        waiting.blocks.len() + usize::from(waiting.has_gap || is_lost)
    }

    /// Takes the oldest blocks, at most `limit`, and whether there was a gap.
    pub(crate) fn take(&self, limit: usize) -> (Vec<BlockKey>, bool) {
        let waiting = &mut *self.waiting.lock();
        let count = limit.min(waiting.blocks.len());
        let taken: Vec<BlockKey> = waiting.blocks.drain(..count).collect();
        (taken, std::mem::take(&mut waiting.has_gap))
    }

    /// Puts blocks back in front, as far as they fit.
    pub(crate) fn put_back(&self, taken: Vec<BlockKey>) {
        let waiting = &mut *self.waiting.lock();
        let free = self.capacity.saturating_sub(waiting.blocks.len());
        waiting.has_gap |= free < taken.len();
        for key in taken.into_iter().take(free).rev() {
            waiting.blocks.push_front(key);
        }
    }
}

impl RemovalFeed {
    /// Adds a queue of `capacity` blocks, until it is dropped.
    pub(crate) fn subscribe(&self, capacity: usize) -> Arc<RemovalQueue> {
        let queue = Arc::new(RemovalQueue { capacity, waiting: Mutex::default() });
        let queues = &mut *self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        self.is_watched.store(true, Ordering::Release);
        queue
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

    /// Notes a loss of which only the number of blocks is known.
    pub(crate) fn note_gap(&self) {
        self.for_each(|queue| queue.waiting.lock().has_gap = true);
    }

    fn for_each(&self, note: impl Fn(&RemovalQueue)) {
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
