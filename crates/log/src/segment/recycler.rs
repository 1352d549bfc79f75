//! Recycles segments and removes segment files.
//!
//! 1. A segment is recycled only while no reader or writer holds a pin.
//! 2. Recycling needs no space elsewhere, so a log can always make space: tombstones move within their segment. Their
//!    copies of the next epoch are durable, clear of the originals, before only that epoch counts.
//! 3. Before copies overwrite an extent, no extent of the segment counts any more, durably. Otherwise an on-disk index
//!    could refer to overwritten bytes after a crash.
//! 4. The next epoch is durable before the segment is free.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Extent, SECTOR_BYTES};
use dalsegno_extent::format::{RecordHeader, RecordKind, RecordPlace, SegmentHeader, segment_file};
use dalsegno_extent::{check_reads, write_at};
use dalsegno_io::IoError;

use super::carry::SegmentTombstones;
use super::files::SegmentLife;
use super::list_file::SegmentListFile;
use super::pin::Segment;
use super::removals::Removals;
use super::segments::{FilesStay, Segments};
use super::slot::SegmentState;
use super::tally::Tally;
use super::tombstones::Tombstone;
use crate::device::LogDevice;
use crate::error::LogError;
use crate::scan::scan_records;
use crate::stats::LogStats;

/// Recycles the segments of one log.
#[derive(Debug)]
pub struct Recycler {
    device: LogDevice,
    segments: Arc<Segments>,
    removals: Arc<Removals>,
    list: Arc<SegmentListFile>,
}

impl Recycler {
    pub(crate) fn new(
        device: LogDevice,
        segments: Arc<Segments>,
        removals: Arc<Removals>,
        list: Arc<SegmentListFile>,
    ) -> Self {
        Self { device, segments, removals, list }
    }

    /// Recycles a segment: everything in it is gone afterwards, and it is free. The caller has moved the extents that
    /// it keeps, and makes sure that no index entry refers to the segment once this returns `true`.
    ///
    /// Returns `false` if pins stayed longer than `timeout`, or if the segment's tombstones would leave too little
    /// space. Then another segment must be recycled first.
    ///
    /// `before` runs when no pin is left and no new one is given out: the place to drop index entries.
    ///
    /// # Errors
    ///
    /// If the device fails. The segment then counts as damaged.
    pub fn recycle(
        &self,
        number: u64,
        timeout: Duration,
        before: impl FnOnce(),
    ) -> Result<bool, LogError> {
        self.device.syncer.check_writable()?;
        let (segment, state) = {
            let table = self.segments.table();
            let Some(slot) = table.slots.get(&number) else { return Ok(false) };
            (Arc::clone(&slot.segment), slot.state)
        };
        if !matches!(state, SegmentState::Sealed | SegmentState::Damaged) || !segment.close(timeout)
        {
            return Ok(false);
        }
        let done = match state {
            SegmentState::Damaged => self.discard(&segment, before),
            _ => self.renew(&segment, before),
        };
        match done {
            Ok(true) => LogStats::count(&self.device.stats.segments_recycled),
            Ok(false) => segment.reopen(segment.epoch()),
            Err(_) => {
                segment.reopen(segment.epoch());
                self.segments.table().set_state(number, SegmentState::Damaged);
            }
        }
        done
    }

    /// Removes a free segment, so that other files get its space. The log creates no segment for a while afterwards.
    /// Returns `false` if the only free segment is the reserve, or if its tombstones would take that.
    ///
    /// # Errors
    ///
    /// If the device fails. A segment whose file may be gone already then counts as damaged, and is the next to be
    /// reclaimed.
    pub fn give_back(&self, timeout: Duration) -> Result<bool, LogError> {
        self.device.syncer.check_writable()?;
        // Taken before the segment leaves: no checkpoint may miss it as long as its file is there.
        let files = self.segments.keep_files();
        let Some(segment) = self.segments.table().take_leaving(self.segments.segment_bytes())
        else {
            return Ok(false);
        };
        let set_state = |state| self.segments.table().set_state(segment.number, state);
        if !segment.close(timeout) {
            set_state(SegmentState::Free);
            return Ok(false);
        }
        let moved = self.move_tombstones(&segment);
        if !matches!(moved, Ok(true)) {
            segment.reopen(segment.epoch());
            set_state(SegmentState::Free);
            return moved;
        }
        if let Err(error) = self.remove_segment(&segment, &files) {
            segment.reopen(segment.epoch());
            set_state(SegmentState::Damaged);
            return Err(error);
        }
        LogStats::count(&self.device.stats.segments_given_back);
        Ok(true)
    }

    /// The extents of a segment, read from their headers, without those whose header is damaged. The error says why
    /// some readable extents may be missing: the device failed, or took too long.
    #[must_use]
    pub fn extents_in(&self, number: u64) -> (Vec<Extent>, Option<LogError>) {
        let Some(segment) = self.find(number) else { return (Vec::new(), None) };
        let segment_bytes = self.segments.segment_bytes();
        let header = SegmentHeader {
            store: self.segments.store(),
            segment: number,
            epoch: segment.epoch(),
            segment_bytes,
            first_sequence: 0,
            carrying: false,
        };
        let scan =
            scan_records(&self.device.io, segment.file, &header, SECTOR_BYTES..segment_bytes);
        (scan.records.iter().filter_map(RecordHeader::extent).collect(), scan.failure)
    }

    /// Makes sure that the device reads at all: a segment's first sector, or the store's own header.
    ///
    /// # Errors
    ///
    /// How reading fails.
    pub fn check_reads(&self, number: u64) -> Result<(), LogError> {
        let Some(segment) = self.find(number) else { return Ok(()) };
        Ok(check_reads(&self.device.io, segment.file)?)
    }

    fn find(&self, number: u64) -> Option<Arc<Segment>> {
        self.segments.table().slots.get(&number).map(|slot| Arc::clone(&slot.segment))
    }

    /// Begins the segment's next life: a durable header, only tombstones in it, free. `false` if these would leave less
    /// than half of it. `before` runs once nothing but the device can stop it.
    fn renew(&self, segment: &Segment, before: impl FnOnce()) -> Result<bool, LogError> {
        let tombstones = SegmentTombstones::of(&self.segments.table(), segment.number);
        let limit = self.segments.segment_bytes() / 2;
        let Some(carried) = tombstones.place_copies(limit) else { return Ok(false) };
        before();
        let epoch = segment.epoch() + 1;
        let first_sequence = self.segments.table().first_sequence();
        let life = SegmentLife { epoch, first_sequence, carrying: false };
        if !carried.is_empty() {
            let carrying = SegmentLife { carrying: true, ..life };
            self.segments.files().write_header(segment, carrying)?;
            self.copy_tombstones(segment, epoch, &carried)?;
        }
        self.segments.files().write_header(segment, life)?;
        let mut table = self.segments.table();
        table.tombstones.drop_segment(segment.number);
        let slot = table.slots.get_mut(&segment.number).expect("a closed segment stays");
        slot.state = SegmentState::Free;
        slot.cursor = carried.last().map_or(SECTOR_BYTES, Tombstone::end);
        slot.oldest_known = u64::MAX;
        slot.newest_sequence = first_sequence;
        slot.is_unsynced = true;
        slot.doubt = None;
        slot.first_gap = None;
        slot.tally = Some(Tally::of_tombstones(carried.len()));
        for tombstone in carried {
            table.tombstones.push(tombstone);
        }
        segment.reopen(epoch);
        Ok(true)
    }

    /// Removes a damaged segment, so that one with a new number can take its space. `false` if its tombstones find no
    /// space elsewhere.
    fn discard(&self, segment: &Segment, before: impl FnOnce()) -> Result<bool, LogError> {
        if !self.move_tombstones(segment)? {
            return Ok(false);
        }
        before();
        self.remove_segment(segment, &self.segments.keep_files())?;
        Ok(true)
    }

    /// Writes a segment's tombstones to the open segment; `false` if that has no space for them.
    fn move_tombstones(&self, segment: &Segment) -> Result<bool, LogError> {
        let tombstones = SegmentTombstones::of(&self.segments.table(), segment.number);
        for Tombstone { namespace, hashes, kills_before, .. } in tombstones.carried {
            match self.removals.write_tombstone(namespace, hashes, kills_before) {
                Err(LogError::Full) => return Ok(false),
                written => written?,
            }
        }
        Ok(true)
    }

    /// Removes a segment and its file. Meanwhile no checkpoint is made, which would sync the file.
    fn remove_segment(&self, segment: &Segment, _files: &FilesStay<'_>) -> Result<(), LogError> {
        self.list.remove()?;
        match self.device.io.device.remove(&segment_file(segment.number)) {
            // If the file is not found, an earlier attempt removed it.
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => self.device.syncer.sync_names()?,
        }
        let mut table = self.segments.table();
        table.tombstones.drop_segment(segment.number);
        table.slots.remove(&segment.number);
        drop(table);
        self.device.io.device.close(segment.file);
        Ok(())
    }

    /// Writes tombstones at their places as records of the next epoch, and syncs them.
    fn copy_tombstones(
        &self,
        segment: &Segment,
        epoch: u64,
        carried: &[Tombstone],
    ) -> Result<(), IoError> {
        let call = self.device.io.own_call();
        for tombstone in carried {
            let mut offset = tombstone.offset;
            let kind = RecordKind::Tombstone { kills_before: tombstone.kills_before };
            let sequence = self.segments.table().take_sequence();
            let place = RecordPlace { segment: segment.number, epoch, offset };
            let header = RecordHeader {
                namespace: tombstone.namespace,
                hashes: tombstone.hashes.clone(),
                ..place.bare_header(self.segments.store(), sequence, kind)
            };
            let mut bytes = vec![0; header.header_bytes() as usize];
            header.encode(&mut bytes);
            for part in bytes.chunks(self.device.io.pool.largest()) {
                write_at(&self.device.io, segment.file, offset, part, &call)?;
                offset += part.len() as u64;
            }
        }
        self.device.syncer.sync_file(segment.file)
    }
}
