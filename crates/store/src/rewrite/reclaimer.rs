//! Freeing space: which segment is recycled, which extents move on, which are evicted.
//!
//! 1. One job of an open store frees space at a time (`space.rs`). The next one first looks whether there is enough
//!    now.
//! 2. A kept extent is readable at every moment: it moves first, then its segment is recycled.
//! 3. Only extents of the recycled segment are evicted, so the index holds exactly what the log holds. Extents that
//!    depend on an evicted one become orphans: they are evicted first, unless they are used.
//! 4. Nothing is evicted while the device reads nothing; then no space is freed. If the device reads elsewhere, extents
//!    that it cannot read are evicted, so no segment stays forever.
//! 5. Nothing is evicted because the index cannot be read: then the next open rebuilds the index.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Extent, ExtentId, Limits, MIN_SEGMENTS};
use dalsegno_index::Shortage;
use dalsegno_io::Call;
use dalsegno_log::{LogError, Reservation, SegmentState, SegmentView, SpaceUse};
use dalsegno_policy::recency::Use;
use dalsegno_policy::reclaim::{
    ExtentFacts, LiveExtent, Ranks, SegmentFacts, choose_victim, draw, keep,
};

use crate::blocks::dropper::Dropper;
use crate::blocks::indexed_log::IndexedLog;
use crate::counters::add;
use crate::far::tier::FarTier;
use crate::rewrite::relocate::Relocator;
use crate::rewrite::rows::rows;
use crate::state::recent_removals::RecentRemovals;

/// How often space is freed for one append.
pub(crate) const RECLAIM_ATTEMPTS: u32 = 3;
/// How long readers and writers of a segment are waited for before another one is chosen.
const PIN_TIMEOUT: Duration = Duration::from_millis(500);
/// The same for a segment without live extents.
const DEAD_PIN_TIMEOUT: Duration = Duration::from_millis(50);
/// How often a segment is freed until one exceeds the reserve and can be given back.
const GIVE_BACK_ATTEMPTS: u32 = 4;
/// Most extents that are marked as orphans for one segment. The rest keep their age and are evicted a little later.
const MOST_ORPHANS: usize = 65_536;

/// Frees space. Jobs of the space lane hold it while they are queued or run, and with it the directory.
#[derive(Debug)]
pub(crate) struct Reclaimer {
    pub(crate) stored: Arc<IndexedLog>,
    pub(crate) relocator: Relocator,
    pub(crate) dropper: Arc<Dropper>,
    /// What was removed lately.
    pub(crate) removals: Arc<RecentRemovals>,
    /// The tier that may get what is evicted.
    pub(crate) far: Option<Arc<FarTier>>,
    pub(crate) limits: Arc<Limits>,
}

impl Reclaimer {
    /// Makes sure that an append of `bytes` finds space, if that can be freed.
    ///
    /// # Errors
    ///
    /// `Full` if no segment can be freed; if the device fails, or writing has stopped.
    pub(crate) fn make_space(&self, bytes: u64) -> Result<(), LogError> {
        let segments = self.stored.log.segments();
        for _ in 0..RECLAIM_ATTEMPTS {
            if segments.prepare(bytes)? {
                return Ok(());
            }
            if !segments.has_space(bytes) {
                self.free_one()?;
            }
        }
        Ok(())
    }

    /// Reserves space for `bytes`, unless the call is over; makes it first if there is not enough. Calls that wait for
    /// space have it one after the other, so that none of them loses it to all others in turn.
    ///
    /// # Errors
    ///
    /// As [`Self::make_space`], and if the call is over.
    pub(crate) fn reserve(
        &self,
        bytes: u64,
        call: &Call,
        clock: &dyn Clock,
    ) -> Result<Reservation, LogError> {
        for _ in 0..RECLAIM_ATTEMPTS {
            call.timeout(clock)?;
            self.make_space(bytes)?;
            call.timeout(clock)?;
            match self.stored.log.writer().reserve(bytes, SpaceUse::Ready) {
                // A call that found space took this one.
                Err(LogError::Full) => {}
                reserved => return reserved,
            }
        }
        Err(LogError::Full)
    }

    /// Makes sure that an append of `bytes` finds space, without evicting anything.
    ///
    /// # Errors
    ///
    /// As [`Self::make_space`].
    pub(crate) fn make_dead_space(&self, bytes: u64) -> Result<(), LogError> {
        let segments = self.stored.log.segments();
        if segments.prepare(bytes)? {
            return Ok(());
        }
        self.recycle_dead_segments()?;
        if segments.prepare(bytes)? { Ok(()) } else { Err(LogError::Full) }
    }

    /// Gives a segment's space back to the file system, where the index found none, unless there is some by now. Blocks
    /// that the index cannot accept are not kept. A store keeps the few segments that it needs.
    ///
    /// # Errors
    ///
    /// As [`Self::make_space`].
    pub(crate) fn give_back(&self) -> Result<(), LogError> {
        let IndexedLog { log, care, .. } = self.stored.as_ref();
        let count = || log.segments().count() as u64;
        for _ in 0..GIVE_BACK_ATTEMPTS {
            let before = count();
            let shortage = care.shortage().filter(|_| before > MIN_SEGMENTS);
            let Some(shortage) = shortage else { break };
            let has_space = shortage == Shortage::Disk && log.segments().has_space_for_others();
            if !has_space && !log.recycler().give_back(PIN_TIMEOUT)? {
                self.free_one()?;
            }
            // A damaged segment is not freed: its file is removed.
            if has_space || count() < before {
                care.has_space_again();
            }
        }
        Ok(())
    }

    /// Recycles segments without live extents.
    ///
    /// # Errors
    ///
    /// If the device fails, or writing has stopped.
    pub(crate) fn recycle_dead_segments(&self) -> Result<(), LogError> {
        let IndexedLog { log, index, .. } = self.stored.as_ref();
        // The pins are counted first: nothing can become live in a sealed segment without pins.
        let views = log.segments().views();
        let is_idle = |view: &&SegmentView| {
            view.state == SegmentState::Sealed && view.pins == 0 && !view.is_partly_unread()
        };
        let idle = views.iter().filter(is_idle);
        for view in idle.filter(|view| index.live_bytes(view.number) == 0) {
            log.recycler().recycle(view.number, DEAD_PIN_TIMEOUT, || {
                index.drop_segment(view.number, view.epoch);
            })?;
        }
        Ok(())
    }

    /// Copies the good blocks of a segment to others, and recycles it: for a repair, which no caller is in the way of.
    /// `false` if the segment is free.
    ///
    /// # Errors
    ///
    /// `Full` if readers do not leave the segment within `timeout`; if the device fails, or writing has stopped.
    pub(crate) fn rewrite(&self, segment: u64, timeout: Duration) -> Result<bool, LogError> {
        let log = &self.stored.log;
        let state_of = || log.segments().views().into_iter().find(|view| view.number == segment);
        if state_of().is_some_and(|view| view.state == SegmentState::Open) {
            // Only this one can be open.
            let _sealed = log.segments().seal_open();
        }
        let Some(view) = state_of().filter(|view| view.state != SegmentState::Free) else {
            return Ok(false);
        };
        let extents = self.relocator.extents_in(segment)?;
        for row in rows(&self.relocator.live_of(segment, &extents)?, &self.limits) {
            self.relocator.move_all(segment, &row)?;
        }
        let evict = || self.evict_rest(&view, &extents);
        if log.recycler().recycle(segment, timeout, evict)? {
            Ok(true)
        } else {
            Err(LogError::Full)
        }
    }

    /// Frees one segment.
    fn free_one(&self) -> Result<(), LogError> {
        let IndexedLog { log, index, .. } = self.stored.as_ref();
        let mut passed_over = BTreeSet::new();
        loop {
            let Some((victim, ranks)) = self.choose(&passed_over) else {
                // Only the open segment is left: with so little space it is recycled as a whole.
                if !passed_over.is_empty() || !log.segments().seal_open() {
                    return Err(LogError::Full);
                }
                continue;
            };
            let is_live = index.live_bytes(victim.number) > 0;
            let extents =
                if is_live { self.relocator.extents_in(victim.number)? } else { Vec::new() };
            self.relocate(victim.number, &extents, &ranks)?;
            self.mark_orphans(victim.number, &extents)?;
            let evict = || self.evict_rest(&victim, &extents);
            if log.recycler().recycle(victim.number, PIN_TIMEOUT, evict)? {
                return Ok(());
            }
            passed_over.insert(victim.number);
        }
    }

    /// The segment to recycle, and how recent the bytes of the store are.
    fn choose(&self, passed_over: &BTreeSet<u64>) -> Option<(SegmentView, Ranks)> {
        let views = self.stored.log.segments().views();
        let may_go = |view: &&SegmentView| {
            matches!(view.state, SegmentState::Sealed | SegmentState::Damaged)
                && !passed_over.contains(&view.number)
        };
        let facts = facts(&self.stored, &views, passed_over);
        let ranks = Ranks::of(&facts);
        // A damaged segment accepts no writes: it goes first, so that its space is usable again.
        let is_damaged =
            |view: &&SegmentView| view.state == SegmentState::Damaged && view.pins == 0;
        if let Some(damaged) = views.iter().filter(may_go).find(is_damaged) {
            return Some((*damaged, ranks));
        }
        let chosen = choose_victim(&facts, &ranks, self.limits.segment_bytes / 2)
            // All are in use: wait for one of them rather than fail.
            .or_else(|| {
                views.iter().filter(may_go).min_by_key(|v| v.newest_sequence).map(|v| v.number)
            })?;
        views.into_iter().find(|view| view.number == chosen).map(|view| (view, ranks))
    }

    /// Moves the extents that deserve it out of a segment.
    fn relocate(&self, segment: u64, extents: &[Extent], ranks: &Ranks) -> Result<(), LogError> {
        let live = self.relocator.live_of(segment, extents)?;
        let by_id: BTreeMap<ExtentId, &Extent> =
            live.into_iter().map(|extent| (extent.id, extent)).collect();
        let facts: Vec<ExtentFacts> =
            by_id.values().map(|extent| extent_facts(&self.stored, extent)).collect();
        // Best first, and prefixes before their suffixes: if this stops half-way, the rest is the smallest loss.
        let kept = keep(&facts, ranks, self.limits.segment_bytes / 2);
        let kept: Vec<&Extent> = kept.iter().map(|id| by_id[id]).collect();
        for row in rows(&kept, &self.limits) {
            match self.relocator.move_all(segment, &row) {
                Ok(bytes) => add(&self.dropper.counters.relocated_bytes, bytes),
                Err(error @ (LogError::Poisoned | LogError::Io(_))) => return Err(error),
                // An extent that cannot move is evicted: a cache may forget.
                Err(error) => tracing::debug!(%error, segment, "extents evicted instead of moved"),
            }
        }
        if let Some(far) = &self.far {
            let (log, removals) = (&self.stored.log, self.removals.as_ref());
            let mark = removals.mark();
            let kept: BTreeSet<ExtentId> = kept.iter().map(|extent| extent.id).collect();
            let evicted = by_id.values().filter(|extent| !kept.contains(&extent.id));
            far.outbox.demote(log, removals, evicted.copied(), mark);
        }
        Ok(())
    }

    /// Marks the extents that depend on those still in a segment, which are evicted now.
    fn mark_orphans(&self, segment: u64, extents: &[Extent]) -> Result<(), LogError> {
        let mut left = MOST_ORPHANS;
        for extent in self.relocator.live_of(segment, extents)? {
            left -= self.stored.index.orphan_descendants(extent, left);
        }
        Ok(())
    }

    /// Evicts the extents that are still in a segment which is closed to readers.
    fn evict_rest(&self, victim: &SegmentView, extents: &[Extent]) {
        for extent in extents {
            self.dropper.evict(extent);
        }
        self.dropper.evict_segment(victim.number, victim.epoch);
    }
}

/// The facts behind the choice: of all segments or, where there are many, of a sample with all dead ones.
fn facts(
    stored: &IndexedLog,
    views: &[SegmentView],
    passed_over: &BTreeSet<u64>,
) -> Vec<SegmentFacts> {
    let used = || views.iter().filter(|view| view.state != SegmentState::Free);
    let numbers: Vec<u64> = used().map(|view| view.number).collect();
    let drawn = draw(&numbers, stored.log.segments().newest_sequence());
    let is_dead = |view: &SegmentView| stored.index.live_bytes(view.number) == 0;
    used()
        .filter(|view| drawn.contains(&view.number) || is_dead(view))
        .map(|view| facts_of(stored, view, passed_over))
        .collect()
}

fn facts_of(stored: &IndexedLog, view: &SegmentView, passed_over: &BTreeSet<u64>) -> SegmentFacts {
    let mut live = stored.index.live_extents(view.number);
    if view.is_partly_unread() {
        // Extents that could not be read at open may be live.
        let known_bytes: u64 = live.iter().map(|extent| extent.bytes).sum();
        let bytes = view.cursor.saturating_sub(known_bytes);
        live.push(LiveExtent { bytes, used: Use::written(view.newest_sequence) });
    }
    SegmentFacts {
        segment: view.number,
        written_bytes: view.cursor,
        live,
        newest_sequence: view.newest_sequence,
        pinned: view.pins > 0
            || view.state == SegmentState::Open
            || passed_over.contains(&view.number),
    }
}

fn extent_facts(stored: &IndexedLog, extent: &Extent) -> ExtentFacts {
    ExtentFacts {
        id: extent.id,
        lineage: extent.lineage,
        depth: extent.first_block_index,
        bytes: extent.total_bytes(),
        used: stored.index.use_of(extent),
    }
}
