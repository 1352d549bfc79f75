//! Removing blocks for good.
//!
//! 1. A removal is announced before the index is looked at, so that a put under way does not publish what it removes.
//! 2. An index on disk may have to wait for the device; then the thread that makes room does, and the caller waits for
//!    its answer within its terms.
//! 3. The tombstone is written and synced by the recording thread, so that a sync that takes long keeps no put of
//!    others waiting for room (`room.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{ChainHash, IndexChoice, NamespaceId, Result};
use dalsegno_log::{Call, Log, LogError, Removals};

use crate::stats::add;
use crate::store::{Inner, Store, to_error};
use crate::terms::Terms;

impl Store {
    /// Removes blocks (all of the namespace if `hashes` is `None`) for good: they stay gone after the next open.
    /// Returns how many were there.
    ///
    /// # Errors
    ///
    /// `Poisoned`, `Unavailable` or `Full` if the removal could not be made durable, or was not in time; what was begun
    /// when time was up goes on. The blocks are gone at once all the same, until the store is closed; but with an index
    /// in files that is when the device has answered.
    pub fn remove(
        &self,
        namespace: NamespaceId,
        hashes: Option<&[ChainHash]>,
        terms: &Terms,
    ) -> Result<u64> {
        let inner = self.enter()?;
        let call = terms.call(inner.clock.as_ref());
        match hashes {
            None => inner.remove_part(namespace, &[], &call),
            Some(hashes) => {
                let parts = hashes.chunks(dalsegno_core::MAX_EXTENT_BLOCKS as usize);
                // All parts, also behind one that could not be made durable.
                let removed: Vec<_> =
                    parts.map(|part| inner.remove_part(namespace, part, &call)).collect();
                removed.into_iter().sum()
            }
        }
    }
}

impl Inner {
    /// Removes blocks that fit one record, or the whole namespace if there are none.
    ///
    /// Announced first, so that a put under way does not publish them afterwards; then the index, then DRAM, so that a
    /// get under way does not bring them back.
    fn remove_part(
        self: &Arc<Self>,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        call: &Call,
    ) -> Result<u64> {
        let number = self.log.removals().begin(namespace, hashes);
        let announced = Announced { log: self.log.clone(), number };
        let removed = Arc::new(AtomicU64::new(0));
        let mut left = None;
        if self.limits.index == IndexChoice::Memory {
            removed.store(self.take_out(namespace, hashes), Ordering::Relaxed);
        } else {
            // It may have to wait for the device.
            left = Some((hashes.to_vec(), Arc::clone(&removed)));
        }
        let bytes = Removals::bytes_for(hashes.len());
        let prepare = move |inner: &Self, call: &Call| {
            if let Some((hashes, removed)) = left {
                removed.store(inner.take_out(namespace, &hashes), Ordering::Relaxed);
            }
            // A removal goes on without: it may use the reserve.
            if let Err(error) = inner.make_room(bytes, call) {
                tracing::debug!("no room could be made for a removal: {error}");
            }
            // In an emptied index all blocks look dead to the next task of this lane. So writing stops first.
            if inner.upkeep.is_emptied() { inner.finish_removal(number) } else { Ok(()) }
        };
        let finish = move |inner: &Arc<Self>, call: &Call| {
            inner.have_done(call, prepare)?;
            inner.finish_removal(announced.number)
        };
        self.have_recorded(call, finish).map_err(to_error)?;
        Ok(removed.load(Ordering::Relaxed))
    }

    /// Makes an announced removal durable, unless that was done.
    fn finish_removal(&self, number: u64) -> std::result::Result<(), LogError> {
        let finished = self.log.removals().finish(number);
        self.upkeep.give_up_if_emptied();
        finished
    }

    /// Takes blocks, or a namespace if there are none, out of the index and of DRAM; returns how many were there.
    fn take_out(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> u64 {
        let removed = if hashes.is_empty() {
            let removed = self.index.remove_namespace(namespace);
            self.dram.remove_namespace(namespace);
            if removed.blocks > 0 {
                self.removal_feed.note_gap();
            }
            removed
        } else {
            let removed = self.index.remove_blocks(namespace, hashes);
            self.dram.remove(namespace, hashes);
            if removed.blocks > 0 {
                self.removal_feed.note(namespace, hashes);
            }
            removed
        };
        for id in &removed.extents {
            self.log.forget(*id);
        }
        add(&self.counters.removed_blocks, removed.blocks);
        removed.blocks
    }
}

/// A removal that was announced, until it is finished or called off.
struct Announced {
    log: Log,
    number: u64,
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.log.removals().abandon(self.number);
    }
}
