//! Walks the records of a segment, reading headers only.
//!
//! 1. A record is taken only if its header is valid and names this store, segment, epoch and offset.
//! 2. Where none is found, the next one is looked for sector by sector, so a hole costs only itself. So does what the
//!    device cannot read, and cannot read again after it read something else; up to [`MOST_UNREADABLE`] times, since
//!    each may take long. When the device fails as a whole the walk ends, and says so.
//! 3. Where a header could not be read nothing is written any more: the segment counts as sealed.

use std::ops::Range;

use dalsegno_core::{SECTOR_BYTES, sector_down};
use dalsegno_io::{FileId, IoError, Operation};

use crate::error::LogError;
use crate::format::{FormatError, RecordHeader, RecordKind, SegmentHeader};
use crate::log::Core;

/// Read ahead while headers follow each other closely.
const NEAR_WINDOW_BYTES: u64 = 64 << 10;

/// Sectors that a walk tries in vain before it goes no further.
const MOST_UNREADABLE: usize = 64;

/// The same, where only tombstones are looked for: what they remove comes back if they are not found.
const MOST_UNREADABLE_TOMBSTONES: usize = 4096;

/// Where a record header has its epoch.
const EPOCH_AT: usize = 40;

/// What a walk over a segment found.
#[derive(Default)]
pub(crate) struct Scan {
    pub(crate) records: Vec<RecordHeader>,
    /// Places that look like headers of this epoch but are not valid, or that cannot be read.
    pub(crate) damage: Vec<(u64, FormatError)>,
    pub(crate) end: ScanEnd,
    /// Behind the last record.
    pub(crate) cursor: u64,
    /// The first place that could not be read: there may be more than what was found.
    pub(crate) first_gap: Option<u64>,
    /// Where the walk ended because too much could not be read.
    pub(crate) unread_from: Option<u64>,
    /// The device fails, which ended the walk.
    pub(crate) failure: Option<LogError>,
}

/// How the records of a segment end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ScanEnd {
    /// With a seal, with the segment, or where reading failed.
    #[default]
    Sealed,
    /// With unused room.
    Open,
}

/// Why there is no record at a place.
enum Absent {
    /// The file ends there, or the walk does, since too much could not be read.
    End,
    /// Something else is there.
    Other(FormatError),
}

impl From<FormatError> for Absent {
    fn from(error: FormatError) -> Self {
        Self::Other(error)
    }
}

/// A part of the file in memory.
struct Window<'a> {
    core: &'a Core,
    file: FileId,
    end: u64,
    start: u64,
    bytes: Vec<u8>,
    /// Reads that failed and could not be smaller, how many may, and where the first was.
    unreadable: usize,
    most_unreadable: usize,
    first_gap: Option<u64>,
    /// Something between here and there cannot be read.
    bad_before: u64,
    failure: Option<LogError>,
}

impl<'a> Window<'a> {
    fn new(core: &'a Core, file: FileId, end: u64) -> Self {
        let (start, bytes, bad_before, failure) = (0, Vec::new(), 0, None);
        Self {
            core,
            file,
            end,
            start,
            bytes,
            unreadable: 0,
            most_unreadable: MOST_UNREADABLE,
            first_gap: None,
            bad_before,
            failure,
        }
    }

    /// Whether too much could not be read.
    fn is_too_bad(&self) -> bool {
        self.unreadable > self.most_unreadable
    }

    /// `len` bytes at `offset`, reading at least `ahead` if they are not at hand.
    fn get(&mut self, offset: u64, len: u64, ahead: u64) -> Result<&[u8], Absent> {
        if offset + len > self.end || self.is_too_bad() || self.failure.is_some() {
            return Err(Absent::End);
        }
        let held = self.start..self.start + self.bytes.len() as u64;
        if !(held.contains(&offset) && offset + len <= held.end) {
            self.load(offset, len, ahead)?;
        }
        let at = usize::try_from(offset - self.start).expect("within the window");
        let len = usize::try_from(len).expect("64-bit addresses");
        self.bytes.get(at..at + len).ok_or(Absent::End)
    }

    fn load(&mut self, offset: u64, len: u64, ahead: u64) -> Result<(), Absent> {
        let largest = self.core.pool.largest() as u64;
        let mut want = len.max(ahead).min(self.end - offset).min(largest);
        if offset < self.bad_before {
            want = len.max(sector_down((self.bad_before - offset) / 2).min(want));
        }
        loop {
            let Err(error) = self.fill(offset, want) else { return Ok(()) };
            if want > len {
                // What cannot be read further on, a bad sector or the end of a file that was cut, hides nothing before.
                self.bad_before = offset + want;
                want = len.max(sector_down(want / 2));
                continue;
            }
            tracing::warn!("headers at {offset} cannot be read: {error}");
            return self.judge(offset, len, error);
        }
    }

    /// What it means that a read failed which cannot be smaller.
    fn judge(&mut self, offset: u64, len: u64, error: IoError) -> Result<(), Absent> {
        let is_short = matches!(error, IoError::Short { .. });
        match error {
            IoError::Short { .. } | IoError::Os { .. } => match self.core.check_reads(self.file) {
                Ok(()) if self.fill(offset, len).is_ok() => return Ok(()),
                checked => self.failure = checked.err(),
            },
            error => self.failure = Some(error.into()),
        }
        self.bytes.clear();
        self.unreadable += 1;
        self.first_gap.get_or_insert(offset);
        // The next sector may be as bad.
        self.bad_before = offset + 2 * SECTOR_BYTES;
        let is_end = is_short || self.failure.is_some();
        Err(if is_end { Absent::End } else { FormatError::Unreadable.into() })
    }

    fn fill(&mut self, offset: u64, len: u64) -> Result<(), IoError> {
        let len = usize::try_from(len).expect("64-bit addresses");
        if self.bytes.len() < len {
            // Zeroed by the system, where `resize` writes every byte.
            self.bytes = vec![0; len];
        }
        self.bytes.truncate(len);
        self.start = offset;
        // A minute for each: a walk over much may take longer.
        let call = self.core.patient_call();
        self.core.transfer(Operation::Read, self.file, offset, &mut self.bytes, &call)
    }

    /// The record at `offset`, wherever it says it belongs.
    fn record(&mut self, offset: u64, ahead: u64) -> Result<RecordHeader, Absent> {
        let sector = self.get(offset, SECTOR_BYTES, ahead)?;
        let header_bytes = u64::from(RecordHeader::peek_bytes(sector)?);
        let bytes = match self.get(offset, header_bytes, ahead) {
            Err(Absent::End) => return Err(FormatError::Truncated.into()),
            bytes => bytes?,
        };
        Ok(RecordHeader::decode(bytes)?)
    }
}

/// Reads the headers of all records in a range of a segment's file, which begins where a record may.
pub(crate) fn scan_records(
    core: &Core,
    file: FileId,
    segment: &SegmentHeader,
    range: Range<u64>,
) -> Scan {
    let end = range.end - range.end % SECTOR_BYTES;
    let mut window = Window::new(core, file, end);
    let mut scan = Scan { end: ScanEnd::Open, cursor: range.start, ..Scan::default() };
    let mut offset = range.start;
    let mut searching = false;
    while offset < segment.segment_bytes {
        let ahead = if searching { core.options.io_request_bytes } else { NEAR_WINDOW_BYTES };
        match record_at(&mut window, segment, offset, ahead) {
            Ok(record) => {
                searching = false;
                offset += u64::from(record.header_bytes()) + record.payload_bytes();
                scan.cursor = offset;
                if record.kind == RecordKind::Seal {
                    scan.end = ScanEnd::Sealed;
                    scan.records.push(record);
                    break;
                }
                scan.records.push(record);
            }
            Err(Absent::End) => {
                if offset + SECTOR_BYTES <= end {
                    // What lies behind cannot be seen, so nothing may be written over it.
                    let is_cut = window.failure.is_none() && !window.is_too_bad();
                    let why = if is_cut { FormatError::Truncated } else { FormatError::Unreadable };
                    scan.damage.push((offset, why));
                    scan.end = ScanEnd::Sealed;
                }
                break;
            }
            Err(Absent::Other(error)) => {
                if error == FormatError::Unreadable
                    || looks_damaged(&mut window, segment, offset, ahead)
                {
                    scan.damage.push((offset, error));
                }
                searching = true;
                offset += SECTOR_BYTES;
            }
        }
    }
    scan.first_gap = window.first_gap;
    if scan.cursor >= segment.segment_bytes || scan.first_gap.is_some() {
        scan.end = ScanEnd::Sealed;
    }
    scan.unread_from = window.is_too_bad().then_some(offset);
    scan.failure = window.failure;
    scan
}

/// Reads all tombstones in a range of a segment, of whatever epoch: hiding what was removed once is always right.
///
/// # Errors
///
/// If the device fails.
pub(crate) fn scan_tombstones(
    core: &Core,
    file: FileId,
    number: u64,
    range: Range<u64>,
) -> Result<Vec<RecordHeader>, LogError> {
    let end = range.end.min(core.options.segment_bytes);
    let end = end - end % SECTOR_BYTES;
    let most_unreadable = MOST_UNREADABLE_TOMBSTONES;
    let mut window = Window { most_unreadable, ..Window::new(core, file, end) };
    let ahead = core.options.io_request_bytes;
    let mut found = Vec::new();
    let mut offset = range.start;
    while offset < end {
        let record = window.record(offset, ahead);
        if let Ok(record) = record
            && record.is_tombstone()
            && (record.store, record.segment, record.offset) == (core.store, number, offset)
        {
            found.push(record);
        }
        offset += SECTOR_BYTES;
    }
    window.failure.map_or(Ok(found), Err)
}

/// The record at `offset` if it belongs there.
fn record_at(
    window: &mut Window<'_>,
    segment: &SegmentHeader,
    offset: u64,
    ahead: u64,
) -> Result<RecordHeader, Absent> {
    let record = window.record(offset, ahead)?;
    let place = [
        ("store", record.store != segment.store),
        ("segment", record.segment != segment.segment),
        ("epoch", record.epoch != segment.epoch),
        ("offset", record.offset != offset),
    ];
    if let Some((field, _)) = place.into_iter().find(|(_, differs)| *differs) {
        return Err(FormatError::Place(field).into());
    }
    let end = u64::from(record.header_bytes()).checked_add(record.payload_bytes());
    match end.and_then(|bytes| bytes.checked_add(offset)) {
        Some(end) if end <= segment.segment_bytes => Ok(record),
        _ => Err(FormatError::Field("payload_bytes").into()),
    }
}

/// Whether a sector that is no valid record was one of this epoch once: all but one of the five fields that every
/// header repeats are right. If the one is the epoch, the rest must be right with it: else it is what an earlier epoch
/// left over, and was damaged before or since.
fn looks_damaged(
    window: &mut Window<'_>,
    segment: &SegmentHeader,
    offset: u64,
    ahead: u64,
) -> bool {
    let Ok(sector) = window.get(offset, SECTOR_BYTES, ahead) else { return false };
    if matches!(RecordHeader::decode(sector), Ok(_) | Err(FormatError::Place(_))) {
        return false;
    }
    let fields: [(usize, &[u8]); 5] = [
        (0, b"DSGNRECD"),
        (16, &segment.store.0),
        (32, &segment.segment.to_le_bytes()),
        (EPOCH_AT, &segment.epoch.to_le_bytes()),
        (48, &offset.to_le_bytes()),
    ];
    let is_right = |(at, value): &(usize, &[u8])| sector[*at..*at + value.len()] == **value;
    match fields.iter().filter(|field| !is_right(field)).map(|(at, _)| *at).collect::<Vec<_>>()[..]
    {
        [EPOCH_AT] => {
            let Ok(header_bytes) = RecordHeader::peek_bytes(sector) else { return false };
            let Ok(bytes) = window.get(offset, header_bytes.into(), ahead) else { return false };
            let mut bytes = bytes.to_vec();
            bytes[EPOCH_AT..EPOCH_AT + 8].copy_from_slice(&segment.epoch.to_le_bytes());
            RecordHeader::decode(&bytes).is_ok()
        }
        [] | [_] => true,
        _ => false,
    }
}
