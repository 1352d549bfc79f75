//! The offline check of compressed extents.
//!
//! The check compares every stored unit with its checksum, decompresses it, and compares the slices with theirs.

use dalsegno_core::{Extent, sector_up};

use crate::compress::UnitCodec;
use crate::format::{Units, all_zero, row_bytes};

/// Sums the slices of a row in order.
struct RowSums<'a> {
    crcs: &'a [u32],
    slice_bytes: usize,
    summed: usize,
    crc: u32,
    index: usize,
}

impl RowSums<'_> {
    /// Adds raw bytes; fails with the index of a slice whose checksum differs.
    fn add(&mut self, mut bytes: &[u8]) -> Result<(), usize> {
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(self.slice_bytes - self.summed));
            self.crc = dalsegno_core::crc32c_append(self.crc, part);
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

/// Checks a compressed extent's payload. Notes every damaged unit, and the first damaged slice of each row, with the
/// offset in the file. `read` returns bytes of the file: offset, count.
pub fn check_units(
    extent: &Extent,
    slice_crcs: &[u32],
    units: &Units,
    read: &mut dyn FnMut(u64, usize) -> Result<Vec<u8>, String>,
    note: &mut dyn FnMut(u64, String),
) {
    let mut codec = UnitCodec::new();
    let row_bytes = row_bytes(extent.layout, extent.block_count());
    let payload = extent.location.offset + u64::from(extent.location.header_bytes);
    let mut offset = payload;
    let mut table = units.table.iter();
    for (layer, crcs) in slice_crcs.chunks_exact(extent.hashes.len()).enumerate() {
        let slice_bytes = extent.layout.slice_bytes() as usize;
        let mut slices = RowSums { crcs, slice_bytes, summed: 0, crc: 0, index: 0 };
        let (mut left, mut is_good) = (row_bytes, true);
        while left > 0 {
            let unit = table.next().expect("the table fits the extent");
            let raw_len = left.min(u64::from(units.unit_bytes));
            let mut raw = vec![0; usize::try_from(raw_len).expect("a unit is small")];
            let stored = read(offset, unit.bytes as usize);
            let width = units.compression.element_bytes() as usize;
            let checked = stored.and_then(|stored| {
                if dalsegno_core::crc32c(&stored) != unit.crc {
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
    match read(offset, padding) {
        Ok(bytes) if all_zero(&bytes) => {}
        Ok(_) => note(offset, "padding is not zero".to_owned()),
        Err(what) => note(offset, what),
    }
}
