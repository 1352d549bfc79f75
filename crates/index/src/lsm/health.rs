//! What is known of the state that a tree's files are in.

use std::sync::atomic::Ordering;

use super::table::{Shortage, TableError};
use super::tree::Tree;

/// So often in a row the file system is believed to have had no room.
const SHORTAGES_OF_DISK: u32 = 3;

impl Tree {
    /// Whether a table turned out to be damaged: then the index is to be rebuilt.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Acquire)
    }

    /// Whether the device failed to read something.
    pub(crate) fn has_missed(&self) -> bool {
        self.missed.load(Ordering::Acquire)
    }

    /// Whether points were dropped for want of room.
    pub(crate) fn is_partial(&self) -> bool {
        self.state.read().version.is_partial
    }

    /// Whether a manifest was written that may be durable or not.
    pub(crate) fn is_unsure(&self) -> bool {
        self.unsure.load(Ordering::Acquire)
    }

    /// Whether maintenance has stopped.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Why something was not written, unless something else was since.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        self.shortage.lock().filter(|_| !self.has_failed())
    }

    pub(crate) fn has_room_again(&self) {
        *self.shortage.lock() = None;
    }

    fn note_shortage(&self, shortage: Option<Shortage>) {
        let times = self.shortages.fetch_add(1, Ordering::Relaxed) + 1;
        // Something else than room is missing where there is room every time.
        let hidden = Some(Shortage::Hidden).filter(|_| times > SHORTAGES_OF_DISK);
        *self.shortage.lock() = shortage.map(|shortage| hidden.unwrap_or(shortage));
    }

    /// Something was written.
    pub(super) fn end_shortage(&self) {
        self.shortages.store(0, Ordering::Relaxed);
        self.has_room_again();
    }

    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Notes what was found; what cannot be read is not there.
    pub(crate) fn note(&self, error: &TableError) {
        if error.is_no_room() {
            self.note_shortage(error.shortage());
            tracing::warn!("the index cannot be written: {error}");
        } else if !error.is_io() && !self.damaged.swap(true, Ordering::AcqRel) {
            tracing::error!("the index is damaged ({error}); it is built anew at the next open");
        } else {
            self.missed.store(true, Ordering::Release);
            tracing::warn!("the index cannot be read: {error}");
        }
    }
}
