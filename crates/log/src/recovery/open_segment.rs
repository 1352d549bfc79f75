//! Opens one segment file.
//!
//! 1. A segment counts only with a valid header of this store; its name proves nothing.
//! 2. With durability `batch`, the extents of an opened segment are durable.

use std::ops::Range;

use dalsegno_core::{Durability, SECTOR_BYTES, StoreId};
use dalsegno_extent::format::{FormatError, RecordHeader, RecordKind, STORE_FILE, SegmentHeader};
use dalsegno_extent::{DeviceIo, check_reads, read_first_sector};
use dalsegno_io::{DirEntry, IoError, OpenMode, Opened};

use super::segment_header::{SegmentIdentity, read_segment_header};
use crate::error::LogError;
use crate::scan::{ScanEnd, SegmentScan, scan_records, scan_tombstones};
use crate::segment::{Checkpoint, Segment, SegmentCheckpoint, SegmentState, Slot};
use crate::sync::Syncer;

/// Damage found at open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFault {
    /// The file.
    pub file: String,
    /// Byte offset in it.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

/// What opening found in a segment file.
pub(super) struct OpenedSegment {
    pub(super) number: u64,
    pub(super) contents: SegmentContents,
    pub(super) faults: Vec<SegmentFault>,
}

/// The contents of a segment file.
pub(super) enum SegmentContents {
    /// The file is not a segment of this store, or a crash left it before anything was in it.
    Nothing,
    /// The file cannot be opened, so its contents are unknown.
    Unopened,
    /// A segment.
    Records {
        slot: Slot,
        /// What its header claims; zero without a valid header.
        first_sequence: u64,
        /// The records that the checkpoint does not know. Of a damaged segment, only tombstones.
        records: Vec<RecordHeader>,
    },
}

/// Opens the segments of a store.
pub(crate) struct SegmentOpener<'a> {
    pub(crate) io: &'a DeviceIo,
    pub(crate) syncer: &'a Syncer,
    pub(crate) store: StoreId,
    pub(crate) segment_bytes: u64,
    pub(crate) durability: Durability,
    pub(crate) checkpoint: &'a Checkpoint,
}

impl SegmentOpener<'_> {
    /// Opens the segment file of a directory entry.
    pub(super) fn open(&self, number: u64, entry: &DirEntry) -> Result<OpenedSegment, LogError> {
        let fault = |what: String| SegmentFault { file: entry.name.clone(), offset: 0, what };
        let found = |contents, faults| Ok(OpenedSegment { number, contents, faults });
        let opened = match self.open_file(&entry.name)? {
            Ok(opened) => opened,
            Err(error) => return found(SegmentContents::Unopened, vec![fault(error.to_string())]),
        };
        let header = match self.read_header(number, &opened)? {
            Ok(header) => header,
            Err(FormatError::Newer(version)) => {
                let source = FormatError::Newer(version);
                return Err(LogError::Format { file: entry.name.clone(), source });
            }
            Err(FormatError::Unfinished) => {
                // A crash came between creating the file and writing its header.
                self.io.device.close(opened.file);
                if !self.syncer.is_read_only() {
                    self.io.device.remove(&entry.name)?;
                }
                return found(SegmentContents::Nothing, Vec::new());
            }
            Err(FormatError::Magic | FormatError::Place("store")) => {
                self.io.device.close(opened.file);
                let what = "not a segment of this store; left alone".to_owned();
                return found(SegmentContents::Nothing, vec![fault(what)]);
            }
            Err(damage) => {
                let gap = (damage == FormatError::Unreadable).then_some(0);
                let contents = self.damaged(number, &opened, gap, 0)?;
                return found(contents, vec![fault(damage.to_string())]);
            }
        };
        if header.carrying {
            // A crash interrupted its recycling.
            let contents = self.damaged(number, &opened, None, header.first_sequence)?;
            return found(contents, Vec::new());
        }
        let known = self.checkpoint.segment(number, header.epoch);
        let (contents, faults) = self.scan(&opened, &header, known)?;
        let name = |(offset, what)| SegmentFault { file: entry.name.clone(), offset, what };
        found(contents, faults.into_iter().map(name).collect())
    }

    /// Opens a file. The inner error says that this file alone cannot be opened while the device works.
    fn open_file(&self, name: &str) -> Result<Result<Opened, IoError>, LogError> {
        let is_read_only = self.syncer.is_read_only();
        let mode = || if is_read_only { OpenMode::Read } else { OpenMode::ReadWrite };
        match self.io.device.open(name, mode()) {
            Err(error) if error.is_out_of_files() => Err(error.into()),
            Err(_) => {
                read_first_sector(self.io, STORE_FILE)?;
                Ok(self.io.device.open(name, mode()))
            }
            opened => Ok(opened),
        }
    }

    /// Reads a segment's header, a second time if the device could not read it but reads others.
    fn read_header(
        &self,
        number: u64,
        opened: &Opened,
    ) -> Result<Result<SegmentHeader, FormatError>, LogError> {
        let (store, segment_bytes) = (self.store, self.segment_bytes);
        let identity = SegmentIdentity { store, number, segment_bytes };
        let read = || read_segment_header(self.io, identity, opened.file, opened.bytes);
        match read() {
            Err(FormatError::Unreadable) => {
                check_reads(self.io, opened.file)?;
                Ok(read())
            }
            header => Ok(header),
        }
    }

    /// A segment whose extents are lost. Its tombstones still hold.
    fn damaged(
        &self,
        number: u64,
        opened: &Opened,
        first_gap: Option<u64>,
        first_sequence: u64,
    ) -> Result<SegmentContents, LogError> {
        let segment = Segment::new(number, opened.file, 0);
        let slot = Slot { state: SegmentState::Damaged, first_gap, ..Slot::free(segment) };
        let records = self.tombstones(number, opened, SECTOR_BYTES..opened.bytes)?;
        Ok(SegmentContents::Records { slot, first_sequence, records })
    }

    fn tombstones(
        &self,
        number: u64,
        opened: &Opened,
        range: Range<u64>,
    ) -> Result<Vec<RecordHeader>, LogError> {
        let range = range.start..range.end.min(self.segment_bytes);
        scan_tombstones(self.io, opened.file, self.store, number, range)
    }

    /// Reads the headers of a segment's records, except those that the checkpoint knows.
    ///
    /// # Errors
    ///
    /// If the device fails. Damage in places is no error.
    fn read_records(
        &self,
        opened: &Opened,
        header: &SegmentHeader,
        known: Option<&SegmentCheckpoint>,
    ) -> Result<SegmentScan, LogError> {
        if known.is_some_and(SegmentCheckpoint::is_whole) {
            let (end, cursor) = (ScanEnd::Sealed, self.segment_bytes);
            return Ok(SegmentScan { end, cursor, ..SegmentScan::default() });
        }
        let start = known.map_or(SECTOR_BYTES, |known| known.replay_from);
        let bytes = opened.bytes.min(self.segment_bytes);
        let mut scan = scan_records(self.io, opened.file, header, start..bytes);
        if let Some(failure) = scan.failure.take() {
            return Err(failure);
        }
        if let Some(from) = scan.unread_from {
            scan.records.extend(self.tombstones(header.segment, opened, from..bytes)?);
        }
        Ok(scan)
    }

    /// Opens a segment with a valid header. Returns each fault with its offset.
    ///
    /// # Errors
    ///
    /// As [`Self::read_records`].
    fn scan(
        &self,
        opened: &Opened,
        header: &SegmentHeader,
        known: Option<&SegmentCheckpoint>,
    ) -> Result<(SegmentContents, Vec<(u64, String)>), LogError> {
        let scan = self.read_records(opened, header, known)?;
        let SegmentScan { records, damage, end, cursor, first_gap, .. } = scan;
        let damage = damage.into_iter().map(|(offset, error)| (offset, error.to_string()));
        let mut faults: Vec<(u64, String)> = damage.collect();
        let is_truncated = opened.bytes != self.segment_bytes;
        if is_truncated {
            faults.push((opened.bytes, format!("the file has {} bytes", opened.bytes)));
        }
        let mut state =
            if is_truncated { SegmentState::Damaged } else { state_of(end, &records, known) };
        if (state == SegmentState::Free || self.must_be_durable(&records))
            && !self.syncer.is_read_only()
            && let Err(error) = self.syncer.sync_file(opened.file)
        {
            // For any reason, because opening returns these extents as durable.
            self.syncer.poison(&error);
            faults.push((0, error.to_string()));
            state = SegmentState::Damaged;
        }
        let segment = Segment::new(header.segment, opened.file, header.epoch);
        let newest_known = known.map_or(0, |known| known.newest_sequence);
        // Records that the checkpoint knows may be whole and yet unreadable now.
        let cursor = match state {
            SegmentState::Sealed => self.segment_bytes,
            _ => known.map_or(cursor, |known| known.cursor.max(cursor)),
        };
        let slot = Slot {
            state,
            cursor,
            oldest_known: known.map_or(u64::MAX, |known| known.oldest_born),
            newest_sequence: newest_known.max(header.first_sequence),
            first_gap,
            ..Slot::free(segment)
        };
        let first_sequence = header.first_sequence;
        Ok((SegmentContents::Records { slot, first_sequence, records }, faults))
    }

    /// Whether opening promises that some of these records are durable, although a killed process may have written them
    /// without a sync. With durability `batch`, a put returned for each extent. Moved and merged extents replace their
    /// sources. A void may replace a torn merge, which is in doubt no more.
    fn must_be_durable(&self, records: &[RecordHeader]) -> bool {
        let is_batch = self.durability == Durability::Batch;
        let is_promised = |record: &RecordHeader| match record.kind {
            RecordKind::Extent { .. } => is_batch || record.extent().is_some_and(|e| e.is_moved()),
            RecordKind::Void { .. } => true,
            RecordKind::Tombstone { .. } | RecordKind::Seal => false,
        };
        records.iter().any(is_promised)
    }
}

/// The state of a healthy segment.
fn state_of(
    end: ScanEnd,
    records: &[RecordHeader],
    known: Option<&SegmentCheckpoint>,
) -> SegmentState {
    let has_older = known.is_some_and(|known| known.oldest_born != u64::MAX);
    match end {
        _ if known.is_some_and(|known| known.sealed) => SegmentState::Sealed,
        ScanEnd::Sealed => SegmentState::Sealed,
        // A segment's new life begins with the tombstones of the earlier ones.
        ScanEnd::Open if !has_older && records.iter().all(RecordHeader::is_tombstone) => {
            SegmentState::Free
        }
        ScanEnd::Open => SegmentState::Open,
    }
}
