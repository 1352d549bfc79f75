//! Space that segments leave for the other files of a store.

use dalsegno_io::Device;
use parking_lot::Mutex;

/// Files of a store next to its segments, which may grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherFiles {
    /// What they may take if the store has all its segments. With fewer segments it is less, in proportion.
    pub most_bytes: u64,
    /// What they take now. Rewriting them takes as much again.
    pub used_bytes: u64,
    /// What they may need soon, however few segments there are.
    pub soon_bytes: u64,
}

impl OtherFiles {
    /// Free bytes to leave for them when there are `count` of `most` segments.
    fn wanted(self, count: u64, most: u64) -> u64 {
        let share = self.most_bytes / most.max(1) * count.min(most);
        let wanted =
            share.max(2 * self.used_bytes).max(self.used_bytes.saturating_add(self.soon_bytes));
        wanted.min(self.most_bytes).saturating_sub(self.used_bytes)
    }
}

/// How much space the other files are to find.
#[derive(Debug, Default)]
pub(super) struct SpaceForOthers(Mutex<OtherFiles>);

impl SpaceForOthers {
    pub(super) fn set(&self, other_files: OtherFiles) {
        *self.0.lock() = other_files;
    }

    /// Whether the file system has space for `bytes`, and for the other files next to `count` of `most` segments;
    /// `None` if it does not say.
    pub(super) fn fits(
        &self,
        device: &dyn Device,
        bytes: u64,
        count: u64,
        most: u64,
    ) -> Option<bool> {
        let wanted = self.0.lock().wanted(count, most);
        if wanted == 0 {
            return Some(true);
        }
        let space = device.space().ok()?;
        Some(space.free_bytes >= bytes.saturating_add(wanted))
    }
}
