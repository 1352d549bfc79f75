//! The worked example: a table and its manifest, field by field, with the names of the document.

#[path = "../../../log/tests/dump/lines.rs"]
mod lines;

use std::fmt::Write as _;

use lines::{Field, Say, line, table, zeros};

const SECTOR: usize = 4096;
const TABLE_NUMBER: usize = 1;

const FILTER_HEADER: [Field; 5] = [
    ("magic", 8, Say::Text),
    ("lines", 4, Say::Number),
    ("probes", 4, Say::Number),
    ("keys", 8, Say::Number),
    ("crc", 4, Say::Bytes("of its place, the bytes so far, the lines")),
];

const FOOTER: [Field; 13] = [
    ("magic", 8, Say::Text),
    ("version", 4, Say::Number),
    ("footer_bytes", 4, Say::Number),
    ("store_id", 16, Say::Bytes("random; here text")),
    ("table", 8, Say::Number),
    ("file_bytes", 8, Say::Number),
    ("entries", 8, Say::Number),
    ("points", 8, Say::Number),
    ("filter_offset", 8, Say::Number),
    ("index_offset", 8, Say::Number),
    ("blocks", 8, Say::Number),
    ("smallest_bytes", 2, Say::Number),
    ("largest_bytes", 2, Say::Number),
];

const MANIFEST_HEADER: [Field; 14] = [
    ("magic", 8, Say::Text),
    ("version", 4, Say::Number),
    ("header_bytes", 4, Say::Number),
    ("store_id", 16, Say::Bytes("as in the table")),
    ("manifest", 8, Say::Number),
    ("file_bytes", 8, Say::Number),
    ("body_bytes", 8, Say::Number),
    ("next_number", 8, Say::Number),
    ("size_ratio", 4, Say::Number),
    ("runs", 4, Say::Number),
    ("last_runs", 4, Say::Number),
    ("level_count", 4, Say::Number),
    ("checkpoint_bytes", 8, Say::Number),
    ("is_partial", 4, Say::Number),
];

const CHECKPOINT: [Field; 17] = [
    ("checkpoint: version", 4, Say::Number),
    ("  next_sequence", 8, Say::Number),
    ("  segment_count", 8, Say::Number),
    ("  tombstone_count", 8, Say::Number),
    ("  number", 8, Say::Number),
    ("  epoch", 8, Say::Number),
    ("  sealed", 8, Say::Number),
    ("  cursor", 8, Say::Number),
    ("  replay_from", 8, Say::Number),
    ("  oldest_born", 8, Say::Number),
    ("  newest_sequence", 8, Say::Number),
    ("  segment", 8, Say::Number),
    ("  offset", 8, Say::Number),
    ("  kills_before", 8, Say::Number),
    ("  hash_count", 8, Say::Number),
    ("  namespace", 16, Say::Text),
    ("  hash", 32, Say::Bytes("the block that was removed")),
];

/// The text after the document's marker.
pub(crate) fn worked_example(table_file: &[u8], manifest: &[u8]) -> String {
    let mut text = String::from("\nThe block of forks:\n\n");
    let mut dump = Dump { text: &mut text, bytes: table_file, at: 0 };
    let forks = dump.block(0, Entries::Of(&["fork: 0x55 leaves 0x11 after block 1"]));
    dump.title("The block of order entries");
    let notes = ["the first extent", "the second, of the same lineage", "the fork"];
    let orders = dump.block(forks, Entries::Of(&notes));
    dump.title("The block of points");
    let notes = ["block 0x11", "block 0x22", "block 0x33", "block 0x44: removed", "block 0x55"];
    let filter = dump.block(orders, Entries::Of(&notes));
    dump.title("The filter");
    let index = dump.filter(filter);
    dump.title("The index");
    let footer = dump.block(index, Entries::Index);
    dump.title("The footer");
    dump.footer(footer);
    let _ = writeln!(text, "\nThe manifest:\n");
    Dump { text: &mut text, bytes: manifest, at: 0 }.manifest();
    text
}

/// The kind of a block's entries.
#[derive(Clone, Copy)]
enum Entries<'a> {
    /// Keys and values, with a note on each.
    Of(&'a [&'a str]),
    /// One per block.
    Index,
}

/// The checksum of bytes at a sector of the table.
fn place_crc(sector: usize, parts: &[&[u8]]) -> [u8; 4] {
    let own = dalsegno_core::crc32c(&(TABLE_NUMBER as u64).to_le_bytes());
    let own = dalsegno_core::crc32c_append(own, &(sector as u64).to_le_bytes());
    parts.iter().fold(own, |crc, part| dalsegno_core::crc32c_append(crc, part)).to_le_bytes()
}

/// Describes the bytes of a file.
struct Dump<'a> {
    text: &'a mut String,
    bytes: &'a [u8],
    at: usize,
}

impl Dump<'_> {
    fn title(&mut self, title: &str) {
        let _ = writeln!(self.text, "\n{title}, at {} ({:#x}):\n", self.at, self.at);
    }

    fn field(&mut self, len: usize, name: &str, note: &str) {
        let bytes = &self.bytes[self.at..self.at + len];
        match bytes {
            // Hashes are one byte 32 times here.
            [first, ..] if len > 16 && bytes.iter().all(|byte| byte == first) => {
                let what = format!("{len} times {first:02x}");
                let row = format!("    {:06x}  {what:<47}  {name:<20} {note}", self.at);
                let _ = writeln!(self.text, "{}", row.trim_end());
            }
            _ => line(self.text, self.at, bytes, name, note),
        }
        self.at += len;
    }

    /// Zeros up to a place.
    fn zeros(&mut self, end: usize, name: &str) {
        zeros(self.text, &self.bytes[self.at..end], self.at, name);
        self.at = end;
    }

    fn fields(&mut self, fields: &[Field]) {
        self.at = table(self.text, self.bytes, self.at, fields);
    }

    /// One line for varints that follow each other; returns them.
    fn varints<const N: usize>(&mut self, name: &str, notes: [&str; N]) -> [usize; N] {
        let (mut at, mut values) = (self.at, [0; N]);
        for value in &mut values {
            let len = 1 + self.bytes[at..].iter().position(|byte| byte & 0x80 == 0).unwrap();
            let digits = self.bytes[at..at + len].iter().rev();
            *value = digits.fold(0, |sum, byte| sum << 7 | usize::from(byte & 0x7f));
            at += len;
        }
        let notes = notes.iter().zip(values);
        let note: Vec<_> =
            notes.map(|(name, value)| format!("{name} {value}").trim_start().to_owned()).collect();
        self.field(at - self.at, name, &note.join(", "));
        values
    }

    fn varint(&mut self, name: &str) -> [usize; 1] {
        self.varints(name, [""])
    }

    /// A block of one sector; returns its end.
    fn block(&mut self, from: usize, entries: Entries<'_>) -> usize {
        let end = from + SECTOR;
        let number = |at: usize| u32::from_le_bytes(*self.bytes[at..].first_chunk().unwrap());
        let (entries_bytes, restarts) = (number(end - 12), number(end - 8));
        assert_eq!((self.at, restarts), (from, 1), "one restart");
        let crc = place_crc(from / SECTOR, &[&self.bytes[from..end - 4]]);
        assert_eq!(self.bytes[end - 4..end], crc, "the crc of the block at {from}");
        let entries_end = from + entries_bytes as usize;
        let mut key = Vec::new();
        let mut count = 0;
        while self.at < entries_end {
            let names = ["shared", "unshared", "value_bytes"];
            let [shared, unshared, value_bytes] = self.varints("entry", names);
            key.truncate(shared);
            key.extend_from_slice(&self.bytes[self.at..self.at + unshared]);
            match entries {
                Entries::Of(notes) => {
                    self.key(&key, shared, notes[count]);
                    self.value(key[0], value_bytes);
                }
                Entries::Index => {
                    let is_last = key.len() > 1;
                    let note =
                        if is_last { "the last key" } else { "separates it from the next block" };
                    self.key(&key, shared, note);
                    self.varints("value", ["first_sector", "sectors"]);
                }
            }
            count += 1;
        }
        assert_eq!(self.at, entries_end, "the entries end");
        self.zeros(end - 16, "padding");
        self.fields(&[
            ("restart", 4, Say::Number),
            ("entries_bytes", 4, Say::Number),
            ("restart_count", 4, Say::Number),
            ("crc", 4, Say::Bytes("of its place and the bytes so far")),
        ]);
        end
    }

    /// The stored part of a key, split into fields.
    fn key(&mut self, key: &[u8], shared: usize, note: &str) {
        let parts: &[(&str, usize)] = match key[0] {
            b'f' => &[
                ("kind", 1),
                ("namespace", 16),
                ("lineage", 16),
                ("block_index", 4),
                ("child", 16),
            ],
            b'o' => &[
                ("kind", 1),
                ("namespace", 16),
                ("lineage", 16),
                ("first_block_index", 4),
                ("sequence", 8),
            ],
            _ => &[("kind", 1), ("namespace", 16), ("hash", 16)],
        };
        let (mut from, mut note) = (0, note);
        for (name, len) in parts {
            let to = (from + len).min(key.len());
            if to > shared.max(from) {
                let own = to - shared.max(from);
                let name = if own < *len { format!("{name} ..") } else { (*name).to_owned() };
                self.field(own, &name, note);
                note = "";
            }
            from = to;
        }
    }

    fn value(&mut self, kind: u8, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let end = self.at + bytes;
        if kind == b'p' {
            self.field(16, "  lineage", "");
            let names = ["first", "sequence", "block", "segment", "epoch"];
            self.varints("  place", names);
        } else {
            self.varints("  place", ["born", "segment", "epoch", "offset"]);
            self.varints("  layout", ["header_bytes", "layers", "slice_bytes"]);
            self.field(16, "  lineage", "the half that is not in the key");
            self.field(32, "  parent", "");
            let [blocks] = self.varint("  block_count");
            let live = format!("as bits {:b}", self.bytes[self.at]);
            self.field(blocks.div_ceil(8), "  live", &live);
            for block in 0..blocks {
                self.field(32, &format!("  hashes[{block}]"), "");
            }
        }
        assert_eq!(self.at, end, "the value of an entry");
    }

    /// A filter of one line; returns its end.
    fn filter(&mut self, from: usize) -> usize {
        let (header, lines) = self.bytes[from..].split_at(64);
        let crc = place_crc(from / SECTOR, &[&header[..24], &lines[..64]]);
        assert_eq!(header[24..28], crc, "the crc of the filter");
        assert_eq!(header[8..12], [1, 0, 0, 0], "one line");
        self.fields(&FILTER_HEADER);
        self.zeros(from + 64, "zeros to 64");
        self.field(64, "line", "");
        self.zeros(from + SECTOR, "padding");
        from + SECTOR
    }

    fn footer(&mut self, from: usize) {
        assert_eq!(from + SECTOR, self.bytes.len(), "the last sector");
        let crc = dalsegno_core::crc32c(&self.bytes[from..from + 4092]).to_le_bytes();
        assert_eq!(self.bytes[from + 4092..], crc, "the crc of the footer");
        self.fields(&FOOTER);
        self.fields(&[("smallest", 53, Say::Bytes("of the fork"))]);
        self.zeros(from + 156, "zeros to 64");
        self.fields(&[("largest", 33, Say::Bytes("of the last point"))]);
        self.zeros(from + 220, "zeros to 64");
        self.zeros(from + 4092, "reserved");
        self.fields(&[("crc", 4, Say::Bytes("of the footer's bytes 0..4092"))]);
    }

    fn manifest(&mut self) {
        let number = |at: usize| u64::from_le_bytes(*self.bytes[at..].first_chunk().unwrap());
        let body_end = SECTOR + usize::try_from(number(48)).unwrap();
        let body_crc = dalsegno_core::crc32c(&self.bytes[SECTOR..body_end]).to_le_bytes();
        assert_eq!(self.bytes[4088..4092], body_crc, "the body's crc");
        let crc = dalsegno_core::crc32c(&self.bytes[..4092]).to_le_bytes();
        assert_eq!(self.bytes[4092..4096], crc, "the header's crc");
        self.fields(&MANIFEST_HEADER);
        self.zeros(4088, "reserved");
        self.fields(&[("body_crc", 4, Say::Bytes("")), ("crc", 4, Say::Bytes("of bytes 0..4092"))]);
        self.title("Its body");
        assert_eq!(self.varints("level 0", ["run_count"]), [1]);
        assert_eq!(self.varints("  run", ["table_count", "number"]), [1, TABLE_NUMBER]);
        assert_eq!(self.varint("segment_count"), [1]);
        self.varints("  segment", ["segment", "epoch", "extents", "blocks"]);
        self.varints("  its sums", ["live_bytes", "weight", "upper"]);
        self.fields(&CHECKPOINT);
        assert_eq!(self.at, body_end, "the body ends");
        self.zeros(self.bytes.len(), "padding");
    }
}
