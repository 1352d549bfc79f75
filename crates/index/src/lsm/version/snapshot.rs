//! Snapshots: the memtables and the version that readers use at one moment.
//!
//! 1. A reader works on one snapshot from start to end. Writers, flushes and compactions make new ones and never wait
//!    for readers.
//! 2. Nothing changes a frozen memtable, a run or a table.
//! 3. The newest entry of a key is in the first of: the active memtable, the frozen ones (newest first), the levels
//!    (0 first), and in a level its runs (newest first).

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::lsm::memtable::entries::Memtable;
use crate::lsm::version::levels::Version;
use crate::usage::SegmentSum;

/// Most memtables that wait for a flush. If all wait and the active one is full, writers have to wait.
pub(crate) const MOST_FROZEN: usize = 2;

/// A memtable that accepts no more entries, and the part of the log that is known once it is a table.
#[derive(Debug)]
pub(crate) struct Frozen {
    pub(crate) memtable: Arc<Memtable>,
    pub(crate) checkpoint: Vec<u8>,
    pub(crate) sums: Vec<SegmentSum>,
}

/// Everything that a reader needs.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) active: Arc<Memtable>,
    /// Newest first.
    pub(crate) frozen: VecDeque<Arc<Frozen>>,
    pub(crate) version: Arc<Version>,
}

impl Snapshot {
    /// All memtables, the newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(self.frozen.iter().map(|frozen| &frozen.memtable))
    }
}

/// The current snapshot.
#[derive(Debug)]
pub(crate) struct Snapshots(RwLock<Arc<Snapshot>>);

impl Snapshots {
    pub(crate) fn new(version: Version) -> Self {
        let (active, frozen) = (Arc::default(), VecDeque::new());
        Self(RwLock::new(Arc::new(Snapshot { active, frozen, version: Arc::new(version) })))
    }

    pub(crate) fn current(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.read())
    }

    /// Whether points were dropped for lack of space.
    pub(crate) fn is_partial(&self) -> bool {
        self.0.read().version.is_partial
    }

    /// Whether a memtable waits for a flush.
    pub(crate) fn has_frozen(&self) -> bool {
        !self.0.read().frozen.is_empty()
    }

    /// How many memtables wait for a flush, and the bytes of the active one.
    pub(crate) fn memtable_load(&self) -> (usize, u64) {
        let snapshot = self.0.read();
        (snapshot.frozen.len(), snapshot.active.bytes())
    }

    /// Starts a new active memtable. `checkpoint` and `sums` describe what the index knows with the old one.
    pub(crate) fn freeze(&self, checkpoint: Vec<u8>, sums: Vec<SegmentSum>) {
        let mut current = self.0.write();
        let memtable = Arc::clone(&current.active);
        let mut frozen = current.frozen.clone();
        frozen.push_front(Arc::new(Frozen { memtable, checkpoint, sums }));
        *current =
            Arc::new(Snapshot { active: Arc::default(), frozen, ..Snapshot::clone(&current) });
    }

    /// Replaces the version and returns the old one. With `is_flushed` the oldest frozen memtable leaves, because the
    /// new version holds its entries.
    pub(crate) fn install(&self, version: Arc<Version>, is_flushed: bool) -> Arc<Version> {
        let mut current = self.0.write();
        let mut next = Snapshot { version, ..Snapshot::clone(&current) };
        if is_flushed {
            next.frozen.pop_back();
        }
        let before = std::mem::replace(&mut *current, Arc::new(next));
        Arc::clone(&before.version)
    }
}
