//! The worked example: a segment's headers, field by field, as the tables of the document name them.

mod lines;

use std::fmt::Write as _;

use dalsegno_extent::format::fields;
use lines::{Field, Say, line, table, zeros};

/// Notes next to the names of the example's fields.
const NOTES: [(&str, &str); 3] = [
    ("crc", "of the 4096 bytes with this field as zero"),
    ("lineage", "the first block's hash"),
    ("parent", "not known"),
];

/// The tables of the example's record, after the fields of every record.
const TABLES: [Field; 5] = [
    ("hashes[0]", 32, Say::Bytes("")),
    ("hashes[1]", 32, Say::Bytes("")),
    ("slice_crcs, layer 0", 8, Say::Bytes("blocks 0 and 1")),
    ("slice_crcs, layer 1", 8, Say::Bytes("blocks 0 and 1")),
    ("padding", 4096 - 336, Say::Bytes("")),
];

/// Fields of the format, with their notes.
fn with_notes(fields: &[fields::Field], store_id: &'static str) -> Vec<Field> {
    let note = |name: &str| {
        let known = NOTES.iter().find(|(of, _)| *of == name).map(|(_, note)| *note);
        known.unwrap_or(if name == "store_id" { store_id } else { "" })
    };
    let say = |name: &str, form: fields::Form| match form {
        fields::Form::Text => Say::Text,
        fields::Form::Number => Say::Number,
        fields::Form::Bytes => Say::Bytes(note(name)),
    };
    fields.iter().map(|(name, len, form)| (*name, *len, say(name, *form))).collect()
}

/// Rows of the payload: 2 x 6,000 bytes, rounded up to sectors.
const STRIDE: usize = 12_288;
const SLICE: usize = 6000;

/// The text after the document's marker.
pub(crate) fn worked_example(segment: &[u8]) -> String {
    let mut text = String::from("\nThe segment header:\n\n");
    let crc = u32::from_le_bytes(segment[4092..4096].try_into().unwrap());
    assert_eq!(crc, dalsegno_core::crc32c(&segment[..4092]), "the segment header's crc");
    let header = with_notes(&fields::SEGMENT_FIELDS, "random; here text");
    let end = table(&mut text, segment, 0, &header);
    zeros(&mut text, &segment[end..4092], end, "reserved");
    line(&mut text, 4092, &segment[4092..4096], "crc", "of bytes 0..4092");
    check_record_crcs(&segment[4096..]);
    text.push_str("\nThe record header, at 4096 (0x1000):\n\n");
    let mut header = with_notes(&fields::RECORD_FIELDS, "as in the segment header");
    header.extend(TABLES);
    let payload = table(&mut text, segment, 4096, &header);
    text.push_str(
        "\nThe first bytes of each slice; the rest of a row, up to a whole sector, is zero:\n\n",
    );
    for (layer, row) in [payload, payload + STRIDE].into_iter().enumerate() {
        for block in 0..2 {
            let at = row + block * SLICE;
            let what = format!("slice ({layer}, {block})");
            line(&mut text, at, &segment[at..at + 16], &what, "...");
        }
        zeros(&mut text, &segment[row + 2 * SLICE..row + STRIDE], row + 2 * SLICE, "padding");
    }
    let end = payload + 2 * STRIDE;
    assert_eq!(end, segment.len(), "nothing but zeros follows");
    let _ =
        writeln!(text, "\nFrom {end} ({end:#x}) on the segment is unused: zeros up to 1,048,576.");
    text
}

fn check_record_crcs(record: &[u8]) {
    let (header, payload) = record.split_at(4096);
    let mut zeroed = header.to_vec();
    zeroed[76..80].fill(0);
    assert_eq!(header[76..80], dalsegno_core::crc32c(&zeroed).to_le_bytes(), "the record's crc");
    for (index, crc) in header[320..336].chunks_exact(4).enumerate() {
        let at = index / 2 * STRIDE + index % 2 * SLICE;
        assert_eq!(
            crc,
            dalsegno_core::crc32c(&payload[at..at + SLICE]).to_le_bytes(),
            "slice {index}"
        );
    }
}
