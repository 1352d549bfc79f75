//! Shows stored bytes with their names, for `dalsegno inspect`.
//!
//! 1. Damage is no error: a header that is not valid is shown the same, with what is wrong.
//! 2. One read is bounded: a header, or a slice.

use std::sync::Arc;

use dalsegno_core::{Clock, Extent, SECTOR_BYTES, sector_down};
use dalsegno_extent::format::fields::{
    NAMESPACE_FIELDS, RECORD_FIELDS, SEGMENT_FIELDS, STORE_FIELDS,
};
use dalsegno_extent::format::{
    NamespaceSector, RecordHeader, RecordKind, SECTOR, SECTOR_CRC_AT as CRC_AT, STORE_FILE,
    SegmentHeader, StoreHeader, namespace_of_file, segment_number,
};
use dalsegno_extent::{offline_io, read_first_sector};
use dalsegno_io::{BufferPool, Device, FileId, OpenMode};

use super::inspect_fields::{ShownField, raw_field, sector_crc, shown_fields, tables};
use super::offline_store::OfflineStore;
use super::report::VerifyReport;
use crate::error::LogError;
use crate::scan::{SegmentScan, scan_records};

/// A record of a segment, as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownRecord {
    /// Offset in the file.
    pub offset: u64,
    /// Bytes of header and payload; 0 for a damaged header.
    pub bytes: u64,
    /// `extent`, `compressed extent`, `tombstone`, `void`, `seal`, or `damaged`.
    pub kind: &'static str,
    /// Number of blocks that it names.
    pub blocks: u64,
    /// Its sequence number.
    pub sequence: u64,
    /// What is wrong; empty if nothing is.
    pub problem: String,
}

/// A slice of an extent, or a unit of a compressed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownPart {
    /// Offset in the file.
    pub offset: u64,
    /// Its bytes in the file.
    pub bytes: u64,
    /// Its name.
    pub name: String,
    /// The checksum in the header.
    pub crc: u32,
    /// Whether the bytes match it; the error if they could not be read.
    pub verdict: Result<bool, String>,
    /// The first bytes.
    pub first: Vec<u8>,
}

/// The parts of a file, or of one record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// The file or record.
    pub title: String,
    /// What is wrong with its header; empty if it is valid.
    pub problem: String,
    /// The header, field by field.
    pub fields: Vec<ShownField>,
    /// The records, if it is a segment.
    pub records: Vec<ShownRecord>,
    /// The payload, if it is an extent.
    pub parts: Vec<ShownPart>,
}

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
        return Ok((at.unwrap_or(0) < SECTOR_BYTES).then(|| small_file(file, &sector)));
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

fn small_file(file: &str, sector: &[u8; SECTOR]) -> Inspection {
    let (problem, named) = if file == STORE_FILE {
        (StoreHeader::decode(sector).err(), &STORE_FIELDS[..])
    } else {
        (NamespaceSector::decode(sector).err(), &NAMESPACE_FIELDS[..])
    };
    let mut fields = shown_fields(sector, 0, 0, named);
    let behind = fields.iter().map(|field| field.bytes.len()).sum::<usize>();
    if file == STORE_FILE {
        fields.push(raw_field(sector, 0, behind..CRC_AT, "reserved"));
    } else {
        // The length is not trusted: a longer descriptor is shown up to the end of the sector.
        let length = u32::from_le_bytes([sector[12], sector[13], sector[14], sector[15]]) as usize;
        let end = behind.saturating_add(length).min(CRC_AT);
        let mut encoding = raw_field(sector, 0, behind..end, "encoding");
        encoding.says = String::from_utf8_lossy(&encoding.bytes).escape_default().to_string();
        fields.push(encoding);
        fields.push(raw_field(sector, 0, end..CRC_AT, "rest"));
    }
    fields.push(sector_crc(sector));
    let problem = problem.map(|problem| problem.to_string()).unwrap_or_default();
    Inspection { title: file.to_owned(), problem, fields, ..Inspection::default() }
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
            found.parts = self.parts(&extent, &record.kind);
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
        let decoded = RecordHeader::decode(&header);
        let mut fields = shown_fields(&header, offset, 0, &RECORD_FIELDS);
        let behind = fields.iter().map(|field| field.bytes.len()).sum::<usize>();
        match &decoded {
            Ok(decoded) => fields.extend(tables(&header, offset, behind, decoded)),
            Err(_) => fields.push(raw_field(&header, offset, behind..header.len(), "not decoded")),
        }
        let problem = decoded.err().map(|problem| problem.to_string()).unwrap_or_default();
        let title = format!("record header at {offset}");
        Some(Inspection { title, problem, fields, ..Inspection::default() })
    }

    /// The slices of an extent, or the units of a compressed one, each compared with its checksum.
    fn parts(&self, extent: &Extent, kind: &RecordKind) -> Vec<ShownPart> {
        let RecordKind::Extent { slice_crcs, units, .. } = kind else { return Vec::new() };
        if let Some(units) = units {
            let mut offset = extent.location.offset + u64::from(extent.location.header_bytes);
            let rows = units.table.iter().enumerate().map(|(number, unit)| {
                let start = offset;
                offset += u64::from(unit.bytes);
                self.part(start, u64::from(unit.bytes), format!("unit {number}"), unit.crc)
            });
            return rows.collect();
        }
        let blocks = extent.block_count();
        let places = (0..extent.layout.layers())
            .flat_map(|layer| (0..blocks).map(move |block| (layer, block)));
        let slice_bytes = u64::from(extent.layout.slice_bytes());
        let rows = places.zip(slice_crcs).map(|((layer, block), crc)| {
            let name = format!("slice ({layer}, {block})");
            self.part(extent.slice_offset(layer, block), slice_bytes, name, *crc)
        });
        rows.collect()
    }

    fn part(&self, offset: u64, bytes: u64, name: String, crc: u32) -> ShownPart {
        let read = usize::try_from(bytes)
            .map_err(|_| "too long".to_owned())
            .and_then(|len| self.read(offset, len));
        let first = read.as_deref().map(|read| read[..read.len().min(16)].to_vec());
        let first = first.unwrap_or_default();
        let verdict = read.map(|read| crc32c::crc32c(&read) == crc);
        ShownPart { offset, bytes, name, crc, verdict, first }
    }
}

fn rows(scan: &SegmentScan) -> Vec<ShownRecord> {
    let valid = scan.records.iter().map(|record| ShownRecord {
        offset: record.offset,
        bytes: u64::from(record.header_bytes()) + record.payload_bytes(),
        kind: match &record.kind {
            RecordKind::Extent { units: Some(_), .. } => "compressed extent",
            RecordKind::Extent { .. } => "extent",
            RecordKind::Tombstone { .. } => "tombstone",
            RecordKind::Void { .. } => "void",
            RecordKind::Seal => "seal",
        },
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
