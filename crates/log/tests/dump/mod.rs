//! The worked example: a segment's headers, field by field, as the tables of the document name them.

mod lines;

use std::fmt::Write as _;

use lines::{Field, Say, line, table, zeros};

const SEGMENT_HEADER: [Field; 8] = [
    ("magic", 8, Say::Text),
    ("version", 4, Say::Number),
    ("header_bytes", 4, Say::Number),
    ("store_id", 16, Say::Bytes("random; here text")),
    ("segment", 8, Say::Number),
    ("epoch", 8, Say::Number),
    ("segment_bytes", 8, Say::Number),
    ("first_sequence", 8, Say::Number),
];

const RECORD_HEADER: [Field; 30] = [
    ("magic", 8, Say::Text),
    ("version", 4, Say::Number),
    ("header_bytes", 4, Say::Number),
    ("store_id", 16, Say::Bytes("as in the segment header")),
    ("segment", 8, Say::Number),
    ("epoch", 8, Say::Number),
    ("offset", 8, Say::Number),
    ("sequence", 8, Say::Number),
    ("born", 8, Say::Number),
    ("kind", 4, Say::Number),
    ("crc", 4, Say::Bytes("of the 4096 bytes with this field as zero")),
    ("namespace", 16, Say::Bytes("")),
    ("lineage", 32, Say::Bytes("the first block's hash")),
    ("parent", 32, Say::Bytes("not known")),
    ("first_block_index", 4, Say::Number),
    ("block_count", 4, Say::Number),
    ("layers", 4, Say::Number),
    ("slice_bytes", 4, Say::Number),
    ("payload_bytes", 8, Say::Number),
    ("kills_before", 8, Say::Number),
    ("codec", 4, Say::Number),
    ("element_bytes", 4, Say::Number),
    ("unit_bytes", 4, Say::Number),
    ("unit_count", 4, Say::Number),
    ("reserved", 48, Say::Bytes("")),
    ("hashes[0]", 32, Say::Bytes("")),
    ("hashes[1]", 32, Say::Bytes("")),
    ("slice_crcs, layer 0", 8, Say::Bytes("blocks 0 and 1")),
    ("slice_crcs, layer 1", 8, Say::Bytes("blocks 0 and 1")),
    ("padding", 4096 - 336, Say::Bytes("")),
];

/// Rows of the payload: 2 x 6,000 bytes, rounded up to sectors.
const STRIDE: usize = 12_288;
const SLICE: usize = 6000;

/// The text behind the document's marker.
pub(crate) fn worked_example(segment: &[u8]) -> String {
    let mut text = String::from("\nThe segment header:\n\n");
    let crc = u32::from_le_bytes(segment[4092..4096].try_into().unwrap());
    assert_eq!(crc, crc32c::crc32c(&segment[..4092]), "the segment header's crc");
    let end = table(&mut text, segment, 0, &SEGMENT_HEADER);
    zeros(&mut text, &segment[end..4092], end, "reserved");
    line(&mut text, 4092, &segment[4092..4096], "crc", "of bytes 0..4092");
    check_record_crcs(&segment[4096..]);
    text.push_str("\nThe record header, at 4096 (0x1000):\n\n");
    let payload = table(&mut text, segment, 4096, &RECORD_HEADER);
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
    assert_eq!(header[76..80], crc32c::crc32c(&zeroed).to_le_bytes(), "the record's crc");
    for (index, crc) in header[320..336].chunks_exact(4).enumerate() {
        let at = index / 2 * STRIDE + index % 2 * SLICE;
        assert_eq!(crc, crc32c::crc32c(&payload[at..at + SLICE]).to_le_bytes(), "slice {index}");
    }
}
