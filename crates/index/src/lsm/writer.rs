//! Writes to the active memtable.
//!
//! 1. One writer at a time changes it.

use std::sync::Arc;

use dalsegno_core::{Clock, Deadline};
use parking_lot::{Mutex, MutexGuard};

use crate::lsm::memtable::batch::Batch;
use crate::lsm::table::read_counts::ReadCounts;
use crate::lsm::version::snapshot::{MOST_FROZEN, Snapshots};
use crate::usage::SegmentSum;

/// Gives out the right to write.
#[derive(Debug)]
pub(crate) struct MemtableWriter {
    snapshots: Arc<Snapshots>,
    counts: Arc<ReadCounts>,
    /// The clock of deadlines.
    clock: Arc<dyn Clock>,
    /// A memtable of so many bytes becomes a table.
    memtable_bytes: u64,
    right: Mutex<()>,
}

/// The right to change the active memtable.
pub(crate) struct WriteGuard<'a> {
    writer: &'a MemtableWriter,
    _right: MutexGuard<'a, ()>,
}

impl MemtableWriter {
    pub(crate) fn new(
        snapshots: Arc<Snapshots>,
        counts: Arc<ReadCounts>,
        clock: Arc<dyn Clock>,
        memtable_bytes: u64,
    ) -> Self {
        Self { snapshots, counts, clock, memtable_bytes, right: Mutex::default() }
    }

    /// Waits for the right to write.
    pub(crate) fn lock(&self) -> WriteGuard<'_> {
        WriteGuard { writer: self, _right: self.right.lock() }
    }

    /// Like [`Self::lock`], but at most until `deadline`: the current writer may wait for the device.
    pub(crate) fn lock_within(&self, deadline: Deadline) -> Option<WriteGuard<'_>> {
        let Some(left) = deadline.remaining(self.clock.now()) else { return Some(self.lock()) };
        let right = self.right.try_lock_for(left)?;
        Some(WriteGuard { writer: self, _right: right })
    }

    /// Whether the active memtable is large enough to be frozen.
    pub(crate) fn is_full(&self) -> bool {
        self.snapshots.memtable_load().1 >= self.memtable_bytes
    }

    /// Whether memory is used up until a flush is done.
    pub(crate) fn is_stalled(&self) -> bool {
        let (frozen, active_bytes) = self.snapshots.memtable_load();
        frozen >= MOST_FROZEN && active_bytes >= self.memtable_bytes
    }

    /// Bytes that may wait in memory to be written.
    pub(crate) fn most_waiting_bytes(&self) -> u64 {
        self.memtable_bytes.saturating_mul(MOST_FROZEN as u64 + 1)
    }
}

impl WriteGuard<'_> {
    /// Makes a batch visible.
    pub(crate) fn apply(&self, batch: Batch) {
        self.writer.counts.count_written(batch.entries());
        self.writer.snapshots.current().active.apply(batch);
    }

    /// Starts a new memtable. `checkpoint` is the part of the log that the index knows, `sums` are the sums of each
    /// segment.
    pub(crate) fn freeze(&self, checkpoint: Vec<u8>, sums: Vec<SegmentSum>) {
        self.writer.snapshots.freeze(checkpoint, sums);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dalsegno_core::ManualClock;

    use super::*;
    use crate::lsm::version::levels::Version;

    #[test]
    fn the_right_to_write_is_waited_for_until_the_deadline() {
        let clock = Arc::new(ManualClock::default());
        let snapshots = Arc::new(Snapshots::new(Version::default()));
        let writer =
            MemtableWriter::new(snapshots, Arc::default(), Arc::<ManualClock>::clone(&clock), 1);
        let within = |time| Deadline::At(clock.now().after(time));
        let right = writer.lock();
        for time in [Duration::ZERO, Duration::from_millis(5)] {
            assert!(writer.lock_within(within(time)).is_none());
        }
        drop(right);
        for deadline in [Deadline::Never, within(Duration::ZERO)] {
            assert!(writer.lock_within(deadline).is_some(), "{deadline:?}");
        }
    }
}
