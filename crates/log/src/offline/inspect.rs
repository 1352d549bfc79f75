//! Shows stored bytes with their names, for `dalsegno inspect`.
//!
//! 1. Damage is no error: a header that is not valid is shown the same, with what is wrong.
//! 2. One read is bounded: a header, or a slice.

use std::sync::Arc;

use dalsegno_core::{Clock, SECTOR_BYTES, sector_down};
use dalsegno_extent::format::fields::{SEGMENT_FIELDS, STORE_FIELDS};
use dalsegno_extent::format::{
    RecordHeader, SECTOR, SECTOR_CRC_AT as CRC_AT, STORE_FILE, SegmentHeader, StoreHeader,
    namespace_of_file, segment_number,
};
use dalsegno_extent::offline::{
    Inspection, PartPlace, ShownPart, ShownRecord, kind_name, parts_of, raw_field, sector_crc,
    show_header, show_namespace, shown_fields,
};
use dalsegno_extent::{offline_io, read_first_sector};
use dalsegno_io::{BufferPool, Device, FileId, OpenMode};

use super::offline_store::OfflineStore;
use super::report::VerifyReport;
use crate::error::LogError;
use crate::scan::{SegmentScan, scan_records};

/// Shows a file of a store that nobody has open: a small file, or a segment's header and records. With `at`, shows the
/// record of the segment that holds this offset.
///
/// # Errors
///
/// [`LogError::Format`] if there is no store or a newer Dalsegno wrote it; [`LogError::Io`] if the file cannot be read.
/// `None` if the log has no such file, or no record is at that offset.
pub fn inspect(
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    pool: BufferPool,
    file: &str,
    at: Option<u64>,
) -> Result<Option<Inspection>, LogError> {
    if file == STORE_FILE || namespace_of_file(file).is_some() {
        let sector = read_first_sector(&offline_io(device, clock, pool), file)?;
        let show =
            || if file == STORE_FILE { store_file(&sector) } else { show_namespace(file, &sector) };
        return Ok((at.unwrap_or(0) < SECTOR_BYTES).then(show));
    }
    let Some(number) = segment_number(file) else { return Ok(None) };
    let store = OfflineStore::open(device, clock, pool, &mut VerifyReport::default())?;
    let entries = store.io.device.list()?;
    let Some(entry) = entries.iter().find(|entry| entry.name == file) else { return Ok(None) };
    let opened = store.io.device.open(file, OpenMode::Read)?;
    let segment = SegmentFile { store: &store, file: opened.file, file_bytes: entry.bytes, number };
    let shown = match at {
        None => Some(segment.overview()),
        Some(at) => segment.record(at),
    };
    store.io.device.close(opened.file);
    Ok(shown)
}

fn store_file(sector: &[u8; SECTOR]) -> Inspection {
    let mut fields = shown_fields(sector, 0, 0, &STORE_FIELDS);
    let behind = fields.iter().map(|field| field.bytes.len()).sum::<usize>();
    fields.push(raw_field(sector, 0, behind..CRC_AT, "reserved"));
    fields.push(sector_crc(sector));
    let problem = StoreHeader::decode(sector).err().map(|problem| problem.to_string());
    let problem = problem.unwrap_or_default();
    Inspection { title: STORE_FILE.to_owned(), problem, fields, ..Inspection::default() }
}

/// A segment's file, open for reading.
struct SegmentFile<'a> {
    store: &'a OfflineStore,
    file: FileId,
    file_bytes: u64,
    number: u64,
}

impl SegmentFile<'_> {
    /// The header, and all records.
    fn overview(&self) -> Inspection {
        let mut found = Inspection { title: "segment header".to_owned(), ..Inspection::default() };
        let sector = match self.read(0, SECTOR) {
            Ok(sector) => sector,
            Err(problem) => return Inspection { problem, ..found },
        };
        found.fields = shown_fields(&sector, 0, 0, &SEGMENT_FIELDS);
        let behind = found.fields.iter().map(|field| field.bytes.len()).sum::<usize>();
        found.fields.push(raw_field(&sector, 0, behind..CRC_AT, "reserved"));
        found.fields.push(sector_crc(&sector));
        let header = match SegmentHeader::decode(&sector) {
            Ok(header) => header,
            Err(problem) => return Inspection { problem: problem.to_string(), ..found },
        };
        if header.store != self.store.store {
            found.problem = String::from("it belongs to another store");
        } else if header.segment != self.number {
            found.problem = String::from("its number is not the one in the file's name");
        }
        found.records = rows(&self.scan(&header));
        found
    }

    /// The record that holds an offset. Without a valid one, bytes that look like a header in that sector.
    fn record(&self, at: u64) -> Option<Inspection> {
        let sector = self.read(0, SECTOR).ok()?;
        let records = SegmentHeader::decode(&sector).map(|segment| {
            // Records name the segment of the file, whatever the segment's header says.
            self.scan(&SegmentHeader { segment: self.number, ..segment }).records
        });
        let holds = |record: &&RecordHeader| {
            let end = record.offset + u64::from(record.header_bytes()) + record.payload_bytes();
            (record.offset..end).contains(&at)
        };
        let records = records.unwrap_or_default();
        let Some(record) = records.iter().find(holds) else {
            return self.header_at(sector_down(at));
        };
        let mut found = self.header_at(record.offset)?;
        if let Some(extent) = record.extent() {
            let places = parts_of(&extent, &record.kind).into_iter();
            found.parts = places.map(|place| self.part(place)).collect();
        }
        Some(found)
    }

    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.file_bytes => self.store.read_bytes(self.file, offset, len),
            _ => Err("the file ends before it".to_owned()),
        }
    }

    fn scan(&self, header: &SegmentHeader) -> SegmentScan {
        let range = SECTOR_BYTES..header.segment_bytes.min(self.file_bytes);
        scan_records(&self.store.io, self.file, header, range)
    }

    /// A record header in a sector, valid or not; `None` if nothing there looks like one.
    fn header_at(&self, offset: u64) -> Option<Inspection> {
        let sector = self.read(offset, SECTOR).ok()?;
        let header_bytes = RecordHeader::peek_bytes(&sector).ok()? as usize;
        // If the file ends before the header does, only its first sector is shown.
        let header = self.read(offset, header_bytes).unwrap_or(sector);
        Some(show_header(&header, offset))
    }

    fn part(&self, place: PartPlace) -> ShownPart {
        let read = usize::try_from(place.bytes)
            .map_err(|_| "too long".to_owned())
            .and_then(|len| self.read(place.offset, len));
        place.show(read.as_deref().map_err(Clone::clone))
    }
}

fn rows(scan: &SegmentScan) -> Vec<ShownRecord> {
    let valid = scan.records.iter().map(|record| ShownRecord {
        offset: record.offset,
        bytes: u64::from(record.header_bytes()) + record.payload_bytes(),
        kind: kind_name(&record.kind),
        blocks: record.hashes.len() as u64,
        sequence: record.sequence,
        problem: String::new(),
    });
    let damaged = scan.damage.iter().map(|(offset, problem)| ShownRecord {
        offset: *offset,
        bytes: 0,
        kind: "damaged",
        blocks: 0,
        sequence: 0,
        problem: problem.to_string(),
    });
    let mut rows: Vec<ShownRecord> = valid.chain(damaged).collect();
    rows.sort_by_key(|row| row.offset);
    rows
}
