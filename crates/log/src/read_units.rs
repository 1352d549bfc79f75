//! Reading compressed extents: which units hold the wanted bytes, and decoding them into the caller's memory.
//!
//! 1. Nothing of a compressed extent is asked for before its header's tables are known: they say where units lie. So
//!    the first read of an extent since it was last remembered asks the device twice.
//! 2. A request holds whole units. A unit is decoded only if its checksum matches, into memory of our own, and its
//!    wanted bytes are copied from there.
//! 3. Slices are verified afterwards like those of plain extents: their checksums are of the bytes as they were put.

use dalsegno_core::{sector_down, sector_up};

use crate::append::pieces_of;
use crate::error::Cause;
use crate::format::{Units, row_bytes};
use crate::log::Core;
use crate::plan::{Chunk, Piece};
use crate::read::Reading;
use crate::stats::LogStats;
use crate::unit_codec::UnitCodec;

/// A unit of which something is wanted.
pub(crate) struct WantedUnit {
    /// First stored byte in the segment.
    offset: u64,
    /// Stored bytes.
    len: usize,
    crc: u32,
    /// Where it starts in its row, before compression.
    start: u64,
    /// Its bytes before compression.
    raw_bytes: usize,
    element_bytes: usize,
    /// What is wanted of it; offsets are in the row.
    pieces: Vec<Piece>,
}

impl Reading {
    /// Plans the units that hold the wanted slices, once the tables are known: requests, and the units in each.
    pub(crate) fn plan_units(&mut self, limit: usize) -> Vec<(Chunk, Vec<WantedUnit>)> {
        let Some(units) = self.tables.as_ref().and_then(|tables| tables.units.as_ref()) else {
            return Vec::new();
        };
        let slices = std::mem::take(&mut self.unplanned);
        let slice_bytes = u64::from(self.extent.layout.slice_bytes());
        let payload = self.extent.location.offset + u64::from(self.extent.location.header_bytes);
        let mut rows = Rows::new(units, row_bytes(self.extent.layout, self.extent.block_count()));
        rows.skip(self.first_layer);
        let mut wanted: Vec<WantedUnit> = Vec::new();
        let mut slices = (0_u32..).zip(slices).peekable();
        while slices.peek().is_some() {
            let mut row = rows.take(payload);
            for block in &self.blocks {
                let (index, memory) = slices.next().expect("a slice per layer and block");
                let at = u64::from(*block) * slice_bytes;
                for piece in pieces_of(at, index, memory) {
                    give_to_units(piece, units.unit_bytes, &mut row);
                }
            }
            wanted.extend(row.into_iter().filter(|unit| !unit.pieces.is_empty()));
        }
        gather(wanted, limit)
    }

    /// Whoever wanted something of a unit cannot have it.
    fn fail_unit(&mut self, pieces: &[Piece], cause: Cause) {
        for piece in pieces {
            self.lose(piece.slice as usize % self.blocks.len(), cause);
        }
    }

    pub(crate) fn fail_units(&mut self, units: &[WantedUnit], cause: Cause) {
        for unit in units {
            self.fail_unit(&unit.pieces, cause);
        }
    }
}

/// Walks the table of units row by row.
struct Rows<'a> {
    units: &'a Units,
    row_bytes: u64,
    in_row: usize,
    next: usize,
    /// Stored bytes in front of the next unit.
    offset: u64,
}

impl<'a> Rows<'a> {
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

    /// The units of the next row, of which nothing is wanted yet.
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

/// Cuts a piece of a row where units end.
fn give_to_units(mut piece: Piece, unit_bytes: u32, row: &mut [WantedUnit]) {
    loop {
        let number = piece.offset / u64::from(unit_bytes);
        let unit = &mut row[usize::try_from(number).expect("a unit of the row")];
        let room = unit.start + unit.raw_bytes as u64 - piece.offset;
        if piece.len as u64 <= room {
            unit.pieces.push(piece);
            return;
        }
        unit.pieces.push(piece.split_to(usize::try_from(room).expect("a unit is small")));
    }
}

/// Joins neighbouring units to requests of whole sectors.
pub(crate) fn gather(wanted: Vec<WantedUnit>, limit: usize) -> Vec<(Chunk, Vec<WantedUnit>)> {
    let mut chunks: Vec<(Chunk, Vec<WantedUnit>)> = Vec::new();
    for unit in wanted {
        let end = sector_up(unit.offset + unit.len as u64);
        match chunks.last_mut() {
            Some((chunk, units))
                if sector_down(unit.offset) <= chunk.offset + chunk.bytes as u64
                    && end - chunk.offset <= limit as u64 =>
            {
                chunk.bytes = usize::try_from(end - chunk.offset).expect("within the limit");
                units.push(unit);
            }
            _ => {
                let offset = sector_down(unit.offset);
                let bytes = usize::try_from(end - offset).expect("a unit is small");
                assert!(bytes <= limit, "a unit fits into a request");
                let chunk = Chunk { offset, bytes, pieces: Vec::new(), direct: false };
                chunks.push((chunk, vec![unit]));
            }
        }
    }
    chunks
}

/// Checks a stored unit and decodes it into `codec.raw`.
fn decode(codec: &mut UnitCodec, unit: &WantedUnit, stored: &[u8]) -> Result<Vec<u8>, Cause> {
    let mut raw = std::mem::take(&mut codec.raw);
    raw.resize(unit.raw_bytes, 0);
    let is_whole = crc32c::crc32c(stored) == unit.crc;
    if is_whole && codec.decode(stored, unit.element_bytes, &mut raw).is_ok() {
        return Ok(raw);
    }
    codec.raw = raw;
    Err(Cause::Codec)
}

impl Core {
    /// Decodes the units of a request that has arrived, and copies what is wanted of them.
    pub(crate) fn arrive_units(
        &self,
        reading: &mut Reading,
        offset: u64,
        units: Vec<WantedUnit>,
        staged: &[u8],
    ) {
        let started = self.clock.now();
        self.codecs.with(|codec| {
            for unit in units {
                let at = usize::try_from(unit.offset - offset).expect("within the request");
                match decode(codec, &unit, &staged[at..at + unit.len]) {
                    Ok(raw) => {
                        LogStats::add(&self.stats.decoded_bytes, raw.len() as u64);
                        scatter(reading, unit, &raw);
                        codec.raw = raw;
                    }
                    Err(cause) => reading.fail_unit(&unit.pieces, cause),
                }
            }
        });
        LogStats::add_time(&self.stats.decode_ns, self.clock.now().since(started));
    }
}

fn scatter(reading: &mut Reading, unit: WantedUnit, raw: &[u8]) {
    for mut piece in unit.pieces {
        let at = usize::try_from(piece.offset - unit.start).expect("within the unit");
        let mut memory = piece.memory.take().expect("the caller's");
        memory.as_mut_slice().copy_from_slice(&raw[at..at + piece.len]);
        reading.slices[piece.slice as usize].arrive(piece.slice_offset, memory);
    }
}
