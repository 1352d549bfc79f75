//! A subscription to the blocks that leave the store, for a caller that publishes what it holds.
//!
//! 1. [`RemovalWatch::take`] looks each noted block up again. The blocks that it returns are absent at that moment, so
//!    a block that was stored again is not reported.
//! 2. After a gap the caller compares everything that it published with the store.
//! 3. Nothing here waits longer than a lookup for a device that does not respond.

use std::sync::{Arc, Weak};

use dalsegno_core::{Error, Result};
use parking_lot::Mutex;

use crate::api::door::Door;
use crate::block_key::BlockKey;
use crate::open::open_store::OpenStore;
use crate::state::removal_feed::RemovalQueue;

/// The largest queue that a watch may ask for: 48 bytes for each block.
pub const MAX_WATCHED_BLOCKS: usize = 1 << 24;

/// A subscription to the blocks that leave a store. It ends when it is dropped, and does not keep the store open.
#[derive(Debug)]
pub struct RemovalWatch {
    queue: Arc<RemovalQueue>,
    door: Weak<Door>,
    /// How much the index had lost at the last call of [`RemovalWatch::take`].
    losses: Mutex<u64>,
}

/// Blocks that left a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removals {
    /// The blocks, oldest first, each at most once. None of them is in the store now.
    pub blocks: Vec<BlockKey>,
    /// Whether these are all that left since the last call, or the oldest of them. If not, other blocks left too, and
    /// nothing says which.
    pub is_complete: bool,
}

impl RemovalWatch {
    /// See [`Store::watch_removals`](crate::Store::watch_removals).
    pub(crate) fn of(door: &Arc<Door>, capacity: usize) -> Result<Self> {
        if !(1..=MAX_WATCHED_BLOCKS).contains(&capacity) {
            return Err(Error::invalid(format!(
                "capacity is {capacity}; a watch of removals holds 1 to {MAX_WATCHED_BLOCKS} blocks"
            )));
        }
        let store = door.enter()?;
        let losses = Mutex::new(store.lookups.losses());
        let queue = store.feed.subscribe(capacity);
        Ok(Self { queue, door: Arc::downgrade(door), losses })
    }

    /// How many blocks wait to be taken. A gap counts as one; while the device does not respond the number is 0. Never
    /// waits for the store.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let Some(store) = self.enter().filter(|store| !store.lookups.device.is_suspended()) else {
            return 0;
        };
        self.queue.waiting(store.lookups.losses() != *self.losses.lock())
    }

    /// Takes the oldest blocks, at most `limit`. Waits at most 100 ms for files of an on-disk index. If they cannot be
    /// read in time, it returns no blocks, and the next call does. After the store was closed, and in a forked child,
    /// it returns no blocks and a gap.
    #[must_use]
    pub fn take(&self, limit: usize) -> Removals {
        let Some(store) = self.enter() else {
            return Removals { blocks: Vec::new(), is_complete: false };
        };
        let lookups = &store.lookups;
        if lookups.device.is_suspended() {
            return Removals { blocks: Vec::new(), is_complete: true };
        }
        let (taken, has_gap) = self.queue.take(limit);
        let lost = lookups.losses();
        let lost_before = std::mem::replace(&mut *self.losses.lock(), lost);
        let is_complete = !has_gap && lost == lost_before;
        let blocks = lookups.absent(&taken).unwrap_or_else(|| {
            self.queue.put_back(taken);
            Vec::new()
        });
        Removals { blocks, is_complete }
    }

    /// The store, unless it was closed or this is a forked child.
    fn enter(&self) -> Option<Arc<OpenStore>> {
        self.door.upgrade()?.enter().ok()
    }
}
