//! The threads of the far tier: one publishes packs, one publishes removals, one follows what others publish, one
//! copies blocks to the log, one reads blocks into DRAM before they are requested, and one removes what dead stores
//! left.
//!
//! 1. A thread that waits for the location holds neither the log nor DRAM, so a location that hangs does not keep the
//!    store's directory locked.
//! 2. A removal is published before its call returns. Blocks that were put before it are not published after it.
//! 3. What others removed is removed here when it becomes known.
//! 4. Closing publishes what waits, within its time.
//! 5. Packs are filled only while it is known that no removal was missed: after a poll of this open, and until a week
//!    after the last one.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dalsegno_core::{Clock, Deadline, FarWrite, NamespaceId, Nanos, Result};
use dalsegno_extent::format::{NamespaceSector, SECTOR};
use dalsegno_far::{
    CHECK_EVERY, EarlierFolders, EarlierSearch, Follower, Publisher, Refused, TierState,
};
use dalsegno_io::{Duty, Executor, IoError, NextStep, Periodic, StopSignal};

use crate::blocks::indexed_log::IndexedLog;
use crate::counters::add;
use crate::error::no_thread;
use crate::far::outbox::{OfferedExtent, add_to_pack};
use crate::far::tier::FarTier;
use crate::far_work::collect::CollectDuty;
use crate::far_work::follow::{FollowDuty, RemovalsHere};
use crate::far_work::local_store::LocalStore;
use crate::far_work::prefetch::PrefetchDuty;
use crate::far_work::promote::PromoteDuty;
use crate::far_work::removal_duty::RemovalDuty;
use crate::namespaces::table::NamespaceTable;
use crate::remove::remover::PublishRemovals;
use crate::state::recent_removals::RecentRemovals;

/// How often a sign of life is published.
const BEAT: Duration = Duration::from_secs(60);
/// The part of the far file system that a store fills by default.
pub(crate) const FAR_SHARE: u64 = 10;
/// How long the publishing thread waits to learn how large the far file system is.
const SPACE_TIMEOUT: Duration = Duration::from_secs(2);
/// Steps of the publishing thread while packs are being written, and otherwise.
const BUSY_STEP: Duration = Duration::from_millis(10);
const IDLE_STEP: Duration = Duration::from_millis(100);
/// Pause after a failure of the location.
const PAUSE: Duration = Duration::from_secs(5);
/// Extents that one step of the publishing thread copies.
const STEP_EXTENTS: usize = 64;
/// How long closing waits for packs to be published.
const FINISH: Duration = Duration::from_secs(8);

/// Work of the far tier that has a thread of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FarStep {
    /// Publishes packs, evicts own ones, and gives signs of life.
    Publish,
    /// Publishes removals that wait.
    Removals,
    /// Follows what others published.
    Poll,
    /// Copies blocks to the log that were read from the location twice.
    Promote,
    /// Reads blocks into DRAM.
    Prefetch,
    /// Removes what dead stores left.
    Collect,
}

/// The threads of the far tier.
#[derive(Debug)]
pub(crate) struct FarLanes {
    far: Arc<FarTier>,
    removals: Periodic<RemovalDuty>,
    publish: Periodic<PublishDuty>,
    follow: Periodic<FollowDuty>,
    promote: Periodic<PromoteDuty>,
    collect: Periodic<CollectDuty>,
    prefetch: Periodic<PrefetchDuty>,
}

impl FarLanes {
    pub(crate) fn start(
        far: &Arc<FarTier>,
        clock: &Arc<dyn Clock>,
        local: &LocalStore,
        executor: Executor,
    ) -> Result<Self> {
        let first = NextStep::After(Duration::ZERO);
        let mut follower = Follower::new(far.member.clone());
        follower.set_earlier(local.notes.stored_applied());
        // Before the threads: one of them may hold the publisher while the location hangs.
        far.outbox.use_applied(&local.notes);
        let duty = PublishDuty {
            far: Arc::clone(far),
            clock: Arc::clone(clock),
            stored: Weak::clone(&local.stored),
            namespaces: Arc::clone(&local.namespaces),
            removals: Arc::clone(&local.removals),
            search: EarlierSearch::new(far.member.clone()),
            capacity: OwnCapacity::of(far),
            next_beat: clock.now(),
            paused_until: clock.now(),
        };
        let publish =
            Periodic::start("dalsegno-far-put", executor, duty, first).map_err(no_thread)?;
        let removals = RemovalsHere::new(far, clock, local);
        let duty = FollowDuty::new(far, follower, removals);
        let follow =
            Periodic::start("dalsegno-far-poll", executor, duty, first).map_err(no_thread)?;
        let duty = PromoteDuty { far: Arc::clone(far), writer: Weak::clone(&local.writer) };
        let promote =
            Periodic::start("dalsegno-far-copy", executor, duty, first).map_err(no_thread)?;
        let duty = PrefetchDuty::new(far, clock, local, executor);
        let prefetch =
            Periodic::start("dalsegno-far-get", executor, duty, first).map_err(no_thread)?;
        let duty = CollectDuty::new(far);
        let collect =
            Periodic::start("dalsegno-far-gc", executor, duty, NextStep::After(CHECK_EVERY))
                .map_err(no_thread)?;
        let (notes, stored) = (Arc::clone(&local.notes), Weak::clone(&local.stored));
        let duty = RemovalDuty { far: Arc::clone(far), notes, stored };
        let removals =
            Periodic::start("dalsegno-far-del", executor, duty, first).map_err(no_thread)?;
        let far = Arc::clone(far);
        Ok(Self { far, removals, publish, follow, promote, collect, prefetch })
    }

    /// Does a step of work on the caller's thread, unless threads do that.
    pub(crate) fn step_inline(&self, step: FarStep) {
        match step {
            FarStep::Publish => self.publish.step_inline(),
            FarStep::Removals => self.removals.step_inline(),
            FarStep::Poll => self.follow.step_inline(),
            FarStep::Promote => self.promote.step_inline(),
            FarStep::Prefetch => self.prefetch.step_inline(),
            FarStep::Collect => self.collect.step_inline(),
        }
    }

    /// Ends the threads, after what waits was published or the time is over.
    pub(crate) fn close(&self, timeout: Duration) {
        self.follow.close();
        // Its last poll decides whether what waits may be published.
        let is_decided = self.far.outbox.is_idle() || self.far.outbox.may_fill();
        self.follow.join(if is_decided { Duration::from_secs(1) } else { timeout.min(FINISH) });
        self.collect.close();
        self.promote.close();
        self.prefetch.close();
        self.removals.close();
        self.publish.close();
        self.promote.join(timeout);
        self.prefetch.join(Duration::from_secs(1));
        self.publish.join(timeout.min(FINISH + Duration::from_secs(1)));
        self.removals.join(Duration::from_secs(1));
        self.collect.join(Duration::from_secs(1));
    }
}

impl PublishRemovals for FarLanes {
    fn publish_removals(&self) {
        self.removals.wake();
        self.removals.step_inline();
    }
}

struct PublishDuty {
    far: Arc<FarTier>,
    clock: Arc<dyn Clock>,
    stored: Weak<IndexedLog>,
    namespaces: Arc<NamespaceTable>,
    removals: Arc<RecentRemovals>,
    search: EarlierSearch,
    capacity: OwnCapacity,
    next_beat: Nanos,
    /// After a failure of the location.
    paused_until: Nanos,
}

/// The bound on the bytes of this store's packs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnCapacity {
    Known,
    /// A part of the location, which has not responded yet.
    Unknown,
}

impl OwnCapacity {
    fn of(far: &FarTier) -> Self {
        if far.outbox.has_capacity() { Self::Known } else { Self::Unknown }
    }
}

/// Whether more extents can be added now.
enum Added {
    More,
    /// Nothing waits, or all packs are being written.
    Enough,
}

impl PublishDuty {
    /// Copies the next waiting extent to a pack.
    fn add_next(&mut self, publisher: &mut Publisher) -> std::result::Result<Added, IoError> {
        // Found out before the extent is looked up: this is asked at every step.
        let outbox = &self.far.outbox;
        if publisher.waits_for_turn() || !outbox.may_fill() {
            return Ok(Added::Enough);
        }
        let Some(waiting) = outbox.next_waiting() else { return Ok(Added::Enough) };
        let OfferedExtent { extent, mark } = &waiting;
        let blocks = extent.hashes.len() as u64;
        if outbox.has_all(extent) {
            add(&outbox.present_blocks, blocks);
            return Ok(Added::More);
        }
        let Some(sector) = self.sector_of(extent.namespace) else {
            add(&outbox.dropped_blocks, blocks);
            return Ok(Added::More);
        };
        if let Err(error) = publisher.describe(extent.namespace, &sector) {
            outbox.put_back(waiting);
            return Err(error);
        }
        let stored = self.stored.upgrade();
        let gone = Err(Refused::Unread(dalsegno_extent::Cause::Recycled));
        match stored.map_or(gone, |stored| {
            add_to_pack(publisher, &stored.log, &self.removals, extent, *mark)
        }) {
            Ok(()) => Ok(Added::More),
            Err(Refused::Busy) => {
                outbox.put_back(waiting);
                Ok(Added::Enough)
            }
            Err(Refused::TooLarge | Refused::Unread(_)) => {
                add(&outbox.dropped_blocks, blocks);
                Ok(Added::More)
            }
        }
    }

    /// Learns how large the location is, if it did not respond when the store was opened. Looks for its directory if
    /// that is away. Nothing is written before.
    fn learn_capacity(&mut self, publisher: &mut Publisher) -> std::result::Result<(), IoError> {
        let is_away = self.far.member.tier.facts().state == TierState::Away;
        if is_away || self.capacity == OwnCapacity::Unknown {
            let space = self.far.member.ask(SPACE_TIMEOUT, |tier, ask| tier.space(ask))?;
            if self.capacity == OwnCapacity::Unknown {
                publisher.set_capacity(space.total_bytes / FAR_SHARE);
                self.capacity = OwnCapacity::Known;
            }
        }
        Ok(())
    }

    /// Looks for the folders of earlier opens of this store. Waits for the location, while puts and removals go on.
    fn look_for_earlier(&mut self) -> std::result::Result<Option<EarlierFolders>, IoError> {
        if self.clock.now() < self.paused_until { Ok(None) } else { self.search.step() }
    }

    /// Gives a sign of life, if it is time. Nothing else comes before it: without it, others remove all packs.
    fn beat(&mut self, publisher: &mut Publisher) -> std::result::Result<(), IoError> {
        let now = self.clock.now();
        if now >= self.next_beat && publisher.is_at_location() {
            self.next_beat = now.after(BEAT);
            publisher.beat()?;
        }
        Ok(())
    }

    /// Copies some waiting extents to packs. Returns whether there are more.
    fn add_some(
        &mut self,
        publisher: &mut Publisher,
        stop: &StopSignal,
    ) -> std::result::Result<bool, IoError> {
        for _ in 0..STEP_EXTENTS {
            match self.add_next(publisher)? {
                Added::More if !stop.is_set() => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Does the rest of what waits for the location. A failure of one part keeps no other one, unless it hangs.
    fn keep_up(&mut self, publisher: &mut Publisher) -> std::result::Result<(), IoError> {
        let mut described = Ok(());
        if self.far.outbox.write == FarWrite::Evict {
            described = self.describe_all(publisher);
        }
        if described.as_ref().is_err_and(IoError::is_late) {
            return described;
        }
        publisher.evict().and(described)
    }

    /// Describes all namespaces, because an eviction cannot wait for that.
    fn describe_all(&self, publisher: &mut Publisher) -> std::result::Result<(), IoError> {
        let ids = self.namespaces.list().into_iter().map(|namespace| namespace.id());
        let mut sectors = ids.filter_map(|id| Some((id, self.sector_of(id)?)));
        sectors.try_for_each(|(id, sector)| publisher.describe(id, &sector))
    }

    /// The description of a namespace, as it is stored; `None` if it is not known, or the store is closed.
    fn sector_of(&self, id: NamespaceId) -> Option<Vec<u8>> {
        if self.stored.strong_count() == 0 {
            return None;
        }
        let namespace = self.namespaces.get(id).ok()?;
        let compression = self.namespaces.compression(id);
        let mut sector = vec![0; SECTOR];
        let fits = NamespaceSector(namespace.as_ref().clone(), compression).encode(&mut sector);
        fits.then_some(sector)
    }
}

impl Duty for PublishDuty {
    fn step(&mut self, stop: &StopSignal) -> NextStep {
        let far = Arc::clone(&self.far);
        let found = self.look_for_earlier();
        let mut publisher = far.outbox.publisher.lock();
        let writing = publisher.advance();
        let mut is_behind = false;
        let mut failed = None;
        match found {
            Ok(Some(found)) => publisher.take_over(found),
            Ok(None) => {}
            Err(error) => failed = Some(error),
        }
        if self.clock.now() >= self.paused_until && failed.is_none() {
            failed = self.learn_capacity(&mut publisher).err();
        }
        if self.clock.now() >= self.paused_until && failed.is_none() {
            failed = self.beat(&mut publisher).err();
        }
        if self.clock.now() >= self.paused_until && failed.is_none() {
            let added = self.add_some(&mut publisher, stop);
            let hangs = added.as_ref().is_err_and(IoError::is_late);
            let kept_up = if hangs { Ok(()) } else { self.keep_up(&mut publisher) };
            is_behind = matches!(added, Ok(true));
            failed = added.err().or(kept_up.err());
        }
        self.search.hasten(publisher.take_search_due());
        self.far.outbox.note_published(publisher.stats());
        if let Some(error) = failed {
            tracing::warn!(%error, pause_s = PAUSE.as_secs(), "the far location fails; publishing pauses");
            self.paused_until = self.clock.now().after(PAUSE);
            return NextStep::After(PAUSE);
        }
        NextStep::After(match (is_behind, writing) {
            (true, _) => Duration::ZERO,
            (false, 0) => IDLE_STEP,
            (false, _) => BUSY_STEP,
        })
    }

    fn finish(&mut self) {
        let deadline = Deadline::At(self.clock.now().after(FINISH));
        let far = Arc::clone(&self.far);
        let mut publisher = far.outbox.publisher.lock();
        if self.learn_capacity(&mut publisher).is_err() {
            return self.far.outbox.drop_waiting();
        }
        // Without a poll that succeeded, removals may have been missed: nothing is published.
        while self.far.outbox.may_fill()
            && !self.far.outbox.is_idle()
            && !deadline.expired(self.clock.now())
        {
            match self.add_next(&mut publisher) {
                Ok(Added::More) => {}
                Ok(Added::Enough) => {
                    publisher.advance();
                    std::thread::sleep(BUSY_STEP);
                }
                Err(_) => break,
            }
        }
        publisher.finish(deadline);
        self.far.outbox.drop_waiting();
        self.far.outbox.note_published(publisher.stats());
    }
}
