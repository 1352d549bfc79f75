//! The fields of stored bytes.

use std::ops::Range;

use crate::format::fields::{Field, Form};
use crate::format::{RecordHeader, SECTOR, SECTOR_CRC_AT as CRC_AT};

/// A field of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownField {
    /// Offset in the file.
    pub offset: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its name in docs/formats/log.md.
    pub name: String,
    /// What the bytes mean: a number, a text, or whether a checksum is right.
    pub says: String,
}

/// The tables after the fixed fields of a valid header.
pub(super) fn tables(
    header: &[u8],
    offset: u64,
    mut at: usize,
    record: &RecordHeader,
) -> Vec<ShownField> {
    let blocks = record.hashes.len();
    let layers = record.extent().map_or(0, |extent| extent.layout.layers());
    let units = record.units().map_or(0, |units| units.table.len());
    let named = (0..blocks)
        .map(|block| (format!("hashes[{block}]"), 32))
        .chain((0..layers).map(|layer| (format!("slice_crcs, layer {layer}"), 4 * blocks)))
        .chain((0..units).map(|unit| (format!("units[{unit}]"), 8)));
    let mut found = Vec::new();
    for (name, len) in named {
        found.push(raw_field(header, offset, at..at + len, &name));
        at += len;
    }
    found.push(raw_field(header, offset, at..header.len(), "padding"));
    found
}

/// Fields one after the other, from `at` on in `bytes`, whose offset in the file is `offset`.
#[must_use]
pub fn shown_fields(bytes: &[u8], offset: u64, mut at: usize, fields: &[Field]) -> Vec<ShownField> {
    let one = |(name, len, form): &Field| {
        let mut field = raw_field(bytes, offset, at..at + len, name);
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

/// A field of bytes, of which only all zeros mean something.
#[must_use]
pub fn raw_field(bytes: &[u8], offset: u64, range: Range<usize>, name: &str) -> ShownField {
    let offset = offset + range.start as u64;
    let bytes = bytes[range].to_vec();
    let is_zero = bytes.iter().all(|byte| *byte == 0);
    let says = if is_zero && !bytes.is_empty() { "zeros".to_owned() } else { String::new() };
    ShownField { offset, bytes, name: name.to_owned(), says }
}

/// The checksum at the end of a header of one sector, and whether it matches.
#[must_use]
pub fn sector_crc(sector: &[u8]) -> ShownField {
    let mut field = raw_field(sector, 0, CRC_AT..SECTOR, "crc");
    let right = dalsegno_core::crc32c(&sector[..CRC_AT]).to_le_bytes() == sector[CRC_AT..SECTOR];
    field.says = String::from(if right { "right" } else { "wrong" });
    field
}
