//! One version of the tables: which are in use, and in what order.
//!
//! 1. A version never changes; a new one takes its place.
//! 2. Tables of a run do not overlap and are in the order of their keys.
//! 3. A table's file is open as long as a version that somebody uses names it.

use std::sync::Arc;

use dalsegno_io::WaitLimit;

use super::cache::BlockCache;
use super::filter::KeyHash;
use super::manifest::Manifest;
use super::merge::Tables;
use super::table::{Table, TableError};
use super::table_index::{Head, Heads};
use crate::usage::SegmentSum;

/// Sorted tables that were written together.
#[derive(Debug, Default)]
pub(crate) struct Run {
    tables: Vec<Arc<Table>>,
    /// Of each table's largest key.
    heads: Heads,
}

impl Tables for Run {
    fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    fn first_table(&self, key: &[u8]) -> usize {
        self.first_from(key, Head::of(key))
    }
}

impl Run {
    /// `tables` do not overlap and are in the order of their keys.
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

    /// The first table whose largest key is not less; `head` is the key's.
    fn first_from(&self, key: &[u8], head: Head) -> usize {
        let same = self.heads.range(head);
        same.start + self.tables[same].partition_point(|table| table.largest() < key)
    }

    /// The table that a key would be in; `head` is its head.
    fn table_of(&self, key: &[u8], head: Head) -> Option<&Arc<Table>> {
        self.tables.get(self.first_from(key, head)).filter(|table| table.smallest() <= key)
    }

    /// Whether a key may be here that begins as `from` does and is not less: the first bytes of it are all that
    /// filters know of keys of its kind, `hash` is theirs, `head` that of `from`.
    pub(super) fn may_begin_with(
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
            // It ends at or behind `from`; where it ends with another beginning, the next table is further behind.
            if !begins(table.largest()) {
                return false;
            }
        }
        false
    }
}

/// Which tables are in use.
#[derive(Debug, Default)]
pub(crate) struct Version {
    /// Number of its manifest; zero if it has none.
    pub(crate) number: u64,
    /// Level 0 first; in a level the newest run first.
    pub(crate) levels: Vec<Vec<Arc<Run>>>,
    pub(crate) sums: Vec<SegmentSum>,
    pub(crate) checkpoint: Vec<u8>,
    /// Points were dropped for want of room: a record may show blocks that lead nowhere.
    pub(crate) is_partial: bool,
}

impl Version {
    /// The same of the log in other tables.
    pub(crate) fn with_levels(&self, levels: Vec<Vec<Arc<Run>>>) -> Self {
        let (sums, checkpoint) = (self.sums.clone(), self.checkpoint.clone());
        Self { number: 0, levels, sums, checkpoint, is_partial: self.is_partial }
    }

    /// What is left of one with this checkpoint when its tables are lost; `keep` is [`LsmOptions::without_tables`].
    ///
    /// [`LsmOptions::without_tables`]: super::LsmOptions::without_tables
    pub(super) fn without_tables(
        number: u64,
        checkpoint: &[u8],
        keep: fn(&[u8]) -> Vec<u8>,
    ) -> Self {
        Self { number, checkpoint: keep(checkpoint), ..Self::default() }
    }

    /// The newest first.
    pub(super) fn runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        self.levels.iter().flatten()
    }

    /// What `use_value` makes of the newest value of a key.
    pub(crate) fn get<R>(
        &self,
        key: &[u8],
        cache: &BlockCache,
        wait: WaitLimit,
        mut use_value: impl FnMut(&[u8]) -> R,
    ) -> Result<Option<R>, TableError> {
        let (hash, head) = (KeyHash::of(key), Head::of(key));
        for table in self.runs().filter_map(|run| run.table_of(key, head)) {
            let used = table.get(key, hash, cache, wait, &mut use_value)?;
            if used.is_some() {
                return Ok(used);
            }
        }
        Ok(None)
    }

    /// Runs that may hold the key or larger ones, newest first.
    pub(crate) fn runs_from(&self, key: &[u8]) -> Vec<Arc<Run>> {
        let reaches =
            |run: &&Arc<Run>| run.tables.last().is_some_and(|table| table.largest() >= key);
        self.runs().filter(reaches).map(Arc::clone).collect()
    }

    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.runs().flat_map(Tables::tables)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.tables().map(|table| table.file_bytes()).sum()
    }

    /// Bytes of the runs of each level, for [`dalsegno_policy::fluid`].
    pub(crate) fn sizes(&self) -> Vec<Vec<u64>> {
        let of_level = |runs: &Vec<Arc<Run>>| runs.iter().map(|run| run.bytes()).collect();
        self.levels.iter().map(of_level).collect()
    }

    /// What the manifest says of the levels.
    pub(crate) fn numbers(&self) -> Vec<Vec<Vec<u64>>> {
        let of_run = |run: &Arc<Run>| run.tables.iter().map(|table| table.number()).collect();
        let of_level = |runs: &Vec<Arc<Run>>| runs.iter().map(of_run).collect();
        self.levels.iter().map(of_level).collect()
    }

    /// The version a manifest describes; `open` opens a table.
    pub(crate) fn open<E>(
        manifest: &Manifest,
        mut open: impl FnMut(u64) -> Result<Table, E>,
    ) -> Result<Self, E> {
        let mut levels = Vec::new();
        for runs in &manifest.levels {
            let mut level = Vec::new();
            for numbers in runs {
                let tables = numbers.iter().map(|number| open(*number).map(Arc::new));
                level.push(Arc::new(Run::new(tables.collect::<Result<_, _>>()?)));
            }
            levels.push(level);
        }
        let (sums, checkpoint) = (manifest.segments.clone(), manifest.checkpoint.clone());
        let (number, is_partial) = (manifest.number, manifest.is_partial);
        Ok(Self { number, levels, sums, checkpoint, is_partial })
    }
}
