//! What an on-disk index consists of, and what it did.

use dalsegno_core::Shape;
use serde::Serialize;

use crate::lsm::table::read_counts::LsmCounts;

/// What an index consists of at one moment, and what it did since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LsmStats {
    /// Size ratio, runs per level, runs of the last level.
    pub shape: Option<Shape>,
    /// Runs of each level, the newest data first.
    pub runs: Vec<u64>,
    /// Bytes of each run, level by level, the newest data first.
    pub run_bytes: Vec<Vec<u64>>,
    /// Table files.
    pub tables: u64,
    /// Bytes of the table files.
    pub table_bytes: u64,
    /// Entries of all kinds in the tables. Superseded ones count until a compaction drops them.
    pub entries: u64,
    /// Entries of single blocks among them.
    pub points: u64,
    /// Bytes of filters and block indexes, which stay in memory.
    pub pinned_bytes: u64,
    /// Bytes of the table that a full memtable becomes.
    pub buffer_bytes: u64,
    /// Operations on the tables.
    pub asked: LsmCounts,
    /// Sectors of tables that maintenance read for lookups; those that compactions read are not among them.
    pub upkeep_sectors: u64,
    /// Memtables that became tables.
    pub flushes: u64,
    /// Bytes of these tables.
    pub flushed_bytes: u64,
    /// Compactions.
    pub merges: u64,
    /// Bytes that compactions wrote.
    pub merged_bytes: u64,
    /// Bytes of the tables that compactions read.
    pub merge_read_bytes: u64,
    /// Tables that were dropped because the index outgrew its disk space. Their blocks are misses.
    pub forgotten_tables: u64,
    /// Whether a table is damaged. Then the next open rebuilds the index.
    pub damaged: bool,
}
