//! Stored bytes with the names of their format. Damage is shown, too, with what is wrong.

use dalsegno_core::Extent;

use super::fields::{ShownField, raw_field, sector_crc, shown_fields, tables};
use crate::format::fields::{NAMESPACE_FIELDS, RECORD_FIELDS};
use crate::format::{NamespaceSector, RecordHeader, RecordKind, SECTOR, SECTOR_CRC_AT as CRC_AT};

/// A record of a file, as one line.
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
    /// The records, if it has some.
    pub records: Vec<ShownRecord>,
    /// The payload, if it is an extent.
    pub parts: Vec<ShownPart>,
}

/// Where a part of a payload is, and its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartPlace {
    /// Offset in the file.
    pub offset: u64,
    /// Its bytes in the file.
    pub bytes: u64,
    /// Its name.
    pub name: String,
    /// The checksum in the header.
    pub crc: u32,
}

impl PartPlace {
    /// Compares its bytes, or the error of reading them, with its checksum.
    #[must_use]
    pub fn show(self, read: Result<&[u8], String>) -> ShownPart {
        let Self { offset, bytes, name, crc } = self;
        let first = read.as_ref().map(|read| read[..read.len().min(16)].to_vec());
        let first = first.unwrap_or_default();
        let verdict = read.map(|read| dalsegno_core::crc32c(read) == crc);
        ShownPart { offset, bytes, name, crc, verdict, first }
    }
}

/// The name of a kind of records.
#[must_use]
pub fn kind_name(kind: &RecordKind) -> &'static str {
    match kind {
        RecordKind::Extent { units: Some(_), .. } => "compressed extent",
        RecordKind::Extent { .. } => "extent",
        RecordKind::Tombstone { .. } => "tombstone",
        RecordKind::Void { .. } => "void",
        RecordKind::Seal => "seal",
    }
}

/// Shows the bytes of a record's header, valid or not. They are at `offset` of the file.
#[must_use]
pub fn show_header(header: &[u8], offset: u64) -> Inspection {
    let decoded = RecordHeader::decode(header);
    let mut fields = shown_fields(header, offset, 0, &RECORD_FIELDS);
    let behind = fields.iter().map(|field| field.bytes.len()).sum::<usize>();
    match &decoded {
        Ok(decoded) => fields.extend(tables(header, offset, behind, decoded)),
        Err(_) => fields.push(raw_field(header, offset, behind..header.len(), "not decoded")),
    }
    let problem = decoded.err().map(|problem| problem.to_string()).unwrap_or_default();
    Inspection {
        title: format!("record header at {offset}"),
        problem,
        fields,
        ..Inspection::default()
    }
}

/// Shows the sector of a namespace's description. `title` is the name of its file.
#[must_use]
pub fn show_namespace(title: &str, sector: &[u8; SECTOR]) -> Inspection {
    let mut fields = shown_fields(sector, 0, 0, &NAMESPACE_FIELDS);
    let behind = fields.iter().map(|field| field.bytes.len()).sum::<usize>();
    // The length is not trusted: a longer descriptor is shown up to the end of the sector.
    let length = u32::from_le_bytes([sector[12], sector[13], sector[14], sector[15]]) as usize;
    let end = behind.saturating_add(length).min(CRC_AT);
    let mut encoding = raw_field(sector, 0, behind..end, "encoding");
    encoding.says = String::from_utf8_lossy(&encoding.bytes).escape_default().to_string();
    fields.push(encoding);
    fields.push(raw_field(sector, 0, end..CRC_AT, "rest"));
    fields.push(sector_crc(sector));
    let problem = NamespaceSector::decode(sector).err().map(|problem| problem.to_string());
    let problem = problem.unwrap_or_default();
    Inspection { title: title.to_owned(), problem, fields, ..Inspection::default() }
}

/// The slices of an extent, or the units of a compressed one.
#[must_use]
pub fn parts_of(extent: &Extent, kind: &RecordKind) -> Vec<PartPlace> {
    let RecordKind::Extent { slice_crcs, units, .. } = kind else { return Vec::new() };
    if let Some(units) = units {
        let mut end = extent.location.offset + u64::from(extent.location.header_bytes);
        let places = units.table.iter().enumerate().map(|(number, unit)| {
            let (offset, bytes) = (end, u64::from(unit.bytes));
            end += bytes;
            PartPlace { offset, bytes, name: format!("unit {number}"), crc: unit.crc }
        });
        return places.collect();
    }
    let blocks = extent.block_count();
    let of_all =
        (0..extent.layout.layers()).flat_map(|layer| (0..blocks).map(move |block| (layer, block)));
    let bytes = u64::from(extent.layout.slice_bytes());
    let places = of_all.zip(slice_crcs).map(|((layer, block), crc)| {
        let offset = extent.slice_offset(layer, block);
        PartPlace { offset, bytes, name: format!("slice ({layer}, {block})"), crc: *crc }
    });
    places.collect()
}
