//! The arena of a server: where its blocks lie, and whether its heart beats.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use dalsegno_arena::{ArenaHeader, Stamp, UNIT_BYTES, is_current};
use dalsegno_core::{Error, ErrorKind, Result};
use dalsegno_io::{Access, CopySource, Memory, Region};

use crate::wire::PlaceRow;

/// The arena of a server, mapped for reading.
#[derive(Debug)]
pub(super) struct ServedArena {
    region: Arc<Region>,
    header: ArenaHeader,
}

impl ServedArena {
    /// Maps the arena that a server of this epoch handed over.
    ///
    /// # Errors
    ///
    /// `Incompatible` if it has another format; `Unavailable` if it cannot be mapped.
    pub(super) fn map(arena: OwnedFd, bytes: u64, epoch: u64) -> Result<Self> {
        let strange = || Error::new(ErrorKind::Incompatible, "the pool has an unknown format");
        let bytes = usize::try_from(bytes).map_err(|_| strange())?;
        let region = Region::map(arena, bytes, Access::Read, "the pool of the server");
        let region = region.map_err(|error| {
            let message = "the pool of the server cannot be mapped";
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        })?;
        let header = header_of(&region)
            .filter(|header| header.epoch == epoch && header.arena_bytes() == region.bytes());
        Ok(Self { header: header.ok_or_else(strange)?, region: Arc::new(region) })
    }

    /// Its memory.
    pub(super) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Names the server: another one has another epoch.
    pub(super) fn epoch(&self) -> u64 {
        self.header.epoch
    }

    /// Whether this process mapped it. A forked child has no part in it.
    pub(super) fn is_here(&self) -> bool {
        self.region.is_here()
    }

    /// A number that grows as long as the server runs.
    pub(super) fn heartbeat(&self) -> u64 {
        self.region.counter(ArenaHeader::HEARTBEAT_OFFSET).expect("within the header")
    }

    /// The bytes of a block that lies in the arena, as address and length; `None` if it does not.
    pub(super) fn range(&self, row: PlaceRow, bytes: usize) -> Option<(usize, usize)> {
        let offset = self.offset(row, 0, bytes)?;
        Some((self.region.address_of(offset, bytes)?, bytes))
    }

    /// Copies bytes of a block out of the arena. `false` if its place ended before the last byte was copied: then what
    /// was copied is worthless.
    pub(super) fn copy(
        &self,
        row: PlaceRow,
        block_bytes: usize,
        from: usize,
        pieces: &mut [Memory],
    ) -> bool {
        let Some(offset) = self.offset(row, from, block_bytes - from) else { return false };
        self.region.copy_racing(offset, pieces);
        self.is_current(row, block_bytes)
    }

    /// Bytes of a block, from `from` on, for a copy. Whether the block is still in its place is asked afterwards.
    ///
    /// # Panics
    ///
    /// If they are not in the arena.
    pub(super) fn source(&self, row: PlaceRow, from: usize, bytes: usize) -> CopySource {
        let start = self.offset(row, from, bytes).expect("the caller asked for the range");
        CopySource::Racing(Arc::clone(&self.region), start)
    }

    /// Whether a block is still in its place.
    pub(super) fn is_current(&self, row: PlaceRow, block_bytes: usize) -> bool {
        let units = units_of(block_bytes);
        let generation = |unit: usize| {
            self.region.counter(ArenaHeader::GENERATIONS_OFFSET + unit * size_of::<u64>())
        };
        let last = row.unit.checked_add(units).filter(|end| *end <= self.header.unit_count);
        last.is_some() && is_current(generation, row.unit, units, row.stamp)
    }

    /// Where the bytes of a block from `from` on are; `None` if they are not in the arena.
    fn offset(&self, row: PlaceRow, from: usize, bytes: usize) -> Option<usize> {
        let unit = usize::try_from(UNIT_BYTES).expect("64-bit addresses");
        let start = self.header.units_offset() + row.unit as usize * unit + from;
        let end = start.checked_add(bytes)?;
        (end <= self.region.bytes() && row.stamp != Stamp(0)).then_some(start)
    }
}

fn units_of(block_bytes: usize) -> u32 {
    dalsegno_arena::Places::units_of(block_bytes as u64).unwrap_or(u32::MAX)
}

fn header_of(region: &Region) -> Option<ArenaHeader> {
    if region.bytes() < ArenaHeader::BYTES {
        return None;
    }
    let mut bytes = vec![0; ArenaHeader::BYTES];
    dalsegno_io::lend(|lender| region.copy_racing(0, &mut [lender.exclusive(&mut bytes)]));
    ArenaHeader::decode(&bytes)
}
