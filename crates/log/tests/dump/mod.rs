//! The worked example: a segment's headers, field by field, as the tables of the document name them.

use std::fmt::Write as _;

/// A field: name, bytes, and what to say about it.
type Field = (&'static str, usize, Say);

#[derive(Clone, Copy)]
enum Say {
    /// Text.
    Text,
    /// A little-endian number.
    Number,
    /// Just the bytes, and this.
    Bytes(&'static str),
}

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

/// Dumps fields one after the other; returns where they end.
fn table(text: &mut String, bytes: &[u8], mut at: usize, fields: &[Field]) -> usize {
    for (name, len, say) in fields {
        let field = &bytes[at..at + len];
        match say {
            Say::Bytes("") if field.iter().all(|byte| *byte == 0) => zeros(text, field, at, name),
            Say::Bytes(note) => line(text, at, field, name, note),
            Say::Text => line(text, at, field, name, &String::from_utf8_lossy(field)),
            Say::Number => {
                let value = field.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
                line(text, at, field, name, &value.to_string());
            }
        }
        at += len;
    }
    at
}

/// One field: 16 bytes a line, its name and note beside the first.
fn line(text: &mut String, at: usize, bytes: &[u8], name: &str, note: &str) {
    for (number, part) in bytes.chunks(16).enumerate() {
        let hex: Vec<String> = part.iter().map(|byte| format!("{byte:02x}")).collect();
        let beside = match number {
            0 => format!("{name:<20} {note}"),
            _ => String::new(),
        };
        let row = format!("    {:06x}  {:<47}  {beside}", at + number * 16, hex.join(" "));
        let _ = writeln!(text, "{}", row.trim_end());
    }
}

fn zeros(text: &mut String, bytes: &[u8], at: usize, name: &str) {
    assert!(bytes.iter().all(|byte| *byte == 0), "{name} is zero");
    let what = format!("{} zeros", bytes.len());
    let _ = writeln!(text, "    {at:06x}  {what:<47}  {name}");
}
