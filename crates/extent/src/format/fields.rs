//! Lists the fields of docs/formats/log.md, to show bytes with their names even if they are not valid.
//!
//! A field is a range of bytes with a name. The decoders decide what the fields mean together.

/// How a field's bytes are best read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// ASCII text.
    Text,
    /// A little-endian number.
    Number,
    /// Bytes as they are.
    Bytes,
}

/// A field: name, length in bytes, and how to read it.
pub type Field = (&'static str, usize, Form);

use Form::{Bytes, Number, Text};

/// Fields of `store.meta` from its first byte on. Reserved bytes follow, and at 4092 the crc.
pub const STORE_FIELDS: [Field; 5] = [
    ("magic", 8, Text),
    ("version", 4, Number),
    ("header_bytes", 4, Number),
    ("store_id", 16, Bytes),
    ("segment_bytes", 8, Number),
];

/// Fields of a segment header from its first byte on. Reserved bytes follow, and at 4092 the crc.
pub const SEGMENT_FIELDS: [Field; 9] = [
    ("magic", 8, Text),
    ("version", 4, Number),
    ("header_bytes", 4, Number),
    ("store_id", 16, Bytes),
    ("segment", 8, Number),
    ("epoch", 8, Number),
    ("segment_bytes", 8, Number),
    ("first_sequence", 8, Number),
    ("carrying", 4, Number),
];

/// Fields of a namespace descriptor from its first byte on. The encoding follows, and at 4092 the crc.
pub const NAMESPACE_FIELDS: [Field; 3] =
    [("magic", 8, Text), ("version", 4, Number), ("length", 4, Number)];

/// Fields of every record header. Its tables follow.
pub const RECORD_FIELDS: [Field; 25] = [
    ("magic", 8, Text),
    ("version", 4, Number),
    ("header_bytes", 4, Number),
    ("store_id", 16, Bytes),
    ("segment", 8, Number),
    ("epoch", 8, Number),
    ("offset", 8, Number),
    ("sequence", 8, Number),
    ("born", 8, Number),
    ("kind", 4, Number),
    ("crc", 4, Bytes),
    ("namespace", 16, Bytes),
    ("lineage", 32, Bytes),
    ("parent", 32, Bytes),
    ("first_block_index", 4, Number),
    ("block_count", 4, Number),
    ("layers", 4, Number),
    ("slice_bytes", 4, Number),
    ("payload_bytes", 8, Number),
    ("kills_before", 8, Number),
    ("codec", 4, Number),
    ("element_bytes", 4, Number),
    ("unit_bytes", 4, Number),
    ("unit_count", 4, Number),
    ("reserved", 48, Bytes),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_where_the_format_says() {
        let bytes = |fields: &[Field]| fields.iter().map(|(_, len, _)| len).sum::<usize>();
        let place = |name: &str| {
            let before = RECORD_FIELDS.iter().take_while(|field| field.0 != name);
            before.map(|(_, len, _)| len).sum::<usize>()
        };
        assert_eq!(bytes(&STORE_FIELDS), 40);
        assert_eq!(bytes(&SEGMENT_FIELDS), 68);
        assert_eq!(bytes(&NAMESPACE_FIELDS), 16);
        assert_eq!(bytes(&RECORD_FIELDS), 256);
        assert_eq!((place("crc"), place("parent"), place("codec")), (76, 128, 192));
    }
}
