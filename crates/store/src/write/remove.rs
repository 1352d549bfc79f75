//! Removing blocks for good.
//!
//! 1. A removal is announced before the index is read, so that a put under way does not publish what it removes.
//! 2. An on-disk index may have to wait for the device. Then the space lane removes the blocks from it, and the caller
//!    waits for the answer within its terms.
//! 3. With a far tier, the removal is published there as well. A store that used a far tier before notes it for the
//!    next open that has one.
//! 4. The lane of records writes and syncs the tombstone, so that a slow sync does not delay a put that needs space
//!    (`background/space.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{
    ChainHash, Error, ErrorKind, IndexChoice, MAX_EXTENT_BLOCKS, NamespaceId, Result,
};
use dalsegno_far::Removal;
use dalsegno_index::Scope;
use dalsegno_log::{Call, Log, LogError, Removals};

use crate::api::terms::Terms;
use crate::background::evict::make_space;
use crate::background::helper::JobLane;
use crate::background::space::SpaceLane;
use crate::engine::Engine;
use crate::error::to_error;
use crate::far::lanes::FarLanes;
use crate::far::removal_notes::{Incomplete, OwnRemoval};
use crate::read::lookup::lookup_limit;
use crate::read::whereabouts::Whereabouts;
use crate::stats::add;

/// Removes blocks.
pub(crate) struct Remover<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) space: &'a Arc<SpaceLane>,
    pub(crate) records: &'a JobLane,
    pub(crate) origin: RemovalOrigin<'a>,
}

/// Who removes blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RemovalOrigin<'a> {
    /// A caller. Other hosts follow through these threads, if the store has a far location.
    Caller(Option<&'a FarLanes>),
    /// Another store, or this one in an earlier try: nothing is to be published.
    Noted,
}

impl Remover<'_> {
    /// See [`Store::remove`](crate::Store::remove).
    pub(crate) fn remove(
        &self,
        namespace: NamespaceId,
        hashes: Option<&[ChainHash]>,
        terms: &Terms,
    ) -> Result<u64> {
        // No hashes mean the whole namespace further down.
        if hashes.is_some_and(<[ChainHash]>::is_empty) {
            return Ok(0);
        }
        let call = terms.call(self.engine.clock.as_ref());
        let only_far = self.count_far(namespace, hashes.unwrap_or_default());
        let parts: Vec<&[ChainHash]> = match hashes {
            None => vec![&[]],
            Some(hashes) => hashes.chunks(MAX_EXTENT_BLOCKS as usize).collect(),
        };
        let own = self.begin_own(namespace, hashes.unwrap_or_default(), parts.len())?;
        // All parts, also behind one that could not be made durable.
        let removed: Vec<_> = parts
            .into_iter()
            .map(|part| self.remove_part((namespace, part), own.as_ref(), &call))
            .collect();
        let removed: Result<u64> = removed.into_iter().sum();
        // Also if it could not be made durable here.
        let published = own.map_or(Ok(()), |own| self.publish(own, removed.is_ok(), &call));
        let removed = removed?;
        published.map(|()| removed + only_far)
    }

    /// Gives a removal of a caller its name, if other hosts must follow it, and stops finding its blocks at the far
    /// location.
    fn begin_own(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        parts: usize,
    ) -> Result<Option<Arc<OwnRemoval>>> {
        let RemovalOrigin::Caller(_) = self.origin else { return Ok(None) };
        let Some(notes) = &self.engine.front.removal_notes else { return Ok(None) };
        let own = notes.begin(namespace, hashes, parts)?;
        if let Some(far) = &self.engine.far {
            far.remove(&Removal { id: own.id(), namespace, hashes: hashes.to_vec() });
        }
        Ok(Some(own))
    }

    /// Stores that a removal is pending, and waits until it is published.
    fn publish(&self, own: Arc<OwnRemoval>, is_removed: bool, call: &Call) -> Result<()> {
        let Some(notes) = self.engine.front.removal_notes.clone() else { return Ok(()) };
        let RemovalOrigin::Caller(lanes) = self.origin else { return Ok(()) };
        let id = own.id();
        // From here on it counts as applied, if all of its parts are durable.
        drop(own);
        let (engine, of_job) = (Arc::clone(self.engine), Arc::clone(&notes));
        let store = move || of_job.store(engine.log.store_files());
        let stored = if is_removed {
            self.records.run_blocking(call, self.engine.clock.as_ref(), store)
        } else {
            self.records.spawn(move || drop(store()))
        };
        let Some(lanes) = lanes else { return stored.map_err(to_error) };
        let outcome = notes.outcome(id);
        lanes.publish_removals();
        if !is_removed {
            return Ok(());
        }
        match call.receive(&outcome, self.engine.clock.as_ref()) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why @ Incomplete::Unpublished(_))) => Err(self.not_published().with_source(why)),
            Ok(Err(why @ Incomplete::Unnamed(_))) => Err(not_named().with_source(why)),
            Err(late) => Err(self.not_published().with_source(late)),
        }
    }

    fn not_published(&self) -> Error {
        let far = self.engine.limits.far.as_deref().unwrap_or("the far location");
        let message = format!("removed on this host; other hosts follow when {far} responds");
        Error::new(ErrorKind::Unavailable, message)
    }

    /// How many blocks only the far location has.
    fn count_far(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> u64 {
        if !matches!(self.origin, RemovalOrigin::Caller(Some(_))) {
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
        (namespace, hashes): (NamespaceId, &[ChainHash]),
        own: Option<&Arc<OwnRemoval>>,
        call: &Call,
    ) -> Result<u64> {
        let engine = self.engine;
        let own = own.map(Arc::clone);
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
            // All of it, not only its number: the announcement lasts until this job has ended, not its caller.
            let announced = announced;
            space.run_blocking(&Call::background(), prepare)?;
            finish(&job_engine, announced.number)?;
            if let Some(own) = &own {
                own.part_done();
            }
            Ok(())
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

fn not_named() -> Error {
    let message = "removed on all hosts, but the store's device failed: until it can be written, other hosts may not \
                   find what this store puts from now on";
    Error::new(ErrorKind::Unavailable, message)
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
