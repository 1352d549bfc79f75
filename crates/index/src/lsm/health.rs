//! What is known of the state that a tree's files are in.

use std::sync::atomic::Ordering;

use super::table::{Shortage, TableError};
use super::tree::Tree;

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

    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Notes what was found; what cannot be read is not there.
    pub(crate) fn note(&self, error: &TableError) {
        if error.is_no_room() {
            *self.shortage.lock() = error.shortage();
            tracing::warn!("the index cannot be written: {error}");
        } else if !error.is_io() && !self.damaged.swap(true, Ordering::AcqRel) {
            tracing::error!("the index is damaged ({error}); it is built anew at the next open");
        } else {
            self.missed.store(true, Ordering::Release);
            tracing::warn!("the index cannot be read: {error}");
        }
    }
}
