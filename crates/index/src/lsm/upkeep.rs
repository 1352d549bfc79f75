//! What whoever owns the index does for it: freezing, flushing, merging, and keeping in step with the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dalsegno_core::{NamespaceId, Shape};
use serde::Serialize;

use super::counts::LsmCounts;
use super::index::LsmIndex;
use super::keys::OrderKey;
use super::maintain::Living;
use super::table::{Shortage, TableError};
use super::tree::{MOST_FROZEN, Pace};

/// What an index is made of at a moment, and what it did since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LsmStats {
    /// Size ratio, runs per level, runs of the last level.
    pub shape: Option<Shape>,
    /// Runs of each level, the newest data first.
    pub runs: Vec<u64>,
    /// Bytes of each run, level by level, the newest data first.
    pub run_bytes: Vec<Vec<u64>>,
    /// Files of tables.
    pub tables: u64,
    /// Their bytes.
    pub table_bytes: u64,
    /// Entries in them, of all kinds; superseded ones count until they are merged away.
    pub entries: u64,
    /// Of these, entries of single blocks.
    pub points: u64,
    /// Bytes of filters and of lists of blocks, kept in memory.
    pub pinned_bytes: u64,
    /// Bytes of the table that a full memtable becomes.
    pub buffer_bytes: u64,
    /// What was asked of the tables.
    pub asked: LsmCounts,
    /// Sectors of tables that upkeep looked things up in; what merges read is not among them.
    pub upkeep_sectors: u64,
    /// Memtables that became tables.
    pub flushes: u64,
    /// Bytes of these tables.
    pub flushed_bytes: u64,
    /// Merges.
    pub merges: u64,
    /// Bytes that they wrote.
    pub merged_bytes: u64,
    /// Bytes of the tables that they read.
    pub merge_read_bytes: u64,
    /// Tables that were given up because the index outgrew its room on disk; the blocks they led to are misses.
    pub forgotten_tables: u64,
    /// Whether a table turned out to be damaged: the index is built anew at the next open.
    pub damaged: bool,
}

impl LsmIndex {
    /// Whether so much was written that [`Self::freeze`] is due.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.tree.is_full()
    }

    /// Whether nothing more is taken in until [`Self::step`] made room.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.tree.is_stalled()
    }

    /// Begins a new memtable; the old one waits to become a table. `checkpoint` says what of the log the index has
    /// taken in: it was made before this call, so everything it covers is in the index.
    pub fn freeze(&self, checkpoint: Vec<u8>) {
        let writer = self.tree.writer();
        let sums = self.usage.read().sums();
        writer.freeze(checkpoint, sums);
    }

    /// Does one thing that is due, a flush or a merge; `false` if nothing is, or it failed.
    pub fn step(&self) -> bool {
        // The tree has told what went wrong.
        self.tree.step(self).unwrap_or(false)
    }

    /// Lets merges ask before they write; once, for good.
    pub fn set_pace(&self, pace: Arc<dyn Pace>) {
        // A second one would be a bug of the store, and is no reason to fail it.
        drop(self.tree.pace.set(pace));
    }

    /// Whether something waits to become a table.
    #[must_use]
    pub fn has_frozen(&self) -> bool {
        self.tree.has_frozen()
    }

    /// Gives the files up: the next open builds the index anew. What is in them is still served.
    pub fn condemn(&self) {
        self.tree.condemn();
    }

    /// As [`Self::condemn`], and nothing of the files is served any more.
    pub fn give_up(&self) {
        tracing::error!("the index cannot carry out a removal: it is empty until the next open");
        self.tree.empty();
    }

    /// Becomes an index that holds nothing, and of whose checkpoint [`LsmOptions::without_tables`] is left, now and at
    /// every open until it is flushed. `false` if that could not be written: nothing has changed then, or nothing is
    /// written any more.
    ///
    /// [`LsmOptions::without_tables`]: super::LsmOptions::without_tables
    #[must_use]
    pub fn begin_anew(&self) -> bool {
        self.tree.begin_anew()
    }

    /// Whether anything of it lies in tables.
    #[must_use]
    pub fn has_tables(&self) -> bool {
        self.tree.state().version.bytes() > 0
    }

    /// The shape it is given at the next flush, if it has not got it yet.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.tree.shape()
    }

    /// Bits of filter per entry that all tables together may have.
    #[must_use]
    pub fn filter_bits(&self) -> f64 {
        self.tree.options.filter_bits
    }

    /// Changes the shape; the steps after the next flush follow it.
    pub fn set_shape(&self, shape: Shape) {
        self.tree.set_shape(shape);
    }

    /// Whether a table turned out to be damaged, so that the index should be built anew.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.tree.is_damaged()
    }

    /// Whether writing a manifest failed: it may be durable or not, so no other is written.
    #[must_use]
    pub fn is_unsure(&self) -> bool {
        self.tree.is_unsure()
    }

    /// Whether nothing of it is written any more: it is built anew at the next open.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.tree.has_failed()
    }

    /// Why something was not written, unless something else was since.
    #[must_use]
    pub fn shortage(&self) -> Option<Shortage> {
        self.tree.shortage()
    }

    /// To be called when somebody made room on disk.
    pub fn has_room_again(&self) {
        self.tree.has_room_again();
    }

    /// Bytes that may wait in memory to be written.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        self.tree.options.memtable_bytes.saturating_mul(MOST_FROZEN as u64 + 1)
    }

    /// Bytes of its tables.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.tree.state().version.bytes()
    }

    /// Whether somebody waits for a merge to give the tables up: none is to wait for anything.
    #[must_use]
    pub fn is_hurried(&self) -> bool {
        self.tree.is_hurried.load(Ordering::Acquire)
    }

    /// Whether a removal emptied it, since it could not be read.
    #[must_use]
    pub fn is_emptied(&self) -> bool {
        self.tree.has_failed() && self.tree.is_partial() && !self.has_tables()
    }

    /// Whether something could not be read since it was opened, though it may be readable again.
    #[must_use]
    pub fn has_missed(&self) -> bool {
        self.tree.has_missed()
    }

    /// Drops what lies in segments that are not there any more, or in another life. `segments` are all there are, with
    /// their epochs. `false` if one of them is back that it took for gone.
    #[must_use]
    pub fn align(&self, segments: &[(u64, u64)]) -> bool {
        self.usage.write().align(segments)
    }

    /// The newest segment that it ever led to, as far as it knows; gone or not.
    #[must_use]
    pub fn newest_segment(&self) -> Option<u64> {
        self.usage.read().newest()
    }

    /// What it is made of, and what it did.
    #[must_use]
    pub fn lsm_stats(&self) -> LsmStats {
        let state = self.tree.state();
        let counters = &self.tree.counters;
        let tables = || state.version.tables();
        LsmStats {
            shape: Some(self.tree.shape()),
            runs: state.version.levels.iter().map(|runs| runs.len() as u64).collect(),
            run_bytes: state.version.sizes(),
            tables: tables().count() as u64,
            table_bytes: tables().map(|table| table.file_bytes()).sum(),
            entries: tables().map(|table| table.entries()).sum(),
            points: tables().map(|table| table.points()).sum(),
            pinned_bytes: tables().map(|table| table.memory_bytes()).sum(),
            buffer_bytes: self.tree.buffer_bytes(),
            asked: self.tree.cache.asked().view(),
            upkeep_sectors: counters.upkeep.view().scan_sectors,
            flushes: counters.flushes.load(Ordering::Relaxed),
            flushed_bytes: counters.flushed_bytes.load(Ordering::Relaxed),
            merges: counters.merges.load(Ordering::Relaxed),
            merged_bytes: counters.merged_bytes.load(Ordering::Relaxed),
            merge_read_bytes: counters.merge_read_bytes.load(Ordering::Relaxed),
            forgotten_tables: counters.forgotten_tables.load(Ordering::Relaxed),
            damaged: self.tree.is_damaged(),
        }
    }
}

impl Living for LsmIndex {
    fn has_lineage(&self, namespace: NamespaceId, lineage: [u8; 16]) -> Result<bool, TableError> {
        let from = OrderKey { namespace, lineage, first: 0, sequence: 0 };
        let scan = self.tree.orders_for_upkeep(&from)?;
        self.any_of(scan, |key| (key.namespace, key.lineage) == (namespace, lineage))
    }
}
