//! The table of a compressed extent's units.
//!
//! A table that decodes fits its extent: it has one entry per unit, none empty and none longer than the raw unit. So a
//! reader never reads beyond the payload, and never needs more memory than a unit.

use dalsegno_core::{Compression, KvLayout, MAX_EXTENT_UNITS, MAX_UNIT_BYTES, sector_up};

use super::bytes::{FieldReader, FieldWriter};
use super::error::FormatError;

/// The only codec: planes of bytes as zstd frames.
const ZSTD: u32 = 1;

/// How a compressed extent's payload is cut and stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Units {
    /// The codec and the width of an element.
    pub compression: Compression,
    /// Raw bytes of a unit; the last unit of a row may have fewer.
    pub unit_bytes: u32,
    /// Layer 0's units in order, then layer 1's, and so on.
    pub table: Vec<StoredUnit>,
}

/// One stored unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredUnit {
    /// Its bytes; as many as its raw bytes if it did not shrink.
    pub bytes: u32,
    /// crc32c of these bytes.
    pub crc: u32,
}

/// The fields of a header that describe its units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnitFields {
    pub(super) codec: u32,
    pub(super) element_bytes: u32,
    pub(super) unit_bytes: u32,
    pub(super) unit_count: u32,
}

/// Bytes of one layer's slices, without padding.
#[must_use]
pub fn row_bytes(layout: KvLayout, block_count: u32) -> u64 {
    u64::from(layout.slice_bytes()) * u64::from(block_count)
}

/// Units of an extent of this shape; `None` if there are too many.
pub(crate) fn unit_count(layout: KvLayout, block_count: u32, unit_bytes: u32) -> Option<u32> {
    let in_row = row_bytes(layout, block_count).div_ceil(u64::from(unit_bytes));
    let count = u32::try_from(in_row * u64::from(layout.layers())).ok()?;
    (count <= MAX_EXTENT_UNITS).then_some(count)
}

impl Units {
    /// Bytes of the payload: all units, rounded up to a whole sector.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        sector_up(self.table.iter().map(|unit| u64::from(unit.bytes)).sum())
    }

    /// Number of units.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.table.len()).expect("bounded by MAX_EXTENT_UNITS")
    }

    pub(super) fn fields(&self) -> UnitFields {
        UnitFields {
            codec: ZSTD,
            element_bytes: self.compression.element_bytes(),
            unit_bytes: self.unit_bytes,
            unit_count: self.count(),
        }
    }

    pub(super) fn encode(&self, writer: &mut FieldWriter<'_>) {
        for unit in &self.table {
            writer.put(&unit.bytes.to_le_bytes());
            writer.put(&unit.crc.to_le_bytes());
        }
    }
}

impl UnitFields {
    pub(super) fn read(reader: &mut FieldReader<'_>) -> Result<Self, FormatError> {
        Ok(Self {
            codec: reader.u32()?,
            element_bytes: reader.u32()?,
            unit_bytes: reader.u32()?,
            unit_count: reader.u32()?,
        })
    }

    pub(super) fn write(self, writer: &mut FieldWriter<'_>) {
        for field in [self.codec, self.element_bytes, self.unit_bytes, self.unit_count] {
            writer.put(&field.to_le_bytes());
        }
    }

    /// Checks the fields, then reads the table; `None` for a plain extent.
    pub(super) fn table(
        self,
        layout: KvLayout,
        block_count: u32,
        reader: &mut FieldReader<'_>,
    ) -> Result<Option<Units>, FormatError> {
        if self.codec == 0 {
            return Ok(None);
        }
        if self.codec != ZSTD {
            return Err(FormatError::Field("codec"));
        }
        let compression = Compression::zstd(self.element_bytes)
            .map_err(|_| FormatError::Field("element_bytes"))?;
        if !(1..=MAX_UNIT_BYTES).contains(&self.unit_bytes) {
            return Err(FormatError::Field("unit_bytes"));
        }
        if unit_count(layout, block_count, self.unit_bytes) != Some(self.unit_count) {
            return Err(FormatError::Field("unit_count"));
        }
        let row_bytes = row_bytes(layout, block_count);
        let mut table = Vec::with_capacity(self.unit_count as usize);
        for _ in 0..layout.layers() {
            let mut left = row_bytes;
            while left > 0 {
                let most = left.min(u64::from(self.unit_bytes));
                let unit = StoredUnit { bytes: reader.u32()?, crc: reader.u32()? };
                if !(1..=most).contains(&u64::from(unit.bytes)) {
                    return Err(FormatError::Field("unit"));
                }
                table.push(unit);
                left -= most;
            }
        }
        Ok(Some(Units { compression, unit_bytes: self.unit_bytes, table }))
    }
}
