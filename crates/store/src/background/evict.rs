//! Freeing space: which segment is recycled, which extents move on, which are evicted.
//!
//! 1. One job frees space at a time (`space.rs`). The next one first looks whether there is enough now.
//! 2. A kept extent is readable at every moment: it moves first, then its segment is recycled.
//! 3. Only extents of the recycled segment are evicted, so the index holds exactly what the log holds. Extents that
//!    depend on an evicted one become orphans: they are evicted first, unless they are used.
//! 4. Nothing is evicted while the device reads nothing; then no space is freed. If the device reads elsewhere, extents
//!    that it cannot read are evicted, so no segment stays forever.
//! 5. Nothing is evicted because the index cannot be read: then the next open rebuilds the index.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dalsegno_core::{Extent, ExtentId, MIN_SEGMENTS};
use dalsegno_index::Shortage;
use dalsegno_log::{LogError, SegmentState, SegmentView};
use dalsegno_policy::recency::Use;
use dalsegno_policy::reclaim::{
    ExtentFacts, LiveExtent, Ranks, SegmentFacts, choose_victim, draw, keep,
};

use crate::background::relocate::{extents_in, live_of, move_all};
use crate::background::rows::rows;
use crate::counters::add;
use crate::engine::Engine;

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

/// Makes sure that an append of `bytes` finds space, if that can be freed.
///
/// # Errors
///
/// `Full` if no segment can be freed; if the device fails, or writing has stopped.
pub(crate) fn make_space(engine: &Engine, bytes: u64) -> Result<(), LogError> {
    for _ in 0..RECLAIM_ATTEMPTS {
        if engine.log.segments().prepare(bytes)? {
            return Ok(());
        }
        if !engine.log.segments().has_space(bytes) {
            free_one(engine)?;
        }
    }
    Ok(())
}

/// Gives a segment's space back to the file system, where the index found none, unless there is some by now. Blocks
/// that the index cannot accept are not kept. A store keeps the few segments that it needs.
///
/// # Errors
///
/// As [`make_space`].
pub(crate) fn give_back(engine: &Engine) -> Result<(), LogError> {
    let count = || engine.log.segments().count() as u64;
    for _ in 0..GIVE_BACK_ATTEMPTS {
        let before = count();
        let shortage = engine.stored.care.shortage().filter(|_| before > MIN_SEGMENTS);
        let Some(shortage) = shortage else { break };
        let has_space = shortage == Shortage::Disk && engine.log.segments().has_space_for_others();
        if !has_space && !engine.log.recycler().give_back(PIN_TIMEOUT)? {
            free_one(engine)?;
        }
        // A damaged segment is not freed: its file is removed.
        if has_space || count() < before {
            engine.stored.care.has_space_again();
        }
    }
    Ok(())
}

/// Frees one segment.
fn free_one(engine: &Engine) -> Result<(), LogError> {
    let mut passed_over = BTreeSet::new();
    loop {
        let Some((victim, ranks)) = choose(engine, &passed_over) else {
            // Only the open segment is left: with so little space it is recycled as a whole.
            if !passed_over.is_empty() || !engine.log.segments().seal_open() {
                return Err(LogError::Full);
            }
            continue;
        };
        let is_live = engine.index.live_bytes(victim.number) > 0;
        let extents = if is_live { extents_in(engine, victim.number)? } else { Vec::new() };
        relocate(engine, victim.number, &extents, &ranks)?;
        mark_orphans(engine, victim.number, &extents)?;
        let evict = || evict_rest(engine, &victim, &extents);
        if engine.log.recycler().recycle(victim.number, PIN_TIMEOUT, evict)? {
            return Ok(());
        }
        passed_over.insert(victim.number);
    }
}

/// The segment to recycle, and how recent the bytes of the store are.
fn choose(engine: &Engine, passed_over: &BTreeSet<u64>) -> Option<(SegmentView, Ranks)> {
    let views = engine.log.segments().views();
    let may_go = |view: &&SegmentView| {
        matches!(view.state, SegmentState::Sealed | SegmentState::Damaged)
            && !passed_over.contains(&view.number)
    };
    let facts = facts(engine, &views, passed_over);
    let ranks = Ranks::of(&facts);
    // A damaged segment accepts no writes: it goes first, so that its space is usable again.
    let is_damaged = |view: &&SegmentView| view.state == SegmentState::Damaged && view.pins == 0;
    if let Some(damaged) = views.iter().filter(may_go).find(is_damaged) {
        return Some((*damaged, ranks));
    }
    let chosen = choose_victim(&facts, &ranks, engine.limits.segment_bytes / 2)
        // All are in use: wait for one of them rather than fail.
        .or_else(|| {
            views.iter().filter(may_go).min_by_key(|v| v.newest_sequence).map(|v| v.number)
        })?;
    views.into_iter().find(|view| view.number == chosen).map(|view| (view, ranks))
}

/// The facts behind the choice: of all segments or, where there are many, of a sample with all dead ones.
fn facts(engine: &Engine, views: &[SegmentView], passed_over: &BTreeSet<u64>) -> Vec<SegmentFacts> {
    let used = || views.iter().filter(|view| view.state != SegmentState::Free);
    let numbers: Vec<u64> = used().map(|view| view.number).collect();
    let drawn = draw(&numbers, engine.log.segments().newest_sequence());
    let is_dead = |view: &SegmentView| engine.index.live_bytes(view.number) == 0;
    used()
        .filter(|view| drawn.contains(&view.number) || is_dead(view))
        .map(|view| facts_of(engine, view, passed_over))
        .collect()
}

fn facts_of(engine: &Engine, view: &SegmentView, passed_over: &BTreeSet<u64>) -> SegmentFacts {
    let mut live = engine.index.live_extents(view.number);
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

/// Moves the extents that deserve it out of a segment.
fn relocate(
    engine: &Engine,
    segment: u64,
    extents: &[Extent],
    ranks: &Ranks,
) -> Result<(), LogError> {
    let live = live_of(engine, segment, extents)?;
    let by_id: BTreeMap<ExtentId, &Extent> =
        live.into_iter().map(|extent| (extent.id, extent)).collect();
    let facts: Vec<ExtentFacts> =
        by_id.values().map(|extent| extent_facts(engine, extent)).collect();
    // Best first, and prefixes before their suffixes: if this stops half-way, the rest is the smallest loss.
    let kept = keep(&facts, ranks, engine.limits.segment_bytes / 2);
    let kept: Vec<&Extent> = kept.iter().map(|id| by_id[id]).collect();
    for row in rows(&kept, &engine.limits) {
        match move_all(engine, segment, &row) {
            Ok(bytes) => add(&engine.counters.relocated_bytes, bytes),
            Err(error @ (LogError::Poisoned | LogError::Io(_))) => return Err(error),
            // An extent that cannot move is evicted: a cache may forget.
            Err(error) => tracing::debug!(%error, segment, "extents evicted instead of moved"),
        }
    }
    if let Some(far) = &engine.far {
        let mark = engine.front.removals.mark();
        let kept: BTreeSet<ExtentId> = kept.iter().map(|extent| extent.id).collect();
        let evicted = by_id.values().filter(|extent| !kept.contains(&extent.id));
        evicted.for_each(|extent| far.demote((&engine.log, &engine.front.removals), extent, mark));
    }
    Ok(())
}

fn extent_facts(engine: &Engine, extent: &Extent) -> ExtentFacts {
    ExtentFacts {
        id: extent.id,
        lineage: extent.lineage,
        depth: extent.first_block_index,
        bytes: extent.total_bytes(),
        used: engine.index.use_of(extent),
    }
}

/// Marks the extents that depend on those still in a segment, which are evicted now.
fn mark_orphans(engine: &Engine, segment: u64, extents: &[Extent]) -> Result<(), LogError> {
    let mut left = MOST_ORPHANS;
    for extent in live_of(engine, segment, extents)? {
        left -= engine.index.orphan_descendants(extent, left);
    }
    Ok(())
}

/// Evicts the extents that are still in a segment which is closed to readers.
fn evict_rest(engine: &Engine, victim: &SegmentView, extents: &[Extent]) {
    let dropper = &engine.front.dropper;
    extents.iter().for_each(|extent| dropper.evict(extent));
    dropper.evict_segment(victim.number, victim.epoch);
}

/// Recycles segments without live extents.
///
/// # Errors
///
/// If the device fails, or writing has stopped.
pub(crate) fn recycle_dead_segments(engine: &Engine) -> Result<(), LogError> {
    // The pins are counted first: nothing can become live in a sealed segment without pins.
    let views = engine.log.segments().views();
    let is_idle = |view: &&SegmentView| {
        view.state == SegmentState::Sealed && view.pins == 0 && !view.is_partly_unread()
    };
    let idle = views.iter().filter(is_idle);
    for view in idle.filter(|view| engine.index.live_bytes(view.number) == 0) {
        engine.log.recycler().recycle(view.number, DEAD_PIN_TIMEOUT, || {
            engine.index.drop_segment(view.number, view.epoch);
        })?;
    }
    Ok(())
}
