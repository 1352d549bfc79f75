//! One merge: neighbours of a lineage become one long, layer-major extent.
//!
//! 1. Every slice is verified before it is written again. A block with a bad slice is quarantined, and nothing is
//!    merged.
//! 2. The new extent is durable before the index refers to it. The index changes all references in one step; blocks
//!    that were removed, evicted or moved meanwhile stay so.
//! 3. After the space is reserved, the visible blocks are read once more. A removal is either seen then, or it comes
//!    after the new extent was born and hides it at the next open too.
//! 4. A merge uses free space, or a segment without live extents. Nothing is evicted for it.
//! 5. Before each read of a piece, and before the write of the whole, it yields to reads, within bounds.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Class, Deadline, Extent, NamespaceId};
use dalsegno_extent::Cause;
use dalsegno_index::{ScanPlace, Unread};
use dalsegno_io::{Call, IoError, Memory, StopSignal, lend};
use dalsegno_log::{Append, Appended, LogError, Payload, SpaceUse};
use dalsegno_policy::merging::{Due, MergeRules, Piece, choose, fresh_and_moved};

use crate::blocks::dropper::Dropper;
use crate::blocks::indexed_log::IndexedLog;
use crate::counters::{Counters, MergeCounters, add};
use crate::namespaces::table::NamespaceTable;
use crate::rewrite::copy::{
    RowBuffer, blocks_at_once, compress_again, read_blocks, visible_blocks,
};
use crate::rewrite::reclaimer::{RECLAIM_ATTEMPTS, Reclaimer};
use crate::rewrite::rows::{Spot, follows, most_blocks, part_of};
use crate::rewrite::space::SpaceLane;

/// Most extents of a lineage that are looked at.
const MOST_EXTENTS: usize = 1024;

/// Why nothing was merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skip {
    /// No space without evicting something.
    NoSpace,
    /// Blocks were removed, evicted or moved meanwhile.
    Changed,
    /// Bad bytes were found.
    Damaged,
    /// The device failed, or writing has stopped.
    Failed,
}

impl From<Unread> for Skip {
    fn from(error: Unread) -> Self {
        tracing::debug!(%error, "merge skipped");
        Self::Failed
    }
}

impl From<LogError> for Skip {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Full | LogError::TooLarge { .. } => Self::NoSpace,
            error => {
                tracing::debug!(%error, "merge skipped");
                Self::Failed
            }
        }
    }
}

impl Skip {
    pub(crate) fn count(self, counters: &MergeCounters) {
        let counter = match self {
            Self::NoSpace => &counters.no_space,
            Self::Changed => &counters.changed,
            Self::Damaged => &counters.damaged,
            Self::Failed => &counters.failed,
        };
        add(counter, 1);
    }

    /// Whether other lineages would fail too.
    pub(crate) fn is_of_the_store(self) -> bool {
        matches!(self, Self::NoSpace | Self::Failed)
    }
}

/// What merges use.
#[derive(Debug)]
pub(crate) struct RowMerger {
    pub(crate) stored: Arc<IndexedLog>,
    /// How extents are stored from now on.
    pub(crate) namespaces: Arc<NamespaceTable>,
    pub(crate) dropper: Arc<Dropper>,
    pub(crate) space: Arc<SpaceLane>,
    pub(crate) counters: Arc<Counters>,
}

/// The bytes that one merge wrote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Merged {
    /// Of extents that puts wrote.
    pub(crate) fresh_bytes: u64,
    /// Of extents that were merged or moved before.
    pub(crate) moved_bytes: u64,
}

/// Merges of one lineage.
pub(crate) struct Merge<'a> {
    pub(crate) rows: &'a RowMerger,
    pub(crate) rules: &'a MergeRules,
    /// Says whether the store is being closed.
    pub(crate) stop: &'a StopSignal,
}

impl Merge<'_> {
    /// Merges the extents of a lineage that [`choose`] selects next; `None` if there is nothing to merge.
    pub(crate) fn next_of(
        &self,
        due: &Due,
        spare_bytes: u64,
        buffer: &mut RowBuffer,
    ) -> Result<Option<Merged>, Skip> {
        let extents = self.lineage(due);
        let Some(first) = extents.first() else { return Ok(None) };
        self.rows.stored.log.check_writable()?;
        let pieces = self.pieces(&extents);
        let most = most_blocks(first.layout.layers());
        let Some(run) = choose(&pieces, due.is_quiet, self.rules, most, spare_bytes) else {
            return Ok(None);
        };
        let (fresh_bytes, moved_bytes) = fresh_and_moved(&pieces[run.clone()]);
        let row: Vec<&Extent> = extents[run].iter().map(Arc::as_ref).collect();
        self.merge_row(&row, buffer)?;
        let counters = &self.rows.counters.merging;
        add(&counters.merges, 1);
        add(&counters.extents, row.len() as u64);
        add(&counters.bytes, fresh_bytes + moved_bytes);
        Ok(Some(Merged { fresh_bytes, moved_bytes }))
    }

    /// The extents of a lineage in order: all of them, or those of the pile if the lineage still grows.
    fn lineage(&self, due: &Due) -> Vec<Arc<Extent>> {
        let (namespace, lineage) = due.lineage;
        let first = if due.is_quiet { 0 } else { due.first };
        let mut from = ScanPlace { namespace, lineage, first };
        let mut extents: Vec<Arc<Extent>> = Vec::new();
        // Only a few more than there should be: behind them come other lineages.
        let page = due.extents.clamp(8, MOST_EXTENTS) + 8;
        while extents.len() < MOST_EXTENTS {
            let found = self.rows.stored.index.scan(from, page);
            let is_last = found.len() < page;
            let count = extents.len();
            let is_ours = |extent: &Arc<Extent>| is_of(extent, due.lineage);
            extents.extend(found.into_iter().take_while(is_ours));
            let next = extents.last().and_then(|last| ScanPlace::behind(last));
            match next {
                Some(next) if !is_last && extents.len() - count == page => from = next,
                _ => break,
            }
        }
        extents
    }

    fn pieces(&self, extents: &[Arc<Extent>]) -> Vec<Piece> {
        let index = &self.rows.stored.index;
        let mut pieces = Vec::with_capacity(extents.len());
        for (at, extent) in extents.iter().enumerate() {
            let bytes = u64::from(extent.block_count()) * extent.layout.block_bytes();
            // An extent that is too large is not merged, however many of its blocks are visible.
            let is_whole = self.rules.is_small(bytes)
                && index.live_blocks(extent).is_ok_and(|live| !live.contains(&false));
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

    fn merge_row(&self, row: &[&Extent], buffer: &mut RowBuffer) -> Result<(), Skip> {
        let all = spots(row);
        let new = part_of(row, &all, None);
        self.find_space(new.total_bytes())?;
        let block_bytes = usize::try_from(new.layout.block_bytes()).expect("64-bit addresses");
        let bytes = buffer.of(all.len() * block_bytes);
        self.read_row(row, &all, bytes)?;
        let RowMerger { stored, namespaces, .. } = self.rows;
        let compression = namespaces.compression(new.namespace);
        let call = Call::of(Class::Upkeep);
        let appended = lend(|lender| {
            let blocks = bytes.chunks_exact(block_bytes).map(|block| vec![lender.shared(block)]);
            let blocks: Vec<Vec<Memory>> = blocks.collect();
            let compressed = compress_again(&stored.log, compression, &new, &blocks)?;
            let payload = compressed.map_or(Payload::Plain(blocks), Payload::Compressed);
            let writer = stored.log.writer();
            let born = new.born.expect("merged blocks were put before");
            let place = writer.reserve(payload.total_bytes(&new), SpaceUse::Merge { born })?;
            let goes_on = match visible_blocks(stored, row) {
                Ok(visible) if visible == all => self.check_open(),
                Ok(_) => Err(Skip::Changed),
                Err(error) => Err(error.into()),
            };
            if let Err(skip) = goes_on {
                writer.give_up(&place);
                return Err(skip);
            }
            let appended = writer.append(vec![Append::new(new, payload, place)], &call).remove(0);
            appended.map_err(Skip::from)
        })?;
        self.refer_to(row, appended, &call);
        Ok(())
    }

    /// Reads a row piece by piece; fails if any of it is bad.
    fn read_row(&self, row: &[&Extent], all: &[Spot], bytes: &mut [u8]) -> Result<(), Skip> {
        let block_bytes = bytes.len() / all.len();
        let at_once = blocks_at_once(block_bytes);
        let parts = all.chunks(at_once).zip(bytes.chunks_mut(at_once * block_bytes));
        for (spots, bytes) in parts {
            self.check_open()?;
            let outcomes = read_blocks(&self.rows.stored.log, row, spots, bytes, Class::Upkeep);
            for (spot, outcome) in spots.iter().zip(outcomes) {
                match outcome {
                    Ok(()) => {}
                    Err(cause) if cause.is_damage() => {
                        let damaged = [(spot.1, cause)];
                        self.rows.dropper.quarantine(row[spot.0], &damaged, Deadline::Never);
                        return Err(Skip::Damaged);
                    }
                    Err(Cause::Recycled) => return Err(Skip::Changed),
                    Err(_) => return Err(Skip::Failed),
                }
            }
        }
        Ok(())
    }

    /// Lets the index refer to the new extent where it still refers to the old ones.
    fn refer_to(&self, row: &[&Extent], appended: Appended, call: &Call) {
        let IndexedLog { log, index, care } = self.rows.stored.as_ref();
        let Appended { extent, pin } = appended;
        care.before_write(call);
        // The old references stay if the index cannot read them.
        let moved = index.replace(row, vec![extent.clone()]).unwrap_or_default();
        if moved == 0 {
            log.forget(extent.id);
        }
        for old in row {
            log.forget(old.id);
        }
        drop(pin);
        care.after_write();
    }

    /// Fails if the store is being closed.
    fn check_open(&self) -> Result<(), Skip> {
        if self.stop.is_set() { Err(LogError::Io(IoError::Closed).into()) } else { Ok(()) }
    }

    /// Makes sure that there is space for `bytes`, without evicting anything.
    fn find_space(&self, bytes: u64) -> Result<(), Skip> {
        let RowMerger { stored, space, .. } = self.rows;
        let log = &stored.log;
        if log.segments().has_space_now(bytes) {
            return Ok(());
        }
        for _ in 0..RECLAIM_ATTEMPTS {
            let make_space = move |reclaimer: &Reclaimer| reclaimer.make_dead_space(bytes);
            space.run_blocking(&Call::of(Class::Upkeep), make_space)?;
            // A put may have taken the space.
            if log.segments().has_space_now(bytes) {
                return Ok(());
            }
        }
        Err(Skip::NoSpace)
    }
}

fn is_of(extent: &Extent, lineage: (NamespaceId, ChainHash)) -> bool {
    (extent.namespace, extent.lineage) == lineage
}

/// All blocks of a row.
fn spots(row: &[&Extent]) -> Vec<Spot> {
    let of = |(at, extent): (usize, &&Extent)| {
        (0..extent.block_count()).map(move |block| (at, block)).collect::<Vec<_>>()
    };
    row.iter().enumerate().flat_map(of).collect()
}
