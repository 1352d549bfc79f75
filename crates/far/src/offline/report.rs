//! What a check of a far location found.

use serde::Serialize;

use crate::names::{ObjectName, WriterId};

/// Findings in a report. Further ones are counted.
pub const MOST_FINDINGS: usize = 10_000;

/// Damage at a far location.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FarFinding {
    /// The object: folder and file.
    pub file: String,
    /// Byte offset in it.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

impl FarFinding {
    pub(super) fn new(name: ObjectName, offset: u64, what: impl Into<String>) -> Self {
        Self { file: name.to_string(), offset, what: what.into() }
    }

    pub(super) fn of_folder(writer: WriterId, what: impl Into<String>) -> Self {
        Self { file: writer.to_string(), offset: 0, what: what.into() }
    }
}

/// A pack without a catalog. Nobody reads it: it is being written, or a crash left it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Unpublished {
    /// The pack: folder and file.
    pub file: String,
    /// Its size.
    pub bytes: u64,
}

/// What a check read and found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FarVerifyReport {
    /// Folders of writers.
    pub writers: u64,
    /// Catalogs that were read.
    pub catalogs: u64,
    /// Packs that were read.
    pub packs: u64,
    /// Extents in them whose header is valid.
    pub extents: u64,
    /// Blocks in these.
    pub blocks: u64,
    /// Slices whose checksum was compared.
    pub slices: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Packs without a catalog; no damage.
    pub unpublished: Vec<Unpublished>,
    /// The damage, sorted by place; empty if there is none.
    pub findings: Vec<FarFinding>,
    /// Findings beyond [`MOST_FINDINGS`].
    pub more_findings: u64,
}

impl FarVerifyReport {
    pub(super) fn note(&mut self, name: ObjectName, offset: u64, what: impl Into<String>) {
        if self.findings.len() < MOST_FINDINGS {
            self.findings.push(FarFinding::new(name, offset, what));
        } else {
            self.more_findings += 1;
        }
    }

    pub(super) fn merge(&mut self, part: Self) {
        self.catalogs += part.catalogs;
        self.packs += part.packs;
        self.extents += part.extents;
        self.blocks += part.blocks;
        self.slices += part.slices;
        self.bytes += part.bytes;
        self.more_findings += part.more_findings;
        let space = MOST_FINDINGS - self.findings.len();
        self.more_findings += part.findings.len().saturating_sub(space) as u64;
        self.findings.extend(part.findings.into_iter().take(space));
    }
}
