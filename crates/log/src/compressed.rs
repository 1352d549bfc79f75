//! Compressing extents before they are written.
//!
//! 1. An extent is compressed whole before room is reserved for it, so it takes exactly the room that it needs; one
//!    that does not shrink by a twentieth is left plain, so compression never costs space.
//! 2. The checksums of slices are taken from the caller's bytes on the way, so they prove later that nothing was lost.
//! 3. What is compressed and not written yet takes no more memory than a bound. Who holds some of it never waits for
//!    more; and whoever makes room in the log, for which others wait who hold some, has an extent's worth of its own.
//! 4. The caller's thread does the work, and stops between two layers when its call is over.

use std::fmt;
use std::sync::Arc;

use dalsegno_core::{Compression, KvLayout, SECTOR_BYTES};
use dalsegno_io::Memory;
use parking_lot::{Condvar, Mutex};

use crate::append::NewExtent;
use crate::call::Call;
use crate::error::LogError;
use crate::format::{StoredUnit, Units, compressed_header_bytes, unit_count};
use crate::log::{Core, Log};
use crate::stats::LogStats;
use crate::unit_codec::UnitCodec;

/// Bytes of a unit, if slices allow. Larger ones shrink no better, and make a read of few blocks decode more.
const UNIT_BYTES: u32 = 64 << 10;
/// What a compressed extent may have of a plain one's bytes: 20 of 21, a ratio of 1.05.
const MOST_SHARE: (u64, u64) = (20, 21);
/// Codecs kept while nobody uses them.
const IDLE_CODECS: usize = 8;
const ALIGN: usize = 4096;

/// The bytes of an extent, compressed; aligned, and kept until they are written.
#[derive(Debug)]
pub struct CompressedExtent {
    pub(crate) slice_crcs: Vec<u32>,
    pub(crate) units: Units,
    pub(crate) payload: Memory,
}

/// Room in memory for the bytes of one extent while they are compressed and written.
#[derive(Debug)]
pub struct CompressionBudget {
    shared: Arc<Room>,
    bytes: u64,
}

/// How much memory compressed bytes take, and may.
#[derive(Debug)]
pub(crate) struct Room {
    bound: u64,
    used: Mutex<u64>,
    returned: Condvar,
}

/// Codecs that nobody uses at the moment.
#[derive(Default)]
pub(crate) struct UnitCodecs(Mutex<Vec<UnitCodec>>);

impl fmt::Debug for UnitCodecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnitCodecs({} idle)", self.0.lock().len())
    }
}

impl UnitCodecs {
    /// Lends a codec to `work`.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut UnitCodec) -> R) -> R {
        let idle = self.0.lock().pop();
        let mut codec = idle.unwrap_or_else(UnitCodec::new);
        let result = work(&mut codec);
        let mut idle = self.0.lock();
        if idle.len() < IDLE_CODECS {
            idle.push(codec);
        }
        result
    }
}

impl Room {
    pub(crate) fn new(bound: u64) -> Arc<Self> {
        Arc::new(Self { bound, used: Mutex::default(), returned: Condvar::new() })
    }

    /// One that is larger than all there may be gets it alone.
    fn take(self: &Arc<Self>, used: &mut u64, bytes: u64) -> Option<CompressionBudget> {
        if *used > 0 && *used + bytes > self.bound {
            return None;
        }
        *used += bytes;
        Some(CompressionBudget { shared: Arc::clone(self), bytes })
    }
}

impl Drop for CompressionBudget {
    fn drop(&mut self) {
        *self.shared.used.lock() -= self.bytes;
        self.shared.returned.notify_all();
    }
}

impl CompressedExtent {
    /// Header and payload of `extent` if it is written like this.
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

impl Log {
    /// Memory for compressing `extent`, if there is some now.
    #[must_use]
    pub fn try_compression_budget(&self, extent: &NewExtent) -> Option<CompressionBudget> {
        let room = &self.core.compression_budget;
        room.take(&mut room.used.lock(), extent.total_bytes())
    }

    /// Memory for compressing `extent`, waited for within the call's terms. The caller must hold none (invariant 3).
    ///
    /// # Errors
    ///
    /// [`LogError::Deadline`] or [`LogError::Cancelled`].
    pub fn compression_budget(
        &self,
        extent: &NewExtent,
        call: &Call,
    ) -> Result<CompressionBudget, LogError> {
        let room = &self.core.compression_budget;
        let mut used = room.used.lock();
        loop {
            if let Some(taken) = room.take(&mut used, extent.total_bytes()) {
                return Ok(taken);
            }
            match call.patience(self.core.clock.as_ref())? {
                None => room.returned.wait(&mut used),
                Some(patience) => drop(room.returned.wait_for(&mut used, patience)),
            }
        }
    }

    /// Memory for compressing one extent beside the bound: only for the thread that makes room, and the one that
    /// merges.
    #[must_use]
    pub fn own_compression_budget(&self) -> CompressionBudget {
        CompressionBudget { shared: Arc::clone(&self.core.compression_budget), bytes: 0 }
    }

    /// Compresses an extent; `None` if it would not shrink enough, or this store may hold no compressed ones. `blocks`
    /// are as for [`Append::new`](crate::Append::new).
    ///
    /// # Errors
    ///
    /// [`LogError::Deadline`] or [`LogError::Cancelled`] if the call ends before.
    ///
    /// # Panics
    ///
    /// If a block has fewer bytes than its layout says.
    pub fn encode(
        &self,
        extent: &NewExtent,
        blocks: &[Vec<Memory>],
        compression: Compression,
        room: CompressionBudget,
        call: &Call,
    ) -> Result<Option<CompressedExtent>, LogError> {
        let core = &self.core;
        if compression.is_plain() || !core.is_compressed() {
            return Ok(None);
        }
        let started = core.clock.now();
        let plan = Plan::of(extent, compression);
        let compressed = match plan {
            Some(plan) => core.codecs.with(|codec| core.encode(&plan, blocks, codec, room, call)),
            None => Ok(None),
        }?;
        let stats = &core.stats;
        LogStats::add_time(&stats.encode_ns, core.clock.now().since(started));
        let raw = u64::from(extent.block_count()) * extent.layout.block_bytes();
        match &compressed {
            Some(compressed) => {
                LogStats::add(&stats.encoded_bytes, raw);
                LogStats::add(&stats.encoded_stored_bytes, compressed.units.payload_bytes());
            }
            None => LogStats::add(&stats.not_shrunk_bytes, raw),
        }
        Ok(compressed)
    }
}

/// How an extent is cut, and what it may have at most.
struct Plan {
    compression: Compression,
    layout: KvLayout,
    unit_bytes: u32,
    unit_count: u32,
    most_bytes: usize,
}

impl Plan {
    /// `None` if it would have too many units, or has no bytes to lose.
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
}

/// Where the bytes of a block that come next are.
#[derive(Clone, Default)]
struct Cursor {
    piece: usize,
    at: usize,
}

impl Cursor {
    /// Appends up to `bytes` of the block's next bytes; says how many.
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
struct Output {
    bytes: Vec<u8>,
    skew: usize,
    table: Vec<StoredUnit>,
}

impl Core {
    fn encode(
        &self,
        plan: &Plan,
        blocks: &[Vec<Memory>],
        codec: &mut UnitCodec,
        room: CompressionBudget,
        call: &Call,
    ) -> Result<Option<CompressedExtent>, LogError> {
        let unit_bytes = plan.unit_bytes as usize;
        // Never grows, so what is aligned once stays so.
        let bytes: Vec<u8> = Vec::with_capacity(plan.most_bytes + 2 * unit_bytes + 2 * ALIGN);
        let skew = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        let table = Vec::with_capacity(plan.unit_count as usize);
        let mut output = Output { bytes, skew, table };
        output.bytes.resize(skew, 0);
        let mut slice_crcs = Vec::with_capacity(blocks.len() * plan.layout.layers() as usize);
        let mut cursors = vec![Cursor::default(); blocks.len()];
        let mut unit = Vec::with_capacity(unit_bytes);
        for _ in 0..plan.layout.layers() {
            for (block, cursor) in blocks.iter().zip(&mut cursors) {
                let (mut left, mut crc) = (plan.layout.slice_bytes() as usize, 0);
                while left > 0 {
                    let from = unit.len();
                    left -= cursor.copy(block, left.min(unit_bytes - from), &mut unit);
                    crc = crc32c::crc32c_append(crc, &unit[from..]);
                    if unit.len() == unit_bytes && !output.push(plan, codec, &mut unit) {
                        return Ok(None);
                    }
                }
                slice_crcs.push(crc);
            }
            if !unit.is_empty() && !output.push(plan, codec, &mut unit) {
                return Ok(None);
            }
            call.patience(self.clock.as_ref())?;
        }
        assert_eq!(output.table.len(), plan.unit_count as usize, "units of an extent");
        let (compression, unit_bytes) = (plan.compression, plan.unit_bytes);
        let units = Units { compression, unit_bytes, table: output.table };
        output.bytes.resize(skew + usize::try_from(units.payload_bytes()).expect("bounded"), 0);
        let mut payload = Memory::owned(output.bytes, room);
        drop(payload.split_to(skew));
        Ok(Some(CompressedExtent { slice_crcs, units, payload }))
    }
}

impl Output {
    /// Compresses one unit and empties it; `false` if the extent is too long by now.
    fn push(&mut self, plan: &Plan, codec: &mut UnitCodec, unit: &mut Vec<u8>) -> bool {
        let start = self.bytes.len();
        codec.encode(unit, plan.compression.element_bytes() as usize, &mut self.bytes);
        unit.clear();
        let stored = &self.bytes[start..];
        let bytes = u32::try_from(stored.len()).expect("no longer than the unit");
        self.table.push(StoredUnit { bytes, crc: crc32c::crc32c(stored) });
        self.bytes.len() - self.skew <= plan.most_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_but_never_refuses_who_is_alone() {
        let room = Room::new(100);
        let large = room.take(&mut room.used.lock(), 1000).unwrap();
        assert!(room.take(&mut room.used.lock(), 1).is_none());
        drop(large);
        let one = room.take(&mut room.used.lock(), 60).unwrap();
        assert!(room.take(&mut room.used.lock(), 41).is_none());
        let two = room.take(&mut room.used.lock(), 40).unwrap();
        drop((one, two));
        assert_eq!(*room.used.lock(), 0);
    }
}
