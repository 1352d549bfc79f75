//! Reading stored blocks to write or check them again: for eviction, merging, scrubbing and filling the index.

use std::collections::BTreeMap;
use std::sync::Arc;

use dalsegno_core::{Class, Compression, Extent};
use dalsegno_extent::{BlockOutcome, BlockTarget, Cause, CompressedExtent, ExtentRead, NewExtent};
use dalsegno_index::Unread;
use dalsegno_io::{Call, Memory, lend};
use dalsegno_log::{Log, LogError};

use crate::blocks::indexed_log::IndexedLog;
use crate::rewrite::rows::Spot;

/// Bytes of blocks that are read in one piece.
const READ_BYTES: usize = 2 << 20;
/// The alignment that direct I/O requires of memory.
const ALIGN: usize = 4096;
/// After so many second reads in a row that fail as if the device did, the device counts as failing.
const MOST_FAILED_RETRIES: u32 = 4;

/// Aligned memory for blocks, kept while there is more to do.
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

/// How many blocks are read in one piece.
pub(crate) fn blocks_at_once(block_bytes: usize) -> usize {
    (READ_BYTES / block_bytes).max(1)
}

/// Compresses an extent that is written again as its namespace asks now, whatever it was before. Only the thread that
/// frees space and the one that merges call this.
pub(super) fn compress_again(
    log: &Log,
    compression: Compression,
    extent: &NewExtent,
    blocks: &[Vec<Memory>],
) -> Result<Option<CompressedExtent>, LogError> {
    let budget = log.compressor().own_budget();
    let call = Call::of(Class::Save);
    Ok(log.compressor().compress(extent, blocks, compression, budget, &call)?)
}

/// The blocks of a row of extents that the index finds there and that no removal has announced.
///
/// # Errors
///
/// If the index cannot be read.
pub(crate) fn visible_blocks(stored: &IndexedLog, row: &[&Extent]) -> Result<Vec<Spot>, Unread> {
    let mut spots = Vec::new();
    for (at, extent) in row.iter().enumerate() {
        let live = stored.index.live_blocks(extent)?;
        let (born, hashes) = (extent.born, &extent.hashes);
        let removed = stored.log.removals().removed_since(extent.namespace, born, hashes);
        let blocks = (0_u32..).zip(extent.hashes.iter().zip(live));
        let visible = blocks.filter(|(_, (hash, live))| *live && !removed.contains(hash));
        spots.extend(visible.map(|(block, _)| (at, block)));
    }
    Ok(spots)
}

/// Reads whole blocks of a row of extents in parallel into `bytes`; `wanted` is in the order of the row.
pub(crate) fn read_blocks(
    log: &Log,
    row: &[&Extent],
    wanted: &[Spot],
    bytes: &mut [u8],
    class: Class,
) -> Vec<BlockOutcome> {
    let block_bytes = bytes.len() / wanted.len();
    let mut outcomes = read_spots(log, row, wanted, bytes, class);
    // On a bad disk one call does not look into every failed read. On a disk that fails completely no call does.
    let is_unsure = |outcome: &BlockOutcome| outcome.is_err_and(|cause| !cause.is_damage());
    let mut failed = 0;
    for (at, target) in bytes.chunks_exact_mut(block_bytes).enumerate() {
        if failed < MOST_FAILED_RETRIES && is_unsure(&outcomes[at]) {
            outcomes[at] = read_spots(log, row, &wanted[at..=at], target, class).remove(0);
            failed = if is_unsure(&outcomes[at]) { failed + 1 } else { 0 };
        }
    }
    outcomes
}

/// The damaged blocks of one extent, and why.
pub(crate) fn damaged_of(wanted: &[Spot], outcomes: &[BlockOutcome]) -> Vec<(u32, Cause)> {
    let found = wanted.iter().zip(outcomes).filter_map(|((_, block), outcome)| {
        let cause = outcome.err()?;
        cause.is_damage().then_some((*block, cause))
    });
    found.collect()
}

fn read_spots(
    log: &Log,
    row: &[&Extent],
    wanted: &[Spot],
    bytes: &mut [u8],
    class: Class,
) -> Vec<BlockOutcome> {
    let block_bytes = bytes.len() / wanted.len();
    lend(|lender| {
        let mut reads: BTreeMap<usize, ExtentRead> = BTreeMap::new();
        for ((at, block), memory) in wanted.iter().zip(bytes.chunks_exact_mut(block_bytes)) {
            let read = reads.entry(*at).or_insert_with(|| {
                let extent = Arc::new(row[*at].clone());
                ExtentRead { layers: 0..extent.layout.layers(), extent, targets: Vec::new() }
            });
            read.targets.push(BlockTarget {
                block: *block,
                number: 0,
                memory: vec![lender.exclusive(memory)],
                outlives_call: false,
                copy: Vec::new(),
            });
        }
        let results = log.read(reads.into_values().collect(), &Call::of(class));
        results.into_iter().flatten().map(|block| block.outcome).collect()
    })
}
