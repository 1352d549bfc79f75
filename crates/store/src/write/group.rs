//! The extents of one put that are written together.

use std::sync::Arc;

use dalsegno_core::{ChainHash, DramAdmission, Namespace, NamespaceId, Result};
use dalsegno_extent::{CompressedExtent, NewExtent};
use dalsegno_index::Placement;
use dalsegno_io::{Call, Memory};
use dalsegno_log::{Append, LogError, Payload};

use crate::engine::Engine;
use crate::error::to_error;
use crate::rewrite::space::SpaceLane;
use crate::state::arena::PlacedBlock;
use crate::state::recent_removals::RemovalMark;
use crate::upkeep::merger::Merger;
use crate::write::publish::{new_extent, publish};

/// The blocks of an extent.
pub(crate) struct GroupBlocks<'a> {
    pub(crate) memory: Vec<Vec<Memory>>,
    /// The same blocks in their places in DRAM, as far as they have one; may be empty.
    pub(crate) placed: &'a [Option<Arc<PlacedBlock>>],
}

/// An extent with reserved space.
struct WaitingExtent {
    /// The position in the chain of its first block.
    first: usize,
    append: Append,
    names: BlockNames,
}

/// The names of an extent's blocks.
struct BlockNames {
    namespace: NamespaceId,
    hashes: Vec<ChainHash>,
}

/// How the payload of an extent is stored.
enum Encoding {
    Plain,
    Compressed(CompressedExtent),
    /// It could not be compressed within the terms of the call.
    Failed(LogError),
}

/// Extents of one put that are written together.
pub(crate) struct Group<'a> {
    engine: &'a Engine,
    space: &'a SpaceLane,
    merger: &'a Merger,
    call: &'a Call,
    /// From before the put.
    mark: RemovalMark,
    waiting: Vec<WaitingExtent>,
    bytes: u64,
    /// Where the next extent goes if it continues the last one, which the index does not know yet.
    next: Option<(usize, Placement)>,
    stored: Vec<(usize, usize)>,
}

impl<'a> Group<'a> {
    pub(crate) fn new(
        engine: &'a Engine,
        space: &'a SpaceLane,
        merger: &'a Merger,
        call: &'a Call,
        mark: RemovalMark,
    ) -> Self {
        let (waiting, stored) = (Vec::new(), Vec::new());
        Self { engine, space, merger, call, mark, waiting, bytes: 0, next: None, stored }
    }

    /// Reserves space for one more extent; frees some first if needed. An extent without space is left out.
    pub(crate) fn add(
        &mut self,
        namespace: &Namespace,
        chain: &[ChainHash],
        first: usize,
        GroupBlocks { memory: blocks, placed }: GroupBlocks<'_>,
    ) -> Result<()> {
        let count = blocks.len();
        let hashes = chain[first..first + count].to_vec();
        let mut extent =
            new_extent(self.engine, namespace, chain, first, hashes, self.call.deadline);
        if let Some((_, place)) = self.next.filter(|(next, _)| *next == first) {
            (extent.lineage, extent.first_block_index) = (place.lineage, place.first_block_index);
        }
        let blocks_in_extent = u32::try_from(count).expect("bounded by MAX_EXTENT_BLOCKS");
        let lineage = extent.lineage;
        let first_block_index = extent.first_block_index.saturating_add(blocks_in_extent);
        self.next = Some((first + count, Placement { lineage, first_block_index }));
        let compressed = match self.compress(&extent, &blocks)? {
            Encoding::Plain => None,
            Encoding::Compressed(compressed) => Some(compressed),
            Encoding::Failed(error) => return not_put(count, &error),
        };
        let plain_bytes = extent.total_bytes();
        let bytes = compressed.as_ref().map_or(plain_bytes, |one| one.total_bytes(&extent));
        // Reserved space pins its segments, so a large put must release them before space runs out.
        if self.bytes + bytes > self.engine.limits.segment_bytes / 2 {
            self.write()?;
        }
        let place = match self.space.reserve(bytes, self.call) {
            Ok(place) => place,
            Err(error) => return not_put(count, &error),
        };
        // Removed between the mark and the reservation: the log takes such blocks for newer ones. A removal after the
        // reservation hides them.
        let removals = &self.engine.front.removals;
        if !removals.removed_since(self.mark, extent.namespace, &extent.hashes).is_empty() {
            tracing::debug!(
                blocks = count,
                "blocks not stored: some of them were removed meanwhile"
            );
            self.engine.log.writer().give_up(&place);
            return Ok(());
        }
        self.bytes += bytes;
        let (namespace, hashes) = (extent.namespace, extent.hashes.clone());
        if self.engine.limits.dram_admission == DramAdmission::Put {
            let dram = &self.engine.front.dram;
            for (at, (hash, block)) in extent.hashes.iter().zip(&blocks).enumerate() {
                let key = (extent.namespace, *hash);
                match placed.get(at).and_then(Option::as_ref) {
                    Some(placed) => dram.keep(key, Arc::clone(placed)),
                    None => dram.insert(key, block),
                }
            }
        }
        let payload = compressed.map_or(Payload::Plain(blocks), Payload::Compressed);
        let append = Append::new(extent, payload, place);
        self.waiting.push(WaitingExtent { first, append, names: BlockNames { namespace, hashes } });
        Ok(())
    }

    /// Compresses an extent if its namespace asks for that. Waiting compressed extents hold memory, so they are written
    /// before this call waits for more.
    fn compress(&mut self, extent: &NewExtent, blocks: &[Vec<Memory>]) -> Result<Encoding> {
        let compression = self.engine.namespaces.compression(extent.namespace);
        if compression.is_plain() {
            return Ok(Encoding::Plain);
        }
        let log = &self.engine.log;
        let budget = if let Some(budget) = log.compressor().try_budget(extent) {
            Ok(budget)
        } else {
            self.write()?;
            log.compressor().budget(extent, self.call)
        };
        let encode =
            |budget| log.compressor().compress(extent, blocks, compression, budget, self.call);
        Ok(match budget.and_then(encode) {
            Ok(Some(compressed)) => Encoding::Compressed(compressed),
            Ok(None) => Encoding::Plain,
            Err(error) => Encoding::Failed(error.into()),
        })
    }

    /// Removes blocks from DRAM that did not become visible.
    fn forget(&self, names: &BlockNames) {
        self.engine.front.dram.remove(names.namespace, &names.hashes);
    }

    /// Writes what waits and makes it visible.
    fn write(&mut self) -> Result<()> {
        self.bytes = 0;
        let waiting = std::mem::take(&mut self.waiting);
        let mut places = Vec::with_capacity(waiting.len());
        let mut appends = Vec::with_capacity(waiting.len());
        for WaitingExtent { first, append, names } in waiting {
            places.push((first, names));
            appends.push(append);
        }
        let mut outcome = Ok(());
        for (place, result) in
            places.into_iter().zip(self.engine.log.writer().append(appends, self.call))
        {
            let (first, names) = place;
            let count = names.hashes.len();
            match result {
                Ok(appended) => {
                    if publish(self.engine, self.merger, appended, (self.call, self.mark)) {
                        self.stored.push((first, count));
                    } else {
                        self.forget(&names);
                    }
                }
                Err(error) => {
                    self.forget(&names);
                    outcome = outcome.and(not_put(count, &error));
                }
            }
        }
        outcome
    }

    /// Writes the rest; returns position and count of the stored blocks.
    pub(crate) fn finish(mut self) -> Result<Vec<(usize, usize)>> {
        self.write()?;
        Ok(std::mem::take(&mut self.stored))
    }
}

impl Drop for Group<'_> {
    /// A put that ends with an error removes from DRAM the blocks that it had not written by then.
    fn drop(&mut self) {
        for waiting in &self.waiting {
            self.forget(&waiting.names);
        }
    }
}

/// Handles an extent that was not written: its blocks count as failed, unless writing has stopped.
fn not_put(blocks: usize, error: &LogError) -> Result<()> {
    tracing::debug!(blocks, %error, "blocks not stored");
    match error {
        LogError::Poisoned => Err(to_error(LogError::Poisoned)),
        _ => Ok(()),
    }
}
