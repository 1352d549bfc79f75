//! The thread that publishes removals of this store.
//!
//! 1. While it waits for the location it holds neither the log nor DRAM.
//! 2. A call that removes ends when its removal is published, and later packs name it.
//! 3. It publishes all removals that wait in one step. One that fails is tried again, until the store is closed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dalsegno_io::{Duty, NextStep, StopSignal};
use dalsegno_log::LogError;

use crate::blocks::indexed_log::IndexedLog;
use crate::far::removal_notes::{Incomplete, RemovalNotes};
use crate::far::tier::FarTier;

/// Pause after a failure of the location, or of the store's own device.
const PAUSE: Duration = Duration::from_secs(3);

pub(super) struct RemovalDuty {
    pub(super) far: Arc<FarTier>,
    pub(super) notes: Arc<RemovalNotes>,
    pub(super) stored: Weak<IndexedLog>,
}

impl RemovalDuty {
    /// Publishes what waits; `false` if that fails.
    fn publish(&self) -> bool {
        let wanted = self.notes.unpublished();
        if wanted.is_empty() {
            return true;
        }
        let published = self.far.outbox.publisher.lock().publish_removals(&wanted);
        if let Err(error) = &published {
            let (count, retry_s) = (wanted.len(), PAUSE.as_secs());
            tracing::warn!(%error, count, retry_s, "removals are not published; they are tried again");
        }
        let outcome = published.map_err(|error| Incomplete::Unpublished(error.to_string()));
        self.notes.note_published(&wanted, &outcome);
        outcome.is_ok()
    }

    /// Stores what has changed.
    fn store(&self) -> Result<(), LogError> {
        let Some(indexed) = self.stored.upgrade() else { return Ok(()) };
        let stored = self.notes.store(indexed.log.store_files());
        if let Err(error) = &stored {
            tracing::debug!(%error, "the record of removals is not stored; this is tried again");
        }
        stored
    }
}

impl Duty for RemovalDuty {
    fn step(&mut self, _: &StopSignal) -> NextStep {
        self.far.outbox.use_applied(&self.notes);
        let is_published = self.publish();
        // After the publication, because the device may hang.
        let stored = self.store();
        // Names what another thread has removed meanwhile, too.
        self.far.outbox.use_applied(&self.notes);
        self.notes.end_unnamed(&stored);
        match (is_published && stored.is_ok(), self.notes.is_changed()) {
            (false, _) => NextStep::After(PAUSE),
            (true, true) => NextStep::After(Duration::ZERO),
            (true, false) => NextStep::OnWake,
        }
    }

    fn finish(&mut self) {
        self.notes.close();
    }
}
