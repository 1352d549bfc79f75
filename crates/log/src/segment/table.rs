//! All segments of a log and their shared numbers, under one lock.
//!
//! 1. `SECTOR <= cursor <= segment_bytes` for each segment. Space below the cursor stays reserved until the segment is
//!    recycled.
//! 2. At most one segment is open.
//! 3. A segment number is never used for a second file.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use dalsegno_core::{SECTOR_BYTES, StoreId};
use dalsegno_extent::format::{ListedSegment, SegmentList, segment_file};
use dalsegno_io::FileId;

use super::pin::{Pin, Segment};
use super::reservation::MergeInProgress;
use super::slot::{Doubt, SegmentState, Slot};
use super::tombstones::Tombstones;

/// After the file system refused a segment, this many reclaims pass before the log tries again.
const CREATION_PAUSE: u32 = 16;

/// Whether the log tries to create segments.
#[derive(Clone, Copy, Debug, Default)]
enum Creation {
    #[default]
    Allowed,
    /// The file system refused a segment, or one was given back to it.
    Paused {
        /// Reclaims until the log tries again.
        reclaims_left: u32,
    },
}

/// All segments of a log.
#[derive(Debug, Default)]
pub(crate) struct SegmentTable {
    pub(crate) slots: BTreeMap<u64, Slot>,
    pub(crate) next_number: u64,
    pub(crate) next_sequence: u64,
    pub(crate) tombstones: Tombstones,
    pub(crate) unread: Unread,
    /// The segment list, if there is one that can be read.
    pub(crate) list: Option<SegmentList>,
    open: Option<u64>,
    /// The first sequence number that a record could have when the open segment was opened.
    round: u64,
    /// The merge in progress, as long as its reservation lives.
    merging: Weak<u64>,
    creation: Creation,
}

/// What an open could not read.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    /// The largest `first_sequence` that a header claimed at open, if something could not be read then. No header
    /// claims more as long as this log is open.
    pub(crate) claim_limit: Option<u64>,
    /// Segment files that could not be opened. They may hold removals, however old, and be readable later.
    pub(crate) unopened: u32,
    /// Segments on the list that were not there at open. They stay on it until a repair.
    missing: Vec<ListedSegment>,
}

/// Free space of the open segment that a record takes.
pub(super) struct OpenSpace {
    pub(super) segment: Arc<Segment>,
    pub(super) offset: u64,
}

/// Where a sealed segment's seal belongs.
pub(super) struct SealPlace {
    /// Keeps the place from being recycled.
    pub(super) pin: Arc<Pin>,
    pub(super) offset: u64,
}

impl SegmentTable {
    pub(crate) fn count(&self, state: SegmentState) -> usize {
        self.slots.values().filter(|slot| slot.state == state).count()
    }

    pub(crate) fn has_open(&self) -> bool {
        self.open.is_some()
    }

    pub(crate) fn round(&self) -> u64 {
        self.round
    }

    pub(crate) fn set_state(&mut self, number: u64, state: SegmentState) {
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.state = state;
        }
    }

    /// The file of another segment: the next one in number, or the one before.
    pub(super) fn other_file(&self, file: FileId) -> Option<FileId> {
        let mut slots = self.slots.values().map(|slot| slot.segment.file);
        let before = slots.by_ref().take_while(|other| *other != file).last();
        slots.next().or(before)
    }

    pub(crate) fn take_sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence
    }

    /// What the header of a segment's next life claims: its records have no smaller sequence number, and all merges
    /// before it are durable.
    pub(crate) fn first_sequence(&self) -> u64 {
        // Bytes that could not be read may hold a merge that is not whole: no header claims more than those before.
        let doubts = self.slots.values().filter_map(|slot| slot.doubt);
        let merging = self.merging.upgrade().map(|sequence| *sequence);
        let unproven =
            doubts.map(|doubt| doubt.sequence).chain(merging).chain(self.unread.claim_limit);
        unproven.fold(self.next_sequence + 1, u64::min)
    }

    /// Makes sure that no header and no checkpoint claims that a merge is whole, as long as its segment lives.
    pub(super) fn doubt(&mut self, segment: u64, Doubt { offset, sequence }: Doubt) {
        if let Some(slot) = self.slots.get_mut(&segment) {
            let doubt = slot.doubt.get_or_insert(Doubt { offset, sequence });
            doubt.offset = doubt.offset.min(offset);
            doubt.sequence = doubt.sequence.min(sequence);
        }
    }

    /// Begins a merge whose extent has this sequence number. It ends when the result is dropped.
    ///
    /// # Panics
    ///
    /// If another merge is in progress.
    pub(super) fn begin_merge(&mut self, sequence: u64) -> MergeInProgress {
        assert!(self.merging.strong_count() == 0, "one extent is merged at a time");
        let merge = Arc::new(sequence);
        self.merging = Arc::downgrade(&merge);
        merge
    }

    /// Whether the open segment has space for `bytes`.
    pub(super) fn fits_open(&self, bytes: u64, segment_bytes: u64) -> bool {
        let open = self.open.and_then(|number| self.slots.get(&number));
        open.is_some_and(|slot| slot.cursor + bytes <= segment_bytes)
    }

    /// Whether another of `most` segments may be opened. Plain appends leave one in reserve, unless there are too few
    /// segments to move extents between.
    pub(super) fn may_open(&self, most: u32, relocating: bool) -> bool {
        let free = self.count(SegmentState::Free);
        let creatable = match self.creation {
            Creation::Allowed => (most as usize).saturating_sub(self.slots.len()),
            Creation::Paused { .. } => 0,
        };
        let reserve = usize::from(!relocating && self.slots.len() + creatable >= 3);
        free + creatable > reserve
    }

    /// Creates no segments for a while.
    pub(super) fn pause_creation(&mut self) {
        self.creation = Creation::Paused { reclaims_left: CREATION_PAUSE };
    }

    /// Counts a reclaim, which brings the next attempt to create a segment closer.
    pub(super) fn note_reclaim(&mut self) {
        self.creation = match self.creation {
            Creation::Paused { reclaims_left } if reclaims_left > 1 => {
                Creation::Paused { reclaims_left: reclaims_left - 1 }
            }
            Creation::Paused { .. } | Creation::Allowed => Creation::Allowed,
        };
    }

    /// Reserves `bytes` in the open segment.
    pub(super) fn reserve_open(&mut self, bytes: u64, segment_bytes: u64) -> Option<OpenSpace> {
        let slot = self.slots.get_mut(&self.open?).expect("the open segment exists");
        assert!(slot.state == SegmentState::Open && slot.cursor <= segment_bytes);
        if slot.cursor + bytes > segment_bytes {
            return None;
        }
        let offset = slot.cursor;
        slot.cursor += bytes;
        Some(OpenSpace { segment: Arc::clone(&slot.segment), offset })
    }

    /// Notes a record's numbers for its segment.
    pub(crate) fn note_record(&mut self, segment: u64, sequence: u64, born: u64) {
        if let Some(slot) = self.slots.get_mut(&segment) {
            slot.newest_sequence = slot.newest_sequence.max(sequence);
            slot.oldest_known = slot.oldest_known.min(born);
            slot.is_unsynced = true;
        }
    }

    /// Counts a record that is in the log.
    pub(super) fn count_record(&mut self, segment: u64, blocks: u64) {
        if let Some(tally) = self.slots.get_mut(&segment).and_then(|slot| slot.tally.as_mut()) {
            tally.add_record(blocks);
        }
    }

    /// Stops counting an extent that becomes a void.
    pub(super) fn uncount_extent(&mut self, segment: u64, blocks: u64) {
        if let Some(tally) = self.slots.get_mut(&segment).and_then(|slot| slot.tally.as_mut()) {
            tally.remove_extent(blocks);
        }
    }

    /// Makes the next checkpoint sync these segments.
    pub(super) fn mark_unsynced(&mut self, these: &[Arc<Segment>]) {
        for segment in these {
            if let Some(slot) = self.slots.get_mut(&segment.number) {
                slot.is_unsynced = true;
            }
        }
    }

    /// Seals the open segment. Returns where a seal belongs, if there is space for one.
    pub(super) fn seal_open(&mut self, segment_bytes: u64) -> Option<SealPlace> {
        let slot = self.slots.get_mut(&self.open.take()?).expect("the open segment exists");
        slot.state = SegmentState::Sealed;
        let offset = slot.cursor;
        slot.cursor = segment_bytes;
        let pin = slot.segment.pin(slot.segment.epoch()).expect("an open segment is not closed");
        (offset < segment_bytes).then(|| SealPlace { pin: Arc::new(pin), offset })
    }

    /// Makes a free segment the open one; `false` if there is none.
    pub(super) fn open_free(&mut self) -> bool {
        assert!(self.open.is_none(), "one open segment at a time");
        let free = self.slots.values_mut().find(|slot| slot.state == SegmentState::Free);
        let Some(slot) = free else { return false };
        slot.state = SegmentState::Open;
        self.open = Some(slot.segment.number);
        self.round = self.next_sequence + 1;
        true
    }

    /// Picks a free segment to remove, if another one stays in reserve, also for the tombstones of the first.
    pub(super) fn take_leaving(&mut self, segment_bytes: u64) -> Option<Arc<Segment>> {
        let count = self.count(SegmentState::Free);
        let free = self.slots.values().filter(|slot| slot.state == SegmentState::Free);
        let (cursor, number) = free.map(|slot| (slot.cursor, slot.segment.number)).min()?;
        let tombstone_bytes = cursor - SECTOR_BYTES;
        let fits = tombstone_bytes == 0 || self.fits_open(tombstone_bytes, segment_bytes);
        if count < if fits { 2 } else { 3 } {
            return None;
        }
        // No segment is created in its place, and none counts as creatable when the reserve is computed.
        self.pause_creation();
        let slot = self.slots.get_mut(&number)?;
        slot.state = SegmentState::Leaving;
        Some(Arc::clone(&slot.segment))
    }

    /// Ends opening: the newest of the segments with unused space stays open, and the round begins.
    pub(crate) fn finish_opening(&mut self) {
        let newest = self
            .slots
            .values()
            .filter(|slot| slot.state == SegmentState::Open)
            .max_by_key(|slot| slot.newest_sequence)
            .map(|slot| slot.segment.number);
        for (number, slot) in &mut self.slots {
            if slot.state == SegmentState::Open && Some(*number) != newest {
                slot.state = SegmentState::Sealed;
            }
        }
        self.open = newest;
        self.round = self.next_sequence + 1;
    }

    /// Notes which segments on the list were not found at open. Their numbers are not used again.
    pub(crate) fn note_missing(&mut self) {
        let listed = self.list.iter().flat_map(|list| &list.segments);
        self.unread.missing =
            listed.filter(|it| !self.slots.contains_key(&it.segment)).copied().collect();
        for ListedSegment { segment, records, .. } in &self.unread.missing {
            self.next_number = self.next_number.max(*segment);
            let file = segment_file(*segment);
            tracing::warn!(
                %file, records, "segment is missing; run `dalsegno verify` for details"
            );
        }
    }

    /// Whether some segment could not be read as a whole, so that it may hold removals that the log does not know.
    pub(super) fn is_partly_unread(&self) -> bool {
        self.unread.unopened > 0
            || !self.unread.missing.is_empty()
            || self.slots.values().any(|slot| slot.oldest_born() == 0)
    }

    /// Forgets that a segment, or records of it, are lost, because a repair dealt with it.
    pub(super) fn write_off(&mut self, segment: u64) {
        self.unread.missing.retain(|listed| listed.segment != segment);
        if let Some(tally) = self.slots.get_mut(&segment).and_then(|slot| slot.tally.as_mut()) {
            tally.write_off();
        }
    }

    /// The list as it should be now. `unsynced` gets the segments with newly counted records; without it, no record is
    /// newly counted.
    pub(super) fn to_list(
        &self,
        store: StoreId,
        mut unsynced: Option<&mut Vec<Arc<Segment>>>,
    ) -> SegmentList {
        let entry = |slot: &Slot| {
            let (segment, epoch) = (slot.segment.number, slot.segment.epoch());
            let old = self.list.as_ref().and_then(|list| list.get(segment)).copied();
            let old = old.filter(|listed| listed.epoch == epoch);
            let known = ListedSegment { segment, epoch, ..ListedSegment::default() };
            let tally = slot.tally.filter(|_| slot.state.is_sound());
            let Some((tally, unsynced)) = tally.zip(unsynced.as_mut()) else {
                return old.unwrap_or(known);
            };
            let count = tally.listed();
            let (records, blocks) = (count.records, count.blocks);
            if records > 0 && old.is_none_or(|old| (old.records, old.blocks) != (records, blocks)) {
                unsynced.push(Arc::clone(&slot.segment));
            }
            ListedSegment { end: slot.cursor, records, blocks, ..known }
        };
        let mut segments: Vec<_> = self.slots.values().map(entry).collect();
        segments.extend(&self.unread.missing);
        segments.sort_unstable_by_key(|listed| listed.segment);
        SegmentList { store, segments }
    }
}
