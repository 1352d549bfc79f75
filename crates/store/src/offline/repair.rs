//! Repairing a store that nobody has open: damaged blocks are dropped, the rest is kept.
//!
//! 1. Nothing is touched without a finding of the check, except for the space that rewritten segments take.
//! 2. A damaged segment is rewritten as a whole: its good blocks are copied and durable before it is recycled. If there
//!    is no space for them it stays as it is.
//! 3. It may stop anywhere: a store that was repaired half-way has lost nothing more, and can be repaired again.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use dalsegno_core::{Config, Durability, IndexChoice, Result, SpaceFacts};
use dalsegno_extent::format::{namespace_of_file, segment_number};
use dalsegno_index::index_number;
use dalsegno_log::LogError;

use crate::api::door::Door;
use crate::blocks::indexed_log::IndexedLog;
use crate::error::{to_error, unavailable};
use crate::offline::verify::{Finding, VerifyReport, verify};
use crate::open::assemble::assemble;
use crate::open::directory::DirectoryReader;
use crate::open::open_store::OpenStore;
use crate::open::parts::parts_of;

/// No caller is in the store; this waits for its own background work.
const PIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Additional segments while a repair goes on: one to be filled, and the fewest that a store needs.
const SPARE_SEGMENTS: u64 = 5;

/// What a repair found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairReport {
    /// The check before.
    pub before: VerifyReport,
    /// Segments that were rewritten or removed.
    pub segments: u64,
    /// Blocks that were found before, and are not now: their bytes were bad.
    pub dropped_blocks: u64,
    /// The check afterwards; without findings if everything could be repaired.
    pub after: VerifyReport,
}

/// Checks a store, drops what is bad, and checks it again. `progress` hears of both checks, as with [`verify`].
///
/// # Errors
///
/// As [`verify`], and `Unavailable` if the store cannot be written. Damage that is left is no error: it is in the
/// report.
pub fn repair(path: &Path, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<RepairReport> {
    let before = verify(path, progress)?;
    if before.findings.is_empty() {
        let after = before.clone();
        return Ok(RepairReport { before, segments: 0, dropped_blocks: 0, after });
    }
    let config = config_for(path, &before.findings)?;
    let (store, transfers) = assemble(parts_of(path, &config)?)?;
    let door = Door::new(store);
    let repaired = rewrite_damaged(&*door.enter()?, &before.findings);
    // Everything has to be in the files before they are read.
    door.close(|deadline, clock| transfers.stop(deadline, clock));
    let (segments, dropped_blocks) = repaired?;
    let after = verify(path, progress)?;
    Ok(RepairReport { before, segments, dropped_blocks, after })
}

/// Settings that evict nothing and keep the index where it is. A damaged index is left out: opening without it removes
/// its files, and the next open rebuilds it.
fn config_for(path: &Path, findings: &[Finding]) -> Result<Config> {
    let reader = DirectoryReader::open(path)?;
    let SpaceFacts { existing_segment_bytes, .. } = reader.facts(path)?.space;
    let files = reader.device.list().map_err(|error| unavailable(path, error))?;
    let is_of_index = |name: &str| index_number(name).is_some();
    let has_index = files.iter().any(|entry| is_of_index(&entry.name))
        && !findings.iter().any(|finding| is_of_index(&finding.file));
    let segments =
        files.iter().filter(|entry| segment_number(&entry.name).is_some()).count() as u64;
    let others: u64 = files.iter().map(|entry| entry.bytes).filter(|bytes| *bytes > 0).sum();
    let segment_space = (segments + SPARE_SEGMENTS) * existing_segment_bytes.unwrap_or(1 << 20);
    Ok(Config {
        // An on-disk index takes its share of the capacity; its files are among the others now.
        capacity: Some(2 * segment_space + others),
        index: if has_index { IndexChoice::Lsm } else { IndexChoice::Memory },
        durability: Durability::Batch,
        dram: Some(0),
        merge_rate: Some(0),
        scrub_rate: Some(0),
        ..Config::default()
    })
}

/// Handles the findings of a check; returns how many segments were rewritten and how many blocks were lost.
fn rewrite_damaged(store: &OpenStore, findings: &[Finding]) -> Result<(u64, u64)> {
    let files: BTreeSet<&str> = findings.iter().map(|finding| finding.file.as_str()).collect();
    let reclaimer = &store.workers.space.reclaimer;
    let IndexedLog { log, index, .. } = reclaimer.stored.as_ref();
    let blocks = index.counts().1;
    let mut segments = 0;
    for file in files {
        if let Some(number) = segment_number(file) {
            match reclaimer.rewrite(number, PIN_TIMEOUT) {
                Ok(done) => {
                    segments += u64::from(done);
                    log.segment_list().write_off(number);
                }
                Err(error @ (LogError::Poisoned | LogError::Io(_))) => {
                    return Err(to_error(error));
                }
                Err(error) => tracing::warn!(file, %error, "damaged file not repaired"),
            }
        } else if namespace_of_file(file).is_some()
            && let Err(error) = store.meters.device.remove(file)
            && !error.is_not_found()
        {
            tracing::warn!(file, %error, "damaged file not repaired");
        }
    }
    Ok((segments, blocks.saturating_sub(index.counts().1)))
}
