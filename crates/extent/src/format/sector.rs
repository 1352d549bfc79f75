//! Headers of one sector: the store's, a segment's, a namespace descriptor.

use dalsegno_core::{Compression, Namespace, StoreId, may_be_segment_bytes};

use super::bytes::{
    COMPRESSED_VERSION, FieldReader, FieldWriter, PLAIN_VERSION, SECTOR, all_zero, check_counts,
};
use super::error::FormatError;

/// Offset of the checksum in a header of one sector.
pub const CRC_AT: usize = SECTOR - 4;
/// Codec and width of an element in a namespace descriptor of version 2.
const COMPRESSION_AT: usize = CRC_AT - 8;
const STORE_MAGIC: [u8; 8] = *b"DSGNSTOR";
const SEGMENT_MAGIC: [u8; 8] = *b"DSGNSEGM";
const NAMESPACE_MAGIC: [u8; 8] = *b"DSGNNAME";

/// The contents of `store.meta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreHeader {
    /// The store's random name.
    pub store: StoreId,
    /// Size of its segment files.
    pub segment_bytes: u64,
    /// Whether it may hold compressed extents.
    pub is_compressed: bool,
}

/// The first sector of a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The store's random name.
    pub store: StoreId,
    /// The segment's number.
    pub segment: u64,
    /// Grows each time the segment is recycled.
    pub epoch: u64,
    /// Size of the file.
    pub segment_bytes: u64,
    /// No record of this epoch has a smaller sequence number.
    pub first_sequence: u64,
    /// Whether tombstones of earlier epochs are being copied: all of them count, and no extent does.
    pub carrying: bool,
}

/// The contents of a `namespace-<id>.meta` file: the namespace, and how its new extents are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceSector(pub Namespace, pub Compression);

impl StoreHeader {
    /// Writes the sector.
    ///
    /// # Panics
    ///
    /// If `sector` is not 4,096 bytes long. So do the other encoders here.
    pub fn encode(&self, sector: &mut [u8]) {
        let version = if self.is_compressed { COMPRESSED_VERSION } else { PLAIN_VERSION };
        let mut writer = begin(sector, STORE_MAGIC, version, 4096);
        writer.put(&self.store.0);
        writer.put(&self.segment_bytes.to_le_bytes());
        seal(sector);
    }

    /// Reads the sector.
    pub fn decode(sector: &[u8]) -> Result<Self, FormatError> {
        let (mut reader, version, _) = open(sector, STORE_MAGIC, COMPRESSED_VERSION, true)?;
        let (store, segment_bytes) = (StoreId(reader.array()?), reader.u64()?);
        let header = Self { store, segment_bytes, is_compressed: version == COMPRESSED_VERSION };
        expect_zero(&reader)?;
        // Other sizes are derived from it by division.
        check_segment_bytes(segment_bytes)?;
        Ok(header)
    }
}

impl SegmentHeader {
    /// Writes the sector.
    pub fn encode(&self, sector: &mut [u8]) {
        let mut writer = begin(sector, SEGMENT_MAGIC, PLAIN_VERSION, 4096);
        writer.put(&self.store.0);
        for field in [self.segment, self.epoch, self.segment_bytes, self.first_sequence] {
            writer.put(&field.to_le_bytes());
        }
        writer.put(&u32::from(self.carrying).to_le_bytes());
        seal(sector);
    }

    /// Reads the sector.
    pub fn decode(sector: &[u8]) -> Result<Self, FormatError> {
        let (mut reader, _, _) = open(sector, SEGMENT_MAGIC, PLAIN_VERSION, true)?;
        let header = Self {
            store: StoreId(reader.array()?),
            segment: reader.u64()?,
            epoch: reader.u64()?,
            segment_bytes: reader.u64()?,
            first_sequence: reader.u64()?,
            carrying: match reader.u32()? {
                0 => false,
                1 => true,
                _ => return Err(FormatError::Field("carrying")),
            },
        };
        expect_zero(&reader)?;
        let Self { segment, epoch, segment_bytes, first_sequence, .. } = header;
        check_segment_bytes(segment_bytes)?;
        check_counts(&[
            ("segment", segment),
            ("epoch", epoch),
            ("first_sequence", first_sequence),
        ])?;
        Ok(header)
    }
}

impl NamespaceSector {
    /// Writes the sector; `false` if the encoding does not fit.
    #[must_use]
    pub fn encode(&self, sector: &mut [u8]) -> bool {
        let encoding = self.0.encode();
        let version = if self.1.is_plain() { PLAIN_VERSION } else { COMPRESSED_VERSION };
        let end = if self.1.is_plain() { CRC_AT } else { COMPRESSION_AT };
        let Some(length) =
            u32::try_from(encoding.len()).ok().filter(|_| encoding.len() <= end - 16)
        else {
            return false;
        };
        let mut writer = begin(sector, NAMESPACE_MAGIC, version, length);
        writer.put(&encoding);
        if !self.1.is_plain() {
            writer.skip_to(COMPRESSION_AT);
            writer.put(&1_u32.to_le_bytes());
            writer.put(&self.1.element_bytes().to_le_bytes());
        }
        seal(sector);
        true
    }

    /// Reads the sector.
    pub fn decode(sector: &[u8]) -> Result<Self, FormatError> {
        let (mut reader, version, length) =
            open(sector, NAMESPACE_MAGIC, COMPRESSED_VERSION, false)?;
        let compression = if version == COMPRESSED_VERSION {
            let (body, fields) = reader.0.split_at(COMPRESSION_AT - 16);
            reader.0 = body;
            read_compression(&mut FieldReader(fields))?
        } else {
            Compression::PLAIN
        };
        let length = usize::try_from(length).map_err(|_| FormatError::Field("length"))?;
        let (encoding, rest) =
            reader.0.split_at_checked(length).ok_or(FormatError::Field("length"))?;
        expect_zero(&FieldReader(rest))?;
        let namespace = Namespace::decode(encoding);
        namespace.map(|found| Self(found, compression)).map_err(|_| FormatError::Field("encoding"))
    }
}

fn read_compression(reader: &mut FieldReader<'_>) -> Result<Compression, FormatError> {
    if reader.u32()? != 1 {
        return Err(FormatError::Field("codec"));
    }
    Compression::zstd(reader.u32()?).map_err(|_| FormatError::Field("element_bytes"))
}

/// Starts a header sector: magic, version and length are written.
///
/// # Panics
///
/// If `sector` is not 4,096 bytes long.
pub fn begin(sector: &mut [u8], magic: [u8; 8], version: u32, length: u32) -> FieldWriter<'_> {
    assert_eq!(sector.len(), SECTOR, "a header of this kind is one sector");
    let mut writer = FieldWriter::new(sector);
    writer.put(&magic);
    writer.put(&version.to_le_bytes());
    writer.put(&length.to_le_bytes());
    writer
}

/// Writes the checksum of a header sector.
pub fn seal(sector: &mut [u8]) {
    let crc = dalsegno_core::crc32c(&sector[..CRC_AT]);
    sector[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
}

/// Checks what all versions share, and returns a reader of the fields, the version and the length field.
pub fn open(
    sector: &[u8],
    magic: [u8; 8],
    newest: u32,
    fixed: bool,
) -> Result<(FieldReader<'_>, u32, u32), FormatError> {
    if sector.len() < SECTOR {
        return Err(FormatError::Truncated);
    }
    let (body, crc) = sector[..SECTOR].split_at(CRC_AT);
    let mut reader = FieldReader(body);
    if reader.array::<8>()? != magic {
        return Err(FormatError::Magic);
    }
    // The checksum is checked before the version, so that a flipped bit is damage and not a newer format.
    if crc != dalsegno_core::crc32c(body).to_le_bytes() {
        return Err(FormatError::Checksum);
    }
    let (version, length) = (reader.u32()?, reader.u32()?);
    if version > newest {
        return Err(FormatError::Newer(version));
    }
    if version == 0 || (fixed && length != 4096) {
        return Err(FormatError::Field(if version == 0 { "version" } else { "header_bytes" }));
    }
    Ok((reader, version, length))
}

fn check_segment_bytes(bytes: u64) -> Result<(), FormatError> {
    if may_be_segment_bytes(bytes) { Ok(()) } else { Err(FormatError::Field("segment_bytes")) }
}

/// Fails unless all bytes that are left are zero.
pub fn expect_zero(reader: &FieldReader<'_>) -> Result<(), FormatError> {
    if all_zero(reader.0) { Ok(()) } else { Err(FormatError::Field("reserved")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dalsegno_core::KvLayout;

    fn header() -> SegmentHeader {
        SegmentHeader {
            store: StoreId([7; 16]),
            segment: 3,
            epoch: 9,
            segment_bytes: 1 << 20,
            first_sequence: 77,
            carrying: true,
        }
    }

    #[test]
    fn every_flipped_bit_of_a_sector_is_noticed() {
        let mut sector = [0; SECTOR];
        header().encode(&mut sector);
        assert_eq!(SegmentHeader::decode(&sector), Ok(header()));
        for bit in 0..SECTOR * 8 {
            sector[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&sector).is_err(), "bit {bit}");
            sector[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_newer_version_differs_from_damage() {
        let mut sector = [0; SECTOR];
        for is_compressed in [false, true] {
            let header =
                StoreHeader { store: StoreId([1; 16]), segment_bytes: 1 << 20, is_compressed };
            header.encode(&mut sector);
            assert_eq!(
                (sector[8], StoreHeader::decode(&sector)),
                (1 + u8::from(is_compressed), Ok(header))
            );
        }
        sector[8] = 3;
        assert_eq!(StoreHeader::decode(&sector), Err(FormatError::Checksum));
        seal(&mut sector);
        assert_eq!(StoreHeader::decode(&sector), Err(FormatError::Newer(3)));
        header().encode(&mut sector);
        sector[8] = 2;
        seal(&mut sector);
        assert_eq!(SegmentHeader::decode(&sector), Err(FormatError::Newer(2)));
    }

    #[test]
    fn regression_segments_of_a_size_that_no_store_has_are_damage() {
        let mut sector = [0; SECTOR];
        for segment_bytes in [0, 1, 4096, (1 << 20) + 4096, 1 << 33, 1 << 63, u64::MAX] {
            let store = StoreId([1; 16]);
            StoreHeader { store, segment_bytes, is_compressed: false }.encode(&mut sector);
            assert_eq!(StoreHeader::decode(&sector), Err(FormatError::Field("segment_bytes")));
            SegmentHeader { segment_bytes, ..header() }.encode(&mut sector);
            assert_eq!(SegmentHeader::decode(&sector), Err(FormatError::Field("segment_bytes")));
        }
    }

    #[test]
    fn a_namespace_descriptor_round_trips_and_refuses_to_overflow() {
        let layout = KvLayout::new(1, 4096).unwrap();
        let namespace = Namespace::builder(layout).field("model", "m").build().unwrap();
        let mut sector = [0; SECTOR];
        for compression in [Compression::PLAIN, Compression::zstd(2).unwrap()] {
            let descriptor = NamespaceSector(namespace.clone(), compression);
            assert!(descriptor.encode(&mut sector));
            assert_eq!(NamespaceSector::decode(&sector), Ok(descriptor));
        }
        sector[COMPRESSION_AT] = 9;
        seal(&mut sector);
        assert_eq!(NamespaceSector::decode(&sector), Err(FormatError::Field("codec")));
        let large = (0..5).fold(Namespace::builder(layout), |builder, i| {
            builder.field(format!("field{i}"), "x".repeat(1000))
        });
        assert!(!NamespaceSector(large.build().unwrap(), Compression::PLAIN).encode(&mut sector));
    }
}
