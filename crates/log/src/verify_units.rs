//! The offline check of compressed extents.
//!
//! 1. Every stored unit is compared with its checksum, decoded, and its slices compared with theirs: what is in order
//!    can be read.

use dalsegno_core::{Extent, sector_down, sector_up};
use dalsegno_io::{FileId, Operation};

use crate::call::Call;
use crate::format::{Units, all_zero, row_bytes};
use crate::log::Core;
use crate::unit_codec::UnitCodec;

/// Sums the slices of a row as they come.
struct Slices<'a> {
    crcs: &'a [u32],
    slice_bytes: usize,
    summed: usize,
    crc: u32,
    index: usize,
}

impl Slices<'_> {
    /// Takes in decoded bytes; fails with the number of a slice that is not what it was.
    fn add(&mut self, mut bytes: &[u8]) -> Result<(), usize> {
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(self.slice_bytes - self.summed));
            self.crc = crc32c::crc32c_append(self.crc, part);
            self.summed += part.len();
            bytes = rest;
            if self.summed == self.slice_bytes {
                if self.crc != self.crcs[self.index] {
                    return Err(self.index);
                }
                (self.crc, self.summed, self.index) = (0, 0, self.index + 1);
            }
        }
        Ok(())
    }
}

/// Checks a compressed extent's payload; tells every unit that is bad, and the first slice of each row that is.
pub(crate) fn verify_units(
    core: &Core,
    file: FileId,
    (extent, slice_crcs, units): (&Extent, &[u32], &Units),
    note: &mut dyn FnMut(u64, String),
) {
    let mut codec = UnitCodec::new();
    let row_bytes = row_bytes(extent.layout, extent.block_count());
    let payload = extent.location.offset + u64::from(extent.location.header_bytes);
    let mut offset = payload;
    let mut table = units.table.iter();
    for (layer, crcs) in slice_crcs.chunks_exact(extent.hashes.len()).enumerate() {
        let slice_bytes = extent.layout.slice_bytes() as usize;
        let mut slices = Slices { crcs, slice_bytes, summed: 0, crc: 0, index: 0 };
        let (mut left, mut is_good) = (row_bytes, true);
        while left > 0 {
            let unit = table.next().expect("the table fits the extent");
            let raw_len = left.min(u64::from(units.unit_bytes));
            let mut raw = vec![0; usize::try_from(raw_len).expect("a unit is small")];
            let stored = read_bytes(core, file, offset, unit.bytes as usize);
            let width = units.compression.element_bytes() as usize;
            let checked = stored.and_then(|stored| {
                if crc32c::crc32c(&stored) != unit.crc {
                    return Err(format!("a unit of layer {layer}: checksum differs"));
                }
                codec
                    .decode(&stored, width, &mut raw)
                    .map_err(|_| format!("a unit of layer {layer} cannot be decoded"))
            });
            if let Err(what) = checked {
                note(offset, what);
                is_good = false;
            } else if is_good && let Err(block) = slices.add(&raw) {
                note(offset, format!("layer {layer} of block {block}: checksum differs"));
                is_good = false;
            }
            offset += u64::from(unit.bytes);
            left -= raw_len;
        }
    }
    let padding = usize::try_from(sector_up(offset) - offset).expect("less than a sector");
    match read_bytes(core, file, offset, padding) {
        Ok(bytes) if all_zero(&bytes) => {}
        Ok(_) => note(offset, "padding is not zero".to_owned()),
        Err(what) => note(offset, what),
    }
}

/// Reads bytes from anywhere, in requests as large as there are buffers.
pub(crate) fn read_bytes(
    core: &Core,
    file: FileId,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>, String> {
    let mut found = Vec::with_capacity(len);
    while found.len() < len {
        let from = offset + found.len() as u64;
        let at = usize::try_from(from - sector_down(from)).expect("less than a sector");
        let wanted = sector_up((at + len - found.len()) as u64);
        let sectors = wanted.min(core.pool.largest() as u64);
        let mut bytes = vec![0; usize::try_from(sectors).expect("no more than a buffer")];
        core.transfer(Operation::Read, file, from - at as u64, &mut bytes, &Call::background())
            .map_err(|error| error.to_string())?;
        found.extend(bytes[at..].iter().take(len - found.len()));
    }
    Ok(found)
}
