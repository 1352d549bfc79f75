//! Removing blocks for good.
//!
//! 1. A removal is announced before the index is read, so that a put under way does not publish what it removes.
//! 2. An on-disk index may have to wait for the device. Then the space lane removes the blocks from it, and the caller
//!    waits for the answer within its terms.
//! 3. With a far tier, the removal is published there as well.
//! 4. The lane of records writes and syncs the tombstone, so that a slow sync does not delay a put that needs space
//!    (`background/space.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{ChainHash, IndexChoice, MAX_EXTENT_BLOCKS, NamespaceId, Result};
use dalsegno_index::Scope;
use dalsegno_log::{Call, Log, LogError, Removals};

use crate::api::terms::Terms;
use crate::background::evict::make_space;
use crate::background::helper::JobLane;
use crate::background::space::SpaceLane;
use crate::engine::Engine;
use crate::error::to_error;
use crate::far::lanes::FarLanes;
use crate::read::lookup::lookup_limit;
use crate::read::whereabouts::Whereabouts;
use crate::stats::add;

/// Removes blocks.
pub(crate) struct Remover<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) space: &'a Arc<SpaceLane>,
    pub(crate) records: &'a JobLane,
    /// Where the removal is published, unless it came from there.
    pub(crate) far: Option<&'a FarLanes>,
}

impl Remover<'_> {
    /// See [`Store::remove`](crate::Store::remove).
    pub(crate) fn remove(
        &self,
        namespace: NamespaceId,
        hashes: Option<&[ChainHash]>,
        terms: &Terms,
    ) -> Result<u64> {
        let call = terms.call(self.engine.clock.as_ref());
        let only_far = self.count_far(namespace, hashes.unwrap_or_default());
        let removed = match hashes {
            None => self.remove_part(namespace, &[], &call),
            Some(hashes) => {
                let parts = hashes.chunks(MAX_EXTENT_BLOCKS as usize);
                // All parts, also behind one that could not be made durable.
                let removed: Vec<_> =
                    parts.map(|part| self.remove_part(namespace, part, &call)).collect();
                removed.into_iter().sum()
            }
        };
        // Also if it could not be made durable here.
        let clock = self.engine.clock.as_ref();
        let far = self.far.map_or(Ok(()), |far| far.remove(namespace, hashes, (&call, clock)));
        let removed = removed?;
        far.map(|()| removed + only_far)
    }

    /// How many blocks only the far location has.
    fn count_far(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> u64 {
        if self.far.is_none() {
            return 0;
        }
        let wait = lookup_limit(self.engine);
        let found = Whereabouts::find(self.engine, namespace, hashes, Scope::Each, wait);
        found.far.len() as u64
    }

    /// Removes blocks that fit one record, or the whole namespace if there are none.
    ///
    /// First the removal is announced, so that a put under way does not publish the blocks afterwards. Then they leave
    /// the index, then DRAM, so that a get under way does not bring them back.
    fn remove_part(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        call: &Call,
    ) -> Result<u64> {
        let engine = self.engine;
        engine.front.removals.note(namespace, hashes);
        let number = engine.log.removals().begin(namespace, hashes);
        let announced = AnnouncedRemoval { log: engine.log.clone(), number };
        let removed = Arc::new(AtomicU64::new(0));
        let mut left = None;
        if engine.limits.index == IndexChoice::Memory {
            removed.store(take_out(engine, namespace, hashes), Ordering::Relaxed);
        } else {
            // It may have to wait for the device.
            left = Some((hashes.to_vec(), Arc::clone(&removed)));
        }
        let bytes = Removals::bytes_for(hashes.len());
        let prepare = move |engine: &Engine| {
            if let Some((hashes, removed)) = left {
                removed.store(take_out(engine, namespace, &hashes), Ordering::Relaxed);
            }
            // A removal goes on without: it may use the reserve.
            if let Err(error) = make_space(engine, bytes) {
                tracing::debug!(%error, "no space freed for a removal");
            }
            // In an emptied index all blocks look dead to the next job of this lane. So writing stops first.
            if engine.index_care.is_emptied() { finish(engine, number) } else { Ok(()) }
        };
        let (space, job_engine) = (Arc::clone(self.space), Arc::clone(engine));
        let record = move || {
            space.run_blocking(&Call::background(), prepare)?;
            finish(&job_engine, announced.number)
        };
        self.records.run_blocking(call, engine.clock.as_ref(), record).map_err(to_error)?;
        Ok(removed.load(Ordering::Relaxed))
    }
}

/// Makes an announced removal durable, unless that was done.
fn finish(engine: &Engine, number: u64) -> std::result::Result<(), LogError> {
    let finished = engine.log.removals().finish(number);
    engine.index_care.condemn_if_emptied();
    finished
}

/// Removes blocks, or a namespace if there are none, from the index and from DRAM; returns how many were there.
fn take_out(engine: &Engine, namespace: NamespaceId, hashes: &[ChainHash]) -> u64 {
    let front = &engine.front;
    let removed = if hashes.is_empty() {
        let removed = engine.index.remove_namespace(namespace);
        front.removals.note(namespace, hashes);
        front.dram.remove_namespace(namespace);
        if removed.blocks > 0 {
            front.removal_feed.note_gap();
        }
        removed
    } else {
        let removed = engine.index.remove_blocks(namespace, hashes);
        front.removals.note(namespace, hashes);
        front.dram.remove(namespace, hashes);
        if removed.blocks > 0 {
            front.removal_feed.note(namespace, hashes);
        }
        removed
    };
    for id in &removed.extents {
        engine.log.forget(*id);
    }
    add(&engine.counters.removed_blocks, removed.blocks);
    removed.blocks
}

/// A removal that was announced, until it is finished or abandoned.
struct AnnouncedRemoval {
    log: Log,
    number: u64,
}

impl Drop for AnnouncedRemoval {
    fn drop(&mut self) {
        self.log.removals().abandon(self.number);
    }
}
