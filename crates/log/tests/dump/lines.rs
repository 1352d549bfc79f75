//! The lines of a worked example: bytes, and what they say, as the tables of a document name them.

use std::fmt::Write as _;

/// A field: name, bytes, and what to say about it.
pub(crate) type Field = (&'static str, usize, Say);

#[derive(Clone, Copy)]
pub(crate) enum Say {
    /// Text.
    Text,
    /// A little-endian number.
    Number,
    /// Just the bytes, and this.
    Bytes(&'static str),
}

/// Dumps fields one after the other; returns where they end.
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

/// One field: 16 bytes a line, its name and note beside the first.
pub(crate) fn line(text: &mut String, at: usize, bytes: &[u8], name: &str, note: &str) {
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

pub(crate) fn zeros(text: &mut String, bytes: &[u8], at: usize, name: &str) {
    assert!(bytes.iter().all(|byte| *byte == 0), "{name} is zero");
    let what = format!("{} zeros", bytes.len());
    let _ = writeln!(text, "    {at:06x}  {what:<47}  {name}");
}
