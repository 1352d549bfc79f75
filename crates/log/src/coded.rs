//! Coding extents before they are written.
//!
//! 1. An extent is coded whole before room is reserved for it, so it takes exactly the room that it needs; one that
//!    does not shrink by a twentieth is left plain, so coding never costs space.
//! 2. The checksums of slices are taken from the caller's bytes on the way, so they prove later that nothing was lost.
//! 3. What is coded and not written yet takes no more memory than a bound. Who holds some of it never waits for more;
//!    and whoever makes room in the log, for which others wait who hold some, has an extent's worth of its own.
//! 4. The caller's thread does the work, and stops between two layers when its call is over.

use std::fmt;
use std::sync::Arc;

use dalsegno_core::{Coding, KvLayout, SECTOR_BYTES};
use dalsegno_io::Memory;
use parking_lot::{Condvar, Mutex};

use crate::append::NewExtent;
use crate::call::Call;
use crate::codec::Coder;
use crate::error::LogError;
use crate::format::{StoredUnit, Units, coded_header_bytes, unit_count};
use crate::log::{Core, Log};
use crate::stats::LogStats;

/// Bytes of a unit, if slices allow. Larger ones shrink no better, and make a read of few blocks decode more.
const UNIT_BYTES: u32 = 64 << 10;
/// What a coded extent may have of a plain one's bytes: 20 of 21, a ratio of 1.05.
const MOST_SHARE: (u64, u64) = (20, 21);
/// Coders kept while nobody uses them.
const IDLE_CODERS: usize = 8;
const ALIGN: usize = 4096;

/// The bytes of an extent, coded; aligned, and kept until they are written.
#[derive(Debug)]
pub struct Coded {
    pub(crate) slice_crcs: Vec<u32>,
    pub(crate) units: Units,
    pub(crate) payload: Memory,
}

/// Room in memory for the bytes of one extent while they are coded and written.
#[derive(Debug)]
pub struct CodingRoom {
    shared: Arc<Room>,
    bytes: u64,
}

/// How much memory coded bytes take, and may.
#[derive(Debug)]
pub(crate) struct Room {
    bound: u64,
    used: Mutex<u64>,
    returned: Condvar,
}

/// Coders that nobody uses at the moment.
#[derive(Default)]
pub(crate) struct Coders(Mutex<Vec<Coder>>);

impl fmt::Debug for Coders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Coders({} idle)", self.0.lock().len())
    }
}

impl Coders {
    /// Lends a coder to `work`.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Coder) -> R) -> R {
        let idle = self.0.lock().pop();
        let mut coder = idle.unwrap_or_else(Coder::new);
        let result = work(&mut coder);
        let mut idle = self.0.lock();
        if idle.len() < IDLE_CODERS {
            idle.push(coder);
        }
        result
    }
}

impl Room {
    pub(crate) fn new(bound: u64) -> Arc<Self> {
        Arc::new(Self { bound, used: Mutex::default(), returned: Condvar::new() })
    }

    /// One that is larger than all there may be gets it alone.
    fn take(self: &Arc<Self>, used: &mut u64, bytes: u64) -> Option<CodingRoom> {
        if *used > 0 && *used + bytes > self.bound {
            return None;
        }
        *used += bytes;
        Some(CodingRoom { shared: Arc::clone(self), bytes })
    }
}

impl Drop for CodingRoom {
    fn drop(&mut self) {
        *self.shared.used.lock() -= self.bytes;
        self.shared.returned.notify_all();
    }
}

impl Coded {
    /// Header and payload of `extent` if it is written like this.
    #[must_use]
    pub fn total_bytes(&self, extent: &NewExtent) -> u64 {
        let header =
            coded_header_bytes(extent.block_count(), extent.layout.layers(), self.units.count());
        u64::from(header) + self.units.payload_bytes()
    }
}

impl Log {
    /// Memory for coding `extent`, if there is some now.
    #[must_use]
    pub fn try_coding_room(&self, extent: &NewExtent) -> Option<CodingRoom> {
        let room = &self.core.coding_room;
        room.take(&mut room.used.lock(), extent.total_bytes())
    }

    /// Memory for coding `extent`, waited for within the call's terms. The caller must hold none (invariant 3).
    ///
    /// # Errors
    ///
    /// [`LogError::Deadline`] or [`LogError::Cancelled`].
    pub fn coding_room(&self, extent: &NewExtent, call: &Call) -> Result<CodingRoom, LogError> {
        let room = &self.core.coding_room;
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

    /// Memory for coding one extent beside the bound: only for the thread that makes room, and the one that merges.
    #[must_use]
    pub fn own_coding_room(&self) -> CodingRoom {
        CodingRoom { shared: Arc::clone(&self.core.coding_room), bytes: 0 }
    }

    /// Codes an extent; `None` if it would not shrink enough, or this store may hold no coded ones. `blocks` are as for
    /// [`Append::new`](crate::Append::new).
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
        coding: Coding,
        room: CodingRoom,
        call: &Call,
    ) -> Result<Option<Coded>, LogError> {
        let core = &self.core;
        if coding.is_plain() || !core.is_coded() {
            return Ok(None);
        }
        let started = core.clock.now();
        let plan = Plan::of(extent, coding);
        let coded = match plan {
            Some(plan) => core.coders.with(|coder| core.encode(&plan, blocks, coder, room, call)),
            None => Ok(None),
        }?;
        let stats = &core.stats;
        LogStats::add_time(&stats.encode_ns, core.clock.now().since(started));
        let raw = u64::from(extent.block_count()) * extent.layout.block_bytes();
        match &coded {
            Some(coded) => {
                LogStats::add(&stats.encoded_bytes, raw);
                LogStats::add(&stats.encoded_stored_bytes, coded.units.payload_bytes());
            }
            None => LogStats::add(&stats.not_shrunk_bytes, raw),
        }
        Ok(coded)
    }
}

/// How an extent is cut, and what it may have at most.
struct Plan {
    coding: Coding,
    layout: KvLayout,
    unit_bytes: u32,
    unit_count: u32,
    most_bytes: usize,
}

impl Plan {
    /// `None` if it would have too many units, or has no bytes to lose.
    fn of(extent: &NewExtent, coding: Coding) -> Option<Self> {
        let (layout, blocks) = (extent.layout, extent.block_count());
        let slice = layout.slice_bytes();
        let unit_bytes = if slice > UNIT_BYTES { UNIT_BYTES } else { UNIT_BYTES / slice * slice };
        let unit_count = unit_count(layout, blocks, unit_bytes)?;
        let header = coded_header_bytes(blocks, layout.layers(), unit_count);
        let most = extent.total_bytes() * MOST_SHARE.0 / MOST_SHARE.1;
        let most = most.checked_sub(u64::from(header))?;
        let most_bytes = usize::try_from(most - most % SECTOR_BYTES).ok()?;
        Some(Self { coding, layout, unit_bytes, unit_count, most_bytes })
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

/// The coded bytes so far.
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
        coder: &mut Coder,
        room: CodingRoom,
        call: &Call,
    ) -> Result<Option<Coded>, LogError> {
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
                    if unit.len() == unit_bytes && !output.push(plan, coder, &mut unit) {
                        return Ok(None);
                    }
                }
                slice_crcs.push(crc);
            }
            if !unit.is_empty() && !output.push(plan, coder, &mut unit) {
                return Ok(None);
            }
            call.patience(self.clock.as_ref())?;
        }
        assert_eq!(output.table.len(), plan.unit_count as usize, "units of an extent");
        let (coding, unit_bytes) = (plan.coding, plan.unit_bytes);
        let units = Units { coding, unit_bytes, table: output.table };
        output.bytes.resize(skew + usize::try_from(units.payload_bytes()).expect("bounded"), 0);
        let mut payload = Memory::owned(output.bytes, room);
        drop(payload.split_to(skew));
        Ok(Some(Coded { slice_crcs, units, payload }))
    }
}

impl Output {
    /// Codes one unit and empties it; `false` if the extent is too long by now.
    fn push(&mut self, plan: &Plan, coder: &mut Coder, unit: &mut Vec<u8>) -> bool {
        let start = self.bytes.len();
        coder.encode(unit, plan.coding.element_bytes() as usize, &mut self.bytes);
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
