//! A sorted run: tables that were written together.
//!
//! 1. Tables of a run do not overlap and are in the order of their keys.

use std::sync::Arc;

use crate::lsm::table::block_index::{Head, Heads};
use crate::lsm::table::filter::KeyHash;
use crate::lsm::table::reader::Table;
use crate::lsm::version::run_source::Tables;

/// Sorted tables that were written together.
#[derive(Debug, Default)]
pub(crate) struct SortedRun {
    tables: Vec<Arc<Table>>,
    /// The heads of the largest keys.
    heads: Heads,
}

impl Tables for SortedRun {
    fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    fn first_table(&self, key: &[u8]) -> usize {
        self.first_from(key, Head::of(key))
    }
}

impl SortedRun {
    /// A run of tables that do not overlap and are in the order of their keys.
    pub(crate) fn new(tables: Vec<Arc<Table>>) -> Self {
        let mut heads = Heads::default();
        for table in &tables {
            heads.push(table.largest()).expect("fewer than 2^32 tables");
        }
        Self { tables, heads }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.file_bytes()).sum()
    }

    /// The first table whose largest key is at least `key`; `head` is its head.
    fn first_from(&self, key: &[u8], head: Head) -> usize {
        let same = self.heads.range(head);
        same.start + self.tables[same].partition_point(|table| table.largest() < key)
    }

    /// The table that may hold a key; `head` is its head.
    pub(crate) fn table_of(&self, key: &[u8], head: Head) -> Option<&Arc<Table>> {
        self.tables.get(self.first_from(key, head)).filter(|table| table.smallest() <= key)
    }

    /// Whether the run may hold a key that starts with the first bytes of `from` and is not less than `from`. Filters
    /// know keys of this kind by these first bytes. `hash` is their hash, `head` the head of `from`.
    pub(crate) fn may_begin_with(
        &self,
        from: &[u8],
        first_bytes: usize,
        hash: KeyHash,
        head: Head,
    ) -> bool {
        let begins = |key: &[u8]| key.starts_with(&from[..first_bytes]);
        for table in &self.tables[self.first_from(from, head)..] {
            let smallest = table.smallest();
            if table.may_contain(hash) && (smallest <= from || begins(smallest)) {
                return true;
            }
            // The table ends at or after `from`. If its end starts differently, so does the next table.
            if !begins(table.largest()) {
                return false;
            }
        }
        false
    }
}
