//! Removing blocks for good.
//!
//! 1. A removal first gets a place in the lane of records. Without one it ends, and nothing is removed. With one it is
//!    carried out to its end, whether its caller waits or not.
//! 2. All of it is announced before the index is read, so that a put in progress does not publish what it removes.
//! 3. An on-disk index may have to wait for the device. So the space lane removes the blocks from it, and lookups
//!    skip them until then.
//! 4. The lane of records writes and syncs the tombstones, so that a slow sync does not delay a put that needs space
//!    (`background/space.rs`).
//! 5. With a far tier, the removal is published there as well. A store that used a far tier before notes it for the
//!    next open that has one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{
    ChainHash, Error, ErrorKind, IndexChoice, MAX_EXTENT_BLOCKS, NamespaceId, Result,
};
use dalsegno_far::{Removal, RemovalId};
use dalsegno_index::Scope;
use dalsegno_io::{Call, IoError, JobLane};
use dalsegno_log::{Log, LogError, Removals};

use crate::background::evict::make_space;
use crate::background::space::SpaceLane;
use crate::engine::Engine;
use crate::error::to_error;
use crate::far::removal_notes::{Incomplete, OwnRemoval};
use crate::jobs::calls::{Answer, keep_place};
use crate::read::lookup::lookup_limit;
use crate::read::whereabouts::Whereabouts;
use crate::state::hidden_blocks::HidingRemoval;
use crate::terms::Terms;

/// Removes blocks.
pub(crate) struct Remover<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) space: &'a Arc<SpaceLane>,
    pub(crate) records: &'a JobLane,
    pub(crate) origin: RemovalOrigin<'a>,
}

/// Publishes the removals that wait.
pub(crate) trait PublishRemovals: std::fmt::Debug {
    /// Starts it, if it waits for something to do. Without threads, does it.
    fn publish_removals(&self);
}

/// Who removes blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RemovalOrigin<'a> {
    /// A caller. Other hosts follow through this, if the store has a far location.
    Caller(Option<&'a dyn PublishRemovals>),
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
        let clock = self.engine.clock.as_ref();
        let call = terms.call(clock);
        let only_far = self.count_far(namespace, hashes.unwrap_or_default());
        let place = keep_place(self.records, &call, clock).map_err(not_begun)?;
        let own = self.begin_own(namespace, hashes.unwrap_or_default())?;
        let id = own.as_ref().map(OwnRemoval::id);
        let parts: Vec<&[ChainHash]> = match hashes {
            None => vec![&[]],
            Some(hashes) => hashes.chunks(MAX_EXTENT_BLOCKS as usize).collect(),
        };
        let job = self.begin_here(namespace, &parts, own);
        let removed = Arc::clone(&job.removed);
        let answer = place.ask(move || job.run());
        let here = match call.receive(&answer, clock) {
            Ok(durable) => durable.map_err(not_durable),
            Err(late) => Err(not_awaited(late)),
        };
        // Also if it is not durable here.
        let published = id.map_or(Ok(()), |id| self.publish(id, here.is_ok(), &call));
        here.and(published).map(|()| removed.load(Ordering::Relaxed) + only_far)
    }

    /// Gives a removal of a caller its name, if other hosts must follow it, and stops finding its blocks at the far
    /// location.
    fn begin_own(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
    ) -> Result<Option<OwnRemoval>> {
        let RemovalOrigin::Caller(_) = self.origin else { return Ok(None) };
        let Some(notes) = &self.engine.front.removal_notes else { return Ok(None) };
        let own = notes.begin(namespace, hashes)?;
        if let Some(far) = &self.engine.far {
            far.remove(&Removal { id: own.id(), namespace, hashes: hashes.to_vec() });
        }
        Ok(Some(own))
    }

    /// Makes other hosts follow a removal, and waits until they can, if it is durable here.
    fn publish(&self, id: RemovalId, is_removed: bool, call: &Call) -> Result<()> {
        let Some(notes) = &self.engine.front.removal_notes else { return Ok(()) };
        let RemovalOrigin::Caller(Some(lanes)) = self.origin else { return Ok(()) };
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
        let deadline = lookup_limit(self.engine);
        let found = Whereabouts::find(self.engine, namespace, hashes, Scope::Each, deadline);
        found.far.len() as u64
    }

    /// Announces a removal, so that a put in progress does not publish its blocks afterwards. Then they leave the
    /// index, then DRAM, so that a get in progress does not bring them back. With an on-disk index, lookups skip them
    /// until its job has run.
    fn begin_here(
        &self,
        namespace: NamespaceId,
        parts: &[&[ChainHash]],
        own: Option<OwnRemoval>,
    ) -> RemovalJob {
        let (engine, front) = (self.engine, &self.engine.front);
        let announce = |hashes: &&[ChainHash]| {
            front.removals.note(namespace, hashes);
            let number = engine.log.removals().begin(namespace, hashes);
            let bytes = Removals::bytes_for(hashes.len());
            AnnouncedPart { log: engine.log.clone(), number, bytes }
        };
        let announced = parts.iter().map(announce).collect();
        let (mut removed, mut in_index) = (0, Vec::new());
        for hashes in parts {
            if engine.limits.index == IndexChoice::Memory {
                removed += front.dropper.remove(namespace, hashes);
            } else {
                in_index.push(front.hidden.hide(namespace, hashes));
            }
        }
        RemovalJob {
            engine: Arc::clone(engine),
            space: Arc::clone(self.space),
            parts: announced,
            in_index,
            removed: Arc::new(AtomicU64::new(removed)),
            own,
            has_far: matches!(self.origin, RemovalOrigin::Caller(Some(_))),
        }
    }
}

/// What is left of a removal that was begun.
struct RemovalJob {
    engine: Arc<Engine>,
    space: Arc<SpaceLane>,
    parts: Vec<AnnouncedPart>,
    /// What the index still has, if it may have to wait for the device.
    in_index: Vec<HidingRemoval>,
    /// How many blocks were there.
    removed: Arc<AtomicU64>,
    own: Option<OwnRemoval>,
    /// Whether the threads of the far location store what is pending, too.
    has_far: bool,
}

/// A part of a removal that fits one record. Its announcement ends when it is dropped.
struct AnnouncedPart {
    log: Log,
    number: u64,
    bytes: u64,
}

impl RemovalJob {
    /// Makes it durable, and stores that its publication is pending.
    fn run(mut self) -> Answer {
        let durable = self.take_out_of_index().and_then(|()| self.write_tombstones());
        let Some(own) = self.own.take() else { return durable };
        // From here on it counts as applied, if it is durable.
        if durable.is_ok() {
            own.end_durable();
        } else {
            drop(own);
        }
        let notes = self.engine.front.removal_notes.as_ref();
        let stored = notes.map_or(Ok(()), |notes| notes.store(self.engine.log.store_files()));
        if self.has_far { durable } else { durable.and(stored) }
    }

    /// Removes the blocks from an on-disk index.
    fn take_out_of_index(&mut self) -> Answer {
        let in_index = std::mem::take(&mut self.in_index);
        if in_index.is_empty() {
            return Ok(());
        }
        let removed = Arc::clone(&self.removed);
        let numbers: Vec<u64> = self.parts.iter().map(|part| part.number).collect();
        self.space.run_blocking(&Call::background(), move |engine| {
            for hiding in in_index {
                let blocks = engine.front.dropper.remove(hiding.namespace(), hiding.hashes());
                removed.fetch_add(blocks, Ordering::Relaxed);
            }
            // In an emptied index all blocks look dead to the next job of this lane. So writing stops first.
            let numbers = if engine.stored.care.is_emptied() { numbers } else { Vec::new() };
            all(numbers.into_iter().map(|number| finish(engine, number)))
        })
    }

    /// Writes what is not durable: all parts, also behind one that fails.
    fn write_tombstones(&self) -> Answer {
        all(self.parts.iter().map(|part| {
            let bytes = part.bytes;
            self.space.run_blocking(&Call::background(), move |engine| {
                // A removal continues without: it may use the reserve.
                if let Err(error) = make_space(engine, bytes) {
                    tracing::debug!(%error, "no space freed for a removal");
                }
                Ok(())
            })?;
            finish(&self.engine, part.number)
        }))
    }
}

/// Carries out all, also behind one that fails; the first error counts.
fn all(answers: impl Iterator<Item = Answer>) -> Answer {
    answers.fold(Ok(()), Answer::and)
}

/// Makes an announced removal durable, unless that was done.
fn finish(engine: &Engine, number: u64) -> std::result::Result<(), LogError> {
    let finished = engine.log.removals().finish(number);
    engine.stored.care.condemn_if_emptied();
    finished
}

fn not_named() -> Error {
    let message = "removed on all hosts, but the store's device failed: until it can be written, other hosts may not \
                   find what this store puts from now on";
    Error::new(ErrorKind::Unavailable, message)
}

fn not_begun(error: LogError) -> Error {
    match error {
        LogError::Io(IoError::Stopped(_)) => {
            let message = "nothing was removed: other removals wait for the store's device; remove these blocks again";
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        }
        error => to_error(error),
    }
}

fn not_awaited(late: IoError) -> Error {
    let message = "the removal continues in the background: its blocks are no longer found, and it becomes durable \
                   when the store's device responds";
    Error::new(ErrorKind::Unavailable, message).with_source(late)
}

fn not_durable(error: LogError) -> Error {
    let message = "the removal is not durable: its blocks may be found again after the store was closed; open the \
                   store again, and remove them again";
    let error = to_error(error);
    Error::new(error.kind(), message).with_source(error)
}

impl Drop for AnnouncedPart {
    fn drop(&mut self) {
        self.log.removals().abandon(self.number);
    }
}
