//! A file of the store shown with the names of the format: for people who want to see what is there.
//!
//! 1. Nothing is written, and nothing that is read is trusted: what a decoder refuses is shown all the same, with what
//!    is wrong.
//! 2. What is read at once is bounded: a header, or a slice.

use std::ops::Range;
use std::sync::Arc;

use dalsegno_core::{Clock, Extent, SECTOR_BYTES, sector_down};
use dalsegno_io::{BufferPool, Device, FileId, OpenMode};

use crate::error::LogError;
use crate::format::fields::{
    Field, Form, NAMESPACE_FIELDS, RECORD_FIELDS, SEGMENT_FIELDS, STORE_FIELDS,
};
use crate::format::{
    NamespaceSector, RecordHeader, RecordKind, SECTOR, SECTOR_CRC_AT as CRC_AT, STORE_FILE,
    SegmentHeader, StoreHeader, namespace_of_file, segment_number,
};
use crate::log::Core;
use crate::scan::{Scan, scan_records};
use crate::verify::{VerifyReport, offline_core};
use crate::verify_units::read_bytes;

/// A field as it lies in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownField {
    /// Offset in the file.
    pub offset: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its name in docs/formats/log.md.
    pub name: String,
    /// What the bytes say: a number, a text, whether a checksum is right.
    pub says: String,
}

/// A record of a segment, in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownRecord {
    /// Offset in the file.
    pub offset: u64,
    /// Header and payload; 0 where only a damaged header is known.
    pub bytes: u64,
    /// `extent`, `compressed extent`, `tombstone`, `void`, `seal`, or `damaged`.
    pub kind: &'static str,
    /// Blocks that it names.
    pub blocks: u64,
    /// Order of writing.
    pub sequence: u64,
    /// What is wrong, else empty.
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
    /// Whether the bytes have it; what stood in the way if they could not be read.
    pub verdict: Result<bool, String>,
    /// The first bytes.
    pub first: Vec<u8>,
}

/// What a file, or a record of it, is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// What is shown.
    pub title: String,
    /// Whether its header is valid: empty, or what is wrong.
    pub problem: String,
    /// The header, field by field.
    pub fields: Vec<ShownField>,
    /// The records, of a segment.
    pub records: Vec<ShownRecord>,
    /// The payload, of an extent.
    pub parts: Vec<ShownPart>,
}

/// Shows a file of a store that nobody has open: a small file, or a segment's header and records; with `at`, the record
/// of the segment in which that offset lies.
///
/// # Errors
///
/// [`LogError::Format`] if there is no store or a newer Dalsegno wrote it; [`LogError::Io`] if the file cannot be read.
/// `None` if no such file is the log's, or no record is at that offset.
pub fn inspect(
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    pool: BufferPool,
    file: &str,
    at: Option<u64>,
) -> Result<Option<Inspection>, LogError> {
    if file == STORE_FILE || namespace_of_file(file).is_some() {
        let core = Core::offline(device, clock, pool);
        let sector = crate::meta::read_sector(&core, file)?;
        return Ok((at.unwrap_or(0) < SECTOR_BYTES).then(|| small_file(file, &sector)));
    }
    let Some(number) = segment_number(file) else { return Ok(None) };
    let core = offline_core(device, clock, pool, &mut VerifyReport::default())?;
    let entries = core.device.list()?;
    let Some(entry) = entries.iter().find(|entry| entry.name == file) else { return Ok(None) };
    let opened = core.device.open(file, OpenMode::Read)?;
    let segment = SegmentFile { core: &core, file: opened.file, file_bytes: entry.bytes, number };
    let shown = match at {
        None => Some(segment.overview()),
        Some(at) => segment.record(at),
    };
    core.device.close(opened.file);
    Ok(shown)
}

fn small_file(file: &str, sector: &[u8; SECTOR]) -> Inspection {
    let (problem, named) = if file == STORE_FILE {
        (StoreHeader::decode(sector).err(), &STORE_FIELDS[..])
    } else {
        (NamespaceSector::decode(sector).err(), &NAMESPACE_FIELDS[..])
    };
    let mut fields = shown(sector, 0, 0, named);
    let behind = fields.iter().map(|field| field.bytes.len()).sum::<usize>();
    if file == STORE_FILE {
        fields.push(raw(sector, 0, behind..CRC_AT, "reserved"));
    } else {
        // The length is not trusted: what is longer than the sector is shown as far as that goes.
        let length = u32::from_le_bytes([sector[12], sector[13], sector[14], sector[15]]) as usize;
        let end = behind.saturating_add(length).min(CRC_AT);
        let mut encoding = raw(sector, 0, behind..end, "encoding");
        encoding.says = String::from_utf8_lossy(&encoding.bytes).escape_default().to_string();
        fields.push(encoding);
        fields.push(raw(sector, 0, end..CRC_AT, "rest"));
    }
    fields.push(sector_crc(sector));
    let problem = problem.map(|problem| problem.to_string()).unwrap_or_default();
    Inspection { title: file.to_owned(), problem, fields, ..Inspection::default() }
}

/// A segment's file, open for reading.
struct SegmentFile<'a> {
    core: &'a Core,
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
        found.fields = shown(&sector, 0, 0, &SEGMENT_FIELDS);
        let behind = found.fields.iter().map(|field| field.bytes.len()).sum::<usize>();
        found.fields.push(raw(&sector, 0, behind..CRC_AT, "reserved"));
        found.fields.push(sector_crc(&sector));
        let header = match SegmentHeader::decode(&sector) {
            Ok(header) => header,
            Err(problem) => return Inspection { problem: problem.to_string(), ..found },
        };
        if header.store != self.core.store {
            found.problem = String::from("it belongs to another store");
        } else if header.segment != self.number {
            found.problem = String::from("its number is not the one in the file's name");
        }
        found.records = rows(&self.scan(&header));
        found
    }

    /// The record that holds an offset; without a valid one, what looks like a header in that very sector.
    fn record(&self, at: u64) -> Option<Inspection> {
        let sector = self.read(0, SECTOR).ok()?;
        let records = SegmentHeader::decode(&sector).map(|segment| {
            // Records name the segment that the file is, whatever its header says.
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
            Some(end) if end <= self.file_bytes => read_bytes(self.core, self.file, offset, len),
            _ => Err("the file ends before".to_owned()),
        }
    }

    fn scan(&self, header: &SegmentHeader) -> Scan {
        let range = SECTOR_BYTES..header.segment_bytes.min(self.file_bytes);
        scan_records(self.core, self.file, header, range)
    }

    /// A record header in a sector, valid or not; `None` if nothing there looks like one.
    fn header_at(&self, offset: u64) -> Option<Inspection> {
        let sector = self.read(offset, SECTOR).ok()?;
        let header_bytes = RecordHeader::peek_bytes(&sector).ok()? as usize;
        // Cut short by the end of the file, it is shown as far as it is sure to go.
        let header = self.read(offset, header_bytes).unwrap_or(sector);
        let decoded = RecordHeader::decode(&header);
        let mut fields = shown(&header, offset, 0, &RECORD_FIELDS);
        let behind = fields.iter().map(|field| field.bytes.len()).sum::<usize>();
        match &decoded {
            Ok(decoded) => fields.extend(tables(&header, offset, behind, decoded)),
            Err(_) => fields.push(raw(&header, offset, behind..header.len(), "not decoded")),
        }
        let problem = decoded.err().map(|problem| problem.to_string()).unwrap_or_default();
        let title = format!("record header at {offset}");
        Some(Inspection { title, problem, fields, ..Inspection::default() })
    }

    /// The slices of an extent, or its units if it is compressed, each compared with its checksum.
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

fn rows(scan: &Scan) -> Vec<ShownRecord> {
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

/// The tables behind the fixed fields of a valid header.
fn tables(header: &[u8], offset: u64, mut at: usize, record: &RecordHeader) -> Vec<ShownField> {
    let blocks = record.hashes.len();
    let layers = record.extent().map_or(0, |extent| extent.layout.layers());
    let units = record.units().map_or(0, |units| units.table.len());
    let named = (0..blocks)
        .map(|block| (format!("hashes[{block}]"), 32))
        .chain((0..layers).map(|layer| (format!("slice_crcs, layer {layer}"), 4 * blocks)))
        .chain((0..units).map(|unit| (format!("units[{unit}]"), 8)));
    let mut found = Vec::new();
    for (name, len) in named {
        found.push(raw(header, offset, at..at + len, &name));
        at += len;
    }
    found.push(raw(header, offset, at..header.len(), "padding"));
    found
}

/// Fields one after the other, from `at` on in `bytes`, which lie at `offset` in the file.
fn shown(bytes: &[u8], offset: u64, mut at: usize, fields: &[Field]) -> Vec<ShownField> {
    let one = |(name, len, form): &Field| {
        let mut field = raw(bytes, offset, at..at + len, name);
        at += len;
        field.says = match form {
            Form::Text => String::from_utf8_lossy(&field.bytes).escape_default().to_string(),
            Form::Number => {
                let digits = field.bytes.iter().rev();
                digits.fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)).to_string()
            }
            Form::Bytes => field.says,
        };
        field
    };
    fields.iter().map(one).collect()
}

/// A field of bytes that say nothing but whether they are zero.
fn raw(bytes: &[u8], offset: u64, range: Range<usize>, name: &str) -> ShownField {
    let offset = offset + range.start as u64;
    let bytes = bytes[range].to_vec();
    let is_zero = bytes.iter().all(|byte| *byte == 0);
    let says = if is_zero && !bytes.is_empty() { "zeros".to_owned() } else { String::new() };
    ShownField { offset, bytes, name: name.to_owned(), says }
}

/// The checksum at the end of a header of one sector, and whether it is right.
fn sector_crc(sector: &[u8]) -> ShownField {
    let mut field = raw(sector, 0, CRC_AT..SECTOR, "crc");
    let right = crc32c::crc32c(&sector[..CRC_AT]).to_le_bytes() == sector[CRC_AT..SECTOR];
    field.says = String::from(if right { "right" } else { "wrong" });
    field
}
