//! Repairing a store that nobody has open: what is bad is dropped, the rest is kept.
//!
//! 1. Nothing is touched that the check found no fault with, but for room that segments written anew take.
//! 2. A segment with a fault is written anew as a whole: its good blocks are copied and durable before it goes. If
//!    there is no room for them it stays as it is.
//! 3. It may stop anywhere: a store that was repaired half-way has lost nothing more, and can be repaired again.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use dalsegno_core::{Config, Durability, IndexChoice, Result, SpaceFacts};
use dalsegno_index::index_number;
use dalsegno_io::Device;
use dalsegno_log::format::{namespace_of_file, segment_number};
use dalsegno_log::{LogError, SegmentState};

use crate::offline::Reader;
use crate::open::unavailable;
use crate::rewrite::rows;
use crate::store::{Inner, Store, to_error};
use crate::verify::{Finding, VerifyReport, verify};

/// Nobody else is in the store; this is for its own background work.
const PATIENCE: Duration = Duration::from_secs(10);
/// Segments that may be there in addition while a repair goes on: one to be filled, and the least that a store needs.
const SPARE_SEGMENTS: u64 = 5;

/// What a repair found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairReport {
    /// The check before.
    pub before: VerifyReport,
    /// Segments that were written anew, or removed.
    pub segments: u64,
    /// Blocks that could be found before, and cannot now: their bytes were bad.
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
    let store = Store::open(path, &config)?;
    let repaired = store.enter()?.repair(&before.findings);
    // What opening made of the store, and the rest, has to be in its files before they are read.
    store.close();
    let (segments, dropped_blocks) = repaired?;
    let after = verify(path, progress)?;
    Ok(RepairReport { before, segments, dropped_blocks, after })
}

/// Settings that evict nothing and leave the index where it is. A damaged one is left out: opening without it removes
/// its files, and the next open makes it again.
fn config_for(path: &Path, findings: &[Finding]) -> Result<Config> {
    let reader = Reader::open(path)?;
    let SpaceFacts { existing_segment_bytes, .. } = reader.facts(path)?.space;
    let files = reader.device.list().map_err(|error| unavailable(path, error))?;
    let is_of_index = |name: &str| index_number(name).is_some();
    let has_index = files.iter().any(|entry| is_of_index(&entry.name))
        && !findings.iter().any(|finding| is_of_index(&finding.file));
    let segments =
        files.iter().filter(|entry| segment_number(&entry.name).is_some()).count() as u64;
    let others: u64 = files.iter().map(|entry| entry.bytes).filter(|bytes| *bytes > 0).sum();
    let room = (segments + SPARE_SEGMENTS) * existing_segment_bytes.unwrap_or(1 << 20);
    Ok(Config {
        // An index in files takes its share off; what it has now is among the others.
        capacity: Some(2 * room + others),
        index: if has_index { IndexChoice::Lsm } else { IndexChoice::Memory },
        durability: Durability::Batch,
        dram: Some(0),
        merge_rate: Some(0),
        scrub_rate: Some(0),
        ..Config::default()
    })
}

impl Inner {
    /// Deals with what a check found; returns how many segments were written anew and how many blocks were lost.
    fn repair(&self, findings: &[Finding]) -> Result<(u64, u64)> {
        let files: BTreeSet<&str> = findings.iter().map(|finding| finding.file.as_str()).collect();
        let blocks = self.index.counts().1;
        let mut segments = 0;
        for file in files {
            if let Some(number) = segment_number(file) {
                match self.write_anew(number) {
                    Ok(done) => {
                        segments += u64::from(done);
                        self.log.segment_list().write_off(number);
                    }
                    Err(error @ (LogError::Poisoned | LogError::Io(_))) => {
                        return Err(to_error(error));
                    }
                    Err(error) => tracing::warn!("{file} stays as it is: {error}"),
                }
            } else if namespace_of_file(file).is_some()
                && let Err(error) = self.watch.remove(file)
                && !error.is_not_found()
            {
                tracing::warn!("{file} stays as it is: {error}");
            }
        }
        Ok((segments, blocks.saturating_sub(self.index.counts().1)))
    }

    /// Copies the good blocks of a segment to others, and recycles it. `false` if opening has dealt with it.
    fn write_anew(&self, number: u64) -> std::result::Result<bool, LogError> {
        let state_of =
            || self.log.segments().views().into_iter().find(|view| view.number == number);
        if state_of().is_some_and(|view| view.state == SegmentState::Open) {
            // Only this one can be open.
            let _sealed = self.log.segments().seal_open();
        }
        let Some(view) = state_of().filter(|view| view.state != SegmentState::Free) else {
            return Ok(false);
        };
        let extents = self.extents_in(number)?;
        for row in rows(&self.live_of(number, &extents)?, &self.limits) {
            self.move_all(number, &row)?;
        }
        let drop_rest = || {
            for extent in &extents {
                self.drop_extent(extent);
            }
            let _blocks = self.index.drop_segment(view.number, view.epoch);
        };
        if self.log.recycler().recycle(number, PATIENCE, drop_rest)? {
            Ok(true)
        } else {
            Err(LogError::Full)
        }
    }
}
