//! What an examination found.

use dalsegno_io::IoError;
use serde::Serialize;
use thiserror::Error;

use crate::tier::TierRequests;

/// What was found out about a location.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DoctorReport {
    /// Whether direct I/O works on the mount.
    pub direct: bool,
    /// Whether reads were measured on another mount than writes.
    pub two_mounts: bool,
    /// Free bytes of the file system.
    pub free_bytes: u64,
    /// Times of single operations.
    pub latency: Vec<LatencyRow>,
    /// Bytes per second by the number of workers.
    pub bandwidth: Vec<BandwidthRow>,
    /// What the store needs of a file system, and whether it holds.
    pub promises: Vec<PromiseRow>,
    /// Objects of stores that cannot be read.
    pub unreadable: UnreadableObjects,
    /// What is unsafe, and what to set.
    pub advice: Vec<Advice>,
    /// Whether stores may use the location: no advice has [`Severity::Unsafe`].
    pub is_safe: bool,
    /// What the examination itself wrote.
    #[serde(flatten)]
    pub traces: Traces,
}

/// What an examination wrote and sent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Traces {
    /// What checks of promises and single reads sent to an object store, and the times that these reads measured; none
    /// for a directory.
    pub requests: Option<TierRequests>,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Objects that could not be removed; 0 unless the location failed.
    pub left_behind: u64,
}

/// An object, or the folder of a writer, that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Unreadable {
    /// Folder and file, or the folder.
    pub file: String,
    /// Why it cannot be read.
    pub why: String,
    /// What to do.
    pub action: &'static str,
}

/// What cannot be read.
#[derive(Clone, Debug, Default, Serialize)]
pub struct UnreadableObjects {
    /// The objects, sorted, at most 1,000.
    pub objects: Vec<Unreadable>,
    /// Further ones.
    pub more: u64,
    /// Whether all objects were tried within the time.
    pub is_complete: bool,
}

/// Why a location was not examined.
#[derive(Debug, Error)]
pub enum DoctorError {
    /// It cannot be used.
    #[error(transparent)]
    Io(#[from] IoError),
    /// It is nearly full.
    #[error(
        "the file system has {free_bytes} bytes left; examining needs 2 GiB free: remove something"
    )]
    NoSpace {
        /// What it has.
        free_bytes: u64,
    },
    /// The caller wanted it to end. Everything was removed.
    #[error("stopped")]
    Stopped,
}

/// Times of one kind of operation, one at a time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LatencyRow {
    /// The operation.
    pub operation: &'static str,
    /// Bytes of one.
    pub bytes: u64,
    /// Operations that were measured.
    pub count: u64,
    /// The median, in microseconds.
    pub p50_us: u64,
    /// 99 of 100 took at most this long, in microseconds.
    pub p99_us: u64,
}

/// What a store with this setting gets.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BandwidthRow {
    /// The setting `far_workers`.
    pub far_workers: u32,
    /// Bytes per second of reads of 1 MiB, as many at a time.
    pub read_bytes_per_s: u64,
    /// Bytes per second of packs that are published. A store publishes at most four at a time.
    pub publish_bytes_per_s: u64,
}

/// Whether a promise holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// In every round.
    Holds,
    /// It holds, but later than stores expect.
    Slow,
    /// Not in every round.
    Fails,
}

/// A promise and whether it holds.
#[derive(Clone, Debug, Serialize)]
pub struct PromiseRow {
    /// Its name.
    pub name: &'static str,
    /// Whether it holds.
    pub verdict: Verdict,
    /// What was seen.
    pub detail: String,
}

/// How much an advice matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Stores must not use the location like this.
    Unsafe,
    /// Stores work, but blocks are found late, or more slowly than possible.
    Slow,
    /// Worth to know.
    Note,
}

/// What was found, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// How much it matters.
    pub severity: Severity,
    /// What was found.
    pub what: String,
    /// What to do.
    pub action: String,
}

impl Advice {
    pub(super) fn new(
        severity: Severity,
        what: impl Into<String>,
        action: impl Into<String>,
    ) -> Self {
        Self { severity, what: what.into(), action: action.into() }
    }
}
