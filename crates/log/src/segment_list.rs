//! Keeping the segment list, from which `verify` learns what should be there.
//!
//! 1. The list never claims more than is on disk: it counts records that settled, and only synced ones. A record that
//!    lands after its call gave up is not counted, so a segment may hold more than the list says.
//! 2. The list goes, durably, before anything goes that it names: a segment's file, or a record that becomes a void.
//! 3. What a count says holds for one epoch of a segment. A segment that is recycled needs no new list.
//! 4. A count that is larger than what opening finds stays until the segment is recycled or the loss is written off. So
//!    does a segment that is not found.

use std::ops::Range;
use std::sync::Arc;

use dalsegno_core::{Location, SECTOR_BYTES, StoreId};
use dalsegno_io::{OpenMode, Operation};

use crate::checkpoint::Checkpoint;
use crate::error::LogError;
use crate::format::{
    FormatError, LIST_FILE, ListedSegment, RecordHeader, RecordKind, SECTOR, SegmentList,
    segment_file,
};
use crate::log::{Core, Log};
use crate::segment::{Segment, SegmentState, Segments, Slot};

/// A list of as many segments as a store may have is shorter.
const MAX_LIST_BYTES: u64 = 4 << 20;

/// What a segment holds in its present epoch, as far as the log knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Extents and tombstones.
    pub(crate) records: u64,
    /// Blocks of the extents.
    pub(crate) blocks: u64,
    /// How many more the list counted when the log was opened: they are lost.
    lost: Lost,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lost {
    records: u64,
    blocks: u64,
}

impl Tally {
    /// What headers say that were read from `from` on, and the list of what lies before; `None` if the list does not
    /// reach so far.
    pub(crate) fn of(
        records: &[RecordHeader],
        (epoch, from): (u64, u64),
        listed: Option<&ListedSegment>,
    ) -> Option<Self> {
        let listed = listed.copied().unwrap_or_default();
        let count = |range: Range<u64>| {
            // Where something cannot be read, tombstones of earlier epochs are among the records.
            let counted = records.iter().filter(|record| record.epoch == epoch);
            count_in(counted, range)
        };
        let (before, behind) = (count(0..listed.end), count(listed.end..u64::MAX));
        if from > SECTOR_BYTES {
            let (records, blocks) = (listed.records + behind.0, listed.blocks + behind.1);
            let lost = Lost::default();
            return (listed.end >= from).then_some(Self { records, blocks, lost });
        }
        let lost = Lost {
            records: listed.records.saturating_sub(before.0),
            blocks: listed.blocks.saturating_sub(before.1),
        };
        Some(Self { records: before.0 + behind.0, blocks: before.1 + behind.1, lost })
    }

    /// Of a segment's new epoch, which holds these tombstones.
    pub(crate) fn of_tombstones(count: usize) -> Self {
        Self { records: count as u64, ..Self::default() }
    }
}

/// Of these records, in a range of their segment, how many the list counts, and the blocks of extents among them.
pub(crate) fn count_in<'a>(
    records: impl Iterator<Item = &'a RecordHeader>,
    range: Range<u64>,
) -> (u64, u64) {
    let blocks_of = |record: &RecordHeader| match record.kind {
        RecordKind::Extent { .. } => Some(record.hashes.len() as u64),
        RecordKind::Tombstone { .. } => Some(0),
        RecordKind::Void { .. } | RecordKind::Seal => None,
    };
    let inside = records.filter(|record| range.contains(&record.offset)).filter_map(blocks_of);
    inside.fold((0, 0), |(records, blocks), more| (records + 1, blocks + more))
}

impl Segments {
    /// Counts a record that is in the log.
    pub(crate) fn count_record(&mut self, segment: u64, blocks: u64) {
        if let Some(tally) = self.slots.get_mut(&segment).and_then(|slot| slot.tally.as_mut()) {
            tally.records += 1;
            tally.blocks += blocks;
        }
    }

    /// Counts an extent no more that becomes a void.
    pub(crate) fn uncount_extent(&mut self, segment: u64, blocks: u64) {
        if let Some(tally) = self.slots.get_mut(&segment).and_then(|slot| slot.tally.as_mut()) {
            tally.records = tally.records.saturating_sub(1);
            tally.blocks = tally.blocks.saturating_sub(blocks);
        }
    }

    /// Notes which segments on the list were not found at open. Their numbers are not used again.
    pub(crate) fn note_missing(&mut self) {
        let listed = self.list.iter().flat_map(|list| &list.segments);
        self.missing = listed.filter(|it| !self.slots.contains_key(&it.segment)).copied().collect();
        for ListedSegment { segment, records, .. } in &self.missing {
            self.next_number = self.next_number.max(*segment);
            let file = segment_file(*segment);
            tracing::warn!(
                "{file} is missing, with {records} records; run `dalsegno verify` for details"
            );
        }
    }

    /// The list as it should be now. `unsynced` gets the segments whose records are newly counted; without it none are.
    fn list(&self, store: StoreId, mut unsynced: Option<&mut Vec<Arc<Segment>>>) -> SegmentList {
        let entry = |slot: &Slot| {
            let (segment, epoch) = (slot.segment.number, slot.segment.epoch());
            let old = self.list.as_ref().and_then(|list| list.get(segment)).copied();
            let old = old.filter(|listed| listed.epoch == epoch);
            let known = ListedSegment { segment, epoch, ..ListedSegment::default() };
            let tally = slot.tally.filter(|_| slot.state != SegmentState::Damaged);
            let Some((tally, unsynced)) = tally.zip(unsynced.as_mut()) else {
                return old.unwrap_or(known);
            };
            let records = tally.records + tally.lost.records;
            let blocks = tally.blocks + tally.lost.blocks;
            if records > 0 && old.is_none_or(|old| (old.records, old.blocks) != (records, blocks)) {
                unsynced.push(Arc::clone(&slot.segment));
            }
            ListedSegment { end: slot.cursor, records, blocks, ..known }
        };
        let mut segments: Vec<_> = self.slots.values().map(entry).collect();
        segments.extend(&self.missing);
        segments.sort_unstable_by_key(|listed| listed.segment);
        SegmentList { store, segments }
    }
}

/// What a segment holds that opening read from `checkpoint` on.
pub(crate) fn tally_of(
    slot: &Slot,
    records: &[RecordHeader],
    checkpoint: &Checkpoint,
    list: Option<&SegmentList>,
) -> Option<Tally> {
    let (number, epoch) = (slot.segment.number, slot.segment.epoch());
    let from = checkpoint.segment(number, epoch).map_or(SECTOR_BYTES, |known| known.replay_from);
    let listed = list.and_then(|list| list.get(number)).filter(|listed| listed.epoch == epoch);
    // A segment whose header is damaged has no epoch.
    (epoch > 0).then(|| Tally::of(records, (epoch, from), listed)).flatten()
}

/// Reads the list of the store; an error inside if there is one that says nothing.
///
/// # Errors
///
/// If the device does not give it.
pub(crate) fn read_list(core: &Core) -> Result<Option<Result<SegmentList, FormatError>>, LogError> {
    let opened = match core.device.open(LIST_FILE, OpenMode::Read) {
        Err(error) if error.is_not_found() => return Ok(None),
        opened => opened?,
    };
    if !opened.bytes.is_multiple_of(SECTOR_BYTES) {
        core.device.close(opened.file);
        return Ok(Some(Err(FormatError::Truncated)));
    }
    let mut bytes = vec![0; usize::try_from(opened.bytes.min(MAX_LIST_BYTES)).expect("bounded")];
    let (mut offset, mut read) = (0, Ok(()));
    for part in bytes.chunks_mut(core.pool.largest()) {
        read = core.transfer(Operation::Read, opened.file, offset, part, &core.patient_call());
        if read.is_err() {
            break;
        }
        offset += part.len() as u64;
    }
    core.device.close(opened.file);
    read?;
    let decoded = SegmentList::decode(&bytes);
    Ok(Some(match decoded {
        Ok(list) if list.store != core.store => Err(FormatError::Place("store")),
        decoded => decoded,
    }))
}

impl Log {
    /// Writes down which segments there are and what they hold, unless that is written down already: `verify` compares
    /// the files with it. What is counted is synced first.
    ///
    /// # Errors
    ///
    /// Whatever the device says. Then there may be no list, and `verify` finds less.
    pub fn list_segments(&self) -> Result<(), LogError> {
        self.core.update_list(true)
    }

    /// Writes the list if a segment is not on it yet. No segment is synced, so no more records are counted than before.
    ///
    /// # Errors
    ///
    /// As [`Log::list_segments`].
    pub fn list_new_segments(&self) -> Result<(), LogError> {
        self.core.update_list(false)
    }

    /// Forgets that a segment, or records of it, are lost: a repair dealt with it.
    pub fn write_off(&self, segment: u64) {
        let mut segments = self.core.segments.lock();
        segments.missing.retain(|listed| listed.segment != segment);
        if let Some(tally) = segments.slots.get_mut(&segment).and_then(|slot| slot.tally.as_mut()) {
            tally.lost = Lost::default();
        }
    }
}

impl Core {
    fn update_list(&self, counts: bool) -> Result<(), LogError> {
        self.check_writable()?;
        // No segment goes before it is listed that it is there.
        let _no_file_goes = self.checkpointing.lock();
        let mut unsynced = Vec::new();
        let list = {
            let segments = self.segments.lock();
            let list = segments.list(self.store, counts.then_some(&mut unsynced));
            let is_known = |old: &SegmentList| *old == list || (!counts && old.names_same(&list));
            if segments.list.as_ref().is_some_and(is_known) {
                return Ok(());
            }
            list
        };
        for segment in unsynced {
            // Through its gate, which remembers a sync that failed: no checkpoint may call lost bytes durable.
            self.sync_segment(&segment, &self.patient_call())?;
        }
        self.segments.lock().list = None;
        self.write_list(&list)?;
        self.segments.lock().list = Some(list);
        Ok(())
    }

    fn write_list(&self, list: &SegmentList) -> Result<(), LogError> {
        let mut bytes = list.encode();
        match self.device.remove(LIST_FILE) {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        let opened = self.device.open(LIST_FILE, OpenMode::Create { bytes: bytes.len() as u64 })?;
        let (header, body) = bytes.split_at_mut(SECTOR);
        let write = |offset, bytes: &mut [u8]| {
            let call = self.patient_call();
            self.transfer(Operation::Write, opened.file, offset, bytes, &call)
        };
        let largest = self.pool.largest();
        let offsets = (SECTOR_BYTES..).step_by(largest);
        let written = offsets
            .zip(body.chunks_mut(largest))
            .try_for_each(|(offset, part)| write(offset, part))
            // A header says that the entries are there.
            .and_then(|()| self.sync_file(opened.file))
            .and_then(|()| write(0, header))
            .and_then(|()| self.sync_file(opened.file))
            .and_then(|()| self.sync_names());
        self.device.close(opened.file);
        Ok(written?)
    }

    /// Removes the list, for good, before something goes that it names.
    pub(crate) fn drop_list(&self) -> Result<(), LogError> {
        match self.device.remove(LIST_FILE) {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => self.sync_names()?,
        }
        self.segments.lock().list = None;
        Ok(())
    }

    /// Removes the list if it counts, or may count, the record at a place.
    pub(crate) fn drop_list_with(&self, location: &Location) -> Result<(), LogError> {
        let counts = |list: &SegmentList| {
            let listed = list.get(location.segment);
            listed.is_some_and(|it| it.epoch == location.epoch && location.offset < it.end)
        };
        let is_counted = self.segments.lock().list.as_ref().is_none_or(counts);
        if is_counted { self.drop_list() } else { Ok(()) }
    }
}
