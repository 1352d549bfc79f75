//! Walks the records of a segment, reading headers only.
//!
//! 1. A record is taken only if its header is valid and names this store, segment, epoch and offset.
//! 2. Where none is found, the next one is looked for sector by sector, so a hole costs only itself.

use std::ops::Range;

use dalsegno_core::SECTOR_BYTES;
use dalsegno_io::{FileId, IoError, Operation};

use crate::call::Call;
use crate::format::{FormatError, RecordHeader, RecordKind, SegmentHeader};
use crate::log::Core;

/// Read ahead while headers follow each other closely.
const NEAR_WINDOW_BYTES: u64 = 64 << 10;

/// Where a record header has its epoch.
const EPOCH_AT: usize = 40;

/// What a walk over a segment found.
#[derive(Default)]
pub(crate) struct Scan {
    pub(crate) records: Vec<RecordHeader>,
    /// Places that look like headers of this epoch but are not valid.
    pub(crate) damage: Vec<(u64, FormatError)>,
    pub(crate) end: ScanEnd,
    /// Behind the last record.
    pub(crate) cursor: u64,
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

/// A part of the file in memory.
struct Window<'a> {
    core: &'a Core,
    file: FileId,
    end: u64,
    call: &'a Call,
    start: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// `len` bytes at `offset`, reading at least `ahead` if they are not at hand; `None` past the end or on an error.
    fn get(&mut self, offset: u64, len: u64, ahead: u64) -> Option<&[u8]> {
        if offset + len > self.end {
            return None;
        }
        let held = self.start..self.start + self.bytes.len() as u64;
        if !(held.contains(&offset) && offset + len <= held.end) {
            let largest = self.core.pool.largest() as u64;
            let want = len.max(ahead).min(self.end - offset).min(largest);
            // What cannot be read further on, a bad sector or the end of a file that was cut, hides nothing before it.
            let read = self.fill(offset, want);
            if let Err(error) = read.or_else(|_| self.fill(offset, len)) {
                tracing::warn!("headers at {offset} cannot be read: {error}");
                self.bytes.clear();
                return None;
            }
        }
        let at = usize::try_from(offset - self.start).expect("within the window");
        self.bytes.get(at..at + usize::try_from(len).expect("64-bit addresses"))
    }

    fn fill(&mut self, offset: u64, len: u64) -> Result<(), IoError> {
        self.bytes.resize(usize::try_from(len).expect("64-bit addresses"), 0);
        self.start = offset;
        self.core.transfer(Operation::Read, self.file, offset, &mut self.bytes, self.call)
    }

    /// The record at `offset`, wherever it says it belongs; `Err(None)` if the file ends or fails there.
    fn record(&mut self, offset: u64, ahead: u64) -> Result<RecordHeader, Option<FormatError>> {
        let sector = self.get(offset, SECTOR_BYTES, ahead).ok_or(None)?;
        let header_bytes = u64::from(RecordHeader::peek_bytes(sector)?);
        let bytes = self.get(offset, header_bytes, ahead).ok_or(Some(FormatError::Truncated))?;
        Ok(RecordHeader::decode(bytes)?)
    }
}

/// Reads the headers of all records in a range of a segment's file, which begins where a record may.
pub(crate) fn scan_records(
    core: &Core,
    file: FileId,
    segment: &SegmentHeader,
    range: Range<u64>,
    call: &Call,
) -> Scan {
    let end = range.end - range.end % SECTOR_BYTES;
    let mut window = Window { core, file, end, call, start: 0, bytes: Vec::new() };
    let mut scan =
        Scan { records: Vec::new(), damage: Vec::new(), end: ScanEnd::Open, cursor: range.start };
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
                    return scan;
                }
                scan.records.push(record);
            }
            Err(None) => {
                if offset + SECTOR_BYTES <= end {
                    // What lies behind cannot be seen, so nothing may be written over it.
                    scan.damage.push((offset, FormatError::Truncated));
                    scan.end = ScanEnd::Sealed;
                }
                break;
            }
            Err(Some(error)) => {
                if looks_damaged(&mut window, segment, offset, ahead) {
                    scan.damage.push((offset, error));
                }
                searching = true;
                offset += SECTOR_BYTES;
            }
        }
    }
    if scan.cursor >= segment.segment_bytes {
        scan.end = ScanEnd::Sealed;
    }
    scan
}

/// Reads all tombstones of a segment that is given up, of whatever epoch: hiding what was removed once is always right.
pub(crate) fn scan_tombstones(
    core: &Core,
    file: FileId,
    number: u64,
    file_bytes: u64,
) -> Vec<RecordHeader> {
    let end = file_bytes.min(core.options.segment_bytes);
    let end = end - end % SECTOR_BYTES;
    let call = Call::background();
    let mut window = Window { core, file, end, call: &call, start: 0, bytes: Vec::new() };
    let ahead = core.options.io_request_bytes;
    let mut found = Vec::new();
    let mut offset = SECTOR_BYTES;
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
    found
}

/// The record at `offset` if it belongs there; `Err(None)` if the file ends or fails there.
fn record_at(
    window: &mut Window<'_>,
    segment: &SegmentHeader,
    offset: u64,
    ahead: u64,
) -> Result<RecordHeader, Option<FormatError>> {
    let record = window.record(offset, ahead)?;
    let place = [
        ("store", record.store != segment.store),
        ("segment", record.segment != segment.segment),
        ("epoch", record.epoch != segment.epoch),
        ("offset", record.offset != offset),
    ];
    if let Some((field, _)) = place.into_iter().find(|(_, differs)| *differs) {
        return Err(Some(FormatError::Place(field)));
    }
    let end = u64::from(record.header_bytes()).checked_add(record.payload_bytes());
    match end.and_then(|bytes| bytes.checked_add(offset)) {
        Some(end) if end <= segment.segment_bytes => Ok(record),
        _ => Err(Some(FormatError::Field("payload_bytes"))),
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
    let Some(sector) = window.get(offset, SECTOR_BYTES, ahead) else { return false };
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
            let Some(bytes) = window.get(offset, header_bytes.into(), ahead) else { return false };
            let mut bytes = bytes.to_vec();
            bytes[EPOCH_AT..EPOCH_AT + 8].copy_from_slice(&segment.epoch.to_le_bytes());
            RecordHeader::decode(&bytes).is_ok()
        }
        [] | [_] => true,
        _ => false,
    }
}
