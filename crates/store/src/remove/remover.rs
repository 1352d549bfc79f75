//! The removals of callers, and those that are followed.
//!
//! 1. A removal first gets a place in the lane of records. Without one it ends, and nothing is removed. With one it is
//!    carried out to its end, whether its caller waits or not (`local.rs`).
//! 2. With a far tier, the removal of a caller is published there as well. A store that used a far tier before notes it
//!    for the next open that has one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dalsegno_core::{
    ChainHash, Clock, Error, ErrorKind, Limits, MAX_EXTENT_BLOCKS, NamespaceId, Result,
};
use dalsegno_far::{Removal, RemovalId};
use dalsegno_index::Scope;
use dalsegno_io::{Call, IoError, JobLane};
use dalsegno_log::LogError;

use crate::blocks::finder::Finder;
use crate::error::to_error;
use crate::far::removal_notes::{Incomplete, OwnRemoval, RemovalNotes};
use crate::jobs::calls::keep_place;
use crate::lookup::lookups::LOOKUP_TIMEOUT;
use crate::remove::local::LocalRemover;
use crate::terms::Terms;

/// How long the removal of blocks may take that another store removed.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(30);

/// Removes blocks.
#[derive(Debug)]
pub(crate) struct Remover {
    pub(crate) local: Arc<LocalRemover>,
    /// The lane in which tombstones are written.
    pub(crate) records: Arc<JobLane>,
    pub(crate) finder: Arc<Finder>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) clock: Arc<dyn Clock>,
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

impl Remover {
    /// See [`Store::remove`](crate::Store::remove).
    pub(crate) fn remove(
        &self,
        origin: RemovalOrigin<'_>,
        namespace: NamespaceId,
        hashes: Option<&[ChainHash]>,
        terms: &Terms,
    ) -> Result<u64> {
        // No hashes mean the whole namespace further down.
        if hashes.is_some_and(<[ChainHash]>::is_empty) {
            return Ok(0);
        }
        let clock = self.clock.as_ref();
        let call = terms.call(clock);
        let has_far = matches!(origin, RemovalOrigin::Caller(Some(_)));
        let only_far =
            if has_far { self.count_far(namespace, hashes.unwrap_or_default(), &call) } else { 0 };
        let place = keep_place(&self.records, &call, clock).map_err(not_begun)?;
        let own = match origin {
            RemovalOrigin::Caller(_) => self.begin_own(namespace, hashes.unwrap_or_default())?,
            RemovalOrigin::Noted => None,
        };
        let id = own.as_ref().map(OwnRemoval::id);
        let parts: Vec<&[ChainHash]> = match hashes {
            None => vec![&[]],
            Some(hashes) => hashes.chunks(MAX_EXTENT_BLOCKS as usize).collect(),
        };
        let job = self.local.begin(namespace, &parts, own, has_far);
        let removed = job.removed();
        let answer = place.ask(move || job.run());
        let here = match call.receive(&answer, clock) {
            Ok(durable) => durable.map_err(not_durable),
            Err(late) => Err(not_awaited(late)),
        };
        // Also if it is not durable here.
        let published = match (id, origin) {
            (Some(id), RemovalOrigin::Caller(Some(lanes))) => {
                self.publish(id, lanes, here.is_ok(), &call)
            }
            _ => Ok(()),
        };
        here.and(published).map(|()| removed.load(Ordering::Relaxed) + only_far)
    }

    /// Removes blocks, or a namespace, that another store removed, or that this one did not remove completely.
    ///
    /// # Errors
    ///
    /// As [`Self::remove`].
    pub(crate) fn remove_noted(
        &self,
        namespace: NamespaceId,
        hashes: Option<&[ChainHash]>,
    ) -> Result<()> {
        let terms = Terms::within(FOLLOW_TIMEOUT);
        self.remove(RemovalOrigin::Noted, namespace, hashes, &terms).map(drop)
    }

    /// Tries again what this store removed and could not make durable.
    pub(crate) fn retry_failed(&self, notes: &RemovalNotes) {
        for Removal { id, namespace, hashes } in notes.failed_here() {
            let hashes = Some(hashes.as_slice()).filter(|hashes| !hashes.is_empty());
            match self.remove_noted(namespace, hashes) {
                Ok(()) => notes.note_applied(id),
                Err(error) => tracing::warn!(%error, "removed blocks are still stored here"),
            }
        }
    }

    /// Gives a removal of a caller its name, if other hosts must follow it, and stops finding its blocks at the far
    /// location.
    fn begin_own(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
    ) -> Result<Option<OwnRemoval>> {
        let Some(notes) = &self.local.notes else { return Ok(None) };
        let own = notes.begin(namespace, hashes)?;
        if let Some(far) = &self.finder.far {
            far.remove(&Removal { id: own.id(), namespace, hashes: hashes.to_vec() });
        }
        Ok(Some(own))
    }

    /// Makes other hosts follow a removal, and waits until they can, if it is durable here.
    fn publish(
        &self,
        id: RemovalId,
        lanes: &dyn PublishRemovals,
        is_removed: bool,
        call: &Call,
    ) -> Result<()> {
        let Some(notes) = &self.local.notes else { return Ok(()) };
        let outcome = notes.outcome(id);
        lanes.publish_removals();
        if !is_removed {
            return Ok(());
        }
        match call.receive(&outcome, self.clock.as_ref()) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why @ Incomplete::Unpublished(_))) => Err(self.not_published().with_source(why)),
            Ok(Err(why @ Incomplete::Unnamed(_))) => Err(not_named().with_source(why)),
            Err(late) => Err(self.not_published().with_source(late)),
        }
    }

    fn not_published(&self) -> Error {
        let far = self.limits.far.as_deref().unwrap_or("the far location");
        let message = format!("removed on this host; other hosts follow when {far} responds");
        Error::new(ErrorKind::Unavailable, message)
    }

    /// How many blocks only the far location has.
    fn count_far(&self, namespace: NamespaceId, hashes: &[ChainHash], call: &Call) -> u64 {
        let deadline = call.at_most(LOOKUP_TIMEOUT, self.clock.as_ref());
        self.finder.find(namespace, hashes, Scope::Each, deadline).far.len() as u64
    }
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
