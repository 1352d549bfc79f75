//! Walks the records of a segment, reading headers only.
//!
//! 1. A record counts only if its header is valid and names this store, segment, epoch and offset.
//! 2. Where no record is found, the walk looks for the next one sector by sector, so a hole costs only itself.
//! 3. Once a header could not be read, the segment counts as sealed: nothing is written to it any more.

use std::ops::Range;

use dalsegno_core::{SECTOR_BYTES, StoreId};
use dalsegno_extent::DeviceIo;
use dalsegno_extent::format::{FormatError, RecordHeader, RecordKind, SegmentHeader};
use dalsegno_io::FileId;

use super::window::{Absent, HeaderWindow};
use crate::error::LogError;

/// Bytes to read ahead while headers follow each other closely.
const NEAR_WINDOW_BYTES: u64 = 64 << 10;

/// Failed reads after which a walk ends.
const MOST_UNREADABLE: usize = 64;

/// The same for a walk that looks for tombstones: removed blocks come back if it misses one.
const MOST_UNREADABLE_TOMBSTONES: usize = 4096;

/// Offset of the epoch in a record header.
const EPOCH_AT: usize = 40;

/// The result of a walk over a segment.
#[derive(Default)]
pub(crate) struct SegmentScan {
    pub(crate) records: Vec<RecordHeader>,
    /// Places that look like headers of this epoch but are not valid, and places that cannot be read.
    pub(crate) damage: Vec<(u64, FormatError)>,
    pub(crate) end: ScanEnd,
    /// Where the last record ends.
    pub(crate) cursor: u64,
    /// The first place that could not be read: there may be more records than the scan found.
    pub(crate) first_gap: Option<u64>,
    /// Where the walk ended because too many reads failed.
    pub(crate) unread_from: Option<u64>,
    /// The device failed, which ended the walk.
    pub(crate) failure: Option<LogError>,
}

/// How the records of a segment end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ScanEnd {
    /// With a seal, with the segment, or where reading failed.
    #[default]
    Sealed,
    /// With unused space.
    Open,
}

/// Reads the headers of all records in a range of a segment's file. The range begins where a record may begin.
pub(crate) fn scan_records(
    io: &DeviceIo,
    file: FileId,
    segment: &SegmentHeader,
    range: Range<u64>,
) -> SegmentScan {
    let end = range.end - range.end % SECTOR_BYTES;
    let mut window = HeaderWindow::new(io, file, end, MOST_UNREADABLE);
    let mut scan =
        SegmentScan { end: ScanEnd::Open, cursor: range.start, ..SegmentScan::default() };
    let mut offset = range.start;
    let mut searching = false;
    while offset < segment.segment_bytes {
        let ahead = if searching { io.bounds.request_bytes } else { NEAR_WINDOW_BYTES };
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
                    // Records behind may exist unseen, so nothing may be written over them.
                    let is_truncated = window.failure.is_none() && !window.is_too_bad();
                    let why =
                        if is_truncated { FormatError::Truncated } else { FormatError::Unreadable };
                    scan.damage.push((offset, why));
                    scan.end = ScanEnd::Sealed;
                }
                break;
            }
            Err(Absent::Invalid(error)) => {
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

/// Reads all tombstones in a range of a segment, whatever their epoch, because a removal always holds.
///
/// # Errors
///
/// If the device fails.
pub(crate) fn scan_tombstones(
    io: &DeviceIo,
    file: FileId,
    store: StoreId,
    number: u64,
    range: Range<u64>,
) -> Result<Vec<RecordHeader>, LogError> {
    let end = range.end - range.end % SECTOR_BYTES;
    let mut window = HeaderWindow::new(io, file, end, MOST_UNREADABLE_TOMBSTONES);
    let ahead = io.bounds.request_bytes;
    let mut found = Vec::new();
    let mut offset = range.start;
    while offset < end {
        let record = window.record(offset, ahead);
        if let Ok(record) = record
            && record.is_tombstone()
            && (record.store, record.segment, record.offset) == (store, number, offset)
        {
            found.push(record);
        }
        offset += SECTOR_BYTES;
    }
    window.failure.map_or(Ok(found), Err)
}

/// The record at `offset` if it belongs there.
fn record_at(
    window: &mut HeaderWindow<'_>,
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

/// Whether a sector that is no valid header was a header of this epoch: of the five fields that every header repeats,
/// at most one is wrong. If that is the epoch, the header must be valid once it is corrected. Otherwise an earlier
/// epoch left it over, damaged or not.
fn looks_damaged(
    window: &mut HeaderWindow<'_>,
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
