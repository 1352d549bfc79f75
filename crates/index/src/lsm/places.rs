//! Finds the extents that begin at a place: in a namespace, of a lineage, at a block.
//!
//! 1. A block is read only of a run whose filter may hold the place: of a run that stands in front of it in a block
//!    that was read, the next entries are looked at first. All sequences of a place share one key of the filter.
//! 2. Of a key only the newest value counts, and sources are asked newest first; so whoever is content with the first
//!    extent leaves older runs unread.
//! 3. Places are asked for in ascending order, all of one lineage. A run stays where it was asked last, for the next
//!    extent often lies behind it in the same block.
//! 4. A run whose filter denies the lineage is not asked for its places.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_io::WaitLimit;

use super::cache::BlockCache;
use super::counts::Purpose;
use super::filter::KeyHash;
use super::keys::{LINEAGE_BYTES, OrderKey, PLACE_BYTES, Record};
use super::merge::{RunSource, Source};
use super::table::{Reading, TableError};
use super::table_index::Head;
use super::tree::{MemtableScan, State, Tree};
use super::version::Run;

/// What is known of a run.
#[derive(Default)]
struct Standing {
    /// Whether its filter may hold the lineage, once that was asked.
    may_hold: Option<bool>,
    /// Where it stands, once it was read.
    source: Option<RunSource<Arc<Run>>>,
}

/// Extents by their places, in one state of a tree.
pub(crate) struct Places {
    state: Arc<State>,
    cache: BlockCache,
    wait: WaitLimit,
    /// Of each run, the newest first.
    runs: Vec<Standing>,
}

impl Tree {
    /// For places of one lineage from now on, as the tree is now.
    pub(crate) fn places(&self, wait: WaitLimit) -> Places {
        let state = self.state();
        let runs = state.version.runs().map(|_| Standing::default()).collect();
        Places { state, cache: self.cache.clone(), wait, runs }
    }
}

impl Places {
    /// What `choose` makes of the first entry at a place of which it makes anything. The place is that of `wanted`,
    /// whose sequence is zero.
    pub(crate) fn find<R>(
        &mut self,
        wanted: &OrderKey,
        mut choose: impl FnMut(&OrderKey, &[u8]) -> Result<Option<R>, TableError>,
    ) -> Result<Option<R>, TableError> {
        let mut seen = BTreeSet::new();
        // A removed extent has an empty value, which hides older ones.
        let mut look = |key: &OrderKey, value: &[u8]| {
            if !seen.insert(key.sequence) || value.is_empty() {
                Ok(None)
            } else {
                choose(key, value)
            }
        };
        for memtable in self.state.memtables() {
            let mut source = MemtableScan::orders(Arc::clone(memtable), *wanted);
            if let Some(found) = at_place(&mut source, wanted, &mut look)? {
                return Ok(Some(found));
            }
        }
        let found = self.in_runs(wanted, &mut look)?;
        self.cache.asked().looked_up(found.is_some());
        Ok(found)
    }

    /// The record of a key, if it was not removed.
    pub(crate) fn get(&mut self, key: &OrderKey) -> Result<Option<Record>, TableError> {
        let newest = self.state.memtables().find_map(|memtable| memtable.order(key));
        if let Some(newest) = newest {
            return Ok(newest.there());
        }
        let mut look = |found: &OrderKey, value: &[u8]| {
            Ok((found == key).then(|| match Record::decode(key, value) {
                None if !value.is_empty() => Err(TableError::Malformed("an extent record")),
                record => Ok(record),
            }))
        };
        let found = self.in_runs(key, &mut look)?;
        self.cache.asked().looked_up(found.is_some());
        found.unwrap_or(Ok(None))
    }

    fn in_runs<R>(
        &mut self,
        wanted: &OrderKey,
        look: &mut impl FnMut(&OrderKey, &[u8]) -> Result<Option<R>, TableError>,
    ) -> Result<Option<R>, TableError> {
        let from = wanted.encode();
        let (hash, head) = (KeyHash::of(&from), Head::of(&from));
        let lineage = KeyHash::of(&from[..LINEAGE_BYTES]);
        for (run, Standing { may_hold, source }) in self.state.version.runs().zip(&mut self.runs) {
            let ask = || run.may_begin_with(&from, LINEAGE_BYTES, lineage, head);
            if !*may_hold.get_or_insert_with(ask) {
                continue;
            }
            let is_at_hand = source.as_ref().is_some_and(|source| {
                source.key().is_some_and(|key| *key >= from[..]) || source.has_more_at_hand()
            });
            if !is_at_hand && !run.may_begin_with(&from, PLACE_BYTES, hash, head) {
                continue;
            }
            let before = self.cache.asked().sectors(Purpose::Order);
            let source = if let Some(source) = source {
                while source.key().is_some_and(|key| *key < from[..]) {
                    source.advance()?;
                }
                source
            } else {
                let reading = Reading::Cached(self.cache.clone(), Purpose::Order, self.wait);
                source.insert(RunSource::new(Arc::clone(run), &from, reading)?)
            };
            if source.key().is_none_or(|key| !key.starts_with(&from[..PLACE_BYTES])) {
                self.cache.asked().in_vain(Purpose::Order, before);
            }
            if let Some(found) = at_place(source, wanted, look)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// What `look` makes of the first entry of which it makes anything, at the place of `wanted` where the source stands.
fn at_place<R>(
    source: &mut impl Source,
    wanted: &OrderKey,
    look: &mut impl FnMut(&OrderKey, &[u8]) -> Result<Option<R>, TableError>,
) -> Result<Option<R>, TableError> {
    let place = wanted.encode();
    while let Some(key) = source.key().filter(|key| key.starts_with(&place[..PLACE_BYTES])) {
        let key = OrderKey::decode(key).ok_or(TableError::Malformed("an order key"))?;
        if let Some(found) = look(&key, source.value())? {
            return Ok(Some(found));
        }
        source.advance()?;
    }
    Ok(None)
}
