//! One merge: neighbours of a lineage become one long, layer-major extent.
//!
//! 1. Every slice is verified before it is written again; a block with a bad one is set aside, and nothing is merged.
//! 2. The new extent is durable before the index leads to it. The index swings from all old ones at once, as far as it
//!    still leads to them: what was removed, dropped or moved meanwhile stays so.
//! 3. After the room was taken it is looked once more what is visible. A removal either was seen then, or it comes
//!    later than the new extent was born and hides it at the next open too.
//! 4. It takes room that is there, or that a segment gives in which nothing is alive. Nothing is dropped for it.
//! 5. Between two pieces of I/O it stands back while somebody reads, within bounds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dalsegno_core::{Extent, NamespaceId};
use dalsegno_index::Unread;
use dalsegno_io::{IoError, lend};
use dalsegno_log::{
    Appended, Call, Cause, CompressedMerge, LogError, MergeAppend, SegmentState, SegmentView,
};
use dalsegno_policy::merging::{Due, MergeRules, Piece, choose, fresh_and_moved};

use crate::merge::{Merged, Shared};
use crate::rewrite::{Spot, follows, most_blocks, part_of, read_blocks};
use crate::stats::{MergeCounters, add};
use crate::store::Inner;

/// Most extents of a lineage that are looked at.
const MOST_EXTENTS: usize = 1024;
/// Bytes of blocks that are read in one piece.
const READ_BYTES: usize = 2 << 20;
/// How long readers of a dead segment are waited for.
const DEAD_PATIENCE: Duration = Duration::from_millis(50);
/// What direct I/O asks of memory.
const ALIGN: usize = 4096;

/// Why nothing was merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skip {
    /// No room without dropping something.
    NoRoom,
    /// Blocks were removed, dropped or moved meanwhile.
    Changed,
    /// Bad bytes were found.
    Damaged,
    /// The device failed, or writing has stopped.
    Failed,
}

impl From<Unread> for Skip {
    fn from(error: Unread) -> Self {
        tracing::debug!("small extents were not merged: {error}");
        Self::Failed
    }
}

impl From<LogError> for Skip {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Full | LogError::TooLarge { .. } => Self::NoRoom,
            error => {
                tracing::debug!("small extents were not merged: {error}");
                Self::Failed
            }
        }
    }
}

impl Skip {
    pub(crate) fn count(self, counters: &MergeCounters) {
        let counter = match self {
            Self::NoRoom => &counters.no_room,
            Self::Changed => &counters.changed,
            Self::Damaged => &counters.damaged,
            Self::Failed => &counters.failed,
        };
        add(counter, 1);
    }

    /// Whether other lineages would fare no better.
    pub(crate) fn is_of_the_store(self) -> bool {
        matches!(self, Self::NoRoom | Self::Failed)
    }
}

/// Aligned memory for the blocks of one merge, kept while there is more to do.
#[derive(Debug, Default)]
pub(crate) struct RowBuffer {
    bytes: Vec<u8>,
}

impl RowBuffer {
    pub(crate) fn of(&mut self, bytes: usize) -> &mut [u8] {
        if self.bytes.len() < bytes + ALIGN {
            self.bytes = vec![0; bytes + ALIGN];
        }
        let skew = self.bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        &mut self.bytes[skew..skew + bytes]
    }
}

impl Inner {
    /// Merges what [`choose`] says next of a lineage; `None` if it is as it should be.
    pub(crate) fn merge_next(
        self: &Arc<Self>,
        shared: &Shared,
        due: &Due,
        spare_bytes: u64,
        buffer: &mut RowBuffer,
    ) -> Result<Option<Merged>, Skip> {
        let extents = self.lineage(due);
        let Some(first) = extents.first() else { return Ok(None) };
        self.log.check_writable()?;
        let pieces = self.pieces(&extents, &shared.rules);
        let bounds = (most_blocks(first.layout.layers()), spare_bytes);
        let Some(run) = choose(&pieces, due.is_quiet, &shared.rules, bounds) else {
            return Ok(None);
        };
        let (fresh_bytes, moved_bytes) = fresh_and_moved(&pieces[run.clone()]);
        let row: Vec<&Extent> = extents[run].iter().map(Arc::as_ref).collect();
        self.merge_row(shared, &row, buffer)?;
        let counters = &self.counters.merging;
        add(&counters.merges, 1);
        add(&counters.extents, row.len() as u64);
        add(&counters.bytes, fresh_bytes + moved_bytes);
        Ok(Some(Merged { fresh_bytes, moved_bytes }))
    }

    /// The extents of a lineage in order: all of them, or those of the pile if the lineage still grows.
    fn lineage(&self, due: &Due) -> Vec<Arc<Extent>> {
        let (namespace, lineage) = due.lineage;
        let mut from = if due.is_quiet { 0 } else { due.first };
        let mut extents: Vec<Arc<Extent>> = Vec::new();
        // Few more than there should be: behind them come other lineages.
        let page = due.extents.clamp(8, MOST_EXTENTS) + 8;
        while extents.len() < MOST_EXTENTS {
            let found = self.index.scan((namespace, lineage, from), page);
            let is_last = found.len() < page;
            let count = extents.len();
            let is_ours = |extent: &Arc<Extent>| is_of(extent, due.lineage);
            extents.extend(found.into_iter().take_while(is_ours));
            let next = extents.last().and_then(|last| last.first_block_index.checked_add(1));
            match next {
                Some(next) if !is_last && extents.len() - count == page => from = next,
                _ => break,
            }
        }
        extents
    }

    fn pieces(&self, extents: &[Arc<Extent>], rules: &MergeRules) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity(extents.len());
        for (at, extent) in extents.iter().enumerate() {
            let bytes = u64::from(extent.block_count()) * extent.layout.block_bytes();
            // Who is too large is not merged, whatever is left of it.
            let is_whole = rules.is_small(bytes)
                && self.index.live_blocks(extent).is_ok_and(|live| !live.contains(&false));
            pieces.push(Piece {
                blocks: extent.block_count(),
                bytes,
                is_moved: extent.is_moved(),
                is_whole,
                follows: at.checked_sub(1).is_some_and(|at| follows(&extents[at], extent)),
            });
        }
        pieces
    }

    fn merge_row(
        self: &Arc<Self>,
        shared: &Shared,
        row: &[&Extent],
        buffer: &mut RowBuffer,
    ) -> Result<(), Skip> {
        let all = spots(row);
        let new = part_of(row, &all, None);
        self.find_room(new.total_bytes())?;
        let block_bytes = usize::try_from(new.layout.block_bytes()).expect("64-bit addresses");
        let bytes = buffer.of(all.len() * block_bytes);
        self.read_row(shared, row, &all, bytes)?;
        let (layers, slice_bytes) = (new.layout.layers(), new.layout.slice_bytes() as usize);
        let call = Call::background();
        let compressed = lend(|lender| {
            let blocks = bytes.chunks_exact(block_bytes).map(|block| vec![lender.shared(block)]);
            self.encode_again(&new, &blocks.collect::<Vec<_>>())
        })?;
        if let Some(compressed) = compressed {
            let merge = CompressedMerge::begin(self.log.writer(), new, compressed)?;
            if self.visible_blocks(row)? != all {
                return Err(Skip::Changed);
            }
            self.let_readers_pass(shared)?;
            self.swing(row, merge.commit(&call)?, &call);
            return Ok(());
        }
        let mut append = MergeAppend::begin(self.log.writer(), new)?;
        if self.visible_blocks(row)? != all {
            return Err(Skip::Changed);
        }
        for layer in 0..layers {
            self.let_readers_pass(shared)?;
            let at = layer as usize * slice_bytes;
            lend(|lender| {
                let blocks = bytes.chunks_exact(block_bytes);
                let slices = blocks.map(|block| vec![lender.shared(&block[at..][..slice_bytes])]);
                append.store_layer(layer, slices.collect(), &call)
            })?;
        }
        let appended = append.commit(&call)?;
        self.swing(row, appended, &call);
        Ok(())
    }

    /// Reads a row piece by piece; fails if any of it is bad.
    fn read_row(
        &self,
        shared: &Shared,
        row: &[&Extent],
        all: &[Spot],
        bytes: &mut [u8],
    ) -> Result<(), Skip> {
        let block_bytes = bytes.len() / all.len();
        let at_once = blocks_at_once(block_bytes);
        let parts = all.chunks(at_once).zip(bytes.chunks_mut(at_once * block_bytes));
        for (spots, bytes) in parts {
            self.let_readers_pass(shared)?;
            let outcomes = read_blocks(&self.log, row, spots, bytes);
            for (spot, outcome) in spots.iter().zip(outcomes) {
                match outcome {
                    Ok(()) => {}
                    Err(cause) if cause.is_damage() => {
                        self.quarantine(row[spot.0], &[(spot.1, cause)]);
                        return Err(Skip::Damaged);
                    }
                    Err(Cause::Recycled) => return Err(Skip::Changed),
                    Err(_) => return Err(Skip::Failed),
                }
            }
        }
        Ok(())
    }

    /// Leads to the new extent what still led to the old ones.
    fn swing(&self, row: &[&Extent], appended: Appended, call: &Call) {
        let Appended { extent, pin } = appended;
        self.upkeep.before_write(call, self.clock.as_ref());
        // What leads to the old ones as well if the index does not know what leads to them.
        let moved = self.index.replace(row, vec![extent.clone()]).unwrap_or_default();
        if moved == 0 {
            self.log.forget(extent.id);
        }
        for old in row {
            self.log.forget(old.id);
        }
        drop(pin);
        self.upkeep.after_write();
    }

    /// Stands back while somebody reads, within bounds; fails if the store is being closed.
    fn let_readers_pass(&self, shared: &Shared) -> Result<(), Skip> {
        if self.reads.load(Ordering::Relaxed) > 0 {
            add(&self.counters.merging.deferrals, 1);
        }
        if self.stand_back(|| shared.is_stopped()) {
            Ok(())
        } else {
            Err(LogError::Io(IoError::Closed).into())
        }
    }

    /// Makes sure that there is room for `bytes`, without dropping anything that is alive.
    fn find_room(self: &Arc<Self>, bytes: u64) -> Result<(), Skip> {
        if self.log.segments().has_space_now(bytes) {
            return Ok(());
        }
        let make = move |inner: &Self, _: &Call| {
            if !inner.log.segments().prepare(bytes)? {
                inner.recycle_dead_segments()?;
                inner.log.segments().prepare(bytes)?;
            }
            Ok(())
        };
        self.have_done(&Call::background(), make)?;
        if self.log.segments().has_space_now(bytes) { Ok(()) } else { Err(Skip::NoRoom) }
    }

    /// Has segments recycled in which nothing is alive, so that the next open does not meet what was merged.
    pub(crate) fn recycle_dead(self: &Arc<Self>) {
        let done = self.have_done(&Call::background(), |inner, _| inner.recycle_dead_segments());
        if let Err(error) = done {
            tracing::debug!("dead segments were not recycled: {error}");
        }
    }

    fn recycle_dead_segments(&self) -> Result<(), LogError> {
        // Pins first: once a sealed segment has none, nothing can come alive in it any more.
        let views = self.log.segments().views();
        let is_idle = |view: &&SegmentView| {
            view.state == SegmentState::Sealed && view.pins == 0 && !view.is_partly_unread()
        };
        let idle = views.iter().filter(is_idle);
        for view in idle.filter(|view| self.index.live_bytes(view.number) == 0) {
            self.log.recycler().recycle(view.number, DEAD_PATIENCE, || {
                self.index.drop_segment(view.number, view.epoch);
            })?;
        }
        Ok(())
    }
}

/// Blocks that are read in one piece.
pub(crate) fn blocks_at_once(block_bytes: usize) -> usize {
    (READ_BYTES / block_bytes).max(1)
}

fn is_of(extent: &Extent, lineage: (NamespaceId, dalsegno_core::ChainHash)) -> bool {
    (extent.namespace, extent.lineage) == lineage
}

/// All blocks of a row.
fn spots(row: &[&Extent]) -> Vec<Spot> {
    let of = |(at, extent): (usize, &&Extent)| {
        (0..extent.block_count()).map(move |block| (at, block)).collect::<Vec<_>>()
    };
    row.iter().enumerate().flat_map(of).collect()
}
