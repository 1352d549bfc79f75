//! The header of a record: an extent, a tombstone, a void or a seal.

use dalsegno_core::{
    ChainHash, Extent, ExtentId, KvLayout, Location, MAX_EXTENT_BLOCKS, MAX_EXTENT_SLICES,
    NamespaceId, StoreId, sector_up,
};

use super::{
    FORMAT_VERSION, FormatError, MAX_RECORD_HEADER_BYTES, Reader, SECTOR, Writer, all_zero,
};

const MAGIC: [u8; 8] = *b"DSGNRECD";
const CRC_AT: usize = 76;
const HASHES_AT: usize = 256;

/// What a record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Blocks of one chain; `slice_crcs` holds layer 0's blocks, then layer 1's.
    Extent {
        /// Shape of the blocks.
        layout: KvLayout,
        /// crc32c of every slice, layer-major.
        slice_crcs: Vec<u32>,
    },
    /// Removes blocks that were put before a moment.
    Tombstone {
        /// Only extents with a smaller `born` are affected.
        kills_before: u64,
    },
    /// Reserved and given up.
    Void {
        /// Bytes behind the header to skip.
        payload_bytes: u64,
    },
    /// Nothing follows.
    Seal,
}

/// A record's header, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The store's random name.
    pub store: StoreId,
    /// Number of the segment it lies in.
    pub segment: u64,
    /// The segment's epoch.
    pub epoch: u64,
    /// Its own offset in the segment.
    pub offset: u64,
    /// Unique, grows in the order of reservation.
    pub sequence: u64,
    /// Sequence of the put that first brought the bytes.
    pub born: u64,
    /// Who may read it; zero for voids and seals.
    pub namespace: NamespaceId,
    /// See [`Extent::lineage`].
    pub lineage: ChainHash,
    /// See [`Extent::parent`].
    pub parent: ChainHash,
    /// See [`Extent::first_block_index`].
    pub first_block_index: u32,
    /// Names of blocks.
    pub hashes: Vec<ChainHash>,
    /// What the record is.
    pub kind: RecordKind,
}

/// Bytes of the header of an extent of `block_count` blocks of `layers` layers, or of a tombstone with `layers` 0.
#[must_use]
pub fn record_header_bytes(block_count: u32, layers: u32) -> u32 {
    let slices = u64::from(block_count) * u64::from(layers);
    let bytes = sector_up(HASHES_AT as u64 + u64::from(block_count) * 32 + slices * 4);
    u32::try_from(bytes).expect("block and slice counts are bounded")
}

impl RecordHeader {
    /// Bytes of the header, whole sectors.
    #[must_use]
    pub fn header_bytes(&self) -> u32 {
        let layers = match &self.kind {
            RecordKind::Extent { layout, .. } => layout.layers(),
            _ => 0,
        };
        record_header_bytes(self.block_count(), layers)
    }

    /// Bytes behind the header that belong to the record.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        match &self.kind {
            RecordKind::Extent { layout, .. } => layout.payload_bytes(self.block_count()),
            RecordKind::Void { payload_bytes } => *payload_bytes,
            RecordKind::Tombstone { .. } | RecordKind::Seal => 0,
        }
    }

    fn block_count(&self) -> u32 {
        u32::try_from(self.hashes.len()).expect("bounded by MAX_EXTENT_BLOCKS")
    }

    /// Whether it only says what was removed.
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
        let mut writer = Writer::new(bytes);
        writer.put(&MAGIC);
        writer.put(&FORMAT_VERSION.to_le_bytes());
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
        writer.skip_to(HASHES_AT);
        for hash in &self.hashes {
            writer.put(&hash.0);
        }
        if let RecordKind::Extent { layout, slice_crcs } = &self.kind {
            assert_eq!(
                slice_crcs.len() as u64,
                u64::from(layout.layers()) * self.hashes.len() as u64
            );
            for crc in slice_crcs {
                writer.put(&crc.to_le_bytes());
            }
        }
        let crc = crc32c::crc32c(bytes);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// How many bytes a header that starts with this sector has, if it looks like one at all.
    ///
    /// A cheap look before the whole header is at hand; nothing is verified but the magic, the version and the bound.
    pub fn peek_bytes(sector: &[u8]) -> Result<u32, FormatError> {
        let mut reader = Reader(sector);
        if reader.array::<8>()? != MAGIC {
            return Err(FormatError::Magic);
        }
        let (version, bytes) = (reader.u32()?, reader.u32()?);
        if version > FORMAT_VERSION {
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

    /// Reads a header; `bytes` may go on behind it.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let header_bytes = Self::peek_bytes(bytes)?;
        let bytes = bytes.get(..header_bytes as usize).ok_or(FormatError::Truncated)?;
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        let crc = crc32c::crc32c_append(crc, &[0; 4]);
        let crc = crc32c::crc32c_append(crc, &bytes[CRC_AT + 4..]);
        if bytes[CRC_AT..CRC_AT + 4] != crc.to_le_bytes() {
            return Err(FormatError::Checksum);
        }
        let (fixed, variable) = bytes.split_at(HASHES_AT);
        let fixed = Fixed::read(&mut Reader(&fixed[16..]))?;
        fixed.into_header(Reader(variable), header_bytes)
    }
}

/// The fields in front of the tables, as they stand there.
struct Fixed {
    header: RecordHeader,
    kind: u32,
    block_count: u32,
    layers: u32,
    slice_bytes: u32,
    payload_bytes: u64,
    kills_before: u64,
}

impl Fixed {
    fn read(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
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
        };
        if all_zero(reader.0) { Ok(fixed) } else { Err(FormatError::Field("reserved")) }
    }

    fn into_header(
        mut self,
        mut tables: Reader<'_>,
        header_bytes: u32,
    ) -> Result<RecordHeader, FormatError> {
        self.check_counts()?;
        if record_header_bytes(self.block_count, self.layers) != header_bytes {
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
                RecordKind::Extent { layout, slice_crcs }
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
    use super::*;
    use proptest::prelude::*;

    fn sample(blocks: u8, layers: u32, kind: u8) -> RecordHeader {
        let layout = KvLayout::new(layers, 6000).unwrap();
        let kind = match kind {
            0 => RecordKind::Extent {
                layout,
                slice_crcs: (0..layers * u32::from(blocks)).map(|i| i.wrapping_mul(77)).collect(),
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
        fn a_header_round_trips(blocks in 1_u8..200, layers in 1_u32..60, kind in 0_u8..4) {
            let header = sample(blocks, layers, kind);
            prop_assert_eq!(RecordHeader::decode(&encoded(&header)), Ok(header));
        }

        #[test]
        fn a_flipped_byte_is_always_noticed(at in 0_usize..8192, flip in 1_u8..=255) {
            let mut bytes = encoded(&sample(100, 8, 0));
            let at = at % bytes.len();
            bytes[at] ^= flip;
            prop_assert!(RecordHeader::decode(&bytes).is_err());
        }

        #[test]
        fn a_valid_checksum_over_nonsense_is_still_refused_or_canonical(
            at in 80_usize..256, value in any::<u8>()
        ) {
            let mut bytes = encoded(&sample(3, 2, 0));
            bytes[at] = value;
            bytes[CRC_AT..CRC_AT + 4].fill(0);
            let crc = crc32c::crc32c(&bytes);
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
