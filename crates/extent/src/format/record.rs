//! The header of a record: an extent, a tombstone, a void or a seal.

use dalsegno_core::{
    ChainHash, Extent, ExtentId, KvLayout, Location, MAX_EXTENT_BLOCKS, MAX_EXTENT_SLICES,
    MAX_EXTENT_UNITS, NamespaceId, StoreId, sector_up,
};

use super::bytes::{
    COMPRESSED_VERSION, FieldReader, FieldWriter, MAX_RECORD_HEADER_BYTES, PLAIN_VERSION, SECTOR,
    all_zero, check_counts,
};
use super::error::FormatError;
use super::units::{UnitFields, Units};

const MAGIC: [u8; 8] = *b"DSGNRECD";
const CRC_AT: usize = 76;
const HASHES_AT: usize = 256;

/// The kind of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Blocks of one chain; `slice_crcs` holds layer 0's blocks, then layer 1's.
    Extent {
        /// Shape of the blocks.
        layout: KvLayout,
        /// crc32c of every slice's raw bytes, layer-major.
        slice_crcs: Vec<u32>,
        /// How the payload is stored if it is compressed.
        units: Option<Units>,
    },
    /// Removes blocks that were put before it.
    Tombstone {
        /// Only extents with a smaller `born` are affected.
        kills_before: u64,
    },
    /// Reserved space that holds no record.
    Void {
        /// Bytes to skip after the header.
        payload_bytes: u64,
    },
    /// No record follows.
    Seal,
}

/// A record's header, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The store's random name.
    pub store: StoreId,
    /// Number of its segment.
    pub segment: u64,
    /// The segment's epoch.
    pub epoch: u64,
    /// Its own offset in the segment.
    pub offset: u64,
    /// Unique; grows in the order of reservations.
    pub sequence: u64,
    /// No removal up to this number affects the blocks.
    pub born: u64,
    /// The namespace of its blocks; zero for voids and seals.
    pub namespace: NamespaceId,
    /// See [`Extent::lineage`].
    pub lineage: ChainHash,
    /// See [`Extent::parent`].
    pub parent: ChainHash,
    /// See [`Extent::first_block_index`].
    pub first_block_index: u32,
    /// Names of blocks.
    pub hashes: Vec<ChainHash>,
    /// The kind of the record.
    pub kind: RecordKind,
}

/// Bytes of the header of an extent of `block_count` blocks of `layers` layers, or of a tombstone with `layers` 0.
#[must_use]
pub fn record_header_bytes(block_count: u32, layers: u32) -> u32 {
    compressed_header_bytes(block_count, layers, 0)
}

/// The same of a compressed extent of `unit_count` units.
#[must_use]
pub fn compressed_header_bytes(block_count: u32, layers: u32, unit_count: u32) -> u32 {
    let slices = u64::from(block_count) * u64::from(layers);
    let tables = u64::from(block_count) * 32 + slices * 4 + u64::from(unit_count) * 8;
    u32::try_from(sector_up(HASHES_AT as u64 + tables)).expect("all counts are bounded")
}

impl RecordHeader {
    /// Bytes of the header, in whole sectors.
    #[must_use]
    pub fn header_bytes(&self) -> u32 {
        let (layers, units) = match &self.kind {
            RecordKind::Extent { layout, units, .. } => {
                (layout.layers(), units.as_ref().map_or(0, Units::count))
            }
            _ => (0, 0),
        };
        compressed_header_bytes(self.block_count(), layers, units)
    }

    /// How the payload is stored if it is compressed.
    #[must_use]
    pub fn units(&self) -> Option<&Units> {
        match &self.kind {
            RecordKind::Extent { units, .. } => units.as_ref(),
            _ => None,
        }
    }

    /// Bytes of the record after its header.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        match &self.kind {
            RecordKind::Extent { units: Some(units), .. } => units.payload_bytes(),
            RecordKind::Extent { layout, .. } => layout.payload_bytes(self.block_count()),
            RecordKind::Void { payload_bytes } => *payload_bytes,
            RecordKind::Tombstone { .. } | RecordKind::Seal => 0,
        }
    }

    fn block_count(&self) -> u32 {
        u32::try_from(self.hashes.len()).expect("bounded by MAX_EXTENT_BLOCKS")
    }

    /// Whether it is a tombstone.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        matches!(self.kind, RecordKind::Tombstone { .. })
    }

    /// The extent that the header describes, if it is one.
    #[must_use]
    pub fn extent(&self) -> Option<Extent> {
        let RecordKind::Extent { layout, .. } = self.kind else { return None };
        Some(Extent {
            id: ExtentId(self.sequence),
            born: self.born,
            namespace: self.namespace,
            lineage: self.lineage,
            first_block_index: self.first_block_index,
            parent: self.parent,
            layout,
            location: Location {
                segment: self.segment,
                epoch: self.epoch,
                offset: self.offset,
                header_bytes: self.header_bytes(),
                compressed_bytes: self.units().map_or(0, Units::payload_bytes),
            },
            hashes: self.hashes.clone(),
        })
    }

    /// Writes the header.
    ///
    /// # Panics
    ///
    /// If `bytes` is not [`Self::header_bytes`] long or the counts are out of bounds.
    pub fn encode(&self, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), self.header_bytes() as usize, "buffer of a record header");
        let (kind, layers, slice_bytes, kills_before) = match &self.kind {
            RecordKind::Extent { layout, .. } => (1_u32, layout.layers(), layout.slice_bytes(), 0),
            RecordKind::Tombstone { kills_before } => (2, 0, 0, *kills_before),
            RecordKind::Void { .. } => (3, 0, 0, 0),
            RecordKind::Seal => (4, 0, 0, 0),
        };
        let mut writer = FieldWriter::new(bytes);
        writer.put(&MAGIC);
        let version = if self.units().is_some() { COMPRESSED_VERSION } else { PLAIN_VERSION };
        writer.put(&version.to_le_bytes());
        writer.put(&self.header_bytes().to_le_bytes());
        writer.put(&self.store.0);
        for field in [self.segment, self.epoch, self.offset, self.sequence, self.born] {
            writer.put(&field.to_le_bytes());
        }
        writer.put(&kind.to_le_bytes());
        writer.put(&[0; 4]);
        writer.put(&self.namespace.0);
        writer.put(&self.lineage.0);
        writer.put(&self.parent.0);
        for field in [self.first_block_index, self.block_count(), layers, slice_bytes] {
            writer.put(&field.to_le_bytes());
        }
        writer.put(&self.payload_bytes().to_le_bytes());
        writer.put(&kills_before.to_le_bytes());
        self.units().map(Units::fields).unwrap_or_default().write(&mut writer);
        writer.skip_to(HASHES_AT);
        for hash in &self.hashes {
            writer.put(&hash.0);
        }
        if let RecordKind::Extent { layout, slice_crcs, units } = &self.kind {
            assert_eq!(
                slice_crcs.len() as u64,
                u64::from(layout.layers()) * self.hashes.len() as u64
            );
            for crc in slice_crcs {
                writer.put(&crc.to_le_bytes());
            }
            if let Some(units) = units {
                units.encode(&mut writer);
            }
        }
        let crc = dalsegno_core::crc32c(bytes);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Bytes of the header that starts with this sector, if the sector looks like the start of one.
    ///
    /// Call it before the whole header is read. It verifies only the magic number, the version and the bound.
    pub fn peek_bytes(sector: &[u8]) -> Result<u32, FormatError> {
        let mut reader = FieldReader(sector);
        if reader.array::<8>()? != MAGIC {
            return Err(FormatError::Magic);
        }
        let (version, bytes) = (reader.u32()?, reader.u32()?);
        if version > COMPRESSED_VERSION {
            return Err(FormatError::Newer(version));
        }
        if version == 0
            || bytes == 0
            || bytes > MAX_RECORD_HEADER_BYTES
            || !(bytes as usize).is_multiple_of(SECTOR)
        {
            return Err(FormatError::Field("header_bytes"));
        }
        Ok(bytes)
    }

    /// Reads a header; `bytes` may be longer.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let header_bytes = Self::peek_bytes(bytes)?;
        let bytes = bytes.get(..header_bytes as usize).ok_or(FormatError::Truncated)?;
        let crc = dalsegno_core::crc32c(&bytes[..CRC_AT]);
        let crc = dalsegno_core::crc32c_append(crc, &[0; 4]);
        let crc = dalsegno_core::crc32c_append(crc, &bytes[CRC_AT + 4..]);
        if bytes[CRC_AT..CRC_AT + 4] != crc.to_le_bytes() {
            return Err(FormatError::Checksum);
        }
        let (fixed, variable) = bytes.split_at(HASHES_AT);
        let is_compressed = fixed[8..12] == COMPRESSED_VERSION.to_le_bytes();
        let fixed = FixedFields::read(&mut FieldReader(&fixed[16..]))?;
        if is_compressed != (fixed.units.codec != 0) || (is_compressed && fixed.kind != 1) {
            return Err(FormatError::Field("codec"));
        }
        fixed.into_header(FieldReader(variable), header_bytes)
    }
}

/// The fixed fields before the tables.
struct FixedFields {
    header: RecordHeader,
    kind: u32,
    block_count: u32,
    layers: u32,
    slice_bytes: u32,
    payload_bytes: u64,
    kills_before: u64,
    units: UnitFields,
}

impl FixedFields {
    fn read(reader: &mut FieldReader<'_>) -> Result<Self, FormatError> {
        let store = StoreId(reader.array()?);
        let (segment, epoch, offset) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (sequence, born) = (reader.u64()?, reader.u64()?);
        let (kind, _crc) = (reader.u32()?, reader.u32()?);
        let header = RecordHeader {
            store,
            segment,
            epoch,
            offset,
            sequence,
            born,
            namespace: NamespaceId(reader.array()?),
            lineage: ChainHash(reader.array()?),
            parent: ChainHash(reader.array()?),
            first_block_index: reader.u32()?,
            hashes: Vec::new(),
            kind: RecordKind::Seal,
        };
        let fixed = Self {
            header,
            kind,
            block_count: reader.u32()?,
            layers: reader.u32()?,
            slice_bytes: reader.u32()?,
            payload_bytes: reader.u64()?,
            kills_before: reader.u64()?,
            units: UnitFields::read(reader)?,
        };
        let RecordHeader { sequence, born, .. } = fixed.header;
        check_counts(&[("sequence", sequence), ("born", born)])?;
        if all_zero(reader.0) { Ok(fixed) } else { Err(FormatError::Field("reserved")) }
    }

    fn into_header(
        mut self,
        mut tables: FieldReader<'_>,
        header_bytes: u32,
    ) -> Result<RecordHeader, FormatError> {
        self.check_counts()?;
        let unit_count = self.units.unit_count;
        if compressed_header_bytes(self.block_count, self.layers, unit_count) != header_bytes {
            return Err(FormatError::Field("header_bytes"));
        }
        for _ in 0..self.block_count {
            self.header.hashes.push(ChainHash(tables.array()?));
        }
        self.header.kind = match self.kind {
            1 => {
                let layout = KvLayout::new(self.layers, self.slice_bytes)
                    .map_err(|_| FormatError::Field("slice_bytes"))?;
                let slices = self.layers * self.block_count;
                let slice_crcs = (0..slices).map(|_| tables.u32()).collect::<Result<_, _>>()?;
                let units = self.units.table(layout, self.block_count, &mut tables)?;
                RecordKind::Extent { layout, slice_crcs, units }
            }
            2 => RecordKind::Tombstone { kills_before: self.kills_before },
            3 => RecordKind::Void { payload_bytes: self.payload_bytes },
            _ => RecordKind::Seal,
        };
        if self.header.payload_bytes() != self.payload_bytes {
            return Err(FormatError::Field("payload_bytes"));
        }
        if !all_zero(tables.0) {
            return Err(FormatError::Field("padding"));
        }
        Ok(self.header)
    }

    fn check_counts(&self) -> Result<(), FormatError> {
        let slices = u64::from(self.block_count) * u64::from(self.layers);
        let counts_fit =
            self.block_count <= MAX_EXTENT_BLOCKS && slices <= u64::from(MAX_EXTENT_SLICES);
        let shape_fits = match self.kind {
            1 => self.block_count > 0 && self.layers > 0,
            2 => self.layers == 0 && self.slice_bytes == 0,
            3 | 4 => self.block_count == 0 && self.layers == 0 && self.slice_bytes == 0,
            _ => return Err(FormatError::Field("kind")),
        };
        let kills_fits = self.kind == 2 || self.kills_before == 0;
        let is_plain = self.units == UnitFields::default();
        if self.units.unit_count > MAX_EXTENT_UNITS || (self.units.codec == 0 && !is_plain) {
            return Err(FormatError::Field("unit_count"));
        }
        match (counts_fit, shape_fits, kills_fits) {
            (true, true, true) if self.payload_bytes.is_multiple_of(SECTOR as u64) => Ok(()),
            (true, true, true) => Err(FormatError::Field("payload_bytes")),
            (true, true, false) => Err(FormatError::Field("kills_before")),
            _ => Err(FormatError::Field("block_count")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{StoredUnit, unit_count};
    use super::*;
    use dalsegno_core::Compression;
    use proptest::prelude::*;

    fn units(layout: KvLayout, blocks: u32) -> Units {
        let count = unit_count(layout, blocks, 40_000).unwrap();
        let table = (0..count).map(|i| StoredUnit { bytes: 1 + i % 6000, crc: i }).collect();
        Units { compression: Compression::zstd(2).unwrap(), unit_bytes: 40_000, table }
    }

    fn sample(blocks: u8, layers: u32, kind: u8) -> RecordHeader {
        let layout = KvLayout::new(layers, 6000).unwrap();
        let kind = match kind {
            0 => RecordKind::Extent {
                layout,
                slice_crcs: (0..layers * u32::from(blocks)).map(|i| i.wrapping_mul(77)).collect(),
                units: None,
            },
            4 => RecordKind::Extent {
                layout,
                slice_crcs: vec![9; layers as usize * usize::from(blocks)],
                units: Some(units(layout, blocks.into())),
            },
            1 => RecordKind::Tombstone { kills_before: 5 },
            2 => RecordKind::Void { payload_bytes: 8192 },
            _ => RecordKind::Seal,
        };
        let named = matches!(kind, RecordKind::Extent { .. } | RecordKind::Tombstone { .. });
        RecordHeader {
            store: StoreId([1; 16]),
            segment: 2,
            epoch: 3,
            offset: 4096,
            sequence: 5,
            born: 5,
            namespace: NamespaceId([6; 16]),
            lineage: ChainHash([7; 32]),
            parent: ChainHash([8; 32]),
            first_block_index: 9,
            hashes: if named { (0..blocks).map(|i| ChainHash([i; 32])).collect() } else { vec![] },
            kind,
        }
    }

    fn encoded(header: &RecordHeader) -> Vec<u8> {
        let mut bytes = vec![0xee; header.header_bytes() as usize];
        header.encode(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn a_header_round_trips(blocks in 1_u8..200, layers in 1_u32..60, kind in 0_u8..5) {
            let header = sample(blocks, layers, kind);
            prop_assert_eq!(RecordHeader::decode(&encoded(&header)), Ok(header));
        }

        #[test]
        fn a_flipped_byte_is_always_noticed(
            at in 0_usize..8192, flip in 1_u8..=255, is_compressed: bool,
        ) {
            let mut bytes = encoded(&sample(100, 8, if is_compressed { 4 } else { 0 }));
            let at = at % bytes.len();
            bytes[at] ^= flip;
            prop_assert!(RecordHeader::decode(&bytes).is_err());
        }

        #[test]
        fn random_fields_with_a_valid_checksum_are_refused_or_canonical(
            at in prop_oneof![Just(8_usize), 80_usize..400], value in any::<u8>(), is_compressed: bool
        ) {
            let mut bytes = encoded(&sample(3, 2, if is_compressed { 4 } else { 0 }));
            bytes[at] = value;
            bytes[CRC_AT..CRC_AT + 4].fill(0);
            let crc = dalsegno_core::crc32c(&bytes);
            bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            if let Ok(header) = RecordHeader::decode(&bytes) {
                prop_assert_eq!(encoded(&header), bytes);
            }
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        let bytes = encoded(&sample(100, 8, 0));
        for length in (0..bytes.len()).step_by(61) {
            assert!(RecordHeader::decode(&bytes[..length]).is_err());
        }
    }
}
