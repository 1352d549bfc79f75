//! The thread that follows what other stores publish, and applies what they removed.
//!
//! 1. A removal counts as applied after it is durable here, and after all others at the location are. Packs that are
//!    begun later are not covered by it.
//! 2. A removal that could not be made durable is tried again at the next poll, one of this store as well.
//! 3. Removals of a namespace are applied together, so that many cost few records.
//! 4. A store that followed nothing for a week removes everything that it holds, because removals may be gone that
//!    cover it. Only the lists of removals count: a catalog that cannot be read costs its blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dalsegno_core::{ChainHash, Clock, Error, ErrorKind, Namespace, NamespaceId, Nanos, Result};
use dalsegno_far::{Follower, KEEP_REMOVALS, Polled, Removal, RemovalId};
use dalsegno_index::ScanPlace;
use dalsegno_io::{Duty, NextStep, StopSignal};

use crate::blocks::indexed_log::IndexedLog;
use crate::counters::add;
use crate::far::removal_notes::RemovalNotes;
use crate::far::tier::FarTier;
use crate::far_work::freshness::{Freshness, FreshnessTest};
use crate::far_work::local_store::LocalStore;
use crate::far_work::poll_pace::PollPace;
use crate::namespaces::table::NamespaceTable;
use crate::remove::remover::Remover;

/// How often others' lists and catalogs are looked for.
const POLL: Duration = Duration::from_secs(2);
/// Applied removals that are remembered while not all at the location are.
const MOST_DONE: usize = 65_536;

/// Follows a location.
pub(super) struct FollowDuty {
    far: Arc<FarTier>,
    follower: Follower,
    removals: RemovalsHere,
    pace: PollPace,
    /// Whether the last poll failed.
    is_failing: bool,
}

/// Applies removals of other stores.
pub(super) struct RemovalsHere {
    far: Arc<FarTier>,
    notes: Arc<RemovalNotes>,
    stored: Weak<IndexedLog>,
    namespaces: Arc<NamespaceTable>,
    remover: Weak<Remover>,
    /// Removals that are not applied yet.
    left: BTreeMap<RemovalId, (NamespaceId, Vec<ChainHash>)>,
    /// Removals that are, until all at the location are.
    done: BTreeSet<RemovalId>,
    test: FreshnessTest,
    freshness: Freshness,
}

/// The removals of one namespace.
#[derive(Default)]
struct OfNamespace {
    ids: Vec<RemovalId>,
    hashes: BTreeSet<ChainHash>,
    is_whole: bool,
}

impl Duty for FollowDuty {
    fn step(&mut self, _: &StopSignal) -> NextStep {
        if self.is_due() {
            self.poll();
        }
        NextStep::After(POLL)
    }

    fn finish(&mut self) {
        // What waits may be published only after a poll.
        if !self.pace.has_polled() && !self.far.outbox.is_idle() && !self.far.outbox.may_fill() {
            self.poll();
        }
        self.removals.notes.keep_time();
        self.removals.store();
    }
}

impl FollowDuty {
    pub(super) fn new(far: &Arc<FarTier>, follower: Follower, removals: RemovalsHere) -> Self {
        let pace = PollPace::new(removals.test.now());
        Self { far: Arc::clone(far), follower, removals, pace, is_failing: false }
    }

    /// Whether to poll now. Requests of a host that is idle would only cost money.
    fn is_due(&mut self) -> bool {
        let (now, is_used) = (self.removals.test.now(), self.far.take_use());
        self.pace.is_due(now, is_used, self.far.member.tier.facts().idle_poll)
    }

    fn poll(&mut self) {
        let began = self.removals.test.now();
        self.pace.note_poll(began);
        let mut polled = self.follower.poll();
        self.far.source.note(polled.failure.as_ref().map_or(Ok(()), Err));
        self.far.note_bad_objects(&mut polled);
        self.removals.apply(&mut polled, began);
        let has_failed = std::mem::replace(&mut self.is_failing, polled.failure.is_some());
        if let Some(error) = polled.failure {
            if has_failed {
                tracing::debug!(%error, "poll of the far location failed");
            } else {
                tracing::warn!(%error, "the far location fails; what others publish is not found until it responds");
            }
            add(&self.far.counters.failed_polls, 1);
        }
    }
}

impl RemovalsHere {
    pub(super) fn new(far: &Arc<FarTier>, clock: &Arc<dyn Clock>, local: &LocalStore) -> Self {
        let LocalStore { stored, remover, namespaces, notes, .. } = local;
        let earlier = notes.polled_at();
        if earlier.is_none() {
            far.outbox.note_fresh(clock.now());
        }
        Self {
            far: Arc::clone(far),
            notes: Arc::clone(notes),
            stored: Weak::clone(stored),
            namespaces: Arc::clone(namespaces),
            remover: Weak::clone(remover),
            left: BTreeMap::new(),
            done: BTreeSet::new(),
            test: FreshnessTest::new(Arc::clone(clock), earlier),
            freshness: Freshness::Unknown,
        }
    }

    /// Applies the removals that are new here, and uses for packs what is applied then. The poll began at that moment.
    pub(super) fn apply(&mut self, polled: &mut Polled, began: Nanos) {
        self.test.note(polled, began);
        if polled.at_location.is_some() && self.freshness != Freshness::Stale {
            self.freshness = self.test.judge(polled, began);
        }
        if self.freshness == Freshness::Stale && self.remove_everything() {
            self.freshness = Freshness::Fresh;
            self.test.pass(began);
        }
        self.add(std::mem::take(&mut polled.removals));
        self.apply_left();
        self.apply_own();
        let is_complete = self.left.is_empty() && self.freshness == Freshness::Fresh;
        if let Some(at_location) = polled.at_location.as_ref().filter(|_| is_complete) {
            let time = self.test.time(polled, began);
            if self.notes.note_location(at_location, polled.unread(), time) {
                self.done.retain(|id| polled.unread().contains(&id.by.store));
                self.test.pass(began);
                self.far.outbox.note_fresh(began);
                add(&self.far.counters.complete_polls, 1);
            }
        }
        self.store();
        self.far.outbox.use_applied(&self.notes);
    }

    /// Removes everything that the store holds; `false` if that fails.
    fn remove_everything(&mut self) -> bool {
        tracing::warn!(
            days = KEEP_REMOVALS.as_secs() / 86_400,
            "the store did not follow its far directory for too long: removals may have been missed, so all of its \
             blocks are removed here"
        );
        self.far.outbox.note_stale();
        self.far.outbox.drop_waiting();
        self.far.outbox.publisher.lock().drop_unpublished();
        let Some(namespaces) = self.all_namespaces() else { return false };
        let removed: Vec<Result<()>> =
            namespaces.into_iter().map(|namespace| self.remove(namespace, None)).collect();
        match removed.into_iter().collect::<Result<()>>() {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "not all blocks are removed; this is tried again");
                false
            }
        }
    }

    /// The namespaces of which the store has blocks, or may get some; `None` if the store is closed.
    fn all_namespaces(&self) -> Option<BTreeSet<NamespaceId>> {
        let stored = self.stored.upgrade()?;
        let mut all: BTreeSet<NamespaceId> =
            self.namespaces.list().iter().map(Namespace::id).collect();
        // The description of a namespace may be lost.
        let mut from = NamespaceId::default();
        while let Some(extent) = stored.index.scan(ScanPlace::of(from), 1).first() {
            all.insert(extent.namespace);
            let next = u128::from_be_bytes(extent.namespace.0).checked_add(1);
            let Some(next) = next else { break };
            from = NamespaceId(next.to_be_bytes());
        }
        Some(all)
    }

    /// Removes blocks here, or a whole namespace.
    fn remove(&self, namespace: NamespaceId, hashes: Option<&[ChainHash]>) -> Result<()> {
        let closed = || Error::new(ErrorKind::Closed, "the store is closed");
        self.remover.upgrade().ok_or_else(closed)?.remove_noted(namespace, hashes)
    }

    fn add(&mut self, removals: Vec<Removal>) {
        for Removal { id, namespace, hashes } in removals {
            // What this or an earlier open applied is not found since, so it was not stored again.
            if !self.notes.is_applied(id) && !self.done.contains(&id) {
                self.left.insert(id, (namespace, hashes));
            }
        }
    }

    fn apply_left(&mut self) {
        let mut by_namespace: BTreeMap<NamespaceId, OfNamespace> = BTreeMap::new();
        for (id, (namespace, hashes)) in &self.left {
            let of = by_namespace.entry(*namespace).or_default();
            of.ids.push(*id);
            of.is_whole |= hashes.is_empty();
            of.hashes.extend(hashes);
        }
        let mut applied: BTreeSet<RemovalId> = BTreeSet::new();
        for (namespace, OfNamespace { ids, hashes, is_whole }) in by_namespace {
            let hashes: Vec<ChainHash> = hashes.into_iter().collect();
            let hashes = Some(hashes.as_slice()).filter(|_| !is_whole);
            if let Err(error) = self.remove(namespace, hashes) {
                tracing::warn!(%error, "blocks that another store removed are still stored here");
                continue;
            }
            add(&self.far.counters.applied_removals, ids.len() as u64);
            applied.extend(&ids);
            if self.done.len() >= MOST_DONE {
                // Those that occur again are applied again.
                self.done.clear();
            }
            self.done.extend(ids);
        }
        self.left.retain(|id, _| !applied.contains(id));
    }

    /// Tries again what this store removed and could not make durable.
    fn apply_own(&self) {
        if let Some(remover) = self.remover.upgrade() {
            remover.retry_failed(&self.notes);
        }
        // Calls behind one that failed again end here: nobody else looks for it.
        self.notes.end_unnamed(&Ok(()));
    }

    fn store(&self) {
        let Some(stored) = self.stored.upgrade().filter(|_| self.notes.is_changed()) else {
            return;
        };
        if let Err(error) = self.notes.store(stored.log.store_files()) {
            tracing::debug!(%error, "removals are applied again at the next open");
        }
    }
}
