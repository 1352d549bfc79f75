//! Removing blocks on this host.
//!
//! 1. All of a removal is announced before the index is read, so that a put in progress does not publish what it
//!    removes.
//! 2. An on-disk index may have to wait for the device. So the space lane removes the blocks from it, and lookups
//!    skip them until then.
//! 3. A job makes a removal durable: it writes and syncs the tombstones. It runs in the lane of records, so that a slow
//!    sync does not delay a put that needs space (`rewrite/space.rs`).
//! 4. A job holds the log while it is queued or runs, and with it the directory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{ChainHash, Class, IndexChoice, NamespaceId};
use dalsegno_io::Call;
use dalsegno_log::{Log, Removals};

use crate::blocks::dropper::Dropper;
use crate::blocks::indexed_log::IndexedLog;
use crate::far::removal_notes::{OwnRemoval, RemovalNotes};
use crate::jobs::calls::Answer;
use crate::rewrite::space::SpaceLane;
use crate::state::hidden_blocks::{HiddenBlocks, HidingRemoval};
use crate::state::recent_removals::RecentRemovals;

/// Removes blocks from the log, the index and DRAM.
#[derive(Debug)]
pub(crate) struct LocalRemover {
    pub(crate) stored: Arc<IndexedLog>,
    pub(crate) dropper: Arc<Dropper>,
    pub(crate) removals: Arc<RecentRemovals>,
    pub(crate) hidden: Arc<HiddenBlocks>,
    /// The removals that other hosts must follow, if the store has a far tier or had one before.
    pub(crate) notes: Option<Arc<RemovalNotes>>,
    pub(crate) space: Arc<SpaceLane>,
    pub(crate) index: IndexChoice,
}

/// What is left of a removal that was begun.
pub(super) struct RemovalJob {
    local: Arc<LocalRemover>,
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

impl LocalRemover {
    /// Announces a removal. Then its blocks leave the index, then DRAM, so that a get in progress does not bring them
    /// back. With an on-disk index, lookups skip them until the job has run.
    pub(super) fn begin(
        self: &Arc<Self>,
        namespace: NamespaceId,
        parts: &[&[ChainHash]],
        own: Option<OwnRemoval>,
        has_far: bool,
    ) -> RemovalJob {
        let announce = |hashes: &&[ChainHash]| {
            self.removals.note(namespace, hashes);
            let log = self.stored.log.clone();
            let number = log.removals().begin(namespace, hashes);
            AnnouncedPart { log, number, bytes: Removals::bytes_for(hashes.len()) }
        };
        let announced = parts.iter().map(announce).collect();
        let (mut removed, mut in_index) = (0, Vec::new());
        for hashes in parts {
            if self.index == IndexChoice::Memory {
                removed += self.dropper.remove(namespace, hashes);
            } else {
                in_index.push(self.hidden.hide(namespace, hashes));
            }
        }
        RemovalJob {
            local: Arc::clone(self),
            parts: announced,
            in_index,
            removed: Arc::new(AtomicU64::new(removed)),
            own,
            has_far,
        }
    }
}

impl RemovalJob {
    /// Counts the removed blocks. The number is complete when the job has run.
    pub(super) fn removed(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.removed)
    }

    /// Makes the removal durable, and stores that its publication is pending.
    pub(super) fn run(mut self) -> Answer {
        let durable = self.take_out_of_index().and_then(|()| self.write_tombstones());
        let Some(own) = self.own.take() else { return durable };
        // From here on it counts as applied, if it is durable.
        if durable.is_ok() {
            own.end_durable();
        } else {
            drop(own);
        }
        let (notes, files) = (self.local.notes.as_ref(), self.local.stored.log.store_files());
        let stored = notes.map_or(Ok(()), |notes| notes.store(files));
        if self.has_far { durable } else { durable.and(stored) }
    }

    /// Removes the blocks from an on-disk index.
    fn take_out_of_index(&mut self) -> Answer {
        let in_index = std::mem::take(&mut self.in_index);
        if in_index.is_empty() {
            return Ok(());
        }
        // Not the lane: a thread of it must not drop it.
        let (dropper, stored) = (Arc::clone(&self.local.dropper), Arc::clone(&self.local.stored));
        let removed = Arc::clone(&self.removed);
        let numbers: Vec<u64> = self.parts.iter().map(|part| part.number).collect();
        self.local.space.run_blocking(&Call::of(Class::Save), move |_| {
            for hiding in in_index {
                let blocks = dropper.remove(hiding.namespace(), hiding.hashes());
                removed.fetch_add(blocks, Ordering::Relaxed);
            }
            // In an emptied index all blocks look dead to the next job of this lane. So writing stops first.
            let numbers = if stored.care.is_emptied() { numbers } else { Vec::new() };
            all(numbers.into_iter().map(|number| finish(&stored, number)))
        })
    }

    /// Writes what is not durable: all parts, also behind one that fails.
    fn write_tombstones(&self) -> Answer {
        all(self.parts.iter().map(|part| {
            let bytes = part.bytes;
            self.local.space.run_blocking(&Call::of(Class::Save), move |reclaimer| {
                // A removal continues without: it may use the reserve.
                if let Err(error) = reclaimer.make_space(bytes) {
                    tracing::debug!(%error, "no space freed for a removal");
                }
                Ok(())
            })?;
            finish(&self.local.stored, part.number)
        }))
    }
}

/// Carries out all, also behind one that fails; the first error counts.
fn all(answers: impl Iterator<Item = Answer>) -> Answer {
    answers.fold(Ok(()), Answer::and)
}

/// Makes an announced removal durable, unless that was done.
fn finish(stored: &IndexedLog, number: u64) -> Answer {
    let finished = stored.log.removals().finish(number);
    stored.care.condemn_if_emptied();
    finished
}

impl Drop for AnnouncedPart {
    fn drop(&mut self) {
        self.log.removals().abandon(self.number);
    }
}
