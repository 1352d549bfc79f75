//! Where blocks lie in the arena of a server.

use dalsegno_io::Memory;
use dalsegno_pool::{ArenaHeader, Stamp, UNIT_BYTES, is_current};

use super::attachment::Attachment;
use crate::wire::PlaceRow;

impl Attachment {
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
    dalsegno_pool::Places::units_of(block_bytes as u64).unwrap_or(u32::MAX)
}
