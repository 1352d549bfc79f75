//! What a poll of a location found.

use std::collections::BTreeSet;
use std::time::Duration;

use dalsegno_core::StoreId;
use dalsegno_io::IoError;

use crate::removal::{Applied, Removal};

/// What a poll found. A poll that fails has found what it read before.
#[derive(Debug, Default)]
pub struct Polled {
    /// Blocks that can be read now and could not before.
    pub new_blocks: u64,
    /// Catalogs that were indexed.
    pub catalogs: u64,
    /// Packs that are gone.
    pub gone_packs: u64,
    /// Catalogs, lists and folders that cannot be used.
    pub bad: PolledBad,
    /// Removals of other opens that were read in this poll. The index does not find any more what they cover. An entry
    /// may occur again in a later poll.
    pub removals: Vec<Removal>,
    /// The newest removal of each other writer that is at the location; `None` if this poll could not read all of them.
    /// Each was in `removals` of this poll or an earlier one.
    pub at_location: Option<Applied>,
    /// The location's time when the poll began. One poll in [`LIST_EVERY`](crate::LIST_EVERY) asks for it, the first
    /// one included.
    pub time: LocationTime,
    /// The first failure of the location. What was not reached is looked at by the next poll.
    pub failure: Option<IoError>,
    unread: BTreeSet<StoreId>,
}

/// What of a location cannot be used.
#[derive(Debug, Default)]
pub struct PolledBad {
    /// How many objects and folders earlier polls have not counted.
    pub new: u64,
    /// How many there are now.
    pub now: u64,
    /// How many of these are catalogs.
    pub catalogs: u64,
    /// The one that was found last.
    pub newest: Option<BadObject>,
}

/// What a poll knows of the location's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocationTime {
    /// It did not ask, or that failed.
    #[default]
    Unknown,
    /// The location does not show it. It is not earlier than this: the lists that a listing did not show any more had
    /// gone by then.
    NotBefore(Duration),
    /// The location's time.
    Is(Duration),
}

impl Polled {
    /// The stores with a list of removals that cannot be used. Their removals in `at_location` count as applied only as
    /// far as they did before: those of that list may come before them.
    #[must_use]
    pub fn unread(&self) -> &BTreeSet<StoreId> {
        &self.unread
    }

    /// Notes what is at the location, and the stores with a list that cannot be used.
    pub(crate) fn read_all(&mut self, at_location: Applied, unread: BTreeSet<StoreId>) {
        (self.at_location, self.unread) = (Some(at_location), unread);
    }

    /// Notes a failure of the location. The first one of a poll is reported.
    pub(crate) fn fail(&mut self, error: IoError) {
        tracing::debug!(%error, "a part of a far location was not followed");
        self.failure.get_or_insert(error);
    }

    /// Whether the location hangs, so that the poll ends.
    pub(crate) fn hangs(&self) -> bool {
        self.failure.as_ref().is_some_and(IoError::is_late)
    }
}

/// An object or a folder that cannot be used. It costs only itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadObject {
    /// Its folder, and its file if it is an object.
    pub name: String,
    /// Why it cannot be used.
    pub reason: String,
}
