//! Finds the extents that start at a place: a block of a lineage of a namespace.
//!
//! 1. A block is read only of a run whose filter may hold the place. If a run is positioned before the place in a block
//!    that was read, its next entries are checked first. All sequences of a place share one key of the filter.
//! 2. Of a key only the newest value counts, and sources are searched newest first. A caller that is content with the
//!    first extent leaves older runs unread.
//! 3. Places are requested in ascending order, all of one lineage. A run keeps its position, because the next extent is
//!    often in the same block.
//! 4. A run whose filter rules out the lineage is not searched.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_core::Deadline;

use crate::error::TableError;
use crate::lsm::format::keys::{LINEAGE_BYTES, OrderKey, PLACE_BYTES, Record};
use crate::lsm::memtable::scan::MemtableScan;
use crate::lsm::table::block_cache::BlockCache;
use crate::lsm::table::block_index::Head;
use crate::lsm::table::filter::KeyHash;
use crate::lsm::table::iter::ReadMode;
use crate::lsm::table::read_counts::Purpose;
use crate::lsm::table::source::Source;
use crate::lsm::version::run::SortedRun;
use crate::lsm::version::run_source::RunSource;
use crate::lsm::version::snapshot::Snapshot;

/// How far the cursor has searched a run.
#[derive(Default)]
struct RunPosition {
    /// Whether the filter may hold the lineage, once it was queried.
    may_hold: Option<bool>,
    /// The position in the run, once it was read.
    source: Option<RunSource<Arc<SortedRun>>>,
}

/// Finds extents by their places, in one snapshot.
pub(crate) struct PlaceCursor {
    snapshot: Arc<Snapshot>,
    cache: BlockCache,
    deadline: Deadline,
    /// One per run, the newest first.
    runs: Vec<RunPosition>,
}

impl PlaceCursor {
    /// A cursor for the places of one lineage.
    pub(crate) fn new(snapshot: Arc<Snapshot>, cache: BlockCache, deadline: Deadline) -> Self {
        let runs = snapshot.version.runs().map(|_| RunPosition::default()).collect();
        Self { snapshot, cache, deadline, runs }
    }

    /// Calls `choose` with the entries at the place of `wanted`, whose sequence is zero. Returns the first result that
    /// is not `None`.
    pub(crate) fn find<R>(
        &mut self,
        wanted: &OrderKey,
        mut choose: impl FnMut(&OrderKey, &[u8]) -> Result<Option<R>, TableError>,
    ) -> Result<Option<R>, TableError> {
        let mut seen = BTreeSet::new();
        // A removed extent has an empty value, which hides older ones.
        let mut check = |key: &OrderKey, value: &[u8]| {
            if !seen.insert(key.sequence) || value.is_empty() {
                Ok(None)
            } else {
                choose(key, value)
            }
        };
        for memtable in self.snapshot.memtables() {
            let mut source = MemtableScan::orders(Arc::clone(memtable), *wanted);
            if let Some(found) = at_place(&mut source, wanted, &mut check)? {
                return Ok(Some(found));
            }
        }
        let found = self.in_runs(wanted, &mut check)?;
        self.cache.counts().count_lookup(found.is_some());
        Ok(found)
    }

    /// The record of a key, if it was not removed.
    pub(crate) fn get(&mut self, key: &OrderKey) -> Result<Option<Record>, TableError> {
        let newest = self.snapshot.memtables().find_map(|memtable| memtable.order(key));
        if let Some(newest) = newest {
            return Ok(newest.present());
        }
        let mut check = |found: &OrderKey, value: &[u8]| {
            Ok((found == key).then(|| match Record::decode(key, value) {
                None if !value.is_empty() => Err(TableError::Malformed("an extent record")),
                record => Ok(record),
            }))
        };
        let found = self.in_runs(key, &mut check)?;
        self.cache.counts().count_lookup(found.is_some());
        found.unwrap_or(Ok(None))
    }

    fn in_runs<R>(
        &mut self,
        wanted: &OrderKey,
        check: &mut impl FnMut(&OrderKey, &[u8]) -> Result<Option<R>, TableError>,
    ) -> Result<Option<R>, TableError> {
        let from = wanted.encode();
        let (hash, head) = (KeyHash::of(&from), Head::of(&from));
        let lineage = KeyHash::of(&from[..LINEAGE_BYTES]);
        let runs = self.snapshot.version.runs().zip(&mut self.runs);
        for (run, RunPosition { may_hold, source }) in runs {
            let may_hold_lineage = || run.may_begin_with(&from, LINEAGE_BYTES, lineage, head);
            if !*may_hold.get_or_insert_with(may_hold_lineage) {
                continue;
            }
            let is_at_hand = source.as_ref().is_some_and(|source| {
                source.key().is_some_and(|key| *key >= from[..]) || source.has_more_at_hand()
            });
            if !is_at_hand && !run.may_begin_with(&from, PLACE_BYTES, hash, head) {
                continue;
            }
            let before = self.cache.counts().sectors(Purpose::Order);
            let source = if let Some(source) = source {
                while source.key().is_some_and(|key| *key < from[..]) {
                    source.advance()?;
                }
                source
            } else {
                let mode = ReadMode::Cached(self.cache.clone(), Purpose::Order, self.deadline);
                source.insert(RunSource::new(Arc::clone(run), &from, mode)?)
            };
            if source.key().is_none_or(|key| !key.starts_with(&from[..PLACE_BYTES])) {
                self.cache.counts().count_useless(Purpose::Order, before);
            }
            if let Some(found) = at_place(source, wanted, check)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// Calls `check` with the entries at the place of `wanted`, where the source is positioned.
fn at_place<R>(
    source: &mut impl Source,
    wanted: &OrderKey,
    check: &mut impl FnMut(&OrderKey, &[u8]) -> Result<Option<R>, TableError>,
) -> Result<Option<R>, TableError> {
    let place = wanted.encode();
    while let Some(key) = source.key().filter(|key| key.starts_with(&place[..PLACE_BYTES])) {
        let key = OrderKey::decode(key).ok_or(TableError::Malformed("an order key"))?;
        if let Some(found) = check(&key, source.value())? {
            return Ok(Some(found));
        }
        source.advance()?;
    }
    Ok(None)
}
