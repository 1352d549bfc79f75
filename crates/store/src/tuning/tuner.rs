//! Adapts the shape of an on-disk index to its workload: feeds the controller and applies its decisions.
//!
//! 1. It reads counters of the index and no clock: the same operations give the same decisions.
//! 2. It runs after a memtable was frozen and before it is flushed, so that a decision applies to this flush.

use std::collections::VecDeque;
use std::sync::Arc;

use dalsegno_core::{IndexTuning, SECTOR_BYTES, Shape};
use dalsegno_index::{LsmCounts, LsmIndex, LsmStats, read_notes};
use dalsegno_io::Device;
use dalsegno_policy::tuning::{
    Constants, Controller, ControllerOptions, Counts, Decision, Facts, Mode, useless_reads,
};
use serde::{Deserialize, Serialize};

/// Decisions that are kept for reports.
const DECISIONS_KEPT: usize = 16;
/// Pages that a range reads in each run before any was counted: a block of order entries.
const BEGIN_PAGES: f64 = 4.0;
/// After so many scans, earlier ones no longer count.
const LEARNT_SCANS: f64 = 512.0;
/// After so many lookups that read something, earlier ones no longer count.
const LEARNT_READS: f64 = 4096.0;
/// The share of the cost that a change must save. Most of the cost is the same in every shape: the pages that hold the
/// wanted entries, and those of flushes. A margin of a tenth misses what a growing tree offers: docs/decisions/0010.
const MARGIN: f64 = 0.02;
/// How many times more or less than one page a read may cost.
const MOST_LEARNT: f64 = 8.0;

/// A change of the index's shape, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionRow {
    /// Operations of the index until then, since the store was opened.
    pub operations: u64,
    /// The shape until then.
    pub from: String,
    /// The shape from then on; the tree takes it as data arrives.
    pub to: String,
    /// One sentence for readers.
    pub reason: String,
}

/// What an on-disk index consists of, its workload, and how its shape came about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IndexStats {
    /// The setting `index_tuning`.
    pub tuning: IndexTuning,
    /// The last changes of shape, the oldest first; those of earlier openings among them.
    pub decisions: Vec<DecisionRow>,
    /// The index itself.
    #[serde(flatten)]
    pub lsm: LsmStats,
}

/// Watches an index and changes its shape.
#[derive(Debug)]
pub struct Tuner {
    tuning: IndexTuning,
    controller: Controller,
    seen: LsmCounts,
    /// The measured costs.
    constants: Constants,
    decisions: VecDeque<DecisionRow>,
}

impl Tuner {
    /// A tuner for an index that has this shape now, with its earlier decisions.
    #[must_use]
    pub fn new(tuning: IndexTuning, start: Shape, decisions: Vec<DecisionRow>) -> Self {
        let mode = match tuning {
            IndexTuning::Auto => Mode::Adaptive,
            IndexTuning::Off => Mode::Pinned(start),
            IndexTuning::Pinned(shape) => Mode::Pinned(shape),
        };
        let options =
            ControllerOptions { mode, start, margin: MARGIN, ..ControllerOptions::default() };
        let controller = Controller::new(options);
        Self {
            tuning,
            controller,
            seen: LsmCounts::default(),
            // A merge reads what it writes.
            constants: Constants { begin: BEGIN_PAGES, merge: 2.0, ..Constants::io() },
            decisions: decisions.into(),
        }
    }

    /// A tuner for the index of a store, with the decisions of earlier openings.
    pub(crate) fn open(device: &Arc<dyn Device>, index: &LsmIndex, tuning: IndexTuning) -> Self {
        Self::new(tuning, index.shape(), read_decisions(device))
    }

    /// Counts the workload since the last call, and changes the shape if that pays.
    pub fn turn(&mut self, index: &LsmIndex) -> Option<Decision> {
        if self.tuning != IndexTuning::Auto {
            return None;
        }
        let stats = index.lsm_stats();
        self.learn(index, &stats);
        self.controller.observe(delta(&self.seen, &stats.asked));
        self.seen = stats.asked;
        let decision = self.controller.decide(&self.facts(index, &stats))?;
        tracing::info!(from = %decision.from, to = %decision.to, "index: {}", decision.reason);
        index.set_shape(decision.to);
        if self.decisions.len() == DECISIONS_KEPT {
            self.decisions.pop_front();
        }
        self.decisions.push_back(DecisionRow {
            operations: decision.operations,
            from: decision.from.to_string(),
            to: decision.to.to_string(),
            reason: decision.reason.clone(),
        });
        Some(decision)
    }

    /// Measures what the model cannot know: the size of the blocks that are read, how many of them are in memory, and
    /// how many false positives the filters have, relative to the model.
    fn learn(&mut self, index: &LsmIndex, stats: &LsmStats) {
        let (now, before) = (&stats.asked, &self.seen);
        let scans = now.scans - before.scans;
        let runs: u64 = stats.runs.iter().sum();
        if scans > 0 && runs > 0 {
            let sectors = now.scan_sectors - before.scan_sectors;
            let measured = number(sectors) / number(scans * runs);
            approach(&mut self.constants.begin, measured, number(scans) / LEARNT_SCANS);
        }
        let hits = now.point_hits - before.point_hits;
        let useless = now.vain_sectors - before.vain_sectors;
        let all =
            now.point_sectors + now.order_sectors - before.point_sectors - before.order_sectors;
        if hits > 0 {
            let measured = number(all - useless.min(all)) / number(hits);
            approach(&mut self.constants.read, measured, number(hits) / LEARNT_READS);
        }
        let (per_miss, per_hit) = useless_reads(&stats.run_bytes, index.filter_bits());
        let misses = now.point_misses - before.point_misses;
        let expected = per_hit * number(hits) + per_miss * number(misses);
        if expected > 1.0 {
            let measured = (number(useless) / expected).clamp(1.0 / MOST_LEARNT, MOST_LEARNT);
            approach(&mut self.constants.false_positive, measured, expected / LEARNT_READS);
        }
    }

    /// The current tree.
    fn facts(&self, index: &LsmIndex, stats: &LsmStats) -> Facts {
        Facts {
            levels: stats.run_bytes.clone(),
            entries: stats.entries,
            entry_bytes: (stats.table_bytes / stats.entries.max(1)).max(1),
            page_bytes: SECTOR_BYTES,
            memtable_bytes: stats.buffer_bytes,
            filter_bits_per_entry: index.filter_bits(),
            constants: self.constants,
        }
    }

    /// The last changes, as they are stored next to the index.
    pub(crate) fn notes(&self) -> String {
        let rows = self.decisions.iter();
        let lines = rows.map(|row| serde_json::to_string(row).expect("plain fields") + "\n");
        lines.collect()
    }

    /// What the index consists of, with its history.
    pub(crate) fn stats(&self, index: &LsmIndex) -> IndexStats {
        let (tuning, decisions) = (self.tuning, self.decisions());
        IndexStats { tuning, decisions, lsm: index.lsm_stats() }
    }

    /// The last changes, the oldest first; at most sixteen.
    #[must_use]
    pub fn decisions(&self) -> Vec<DecisionRow> {
        self.decisions.iter().cloned().collect()
    }
}

/// The decisions stored next to an index; invalid lines are skipped.
pub(crate) fn read_decisions(device: &Arc<dyn Device>) -> Vec<DecisionRow> {
    let notes = read_notes(Arc::clone(device)).unwrap_or_default();
    let rows = notes.lines().filter_map(|line| serde_json::from_str(line).ok());
    let mut rows: Vec<DecisionRow> = rows.collect();
    rows.drain(..rows.len().saturating_sub(DECISIONS_KEPT));
    rows
}

/// Moves a mean towards what was measured; a weight of one or more replaces it.
fn approach(mean: &mut f64, measured: f64, weight: f64) {
    *mean += weight.min(1.0) * (measured - *mean);
}

/// The workload between two moments.
fn delta(before: &LsmCounts, now: &LsmCounts) -> Counts {
    Counts {
        writes: now.written_entries - before.written_entries,
        hits: now.point_hits - before.point_hits,
        misses: now.point_misses - before.point_misses,
        ranges: now.scans - before.scans,
        range_entries: now.scanned_entries - before.scanned_entries,
    }
}

#[expect(clippy::cast_precision_loss, reason = "means need no more than 53 bits of a count")]
fn number(count: u64) -> f64 {
    count as f64
}
