//! Making room: which segment goes, what moves on, what is dropped.
//!
//! 1. One errand makes room at a time (`room.rs`); whoever comes after it looks again.
//! 2. What is kept is readable at every moment: it is copied first, then the index swings, then the segment goes.
//! 3. Only extents of the segment that goes are dropped: the index then holds just what the log holds. What depends on
//!    them becomes an orphan, which is the first to go unless somebody uses it.
//! 4. It may stop between two extents: what was moved stays moved, and the segment goes another time. Within an extent
//!    it waits for the device: that bytes were not read in time says nothing about them.
//! 5. A compressed extent that moves alone moves as it is stored; its checksums go along.
//! 6. Neighbours of a lineage move as one extent, so that making room also merges.
//! 7. Nothing is dropped while the device reads nothing: then no room is made. If it reads elsewhere, what it cannot
//!    read is dropped, so that no segment stays for ever.
//! 8. Nor is anything dropped because the index does not know of it: it is built anew then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dalsegno_core::{Extent, ExtentId, MIN_SEGMENTS};
use dalsegno_index::{Shortage, Unread};
use dalsegno_io::{IoError, lend};
use dalsegno_log::{Appended, Call, Cause, LogError, SegmentState, SegmentView};
use dalsegno_policy::recency::Use;
use dalsegno_policy::reclaim::{
    ExtentFacts, LiveExtent, Ranks, SegmentFacts, choose_victim, draw, keep,
};

use crate::rewrite::{Spot, part_of, read_blocks, rows, runs_of};
use crate::stats::add;
use crate::store::Inner;

/// How long readers and writers of a segment are waited for before another one is chosen.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often a segment is freed until one is more than the reserve, and can be given back.
const GIVE_BACK_ATTEMPTS: u32 = 4;
/// Extents that are marked as orphans for one segment at most. The rest keeps its age: it goes a little later.
const MOST_ORPHANS: usize = 65_536;

/// What came of moving extents.
struct Moved {
    /// Written in their new place.
    bytes: u64,
    /// Whether what did not move is bad or gone; else it could not be read just now.
    is_read: bool,
}

impl Inner {
    /// Frees one segment, unless somebody just did and an append of `bytes` finds room. Stops when the call is over.
    pub(crate) fn reclaim(&self, bytes: u64, call: &Call) -> Result<(), LogError> {
        if self.log.segments().has_space(bytes) { Ok(()) } else { self.free_one(call) }
    }

    /// Gives a segment's room back to the file system, where the index found none, unless there is some by now: what
    /// the index cannot take in is not kept. But not one of the few that a store needs.
    pub(crate) fn give_back(&self, call: &Call) -> Result<(), LogError> {
        let count = || self.log.segments().count() as u64;
        for _ in 0..GIVE_BACK_ATTEMPTS {
            let before = count();
            let Some(shortage) = self.upkeep.shortage().filter(|_| before > MIN_SEGMENTS) else {
                break;
            };
            let is_there = shortage == Shortage::Disk && self.log.segments().has_space_for_others();
            if !is_there && !self.log.recycler().give_back(PATIENCE)? {
                self.free_one(call)?;
            }
            // A damaged one is not freed, but goes at once.
            if is_there || count() < before {
                self.upkeep.has_room_again();
            }
        }
        Ok(())
    }

    /// Frees one segment. Stops when the call is over.
    fn free_one(&self, call: &Call) -> Result<(), LogError> {
        let mut passed_over = BTreeSet::new();
        loop {
            let Some((victim, ranks)) = self.choose(&passed_over) else {
                // Nothing but the open segment: with so little room it is given up whole.
                if !passed_over.is_empty() || !self.log.segments().seal_open() {
                    return Err(LogError::Full);
                }
                continue;
            };
            let is_live = self.index.live_bytes(victim.number) > 0;
            let extents = if is_live { self.extents_in(victim.number)? } else { Vec::new() };
            self.relocate(victim.number, &extents, &ranks, call)?;
            self.orphan_behind(victim.number, &extents)?;
            let drop_rest = || self.drop_rest(&victim, &extents);
            let left = call.timeout(self.clock.as_ref())?;
            let patience = left.map_or(PATIENCE, |left| left.min(PATIENCE));
            if self.log.recycler().recycle(victim.number, patience, drop_rest)? {
                return Ok(());
            }
            passed_over.insert(victim.number);
        }
    }

    /// The segment to reclaim, and how recent the bytes of the store are.
    fn choose(&self, passed_over: &BTreeSet<u64>) -> Option<(SegmentView, Ranks)> {
        let views = self.log.segments().views();
        let may_go = |view: &&SegmentView| {
            matches!(view.state, SegmentState::Sealed | SegmentState::Damaged)
                && !passed_over.contains(&view.number)
        };
        let facts = self.facts(&views, passed_over);
        let ranks = Ranks::of(&facts);
        // A damaged segment takes no writes: it goes first, so that its room is of use again.
        let damaged = |view: &&SegmentView| view.state == SegmentState::Damaged && view.pins == 0;
        if let Some(damaged) = views.iter().filter(may_go).find(damaged) {
            return Some((*damaged, ranks));
        }
        let chosen = choose_victim(&facts, &ranks, self.limits.segment_bytes / 2)
            // All are in use: wait for one of them rather than fail.
            .or_else(|| {
                views.iter().filter(may_go).min_by_key(|v| v.newest_sequence).map(|v| v.number)
            })?;
        views.into_iter().find(|view| view.number == chosen).map(|view| (view, ranks))
    }

    /// What the choice goes by, of all segments or, where there are many, of some, the dead ones among them.
    fn facts(&self, views: &[SegmentView], passed_over: &BTreeSet<u64>) -> Vec<SegmentFacts> {
        let used = || views.iter().filter(|view| view.state != SegmentState::Free);
        let numbers: Vec<u64> = used().map(|view| view.number).collect();
        let drawn = draw(&numbers, self.log.segments().newest_sequence());
        let is_dead = |view: &SegmentView| self.index.live_bytes(view.number) == 0;
        used()
            .filter(|view| drawn.contains(&view.number) || is_dead(view))
            .map(|view| self.facts_of(view, passed_over))
            .collect()
    }

    fn facts_of(&self, view: &SegmentView, passed_over: &BTreeSet<u64>) -> SegmentFacts {
        let mut live = self.index.live_extents(view.number);
        if view.is_partly_unread() {
            // What could not be read at open may be alive.
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

    /// Moves what deserves it out of a segment.
    fn relocate(
        &self,
        segment: u64,
        extents: &[Extent],
        ranks: &Ranks,
        call: &Call,
    ) -> Result<(), LogError> {
        let by_id: BTreeMap<ExtentId, &Extent> =
            self.live_of(segment, extents)?.into_iter().map(|extent| (extent.id, extent)).collect();
        let facts: Vec<ExtentFacts> =
            by_id.values().map(|extent| self.extent_facts(extent)).collect();
        // Best first and prefixes before their suffixes: whatever stops this half way, the rest is the least loss.
        let kept = keep(&facts, ranks, self.limits.segment_bytes / 2);
        let kept: Vec<&Extent> = kept.iter().map(|id| by_id[id]).collect();
        for row in rows(&kept, &self.limits) {
            call.timeout(self.clock.as_ref())?;
            match self.move_all(segment, &row) {
                Ok(bytes) => add(&self.counters.relocated_bytes, bytes),
                // What cannot be moved is dropped: a cache may forget.
                Err(error @ (LogError::Poisoned | LogError::Io(_))) => return Err(error),
                Err(error) => tracing::debug!("extents are dropped instead of moved: {error}"),
            }
        }
        Ok(())
    }

    fn extent_facts(&self, extent: &Extent) -> ExtentFacts {
        ExtentFacts {
            id: extent.id,
            lineage: extent.lineage,
            depth: extent.first_block_index,
            bytes: extent.total_bytes(),
            used: self.index.use_of(extent),
        }
    }

    /// Marks what depends on the extents that are still left in a segment: they go now.
    fn orphan_behind(&self, segment: u64, extents: &[Extent]) -> Result<(), LogError> {
        let mut left = MOST_ORPHANS;
        for extent in self.live_of(segment, extents)? {
            left -= self.index.orphan_descendants(extent, left);
        }
        Ok(())
    }

    /// The extents of a segment, asked for once more if the device failed and reads now.
    ///
    /// # Errors
    ///
    /// If it still fails, or is too slow.
    pub(crate) fn extents_in(&self, segment: u64) -> Result<Vec<Extent>, LogError> {
        let (mut extents, mut failure) = self.log.recycler().extents_in(segment);
        if failure.is_some() {
            self.log.recycler().check_reads(segment)?;
            (extents, failure) = self.log.recycler().extents_in(segment);
        }
        match failure {
            None => Ok(extents),
            Some(LogError::Io(error @ (IoError::Deadline | IoError::Busy))) => {
                Err(LogError::Io(error))
            }
            // What fails again while the device reads is bad.
            Some(_) => self.log.recycler().check_reads(segment).map(|()| extents),
        }
    }

    /// Those extents of a segment that blocks lead to.
    ///
    /// # Errors
    ///
    /// As [`Self::ask_index`].
    pub(crate) fn live_of<'a>(
        &self,
        segment: u64,
        extents: &'a [Extent],
    ) -> Result<Vec<&'a Extent>, LogError> {
        let mut live_ones = Vec::new();
        for extent in extents {
            let live = self.ask_index(segment, || self.index.live_blocks(extent))?;
            live_ones.extend(live.contains(&true).then_some(extent));
        }
        Ok(live_ones)
    }

    /// Asks the index about what lies in a segment, once more if the device failed and reads now. If it still does not
    /// know, files of it are bad: the store stops writing, and whoever opens it builds the index anew.
    ///
    /// # Errors
    ///
    /// If the device fails or is too slow, or the store stops.
    fn ask_index<R>(
        &self,
        segment: u64,
        ask: impl Fn() -> Result<R, Unread>,
    ) -> Result<R, LogError> {
        let put_off = |error: Unread| {
            if error.is_put_off() { Err(LogError::Io(IoError::Busy)) } else { Ok(()) }
        };
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(error) => put_off(error)?,
        }
        self.log.recycler().check_reads(segment)?;
        ask().or_else(|error| {
            put_off(error)?;
            self.upkeep.give_up("files of the index cannot be read");
            Err(LogError::Poisoned)
        })
    }

    /// As [`Self::move_row`], once more if the device failed and reads now. Returns the bytes written.
    ///
    /// # Errors
    ///
    /// If it still fails; what could not be read stays where it is.
    pub(crate) fn move_all(&self, segment: u64, row: &[&Extent]) -> Result<u64, LogError> {
        let mut bytes = 0;
        for _ in 0..2 {
            let moved = self.move_row(row)?;
            bytes += moved.bytes;
            if moved.is_read {
                break;
            }
            self.log.recycler().check_reads(segment)?;
        }
        Ok(bytes)
    }

    /// Copies the visible blocks of neighbours to the open segment, as one extent if nothing is missing between them,
    /// and swings the index.
    fn move_row(&self, row: &[&Extent]) -> Result<Moved, LogError> {
        let segment = row[0].location.segment;
        // Before the question what is visible: whatever was removed until now is not copied, and what is removed from
        // now on has a larger number. With the number of the first put, one extent that is moved again and again would
        // keep every tombstone alive.
        let born = self.log.segments().born_of_copies();
        let wanted = self.ask_index(segment, || self.visible_blocks(row))?;
        if wanted.is_empty() {
            return Ok(Moved { bytes: 0, is_read: true });
        }
        if let Some(bytes) = self.move_as_it_is(row, &wanted, born)? {
            return Ok(Moved { bytes, is_read: true });
        }
        let block_bytes = usize::try_from(row[0].layout.block_bytes()).expect("64-bit addresses");
        let mut bytes = vec![0_u8; wanted.len() * block_bytes];
        let outcomes = read_blocks(&self.log, row, &wanted, &mut bytes);
        let is_put_off = |cause: Cause| matches!(cause, Cause::Throttled | Cause::Deadline);
        if outcomes.iter().any(|outcome| outcome.is_err_and(is_put_off)) {
            // That says nothing about the bytes.
            return Err(LogError::Io(IoError::Busy));
        }
        let good: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
        let is_there = |cause: Cause| !cause.is_damage() && cause != Cause::Recycled;
        let is_read = !outcomes.iter().any(|outcome| outcome.is_err_and(is_there));
        let mut new = Vec::new();
        let mut pins = Vec::new();
        let mut written = 0;
        for run in runs_of(row, &wanted, &good) {
            let part = part_of(row, &wanted[run.clone()], born);
            let source = &bytes[run.start * block_bytes..run.end * block_bytes];
            let appended = lend(|lender| {
                let blocks: Vec<_> =
                    source.chunks_exact(block_bytes).map(|b| vec![lender.shared(b)]).collect();
                let append = match self.encode_again(&part, &blocks)? {
                    Some(compressed) => {
                        self.log.writer().reserve_compressed(part, compressed, true)?
                    }
                    None => self.log.writer().reserve(part, blocks, true)?,
                };
                self.log.writer().append(vec![append], &Call::background()).remove(0)
            })?;
            written += appended.extent.total_bytes();
            if row.len() > 1 || row[0].is_moved() {
                // What is made of several extents takes their place at open without being read: see `rebuild.rs`.
                self.log.writer().make_durable(&appended)?;
            }
            new.push(appended.extent);
            pins.push(appended.pin);
        }
        self.ask_index(segment, || self.index.replace(row, new.clone()))?;
        drop(pins);
        Ok(Moved { bytes: written, is_read })
    }

    /// Copies a compressed extent without decoding it, if all of it is visible and its namespace still asks for a
    /// codec.
    fn move_as_it_is(
        &self,
        row: &[&Extent],
        wanted: &[Spot],
        born: Option<u64>,
    ) -> Result<Option<u64>, LogError> {
        let [extent] = row else { return Ok(None) };
        let is_whole = wanted.len() == extent.hashes.len();
        if !is_whole || !extent.is_compressed() || self.compression(extent.namespace).is_plain() {
            return Ok(None);
        }
        let Some(compressed) = self.log.read_compressed(extent) else { return Ok(None) };
        let append =
            self.log.writer().reserve_compressed(part_of(row, wanted, born), compressed, true)?;
        let appended = self.log.writer().append(vec![append], &Call::background()).remove(0)?;
        if extent.is_moved() {
            self.log.writer().make_durable(&appended)?;
        }
        let Appended { extent: new, pin } = appended;
        let bytes = new.total_bytes();
        self.ask_index(extent.location.segment, || self.index.replace(row, vec![new.clone()]))?;
        drop(pin);
        Ok(Some(bytes))
    }

    /// Drops what is still left in a segment that nobody can enter any more.
    fn drop_rest(&self, victim: &SegmentView, extents: &[Extent]) {
        for extent in extents {
            self.drop_extent(extent);
        }
        // Extents whose headers cannot be read any more go with the rest.
        let blocks = self.index.drop_segment(victim.number, victim.epoch);
        if blocks > 0 {
            self.removal_feed.note_gap();
        }
        add(&self.counters.evicted_blocks, blocks);
    }

    pub(crate) fn drop_extent(&self, extent: &Extent) {
        let live = self.index.live_blocks(extent).unwrap_or_default();
        let removed = self.index.remove_extent(extent);
        if removed.blocks > 0 {
            self.removal_feed.note(extent.namespace, &extent.hashes);
        }
        self.log.forget(extent.id);
        add(&self.counters.evicted_blocks, removed.blocks);
        let gone = extent.hashes.iter().zip(live).filter(|(_, live)| *live);
        self.dram.remove(extent.namespace, &gone.map(|(hash, _)| *hash).collect::<Vec<_>>());
    }
}
