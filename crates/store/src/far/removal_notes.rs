//! The removals of this store that other hosts must follow, and those of others that are applied here.
//!
//! 1. A removal has its number before anything is removed. It counts as applied when it is durable here, and so are all
//!    of the same open with smaller numbers.
//! 2. It is pending until it is published. Pending removals are stored, so a later open publishes them under the same
//!    names, also if this one has no far location.
//! 3. Packs name only applied removals that are stored. So a crash applies a removal again rather than not at all.
//! 4. A call that removes ends when its removal is published, and packs name it. So a put that begins afterwards is not
//!    covered.
//! 5. The number of pending removals and their memory are bounded. Beyond the bound on memory, a removal of blocks
//!    becomes one of their namespace.

mod publication;
mod stored_record;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use dalsegno_core::{ChainHash, Error, ErrorKind, NamespaceId, Result, StoreId};
use dalsegno_far::{Applied, MAX_PENDING_BYTES, Removal, RemovalId, RemovalRecord, WriterId};
use dalsegno_log::{LogError, StoreFiles};
use parking_lot::Mutex;

pub(crate) use self::publication::{Incomplete, Publication};
pub(crate) use self::stored_record::pending_in;
use self::stored_record::{StoredRecord, read_record};

/// Most removals that wait to be published.
const MOST_PENDING: usize = 65_536;
/// The location's time is stored when it is so much later than the stored one, in milliseconds.
const STORE_TIME_AFTER_MS: u64 = 3_600_000;

/// The removals of a store that uses a far location, or used one before.
#[derive(Debug)]
pub(crate) struct RemovalNotes {
    store: StoreId,
    /// This open, which issues removals.
    own: WriterId,
    state: Mutex<NotesState>,
    /// One thread at a time stores the state.
    storing: Mutex<()>,
}

#[derive(Debug)]
struct NotesState {
    now: NotedView,
    /// As it is stored.
    stored: NotedView,
    /// The newest removal of this open that packs name, and all before it.
    named: u64,
    pending: BTreeMap<RemovalId, PendingRemoval>,
    /// The number of the next removal.
    next: u64,
    /// The generation of the stored record.
    generation: u64,
    is_closed: bool,
}

/// What this store knows of the location.
#[derive(Clone, Debug)]
struct NotedView {
    applied: Applied,
    /// The location's time at the last complete poll.
    polled_at_ms: Option<u64>,
    /// Changes that are to be stored, counted.
    changes: u64,
}

/// A removal that is not applied here, or not published.
#[derive(Debug)]
struct PendingRemoval {
    namespace: NamespaceId,
    /// None for all of the namespace.
    hashes: Vec<ChainHash>,
    here: HereState,
    there: ThereState,
    waiter: Option<Sender<Publication>>,
}

/// How far a removal is in this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HereState {
    /// A call removes its blocks.
    Removing,
    /// It is to be tried again.
    Failed,
    Applied,
}

/// How far a removal is at the location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThereState {
    /// It is published with the next one at the latest, also while its blocks are removed here: who knows a removal has
    /// applied all smaller numbers.
    Wanted,
    Published,
}

/// A removal of this open, while its blocks are removed here. When it is dropped, it is applied if it is durable.
#[derive(Debug)]
pub(crate) struct OwnRemoval {
    notes: Arc<RemovalNotes>,
    id: RemovalId,
    is_durable: bool,
}

impl OwnRemoval {
    pub(crate) fn id(&self) -> RemovalId {
        self.id
    }

    /// Ends it: all of it is durable.
    pub(crate) fn end_durable(mut self) {
        self.is_durable = true;
    }
}

impl Drop for OwnRemoval {
    fn drop(&mut self) {
        self.notes.end_here(self.id, self.is_durable);
    }
}

impl RemovalNotes {
    /// Reads what a store noted before; `None` if it has never used a far location, and `has_far` says that it does not
    /// now.
    pub(crate) fn open(files: &StoreFiles, own: WriterId, has_far: bool) -> Option<Arc<Self>> {
        let StoredRecord { record, exists } = read_record(files, own.store);
        if !exists && !has_far {
            return None;
        }
        let record = record.unwrap_or_else(|| RemovalRecord::new(own.store));
        let RemovalRecord { store, generation, polled_at_ms, applied, pending } = record;
        let here = |id| if applied.contains(id) { HereState::Applied } else { HereState::Failed };
        let pending = pending.into_iter().map(|Removal { id, namespace, hashes }| {
            let (here, there) = (here(id), ThereState::Wanted);
            (id, PendingRemoval { namespace, hashes, here, there, waiter: None })
        });
        let pending = pending.collect();
        let stored = NotedView { applied, polled_at_ms, changes: 0 };
        let state = NotesState {
            // A new record is stored even if nothing is removed: a later open without a far location looks for it.
            now: NotedView { changes: u64::from(!exists), ..stored.clone() },
            stored,
            named: 0,
            pending,
            next: 1,
            generation,
            is_closed: false,
        };
        let (state, storing) = (Mutex::new(state), Mutex::default());
        Some(Arc::new(Self { store, own, state, storing }))
    }

    /// Begins a removal of blocks, or of the whole namespace if there are none.
    ///
    /// # Errors
    ///
    /// `Unavailable` if too many removals wait to be published.
    pub(crate) fn begin(
        self: &Arc<Self>,
        namespace: NamespaceId,
        hashes: &[ChainHash],
    ) -> Result<OwnRemoval> {
        let mut state = self.state.lock();
        if state.pending.len() >= MOST_PENDING {
            let message = format!(
                "nothing was removed: {MOST_PENDING} removals wait until the far directory responds; open the store \
                 with `far`, and make sure that the directory is mounted and can be written"
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let id = RemovalId { by: self.own, number: state.next };
        state.next += 1;
        let removal = PendingRemoval {
            namespace,
            hashes: hashes.to_vec(),
            here: HereState::Removing,
            there: ThereState::Wanted,
            waiter: None,
        };
        state.pending.insert(id, removal);
        if !hashes.is_empty() {
            state.bound();
        }
        state.now.changes += 1;
        drop(state);
        Ok(OwnRemoval { notes: Arc::clone(self), id, is_durable: false })
    }

    fn end_here(&self, id: RemovalId, is_durable: bool) {
        let mut state = self.state.lock();
        let Some(removal) = state.pending.get_mut(&id) else { return };
        removal.here = if is_durable { HereState::Applied } else { HereState::Failed };
        state.settle(self.own);
    }

    /// Notes that a removal that had failed here is durable now.
    pub(crate) fn note_applied(&self, id: RemovalId) {
        self.end_here(id, true);
    }

    /// The channel that receives how the publication of a removal of this open ends: with success as soon as packs name
    /// it, too. After the store was closed it receives nothing.
    pub(crate) fn outcome(&self, id: RemovalId) -> Receiver<Publication> {
        let (sender, receiver) = bounded(1);
        let mut state = self.state.lock();
        let is_closed = state.is_closed;
        match state.pending.get_mut(&id) {
            Some(removal) => removal.waiter = Some(sender).filter(|_| !is_closed),
            // It was published with a later one.
            None => drop(sender.send(Ok(()))),
        }
        receiver
    }

    /// Notes that packs name the removals of this open up to a number.
    pub(crate) fn note_named(&self, applied: &Applied) {
        let mut state = self.state.lock();
        let named = applied.number(self.own);
        if named > state.named {
            state.named = named;
            state.settle(self.own);
        }
    }

    /// Ends the calls whose removals are published, and that packs cannot name now: this store could not store that
    /// they are applied, or an earlier one failed here.
    pub(crate) fn end_unnamed(&self, stored: &std::result::Result<(), LogError>) {
        let mut state = self.state.lock();
        let mut why = stored.as_ref().err().map(ToString::to_string);
        for removal in
            state.pending.iter_mut().filter(|(id, _)| id.by == self.own).map(|(_, one)| one)
        {
            if removal.here == HereState::Failed {
                why = why.or_else(|| Some("an earlier removal is not durable here".to_owned()));
            }
            let Some(why) = why.as_ref().filter(|_| removal.there == ThereState::Published) else {
                continue;
            };
            if let Some(waiter) = removal.waiter.take() {
                drop(waiter.send(Err(Incomplete::Unnamed(why.clone()))));
            }
        }
    }

    /// The removals that are to be published, in the order of their names.
    pub(crate) fn unpublished(&self) -> Vec<Removal> {
        self.select(|removal| removal.there == ThereState::Wanted)
    }

    /// The removals of this store that failed here.
    pub(crate) fn failed_here(&self) -> Vec<Removal> {
        self.select(|removal| removal.here == HereState::Failed)
    }

    fn select(&self, is_meant: impl Fn(&PendingRemoval) -> bool) -> Vec<Removal> {
        let state = self.state.lock();
        let meant = state.pending.iter().filter(|(_, removal)| is_meant(removal));
        meant.map(|(id, removal)| removal.named(*id)).collect()
    }

    /// How many removals are not published.
    pub(crate) fn pending_count(&self) -> u64 {
        let state = self.state.lock();
        let is_pending = |removal: &&PendingRemoval| removal.there == ThereState::Wanted;
        state.pending.values().filter(is_pending).count() as u64
    }

    /// Notes how the publication of some removals ended.
    pub(crate) fn note_published(&self, removals: &[Removal], outcome: &Publication) {
        let mut state = self.state.lock();
        for Removal { id, .. } in removals {
            let Some(removal) = state.pending.get_mut(id) else { continue };
            if outcome.is_ok() {
                removal.there = ThereState::Published;
            } else if let Some(waiter) = removal.waiter.take() {
                // The call may have ended.
                drop(waiter.send(outcome.clone()));
            }
        }
        if outcome.is_ok() {
            state.now.changes += u64::from(!removals.is_empty());
            state.settle(self.own);
        }
    }

    /// Whether a removal is applied here.
    pub(crate) fn is_applied(&self, id: RemovalId) -> bool {
        self.state.lock().now.applied.contains(id)
    }

    /// The location's time at the last complete poll.
    pub(crate) fn polled_at(&self) -> Option<Duration> {
        self.state.lock().now.polled_at_ms.map(Duration::from_millis)
    }

    /// Notes that everything at the location is applied, if removals of earlier opens that are pending are. Those of
    /// stores with an unread list count only as far as they did before. Returns whether that is so.
    pub(crate) fn note_location(
        &self,
        at_location: &Applied,
        unread: &BTreeSet<StoreId>,
        time: Option<Duration>,
    ) -> bool {
        let mut state = self.state.lock();
        let is_open = |(id, removal): (&RemovalId, &PendingRemoval)| {
            id.by != self.own && removal.here != HereState::Applied
        };
        if state.pending.iter().any(is_open) {
            return false;
        }
        let is_held = |id: &RemovalId| unread.contains(&id.by.store);
        let new = at_location.iter().filter(|id| !is_held(id));
        let mut applied: Applied = new.chain(state.now.applied.iter().filter(is_held)).collect();
        let own = [self.own].into_iter().chain(state.pending.keys().map(|id| id.by));
        for by in own {
            applied.note(RemovalId { by, number: state.now.applied.number(by) });
        }
        if applied != state.now.applied {
            state.now.applied = applied;
            state.now.changes += 1;
        }
        if let Some(now_ms) = time.and_then(|time| u64::try_from(time.as_millis()).ok()) {
            state.now.polled_at_ms = Some(now_ms);
            let stored = state.stored.polled_at_ms;
            let is_later = stored.is_none_or(|stored| now_ms >= stored + STORE_TIME_AFTER_MS);
            state.now.changes += u64::from(is_later);
        }
        true
    }

    /// The applied removals that are stored: the packs name these.
    pub(crate) fn stored_applied(&self) -> Applied {
        self.state.lock().stored.applied.clone()
    }

    /// Whether there is something to store.
    pub(crate) fn is_changed(&self) -> bool {
        let state = self.state.lock();
        state.now.changes > state.stored.changes
    }

    /// Notes that the location's time is to be stored, because the store is closed.
    pub(crate) fn keep_time(&self) {
        let mut state = self.state.lock();
        if state.now.polled_at_ms != state.stored.polled_at_ms {
            state.now.changes += 1;
        }
    }

    /// Stores what has changed.
    ///
    /// # Errors
    ///
    /// The device's error; then nothing of what was stored before is lost.
    pub(crate) fn store(&self, files: &StoreFiles) -> std::result::Result<(), LogError> {
        let _one = self.storing.lock();
        let (record, changes) = {
            let mut state = self.state.lock();
            if state.now.changes <= state.stored.changes {
                return Ok(());
            }
            state.bound();
            (state.record(self.store), state.now.changes)
        };
        files.write_removals(record.generation, &record.encode())?;
        let mut state = self.state.lock();
        state.generation = record.generation;
        let RemovalRecord { applied, polled_at_ms, .. } = record;
        state.stored = NotedView { applied, polled_at_ms, changes };
        Ok(())
    }

    /// Ends the waits for publications.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.pending.values_mut().for_each(|removal| removal.waiter = None);
    }
}

impl PendingRemoval {
    fn is_complete(&self) -> bool {
        (self.here, self.there) == (HereState::Applied, ThereState::Published)
    }

    fn named(&self, id: RemovalId) -> Removal {
        Removal { id, namespace: self.namespace, hashes: self.hashes.clone() }
    }
}

impl NotesState {
    /// Counts as applied what is, and drops what is complete.
    fn settle(&mut self, own: WriterId) {
        let before = (self.now.applied.clone(), self.pending.len());
        let mut newest: BTreeMap<WriterId, u64> = BTreeMap::from([(own, self.next - 1)]);
        for (id, removal) in self.pending.iter().rev() {
            let number = newest.entry(id.by).or_insert(id.number);
            if removal.here != HereState::Applied {
                *number = id.number - 1;
            }
        }
        for (by, number) in newest {
            self.now.applied.note(RemovalId { by, number });
        }
        let named = self.named;
        self.pending.retain(|id, removal| {
            let is_left = !removal.is_complete() || (id.by == own && id.number > named);
            if let Some(waiter) = removal.waiter.take_if(|_| !is_left) {
                // The call may have ended.
                drop(waiter.send(Ok(())));
            }
            is_left
        });
        self.now.changes +=
            u64::from((&self.now.applied, self.pending.len()) != (&before.0, before.1));
    }

    /// Widens the largest removals until they fit the record.
    fn bound(&mut self) {
        let bytes = |removal: &PendingRemoval| 56 + 32 * removal.hashes.len();
        let mut all: usize = self.pending.values().map(bytes).sum();
        while all > MAX_PENDING_BYTES {
            let largest = self.pending.values_mut().max_by_key(|removal| removal.hashes.len());
            let Some(largest) = largest.filter(|removal| !removal.hashes.is_empty()) else { break };
            all -= 32 * largest.hashes.len();
            largest.hashes = Vec::new();
        }
    }

    fn record(&self, store: StoreId) -> RemovalRecord {
        // One that waits only for packs to name it is complete after a crash.
        let is_pending = |(_, removal): &(&RemovalId, &PendingRemoval)| !removal.is_complete();
        let pending = self.pending.iter().filter(is_pending);
        RemovalRecord {
            store,
            generation: self.generation + 1,
            polled_at_ms: self.now.polled_at_ms,
            applied: self.now.applied.clone(),
            pending: pending.map(|(id, one)| one.named(*id)).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
