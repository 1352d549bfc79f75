//! The full check of a store that nobody has open: its log, and its index if that is on disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::Result;
use dalsegno_index::{IndexFault, index_number, verify_index};

use crate::error::{to_error, unavailable};
use crate::open::directory::{DirectoryReader, lock_shared};

pub use dalsegno_log::Finding;

/// What a check read and found.
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
    /// Tables of the index read.
    pub tables: u64,
    /// Bytes read.
    pub bytes: u64,
    /// The damage, sorted by place; empty for a healthy store.
    pub findings: Vec<Finding>,
}

/// Reads and checks every byte of a store. `progress` receives the bytes done so far and in all.
///
/// # Errors
///
/// As [`info`](crate::info). Damage is no error: it is in the report.
pub fn verify(path: &Path, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<VerifyReport> {
    let (reader, _lock) = lock_shared(path)?;
    let store = reader.store_header().map(|header| header.store);
    let DirectoryReader { device, clock, pool } = reader;
    let files = device.list().map_err(|error| unavailable(path, error))?;
    let of_index = files.iter().filter(|entry| index_number(&entry.name).is_some());
    let index_bytes: u64 = of_index.map(|entry| entry.bytes).sum();
    let log_bytes = AtomicU64::new(0);
    let of_log = |done: u64, total: u64| {
        log_bytes.store(total, Ordering::Relaxed);
        progress(done, total + index_bytes);
    };
    let log = dalsegno_log::verify(Arc::clone(&device), clock, pool, &of_log).map_err(to_error)?;
    let log_bytes = log_bytes.into_inner();
    let of_index = |done: u64| progress(log_bytes + done, log_bytes + index_bytes);
    let index = verify_index(device, store, &of_index).map_err(|error| unavailable(path, error))?;
    if index_bytes > 0 {
        // The remains of a crash were not read.
        of_index(index_bytes);
    }
    let mut findings = log.findings;
    let finding = |IndexFault { file, offset, what }: IndexFault| Finding { file, offset, what };
    findings.extend(index.faults.into_iter().map(finding));
    findings.sort();
    Ok(VerifyReport {
        segments: log.segments,
        extents: log.extents,
        blocks: log.blocks,
        slices: log.slices,
        tables: index.tables,
        bytes: log.bytes + index.bytes,
        findings,
    })
}
