//! A version: which tables are in use, and in what order.
//!
//! 1. A version never changes. A new one replaces it.
//! 2. The file of a table is open as long as a version in use names it.

use std::sync::Arc;

use dalsegno_core::Deadline;

use crate::error::TableError;
use crate::lsm::format::manifest::Manifest;
use crate::lsm::table::block_cache::BlockCache;
use crate::lsm::table::block_index::Head;
use crate::lsm::table::filter::KeyHash;
use crate::lsm::table::reader::Table;
use crate::lsm::version::run::SortedRun;
use crate::lsm::version::run_source::Tables;
use crate::usage::SegmentSum;

/// The tables in use.
#[derive(Debug, Default)]
pub(crate) struct Version {
    /// The number of its manifest; zero without one.
    pub(crate) number: u64,
    /// Level 0 first. In a level the newest run is first.
    pub(crate) levels: Vec<Vec<Arc<SortedRun>>>,
    pub(crate) sums: Vec<SegmentSum>,
    pub(crate) checkpoint: Vec<u8>,
    /// Whether points were dropped for lack of space. Then a record may show blocks that no point references.
    pub(crate) is_partial: bool,
}

impl Version {
    /// The same part of the log in other tables.
    pub(crate) fn with_levels(&self, levels: Vec<Vec<Arc<SortedRun>>>) -> Self {
        let (sums, checkpoint) = (self.sums.clone(), self.checkpoint.clone());
        Self { number: 0, levels, sums, checkpoint, is_partial: self.is_partial }
    }

    /// A version without tables. `keep` is [`LsmOptions::without_tables`](crate::LsmOptions::without_tables), and
    /// selects what remains of the checkpoint.
    pub(crate) fn without_tables(
        number: u64,
        checkpoint: &[u8],
        keep: fn(&[u8]) -> Vec<u8>,
    ) -> Self {
        Self { number, checkpoint: keep(checkpoint), ..Self::default() }
    }

    /// All runs, the newest first.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &Arc<SortedRun>> {
        self.levels.iter().flatten()
    }

    /// Calls `use_value` with the newest value of a key.
    pub(crate) fn get<R>(
        &self,
        key: &[u8],
        cache: &BlockCache,
        deadline: Deadline,
        mut use_value: impl FnMut(&[u8]) -> R,
    ) -> Result<Option<R>, TableError> {
        let (hash, head) = (KeyHash::of(key), Head::of(key));
        for table in self.runs().filter_map(|run| run.table_of(key, head)) {
            let used = table.get(key, hash, cache, deadline, &mut use_value)?;
            if used.is_some() {
                return Ok(used);
            }
        }
        Ok(None)
    }

    /// Runs that may hold the key or larger ones, newest first.
    pub(crate) fn runs_from(&self, key: &[u8]) -> Vec<Arc<SortedRun>> {
        let reaches =
            |run: &&Arc<SortedRun>| run.tables().last().is_some_and(|table| table.largest() >= key);
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
        let of_level = |runs: &Vec<Arc<SortedRun>>| runs.iter().map(|run| run.bytes()).collect();
        self.levels.iter().map(of_level).collect()
    }

    /// Numbers of tables by level and run, as in the manifest.
    pub(crate) fn numbers(&self) -> Vec<Vec<Vec<u64>>> {
        let of_run =
            |run: &Arc<SortedRun>| run.tables().iter().map(|table| table.number()).collect();
        let of_level = |runs: &Vec<Arc<SortedRun>>| runs.iter().map(of_run).collect();
        self.levels.iter().map(of_level).collect()
    }

    /// The version that a manifest describes; `open` opens a table.
    pub(crate) fn open<E>(
        manifest: &Manifest,
        mut open: impl FnMut(u64) -> Result<Table, E>,
    ) -> Result<Self, E> {
        let mut levels = Vec::new();
        for runs in &manifest.levels {
            let mut level = Vec::new();
            for numbers in runs {
                let tables = numbers.iter().map(|number| open(*number).map(Arc::new));
                level.push(Arc::new(SortedRun::new(tables.collect::<Result<_, _>>()?)));
            }
            levels.push(level);
        }
        let (sums, checkpoint) = (manifest.segments.clone(), manifest.checkpoint.clone());
        let (number, is_partial) = (manifest.number, manifest.is_partial);
        Ok(Self { number, levels, sums, checkpoint, is_partial })
    }
}
