//! Reading compressed extents: which units hold the wanted bytes.
//!
//! 1. The table in the extent's header says where units are, so a read plans no unit before it has the table. The first
//!    read of an extent that is not cached therefore takes two requests, one after the other.
//! 2. A request holds whole units. A unit is decompressed only if its checksum matches, into memory of the log, and its
//!    wanted bytes are copied from there.
//! 3. The slices are verified afterwards like those of plain extents, because their checksums are of the raw bytes.

use dalsegno_core::{Extent, sector_down, sector_up};
use dalsegno_io::Memory;

use crate::compress::UnitCodec;
use crate::error::Cause;
use crate::format::{Units, row_bytes};
use crate::transfer::{Chunk, Piece, WantedUnit, pieces_of};

/// The units that hold the wanted slices. `slices` are those of `blocks`, layer-major from `first_layer` on.
pub(super) fn plan_units(
    extent: &Extent,
    units: &Units,
    first_layer: u32,
    blocks: &[u32],
    slices: Vec<Vec<Memory>>,
) -> Vec<WantedUnit> {
    let slice_bytes = u64::from(extent.layout.slice_bytes());
    let payload = extent.location.offset + u64::from(extent.location.header_bytes);
    let mut rows = UnitRows::new(units, row_bytes(extent.layout, extent.block_count()));
    rows.skip(first_layer);
    let mut wanted: Vec<WantedUnit> = Vec::new();
    let mut slices = (0_u32..).zip(slices).peekable();
    while slices.peek().is_some() {
        let mut row = rows.take(payload);
        for block in blocks {
            let (index, memory) = slices.next().expect("a slice per layer and block");
            let at = u64::from(*block) * slice_bytes;
            for piece in pieces_of(at, index, memory, false) {
                give_to_units(piece, units.unit_bytes, &mut row);
            }
        }
        wanted.extend(row.into_iter().filter(|unit| !unit.pieces.is_empty()));
    }
    wanted
}

/// Walks the table of units row by row.
struct UnitRows<'a> {
    units: &'a Units,
    row_bytes: u64,
    in_row: usize,
    next: usize,
    /// Stored bytes before the next unit.
    offset: u64,
}

impl<'a> UnitRows<'a> {
    fn new(units: &'a Units, row_bytes: u64) -> Self {
        let in_row = row_bytes.div_ceil(u64::from(units.unit_bytes));
        let in_row = usize::try_from(in_row).expect("bounded by MAX_EXTENT_UNITS");
        Self { units, row_bytes, in_row, next: 0, offset: 0 }
    }

    fn skip(&mut self, rows: u32) {
        let count = rows as usize * self.in_row;
        let passed = &self.units.table[self.next..self.next + count];
        self.offset += passed.iter().map(|unit| u64::from(unit.bytes)).sum::<u64>();
        self.next += count;
    }

    /// The units of the next row, without wanted pieces yet.
    fn take(&mut self, payload: u64) -> Vec<WantedUnit> {
        let unit_bytes = u64::from(self.units.unit_bytes);
        let mut row = Vec::with_capacity(self.in_row);
        let mut start = 0;
        for stored in &self.units.table[self.next..self.next + self.in_row] {
            let raw = unit_bytes.min(self.row_bytes - start);
            row.push(WantedUnit {
                offset: payload + self.offset,
                len: stored.bytes as usize,
                crc: stored.crc,
                start,
                raw_bytes: usize::try_from(raw).expect("a unit is small"),
                element_bytes: self.units.compression.element_bytes() as usize,
                pieces: Vec::new(),
            });
            self.offset += u64::from(stored.bytes);
            start += raw;
        }
        self.next += self.in_row;
        row
    }
}

/// Distributes a piece of a row to its units.
fn give_to_units(mut piece: Piece, unit_bytes: u32, row: &mut [WantedUnit]) {
    loop {
        let number = piece.offset / u64::from(unit_bytes);
        let unit = &mut row[usize::try_from(number).expect("a unit of the row")];
        let left = unit.start + unit.raw_bytes as u64 - piece.offset;
        if piece.len as u64 <= left {
            unit.pieces.push(piece);
            return;
        }
        unit.pieces.push(piece.split_to(usize::try_from(left).expect("a unit is small")));
    }
}

/// Joins neighboring units of a record into requests of whole sectors.
pub(super) fn gather(record: usize, wanted: Vec<WantedUnit>, limit: usize) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = Vec::new();
    for unit in wanted {
        let end = sector_up(unit.offset + unit.len as u64);
        match chunks.last_mut() {
            Some(chunk)
                if sector_down(unit.offset) <= chunk.offset + chunk.bytes as u64
                    && end - chunk.offset <= limit as u64 =>
            {
                chunk.bytes = usize::try_from(end - chunk.offset).expect("within the limit");
                chunk.units.push(unit);
            }
            _ => {
                let offset = sector_down(unit.offset);
                let bytes = usize::try_from(end - offset).expect("a unit is small");
                assert!(bytes <= limit, "a unit fits into a request");
                let (pieces, units) = (Vec::new(), vec![unit]);
                chunks.push(Chunk { record, offset, bytes, pieces, units, direct: false });
            }
        }
    }
    chunks
}

/// Verifies and decompresses a stored unit. The caller gives the buffer back to `codec.raw` after its use.
pub(super) fn decompress(
    unit: &WantedUnit,
    codec: &mut UnitCodec,
    stored: &[u8],
) -> Result<Vec<u8>, Cause> {
    let mut raw = std::mem::take(&mut codec.raw);
    raw.resize(unit.raw_bytes, 0);
    let is_whole = dalsegno_core::crc32c(stored) == unit.crc;
    if is_whole && codec.decode(stored, unit.element_bytes, &mut raw).is_ok() {
        return Ok(raw);
    }
    codec.raw = raw;
    Err(Cause::Codec)
}
