//! What a check of a store found.

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file.
    pub file: String,
    /// Byte offset in it.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Segment files read.
    pub segments: u64,
    /// Extents whose header is valid.
    pub extents: u64,
    /// Blocks in them.
    pub blocks: u64,
    /// Slices whose checksum was compared.
    pub slices: u64,
    /// Bytes read.
    pub bytes: u64,
    /// All faults, sorted by place; empty for a healthy store.
    pub findings: Vec<Finding>,
}

impl VerifyReport {
    pub(super) fn note(&mut self, file: &str, offset: u64, what: impl std::fmt::Display) {
        self.findings.push(Finding { file: file.to_owned(), offset, what: what.to_string() });
    }

    pub(super) fn merge(&mut self, part: Self) {
        self.segments += part.segments;
        self.extents += part.extents;
        self.blocks += part.blocks;
        self.slices += part.slices;
        self.bytes += part.bytes;
        self.findings.extend(part.findings);
    }
}
