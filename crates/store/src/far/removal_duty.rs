//! The thread that publishes removals of this store.
//!
//! 1. While it waits for the location it holds nothing of the store but the far tier.
//! 2. It publishes all removals that wait in one step. One that fails is tried again, until the store is closed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::background::helper::{Duty, NoTask};
use crate::background::task_queue::{Next, TaskQueue};
use crate::engine::Engine;
use crate::far::removal_notes::RemovalNotes;
use crate::far::tier::FarTier;

/// Pause after a failure of the location, or of the store's own device.
const PAUSE: Duration = Duration::from_secs(3);

pub(super) struct RemovalDuty {
    pub(super) far: Arc<FarTier>,
    pub(super) notes: Arc<RemovalNotes>,
    pub(super) engine: Weak<Engine>,
}

impl RemovalDuty {
    /// Publishes what waits; `false` if that fails.
    fn publish(&self) -> bool {
        let wanted = self.notes.unpublished();
        if wanted.is_empty() {
            return true;
        }
        let published = self.far.publisher.lock().publish_removals(&wanted);
        if let Err(error) = &published {
            let (count, retry_s) = (wanted.len(), PAUSE.as_secs());
            tracing::warn!(%error, count, retry_s, "removals are not published; they are tried again");
        }
        let outcome = published.map_err(|error| error.to_string());
        self.notes.note_published(&wanted, &outcome);
        outcome.is_ok()
    }

    /// Stores what has changed; `false` if that fails.
    fn store(&self) -> bool {
        if !self.notes.is_changed() {
            return true;
        }
        let Some(engine) = self.engine.upgrade() else { return true };
        let stored = self.notes.store(engine.log.store_files());
        if let Err(error) = &stored {
            tracing::debug!(%error, "the record of removals is not stored; this is tried again");
        }
        stored.is_ok()
    }
}

impl Duty for RemovalDuty {
    type Task = NoTask;

    fn run(&mut self, task: NoTask) {
        match task {}
    }

    fn step(&mut self, _: &TaskQueue<NoTask>) -> Next {
        self.far.use_applied(&self.notes);
        let is_published = self.publish();
        let is_stored = self.store();
        if is_published && is_stored { Next::OnTask } else { Next::After(PAUSE) }
    }

    fn finish(&mut self) {
        self.notes.close();
    }
}
