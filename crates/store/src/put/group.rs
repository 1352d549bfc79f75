//! The extents of one put that are written together.

use std::sync::Arc;

use dalsegno_core::{ChainHash, DramAdmission, Limits, Namespace, NamespaceId, Result};
use dalsegno_extent::{CompressedExtent, NewExtent};
use dalsegno_index::Placement;
use dalsegno_io::{Call, Memory};
use dalsegno_log::{Append, Log, LogError, Payload};

use crate::error::to_error;
use crate::keep::Keep;
use crate::namespaces::table::NamespaceTable;
use crate::put::publish::ExtentPublisher;
use crate::put::stretch::{Stretch, stretches};
use crate::rewrite::space::SpaceLane;
use crate::state::arena::PlacedBlock;
use crate::state::dram::Dram;
use crate::state::recent_removals::{RecentRemovals, RemovalMark};

/// The names of an extent's blocks.
struct BlockNames {
    /// The position in the chain of the first one.
    first: usize,
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

/// Writes the extents of puts.
#[derive(Debug)]
pub(crate) struct ExtentWriter {
    pub(crate) log: Log,
    pub(crate) publisher: ExtentPublisher,
    pub(crate) space: Arc<SpaceLane>,
    pub(crate) dram: Arc<Dram>,
    /// What was removed lately.
    pub(crate) removals: Arc<RecentRemovals>,
    /// How new extents are stored.
    pub(crate) namespaces: Arc<NamespaceTable>,
    pub(crate) limits: Arc<Limits>,
}

impl ExtentWriter {
    /// Splits the wanted blocks of a put into runs that fit an extent.
    pub(super) fn stretches(&self, wanted: &[bool], namespace: &Namespace) -> Vec<Stretch> {
        stretches(wanted, namespace, &self.limits)
    }
}

/// Extents of one put that are written together.
pub(super) struct Group<'a> {
    writer: &'a ExtentWriter,
    call: &'a Call,
    /// From before the put.
    mark: RemovalMark,
    /// Extents with reserved space.
    waiting: Vec<Append>,
    /// The names of their blocks.
    names: Vec<BlockNames>,
    bytes: u64,
    /// Where the next extent goes if it continues the last one, which the index does not know yet.
    next: Option<(usize, Placement)>,
    stored: Vec<(usize, usize)>,
}

impl<'a> Group<'a> {
    pub(super) fn new(writer: &'a ExtentWriter, call: &'a Call, mark: RemovalMark) -> Self {
        let (waiting, names, stored) = (Vec::new(), Vec::new(), Vec::new());
        Self { writer, call, mark, waiting, names, bytes: 0, next: None, stored }
    }

    /// Reserves space for one more extent; frees some first if needed. An extent without space is left out. `placed`
    /// has the same blocks in their places in DRAM, as far as they have one; it may be empty.
    pub(super) fn add(
        &mut self,
        namespace: &Namespace,
        chain: &[ChainHash],
        first: usize,
        blocks: Vec<Vec<Memory>>,
        placed: &[Option<Arc<PlacedBlock>>],
    ) -> Result<()> {
        let writer = self.writer;
        let count = blocks.len();
        let hashes = chain[first..first + count].to_vec();
        let mut extent =
            writer.publisher.new_extent(namespace, chain, first, hashes, self.call.deadline);
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
        if self.bytes + bytes > writer.limits.segment_bytes / 2 {
            self.write()?;
        }
        let place = match writer.space.reserve(bytes, self.call) {
            Ok(place) => place,
            Err(error) => return not_put(count, &error),
        };
        // Removed between the mark and the reservation: the log takes such blocks for newer ones. A removal after the
        // reservation hides them.
        let removals = &writer.removals;
        if !removals.removed_since(self.mark, extent.namespace, &extent.hashes).is_empty() {
            tracing::debug!(
                blocks = count,
                "blocks not stored: some of them were removed meanwhile"
            );
            writer.log.writer().give_up(&place);
            return Ok(());
        }
        self.bytes += bytes;
        let (namespace, hashes) = (extent.namespace, extent.hashes.clone());
        if writer.limits.dram_admission == DramAdmission::Put {
            let dram = &writer.dram;
            for (at, (hash, block)) in extent.hashes.iter().zip(&blocks).enumerate() {
                let key = (extent.namespace, *hash);
                let is_removed = || removals.is_removed_since(self.mark, &key);
                // The log has the block in any case.
                let _ = match placed.get(at).and_then(Option::as_ref) {
                    Some(placed) => dram.keep(key, Arc::clone(placed), Keep::Stored, is_removed),
                    None => dram.insert(key, block, Keep::Stored, is_removed),
                };
            }
        }
        let payload = compressed.map_or(Payload::Plain(blocks), Payload::Compressed);
        self.waiting.push(Append::new(extent, payload, place));
        self.names.push(BlockNames { first, namespace, hashes });
        Ok(())
    }

    /// Compresses an extent if its namespace asks for that. Waiting compressed extents hold memory, so they are written
    /// before this call waits for more.
    fn compress(&mut self, extent: &NewExtent, blocks: &[Vec<Memory>]) -> Result<Encoding> {
        let compression = self.writer.namespaces.compression(extent.namespace);
        if compression.is_plain() {
            return Ok(Encoding::Plain);
        }
        let log = &self.writer.log;
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

    /// Removes copies from DRAM of blocks that did not become visible.
    fn forget(&self, names: &BlockNames) {
        self.writer.dram.remove_copies(names.namespace, &names.hashes);
    }

    /// Writes what waits and makes it visible.
    fn write(&mut self) -> Result<()> {
        self.bytes = 0;
        let (waiting, names) = (std::mem::take(&mut self.waiting), std::mem::take(&mut self.names));
        let mut outcome = Ok(());
        let results = self.writer.log.writer().append(waiting, self.call);
        for (names, result) in names.into_iter().zip(results) {
            let (first, count) = (names.first, names.hashes.len());
            match result {
                Ok(appended) => {
                    if self.writer.publisher.publish(appended, self.call, self.mark) {
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
    pub(super) fn finish(mut self) -> Result<Vec<(usize, usize)>> {
        self.write()?;
        Ok(std::mem::take(&mut self.stored))
    }
}

impl Drop for Group<'_> {
    /// A put that ends with an error removes from DRAM the blocks that it had not written by then.
    fn drop(&mut self) {
        self.names.iter().for_each(|names| self.forget(names));
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
