//! The lines of a worked example: bytes, their names in the document's tables, and their meaning.

use std::fmt::Write as _;

/// A field: its name, its bytes, and its note.
pub(crate) type Field = (&'static str, usize, Say);

#[derive(Clone, Copy)]
pub(crate) enum Say {
    /// Text.
    Text,
    /// A little-endian number.
    Number,
    /// Bytes, with this note.
    Bytes(&'static str),
}

/// Dumps fields one after the other, and returns the end of the last one.
pub(crate) fn table(text: &mut String, bytes: &[u8], mut at: usize, fields: &[Field]) -> usize {
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

/// One field: 16 bytes on each line, with its name and note on the first.
pub(crate) fn line(text: &mut String, at: usize, bytes: &[u8], name: &str, note: &str) {
    for (number, part) in bytes.chunks(16).enumerate() {
        let hex: Vec<String> = part.iter().map(|byte| format!("{byte:02x}")).collect();
        let note_column = match number {
            0 => format!("{name:<20} {note}"),
            _ => String::new(),
        };
        let row = format!("    {:06x}  {:<47}  {note_column}", at + number * 16, hex.join(" "));
        let _ = writeln!(text, "{}", row.trim_end());
    }
}

pub(crate) fn zeros(text: &mut String, bytes: &[u8], at: usize, name: &str) {
    assert!(bytes.iter().all(|byte| *byte == 0), "{name} is zero");
    let what = format!("{} zeros", bytes.len());
    let _ = writeln!(text, "    {at:06x}  {what:<47}  {name}");
}
