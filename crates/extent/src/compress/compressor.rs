//! Compresses extents before they are written.
//!
//! 1. An extent is compressed as a whole before space is reserved for it, so it takes exactly the space that it needs.
//!    An extent that shrinks by less than a twentieth stays plain, so compression never costs space.
//! 2. The compressor sums the caller's slices before it compresses them. The checksums prove at every read that nothing
//!    was lost.
//! 3. The caller's thread does the work. It stops between two layers when its call ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dalsegno_core::{Clock, Compression, KvLayout, SECTOR_BYTES, Stopped};
use dalsegno_io::{Call, Memory};

use super::budget::{BudgetPool, CompressionBudget};
use super::codec_pool::CodecPool;
use super::unit_codec::UnitCodec;
use crate::format::{NewExtent, StoredUnit, Units, compressed_header_bytes, unit_count};
use crate::stats::TransferStats;

/// Raw bytes of a unit, if slices allow. Larger units shrink no better, and a read of few blocks decompresses more.
const UNIT_BYTES: u32 = 64 << 10;
/// A compressed extent takes at most 20 of 21 bytes of the plain one: a ratio of 1.05.
const MOST_SHARE: (u64, u64) = (20, 21);
/// Alignment of memory for direct I/O.
const ALIGN: usize = 4096;

/// The bytes of a compressed extent, aligned for direct I/O.
#[derive(Debug)]
pub struct CompressedExtent {
    /// crc32c of every slice before compression, layer-major.
    pub slice_crcs: Vec<u32>,
    /// The units and their places.
    pub units: Units,
    /// The compressed bytes, whole sectors.
    pub payload: Memory,
}

impl CompressedExtent {
    /// Bytes of header and payload if `extent` is written like this.
    #[must_use]
    pub fn total_bytes(&self, extent: &NewExtent) -> u64 {
        let header = compressed_header_bytes(
            extent.block_count(),
            extent.layout.layers(),
            self.units.count(),
        );
        u64::from(header) + self.units.payload_bytes()
    }
}

/// Compresses the extents of one log.
#[derive(Debug)]
pub struct Compressor {
    clock: Arc<dyn Clock>,
    stats: Arc<TransferStats>,
    codecs: Arc<CodecPool>,
    budgets: Arc<BudgetPool>,
    /// Whether the store's header says that the store may hold compressed extents.
    is_allowed: AtomicBool,
}

impl Compressor {
    /// A compressor whose results take at most `budget_bytes` until they are written. It compresses nothing until it is
    /// allowed to.
    #[must_use]
    pub fn new(
        clock: Arc<dyn Clock>,
        stats: Arc<TransferStats>,
        codecs: Arc<CodecPool>,
        budget_bytes: u64,
        is_allowed: bool,
    ) -> Self {
        let budgets = BudgetPool::new(budget_bytes);
        Self { clock, stats, codecs, budgets, is_allowed: AtomicBool::new(is_allowed) }
    }

    /// Whether the store's header allows compressed extents.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.is_allowed.load(Ordering::Acquire)
    }

    /// Compresses from now on, because the store's header allows it.
    pub fn allow(&self) {
        self.is_allowed.store(true, Ordering::Release);
    }

    /// Memory for compressing `extent`, if there is enough now.
    #[must_use]
    pub fn try_budget(&self, extent: &NewExtent) -> Option<CompressionBudget> {
        self.budgets.try_take(extent.total_bytes())
    }

    /// Memory for compressing `extent`, waited for within the call's terms. The caller must hold no other budget.
    ///
    /// # Errors
    ///
    /// [`Stopped::Deadline`] or [`Stopped::Cancelled`].
    pub fn budget(&self, extent: &NewExtent, call: &Call) -> Result<CompressionBudget, Stopped> {
        self.budgets.take(extent.total_bytes(), call, self.clock.as_ref())
    }

    /// Memory for one extent outside the bound. Only the threads that reclaim and merge may use it: they make space
    /// for callers that hold budgets, so they must not wait for one.
    #[must_use]
    pub fn own_budget(&self) -> CompressionBudget {
        self.budgets.unbounded()
    }

    /// Compresses an extent; `None` if it does not shrink enough, or if this store may not hold compressed extents.
    /// `blocks` are as for [`Append::new`](crate::Append::new).
    ///
    /// # Errors
    ///
    /// [`Stopped::Deadline`] or [`Stopped::Cancelled`] if the call ends first.
    ///
    /// # Panics
    ///
    /// If a block has fewer bytes than its layout says.
    pub fn compress(
        &self,
        extent: &NewExtent,
        blocks: &[Vec<Memory>],
        compression: Compression,
        budget: CompressionBudget,
        call: &Call,
    ) -> Result<Option<CompressedExtent>, Stopped> {
        if compression.is_plain() || !self.is_allowed() {
            return Ok(None);
        }
        let started = self.clock.now();
        let compressed = match UnitPlan::of(extent, compression) {
            Some(plan) => {
                let check = || call.check(self.clock.as_ref());
                self.codecs.with(|codec| plan.compress(blocks, codec, budget, check))
            }
            None => Ok(None),
        }?;
        TransferStats::add_time(&self.stats.encode_ns, self.clock.now().since(started));
        let raw = u64::from(extent.block_count()) * extent.layout.block_bytes();
        match &compressed {
            Some(compressed) => {
                TransferStats::add(&self.stats.encoded_bytes, raw);
                TransferStats::add(
                    &self.stats.encoded_stored_bytes,
                    compressed.units.payload_bytes(),
                );
            }
            None => TransferStats::add(&self.stats.not_shrunk_bytes, raw),
        }
        Ok(compressed)
    }
}

/// How an extent is cut into units, and how many bytes it may take.
struct UnitPlan {
    compression: Compression,
    layout: KvLayout,
    unit_bytes: u32,
    unit_count: u32,
    most_bytes: usize,
}

impl UnitPlan {
    /// `None` if the extent would have too many units, or is too small to shrink by a whole sector.
    fn of(extent: &NewExtent, compression: Compression) -> Option<Self> {
        let (layout, blocks) = (extent.layout, extent.block_count());
        let slice = layout.slice_bytes();
        let unit_bytes = if slice > UNIT_BYTES { UNIT_BYTES } else { UNIT_BYTES / slice * slice };
        let unit_count = unit_count(layout, blocks, unit_bytes)?;
        let header = compressed_header_bytes(blocks, layout.layers(), unit_count);
        let most = extent.total_bytes() * MOST_SHARE.0 / MOST_SHARE.1;
        let most = most.checked_sub(u64::from(header))?;
        let most_bytes = usize::try_from(most - most % SECTOR_BYTES).ok()?;
        Some(Self { compression, layout, unit_bytes, unit_count, most_bytes })
    }

    /// Compresses all blocks; `None` as soon as the result is too large. `check` runs after each layer.
    fn compress(
        &self,
        blocks: &[Vec<Memory>],
        codec: &mut UnitCodec,
        budget: CompressionBudget,
        check: impl Fn() -> Result<(), Stopped>,
    ) -> Result<Option<CompressedExtent>, Stopped> {
        let unit_bytes = self.unit_bytes as usize;
        // The vector never grows, so its alignment stays.
        let bytes: Vec<u8> = Vec::with_capacity(self.most_bytes + 2 * unit_bytes + 2 * ALIGN);
        let skew = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        let table = Vec::with_capacity(self.unit_count as usize);
        let mut output = CompressedBytes { bytes, skew, table };
        output.bytes.resize(skew, 0);
        let mut slice_crcs = Vec::with_capacity(blocks.len() * self.layout.layers() as usize);
        let mut cursors = vec![BlockCursor::default(); blocks.len()];
        let mut unit = Vec::with_capacity(unit_bytes);
        for _ in 0..self.layout.layers() {
            for (block, cursor) in blocks.iter().zip(&mut cursors) {
                let (mut left, mut crc) = (self.layout.slice_bytes() as usize, 0);
                while left > 0 {
                    let from = unit.len();
                    left -= cursor.copy(block, left.min(unit_bytes - from), &mut unit);
                    crc = dalsegno_core::crc32c_append(crc, &unit[from..]);
                    if unit.len() == unit_bytes && !output.push(self, codec, &mut unit) {
                        return Ok(None);
                    }
                }
                slice_crcs.push(crc);
            }
            if !unit.is_empty() && !output.push(self, codec, &mut unit) {
                return Ok(None);
            }
            check()?;
        }
        assert_eq!(output.table.len(), self.unit_count as usize, "units of an extent");
        let (compression, unit_bytes) = (self.compression, self.unit_bytes);
        let units = Units { compression, unit_bytes, table: output.table };
        output.bytes.resize(skew + usize::try_from(units.payload_bytes()).expect("bounded"), 0);
        let mut payload = Memory::owned(output.bytes, budget);
        drop(payload.split_to(skew));
        Ok(Some(CompressedExtent { slice_crcs, units, payload }))
    }
}

/// The next bytes of a block.
#[derive(Clone, Default)]
struct BlockCursor {
    piece: usize,
    at: usize,
}

impl BlockCursor {
    /// Appends up to `bytes` of the block's next bytes, and returns how many.
    fn copy(&mut self, block: &[Memory], bytes: usize, out: &mut Vec<u8>) -> usize {
        while block[self.piece].len() == self.at {
            (self.piece, self.at) = (self.piece + 1, 0);
        }
        let rest = &block[self.piece].as_slice()[self.at..];
        let part = &rest[..rest.len().min(bytes)];
        out.extend_from_slice(part);
        self.at += part.len();
        part.len()
    }
}

/// The compressed bytes so far.
struct CompressedBytes {
    bytes: Vec<u8>,
    skew: usize,
    table: Vec<StoredUnit>,
}

impl CompressedBytes {
    /// Compresses one unit and empties it; `false` if the extent has become too large.
    fn push(&mut self, plan: &UnitPlan, codec: &mut UnitCodec, unit: &mut Vec<u8>) -> bool {
        let start = self.bytes.len();
        codec.encode(unit, plan.compression.element_bytes() as usize, &mut self.bytes);
        unit.clear();
        let stored = &self.bytes[start..];
        let bytes = u32::try_from(stored.len()).expect("no longer than the unit");
        self.table.push(StoredUnit { bytes, crc: dalsegno_core::crc32c(stored) });
        self.bytes.len() - self.skew <= plan.most_bytes
    }
}
