//! One segment file, and the pins that keep it from being recycled.
//!
//! 1. A closed segment gives out no pins. It is recycled only after the last pin is gone.
//! 2. A pin is for one epoch: an older location gets none.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_extent::PinnedFile;
use dalsegno_io::{Call, FileId};
use parking_lot::{Condvar, Mutex};

use crate::sync::{SyncGate, Syncer, Unsynced};

#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) file: FileId,
    gate: SyncGate,
    access: Mutex<Access>,
    unpinned: Condvar,
}

#[derive(Debug, Default)]
struct Access {
    epoch: u64,
    pins: u32,
    closed: bool,
    /// Offsets of records that are being written, or that the index does not know yet.
    unsettled: BTreeSet<u64>,
}

/// Keeps a segment from being recycled while it is alive.
#[derive(Debug)]
pub struct Pin {
    segment: Arc<Segment>,
    /// The offset of a record that is unsettled until the pin goes.
    record: Option<u64>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut access = self.segment.access.lock();
        if let Some(offset) = self.record {
            access.unsettled.remove(&offset);
        }
        access.pins -= 1;
        if access.pins == 0 {
            self.segment.unpinned.notify_all();
        }
    }
}

impl Pin {
    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// The segment's file, pinned as long as a request holds it.
    pub(crate) fn pinned_file(self: &Arc<Self>) -> PinnedFile {
        let guard = Arc::clone(self);
        PinnedFile { file: self.segment.file, guard }
    }

    /// As [`Segment::sync`].
    pub(crate) fn sync(&self, syncer: &Syncer, call: &Call) -> Result<(), Unsynced> {
        self.segment.sync(syncer, call)
    }
}

impl Segment {
    pub(crate) fn new(number: u64, file: FileId, epoch: u64) -> Arc<Self> {
        Arc::new(Self {
            number,
            file,
            gate: SyncGate::default(),
            access: Mutex::new(Access { epoch, ..Access::default() }),
            unpinned: Condvar::new(),
        })
    }

    /// Pins the segment if it still is in `epoch` and is not closed.
    pub(crate) fn pin(self: &Arc<Self>, epoch: u64) -> Option<Pin> {
        let mut access = self.access.lock();
        if access.closed || access.epoch != epoch {
            return None;
        }
        access.pins += 1;
        Some(Pin { segment: Arc::clone(self), record: None })
    }

    /// Pins the open segment for a record at `offset`.
    pub(crate) fn pin_record(self: &Arc<Self>, offset: u64) -> Pin {
        let mut access = self.access.lock();
        assert!(!access.closed, "an open segment is not closed");
        access.pins += 1;
        access.unsettled.insert(offset);
        Pin { segment: Arc::clone(self), record: Some(offset) }
    }

    /// The first record that is being written, or that the index does not know yet.
    pub(crate) fn first_unsettled(&self) -> Option<u64> {
        self.access.lock().unsettled.first().copied()
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.access.lock().epoch
    }

    pub(crate) fn pins(&self) -> u32 {
        self.access.lock().pins
    }

    /// Gives out no more pins; `false` (and open again) if pins stay longer than `timeout`.
    pub(crate) fn close(&self, timeout: Duration) -> bool {
        let mut access = self.access.lock();
        access.closed = true;
        while access.pins > 0 {
            if self.unpinned.wait_for(&mut access, timeout).timed_out() && access.pins > 0 {
                access.closed = false;
                return false;
            }
        }
        true
    }

    /// Opens a closed segment, in its old epoch or the next one.
    pub(crate) fn reopen(&self, epoch: u64) {
        let mut access = self.access.lock();
        assert!(
            access.closed && access.pins == 0 && epoch >= access.epoch,
            "only a closed segment without pins is reopened"
        );
        access.epoch = epoch;
        access.closed = false;
    }

    /// Makes everything written to the segment so far durable, in one sync with all other callers that wait for that.
    pub(crate) fn sync(&self, syncer: &Syncer, call: &Call) -> Result<(), Unsynced> {
        syncer.sync_together(&self.gate, self.file, call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_segment_does_not_close_and_an_old_epoch_gets_no_pin() {
        let segment = Segment::new(1, FileId(0), 5);
        assert!(segment.pin(4).is_none());
        let pin = segment.pin(5).unwrap();
        assert!(!segment.close(Duration::from_millis(1)));
        drop(pin);
        assert!(segment.close(Duration::from_millis(1)));
        assert!(segment.pin(5).is_none());
        segment.reopen(6);
        assert!(segment.pin(5).is_none() && segment.pin(6).is_some());
    }
}
