//! What a check of a far location found.

use dalsegno_io::IoError;
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

    /// A folder that cannot be listed.
    pub(super) fn of_folder(writer: WriterId, error: &IoError) -> Self {
        let what = format!("the folder cannot be listed, so its blocks are misses: {error}");
        Self { file: writer.to_string(), offset: 0, what }
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

/// What a check compared in packs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckedContents {
    /// Extents whose header is valid.
    pub extents: u64,
    /// Blocks in these.
    pub blocks: u64,
    /// Slices whose checksum was compared.
    pub slices: u64,
}

/// What a check read and found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FarVerifyReport {
    /// Folders of writers.
    pub writers: u64,
    /// Catalogs that were read.
    pub catalogs: u64,
    /// Lists of removals that were read.
    pub lists: u64,
    /// Packs that were read.
    pub packs: u64,
    /// What was checked in them.
    #[serde(flatten)]
    pub contents: CheckedContents,
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

    pub(super) fn note_folder(&mut self, writer: WriterId, error: &IoError) {
        self.findings.push(FarFinding::of_folder(writer, error));
    }

    pub(super) fn merge(&mut self, part: Self) {
        self.catalogs += part.catalogs;
        self.lists += part.lists;
        self.packs += part.packs;
        self.contents.extents += part.contents.extents;
        self.contents.blocks += part.contents.blocks;
        self.contents.slices += part.contents.slices;
        self.bytes += part.bytes;
        self.more_findings += part.more_findings;
        let space = MOST_FINDINGS - self.findings.len();
        self.more_findings += part.findings.len().saturating_sub(space) as u64;
        self.findings.extend(part.findings.into_iter().take(space));
    }
}
