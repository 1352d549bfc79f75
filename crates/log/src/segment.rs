//! The segments of a log, their states, and the pins that keep a segment from being recycled.
//!
//! 1. `SECTOR <= cursor <= segment_bytes`; space below the cursor is reserved for good until the segment is recycled.
//! 2. At most one segment is open.
//! 3. A closed segment gives out no pins; it is recycled only when the last pin is gone.
//! 4. A segment number is never used for a second file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::SECTOR_BYTES;
use dalsegno_io::FileId;
use parking_lot::{Condvar, Mutex};

use crate::format::{ListedSegment, SegmentList};
use crate::reserve::CREATION_PAUSE;
use crate::segment_list::Tally;
use crate::sync::SyncGate;
use crate::tombstones::Tombstones;

/// What a segment is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Recycled or new: takes records next.
    Free,
    /// Takes records now.
    Open,
    /// Full; its records are read.
    Sealed,
    /// Its header is damaged, its file was cut, or a crash came while it was recycled: it takes no records, and goes
    /// first when space is needed. Also one that is about to go.
    Damaged,
}

/// A segment as the outside sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentView {
    /// Its number.
    pub number: u64,
    /// How often it was recycled, plus one.
    pub epoch: u64,
    /// What it is doing.
    pub state: SegmentState,
    /// Bytes reserved, its header included.
    pub cursor: u64,
    /// Smallest `born` of its records; `u64::MAX` if it has none, zero if some may be there that could not be read.
    pub oldest_born: u64,
    /// Largest sequence of its records.
    pub newest_sequence: u64,
    /// Readers and writers at work in it.
    pub pins: u32,
}

impl SegmentView {
    /// Whether something of it could not be read at open: nobody knows what is alive there.
    #[must_use]
    pub fn is_partly_unread(&self) -> bool {
        self.oldest_born == 0
    }
}

#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) file: FileId,
    pub(crate) gate: SyncGate,
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
    pub(crate) segment: Arc<Segment>,
    /// Of a record that is written under it, until the pin goes.
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

    /// Pins the segment if it still is in `epoch` and not about to be recycled.
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

    /// Gives out no more pins; `false` (and open again) if readers stay longer than `patience`.
    pub(crate) fn close(&self, patience: Duration) -> bool {
        let mut access = self.access.lock();
        access.closed = true;
        while access.pins > 0 {
            if self.unpinned.wait_for(&mut access, patience).timed_out() && access.pins > 0 {
                access.closed = false;
                return false;
            }
        }
        true
    }

    /// Opens a closed segment, in its old epoch or the next.
    pub(crate) fn reopen(&self, epoch: u64) {
        let mut access = self.access.lock();
        assert!(
            access.closed && access.pins == 0 && epoch >= access.epoch,
            "reopen of a live segment"
        );
        access.epoch = epoch;
        access.closed = false;
    }
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) segment: Arc<Segment>,
    pub(crate) state: SegmentState,
    pub(crate) cursor: u64,
    /// Of what is known of it; see [`Self::oldest_born`].
    pub(crate) oldest_known: u64,
    pub(crate) newest_sequence: u64,
    /// Whether records may have settled since [`crate::Log::checkpoint`] synced it.
    pub(crate) is_unsynced: bool,
    pub(crate) doubt: Option<Doubt>,
    /// The first place that could not be read at open. What lies there and behind is read again one day.
    pub(crate) first_gap: Option<u64>,
    /// What it holds; unknown if only an index knew and the segment list did not.
    pub(crate) tally: Option<Tally>,
}

/// Extents made of others that may lie in a segment and not be whole: nothing says of them, nor of what comes after
/// them, that it is durable, and every open reads them again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubt {
    /// Where the first of them lies.
    pub(crate) offset: u64,
    /// The smallest sequence number of one.
    pub(crate) sequence: u64,
}

impl Slot {
    pub(crate) fn free(segment: Arc<Segment>) -> Self {
        Self {
            segment,
            state: SegmentState::Free,
            cursor: SECTOR_BYTES,
            oldest_known: u64::MAX,
            newest_sequence: 0,
            is_unsynced: true,
            doubt: None,
            first_gap: None,
            tally: Some(Tally::default()),
        }
    }

    /// Up to where an index that knows all that settled needs not read again.
    pub(crate) fn replay_from(&self) -> u64 {
        let unproven = self.doubt.map(|doubt| doubt.offset).into_iter().chain(self.first_gap);
        unproven.chain(self.segment.first_unsettled()).fold(self.cursor, u64::min)
    }

    /// Smallest `born` of its records: what cannot be read now may be read again one day, however old it is.
    pub(crate) fn oldest_born(&self) -> u64 {
        if self.first_gap.is_some() { 0 } else { self.oldest_known }
    }

    pub(crate) fn view(&self) -> SegmentView {
        SegmentView {
            number: self.segment.number,
            epoch: self.segment.epoch(),
            state: self.state,
            cursor: self.cursor,
            oldest_born: self.oldest_born(),
            newest_sequence: self.newest_sequence,
            pins: self.segment.pins(),
        }
    }
}

/// All segments of a log; lives under one lock.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    pub(crate) slots: BTreeMap<u64, Slot>,
    pub(crate) open: Option<u64>,
    pub(crate) next_number: u64,
    pub(crate) next_sequence: u64,
    /// The first sequence number that a record could have when the open segment was opened.
    pub(crate) round: u64,
    pub(crate) tombstones: Tombstones,
    /// Sequence number of the merged extent that is being written and is not durable yet.
    pub(crate) merging: Option<u64>,
    /// The largest `first_sequence` that a header said at open, if something could not be read then.
    pub(crate) told: Option<u64>,
    /// A segment's file could not be opened. It may hold what was removed, however old, and be back one day.
    pub(crate) is_one_missing: bool,
    /// The file system refused a new segment; how many times to make room before asking again.
    pub(crate) creation_blocked: u32,
    /// What the segment list says, if there is one that can be read.
    pub(crate) list: Option<SegmentList>,
    /// Segments on the list that were not there at open. They stay on it until a repair.
    pub(crate) missing: Vec<ListedSegment>,
}

impl Segments {
    pub(crate) fn count(&self, state: SegmentState) -> usize {
        self.slots.values().filter(|slot| slot.state == state).count()
    }

    /// The file of a segment next to this one in number, if there is another.
    pub(crate) fn beside(&self, number: u64) -> Option<FileId> {
        let before = || self.slots.range(..number).next_back();
        let (_, slot) = self.slots.range(number + 1..).next().or_else(before)?;
        Some(slot.segment.file)
    }

    pub(crate) fn take_sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence
    }

    /// What the header of a segment's next life says: its records have no smaller sequence number, and what was merged
    /// before it is durable.
    pub(crate) fn first_sequence(&self) -> u64 {
        // What could not be read may hold a merge that nobody has looked at: no header says more than those before.
        let doubts = self.slots.values().filter_map(|slot| slot.doubt);
        let unproven = doubts.map(|doubt| doubt.sequence).chain(self.merging).chain(self.told);
        unproven.fold(self.next_sequence + 1, u64::min)
    }

    /// As long as its segment lives, no header and no checkpoint says of an extent made of others that it is whole.
    pub(crate) fn doubt(&mut self, segment: u64, Doubt { offset, sequence }: Doubt) {
        if let Some(slot) = self.slots.get_mut(&segment) {
            let doubt = slot.doubt.get_or_insert(Doubt { offset, sequence });
            doubt.offset = doubt.offset.min(offset);
            doubt.sequence = doubt.sequence.min(sequence);
        }
    }

    /// Whether the open segment has room for `bytes`.
    pub(crate) fn fits_open(&self, bytes: u64, segment_bytes: u64) -> bool {
        let open = self.open.and_then(|number| self.slots.get(&number));
        open.is_some_and(|slot| slot.cursor + bytes <= segment_bytes)
    }

    /// Whether another segment may be opened. Plain appends leave one in reserve, unless there are too few to move
    /// anything between.
    pub(crate) fn may_open(&self, most: u32, relocating: bool) -> bool {
        let free = self.count(SegmentState::Free);
        let creatable = if self.creation_blocked > 0 {
            0
        } else {
            (most as usize).saturating_sub(self.slots.len())
        };
        let reserve = usize::from(!relocating && self.slots.len() + creatable >= 3);
        free + creatable > reserve
    }

    /// Reserves `bytes` in the open segment.
    pub(crate) fn reserve_open(
        &mut self,
        bytes: u64,
        segment_bytes: u64,
    ) -> Option<(Arc<Segment>, u64)> {
        let slot = self.slots.get_mut(&self.open?).expect("the open segment exists");
        assert!(slot.state == SegmentState::Open && slot.cursor <= segment_bytes);
        if slot.cursor + bytes > segment_bytes {
            return None;
        }
        let offset = slot.cursor;
        slot.cursor += bytes;
        Some((Arc::clone(&slot.segment), offset))
    }

    /// Notes a record's numbers for its segment.
    pub(crate) fn note_record(&mut self, segment: u64, sequence: u64, born: u64) {
        if let Some(slot) = self.slots.get_mut(&segment) {
            slot.newest_sequence = slot.newest_sequence.max(sequence);
            slot.oldest_known = slot.oldest_known.min(born);
            slot.is_unsynced = true;
        }
    }

    /// The next checkpoint is to sync these.
    pub(crate) fn mark_unsynced(&mut self, these: &[Arc<Segment>]) {
        for segment in these {
            if let Some(slot) = self.slots.get_mut(&segment.number) {
                slot.is_unsynced = true;
            }
        }
    }

    /// Seals the open segment; returns where a seal record belongs, if there is room for one, and a pin that keeps that
    /// place what it is.
    pub(crate) fn seal_open(&mut self, segment_bytes: u64) -> Option<(Arc<Pin>, u64)> {
        let slot = self.slots.get_mut(&self.open.take()?).expect("the open segment exists");
        slot.state = SegmentState::Sealed;
        let offset = slot.cursor;
        slot.cursor = segment_bytes;
        let pin = slot.segment.pin(slot.segment.epoch()).expect("an open segment is not closed");
        (offset < segment_bytes).then(|| (Arc::new(pin), offset))
    }

    /// Sets a free segment aside that is to go, if that leaves one in reserve, also for its tombstones.
    pub(crate) fn leave(&mut self, segment_bytes: u64) -> Option<Arc<Segment>> {
        let count = self.count(SegmentState::Free);
        let free = self.slots.values().filter(|slot| slot.state == SegmentState::Free);
        let (cursor, number) = free.map(|slot| (slot.cursor, slot.segment.number)).min()?;
        let tombstone_bytes = cursor - SECTOR_BYTES;
        let fits = tombstone_bytes == 0 || self.fits_open(tombstone_bytes, segment_bytes);
        if count < if fits { 2 } else { 3 } {
            return None;
        }
        // None is created in its place, also not in the thoughts of whoever looks for the reserve.
        self.creation_blocked = CREATION_PAUSE;
        let slot = self.slots.get_mut(&number)?;
        slot.state = SegmentState::Damaged;
        Some(Arc::clone(&slot.segment))
    }

    /// Makes a free segment the open one.
    pub(crate) fn open_free(&mut self) -> bool {
        assert!(self.open.is_none(), "one open segment at a time");
        let free = self.slots.values_mut().find(|slot| slot.state == SegmentState::Free);
        let Some(slot) = free else { return false };
        slot.state = SegmentState::Open;
        self.open = Some(slot.segment.number);
        self.round = self.next_sequence + 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_segment_is_not_closed_and_an_old_epoch_is_not_pinned() {
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
