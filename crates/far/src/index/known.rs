//! What is known of the lists and catalogs at a location, to find out which lists have expired.
//!
//! 1. A list is needed as long as a catalog is there whose writer had not applied all of its removals. A catalog that
//!    cannot be read counts as one whose writer had applied none.
//! 2. A catalog is dropped only when a listing does not show it any more, or its removal succeeded. That its pack
//!    cannot be read says nothing: others may read it.
//! 3. Packs of a writer share one map of applied removals as long as it does not change.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Nanos;

use crate::format::Catalog;
use crate::names::{ObjectName, WriterId};
use crate::removal::{Applied, Removal, RemovalId};

/// A list may expire if everything was read so recently.
const FRESH: Duration = Duration::from_secs(180);

/// The removals of a writer in a list: from one number to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListSpan {
    pub(crate) by: WriterId,
    least: u64,
    most: u64,
}

/// A list at the location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SeenList {
    /// It was read.
    Read(Vec<ListSpan>),
    /// It cannot be read here. Others may be able to read it.
    Unread,
}

impl ListSpan {
    pub(crate) fn newest(&self) -> RemovalId {
        RemovalId { by: self.by, number: self.most }
    }
}

/// The removals that are at a location, or will be.
#[derive(Debug)]
pub(crate) struct PresentRemovals(BTreeMap<WriterId, Vec<RangeInclusive<u64>>>);

impl PresentRemovals {
    pub(crate) fn contain(&self, id: RemovalId) -> bool {
        self.0.get(&id.by).is_some_and(|spans| spans.iter().any(|span| span.contains(&id.number)))
    }

    pub(crate) fn contain_all(&self, of: &ListSpan) -> bool {
        let has = |span: &RangeInclusive<u64>| span.contains(&of.least) && span.contains(&of.most);
        self.0.get(&of.by).is_some_and(|spans| spans.iter().any(has))
    }
}

/// What is known of a location.
#[derive(Debug, Default)]
pub(crate) struct KnownObjects {
    pub(crate) lists: BTreeMap<ObjectName, SeenList>,
    /// What the writers of catalogs had applied; `None` if that cannot be read.
    catalogs: BTreeMap<(WriterId, u64), Option<Arc<Applied>>>,
    /// Folders that cannot be listed.
    pub(crate) unlisted: BTreeSet<WriterId>,
    /// Removals that are or will be published here, up to these numbers.
    own: Applied,
    /// When everything had been read last, and how often the location had been another directory then.
    complete: Option<(Nanos, u64)>,
}

impl SeenList {
    pub(crate) fn of(removals: &[Removal]) -> Self {
        let mut spans: Vec<ListSpan> = Vec::new();
        for RemovalId { by, number } in removals.iter().map(|removal| removal.id) {
            match spans.iter_mut().find(|span| span.by == by) {
                Some(span) => {
                    span.least = span.least.min(number);
                    span.most = span.most.max(number);
                }
                None => spans.push(ListSpan { by, least: number, most: number }),
            }
        }
        Self::Read(spans)
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self, Self::Read(_))
    }

    pub(crate) fn spans(&self) -> &[ListSpan] {
        if let Self::Read(spans) = self { spans } else { &[] }
    }

    /// The newest removal of each writer in it.
    pub(crate) fn newest(&self) -> impl Iterator<Item = RemovalId> {
        self.spans().iter().map(ListSpan::newest)
    }
}

impl KnownObjects {
    /// Adds a catalog that was read or may appear, and returns what its writer had applied.
    pub(crate) fn add_catalog(&mut self, catalog: &Catalog) -> Arc<Applied> {
        let (writer, number) = (catalog.writer, catalog.number);
        let before = self.catalogs.range((writer, 0)..(writer, number)).next_back();
        let behind = self.catalogs.range((writer, number)..=(writer, u64::MAX)).next();
        let near = [before, behind].into_iter().flatten().filter_map(|(_, one)| one.as_ref());
        let shared = near.into_iter().find(|one| ***one == catalog.applied).map(Arc::clone);
        let applied = shared.unwrap_or_else(|| Arc::new(catalog.applied.clone()));
        self.catalogs.insert((writer, number), Some(Arc::clone(&applied)));
        applied
    }

    /// Adds a catalog that cannot be read.
    pub(crate) fn add_unread(&mut self, writer: WriterId, number: u64) {
        self.catalogs.insert((writer, number), None);
    }

    pub(crate) fn remove_catalog(&mut self, writer: WriterId, number: u64) {
        self.catalogs.remove(&(writer, number));
    }

    /// The numbers of the catalogs of a writer.
    pub(crate) fn numbers(&self, writer: WriterId) -> Vec<u64> {
        let of_writer = self.catalogs.range((writer, 0)..=(writer, u64::MAX));
        of_writer.map(|((_, number), _)| *number).collect()
    }

    /// Keeps removals that are published here, also while no list has them.
    pub(crate) fn add_own(&mut self, id: RemovalId) {
        self.own.note(id);
    }

    /// The newest removals that are published here.
    pub(crate) fn own(&self) -> &Applied {
        &self.own
    }

    /// The removals that are at the location, or will be, or went from it at some time and are kept.
    pub(crate) fn present(&self, gone: &[(ListSpan, Nanos)]) -> PresentRemovals {
        let mut spans: BTreeMap<WriterId, Vec<RangeInclusive<u64>>> = BTreeMap::new();
        let gone = gone.iter().map(|(span, _)| span);
        for span in self.lists.values().flat_map(SeenList::spans).chain(gone) {
            spans.entry(span.by).or_default().push(span.least..=span.most);
        }
        for id in self.own.iter() {
            spans.entry(id.by).or_default().push(0..=id.number);
        }
        PresentRemovals(spans)
    }

    /// Notes that everything in a directory was read at this moment.
    pub(crate) fn set_complete(&mut self, now: Nanos, reopened: u64) {
        self.complete = Some((now, reopened));
    }

    /// Whether everything in this directory was read recently.
    pub(crate) fn is_fresh(&self, now: Nanos, reopened: u64) -> bool {
        self.complete.is_some_and(|(at, of)| of == reopened && now.since(at) <= FRESH)
    }

    /// Whether the location has a pack that one of these removals covers, or may have one.
    pub(crate) fn needs(&self, removals: &[RemovalId]) -> bool {
        let mut last: Option<&Arc<Applied>> = None;
        !self.unlisted.is_empty()
            || self.catalogs.values().any(|applied| {
                let Some(applied) = applied else { return true };
                if last.is_some_and(|last| Arc::ptr_eq(last, applied)) {
                    return false;
                }
                last = Some(applied);
                !removals.iter().all(|id| applied.contains(*id))
            })
    }
}
