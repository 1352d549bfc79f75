//! Headers of one sector: the store's, a segment's, a namespace descriptor.

use dalsegno_core::{Namespace, StoreId};

use super::{FORMAT_VERSION, FormatError, Reader, SECTOR, Writer, all_zero};

const CRC_AT: usize = SECTOR - 4;
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
}

/// The contents of a `namespace-<id>.meta` file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceSector(pub Namespace);

impl StoreHeader {
    /// Writes the sector.
    ///
    /// # Panics
    ///
    /// If `sector` is not 4,096 bytes long; so do the other encoders here.
    pub fn encode(&self, sector: &mut [u8]) {
        let mut writer = begin(sector, STORE_MAGIC, 4096);
        writer.put(&self.store.0);
        writer.put(&self.segment_bytes.to_le_bytes());
        seal(sector);
    }

    /// Reads the sector.
    pub fn decode(sector: &[u8]) -> Result<Self, FormatError> {
        let (mut reader, _) = open(sector, STORE_MAGIC, true)?;
        let header = Self { store: StoreId(reader.array()?), segment_bytes: reader.u64()? };
        expect_zero(&reader)?;
        Ok(header)
    }
}

impl SegmentHeader {
    /// Writes the sector.
    pub fn encode(&self, sector: &mut [u8]) {
        let mut writer = begin(sector, SEGMENT_MAGIC, 4096);
        writer.put(&self.store.0);
        for field in [self.segment, self.epoch, self.segment_bytes, self.first_sequence] {
            writer.put(&field.to_le_bytes());
        }
        seal(sector);
    }

    /// Reads the sector.
    pub fn decode(sector: &[u8]) -> Result<Self, FormatError> {
        let (mut reader, _) = open(sector, SEGMENT_MAGIC, true)?;
        let header = Self {
            store: StoreId(reader.array()?),
            segment: reader.u64()?,
            epoch: reader.u64()?,
            segment_bytes: reader.u64()?,
            first_sequence: reader.u64()?,
        };
        expect_zero(&reader)?;
        Ok(header)
    }
}

impl NamespaceSector {
    /// Writes the sector; `false` if the encoding does not fit.
    #[must_use]
    pub fn encode(&self, sector: &mut [u8]) -> bool {
        let encoding = self.0.encode();
        let Some(length) =
            u32::try_from(encoding.len()).ok().filter(|_| encoding.len() <= CRC_AT - 16)
        else {
            return false;
        };
        begin(sector, NAMESPACE_MAGIC, length).put(&encoding);
        seal(sector);
        true
    }

    /// Reads the sector.
    pub fn decode(sector: &[u8]) -> Result<Self, FormatError> {
        let (reader, length) = open(sector, NAMESPACE_MAGIC, false)?;
        let length = usize::try_from(length).map_err(|_| FormatError::Field("length"))?;
        let (encoding, rest) =
            reader.0.split_at_checked(length).ok_or(FormatError::Field("length"))?;
        expect_zero(&Reader(rest))?;
        Namespace::decode(encoding).map(Self).map_err(|_| FormatError::Field("encoding"))
    }
}

fn begin(sector: &mut [u8], magic: [u8; 8], length: u32) -> Writer<'_> {
    assert_eq!(sector.len(), SECTOR, "a header of this kind is one sector");
    let mut writer = Writer::new(sector);
    writer.put(&magic);
    writer.put(&FORMAT_VERSION.to_le_bytes());
    writer.put(&length.to_le_bytes());
    writer
}

fn seal(sector: &mut [u8]) {
    let crc = crc32c::crc32c(&sector[..CRC_AT]);
    sector[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
}

/// Checks what every version shares; returns a reader of the fields and the length field.
fn open(sector: &[u8], magic: [u8; 8], fixed: bool) -> Result<(Reader<'_>, u32), FormatError> {
    if sector.len() < SECTOR {
        return Err(FormatError::Truncated);
    }
    let (body, crc) = sector[..SECTOR].split_at(CRC_AT);
    let mut reader = Reader(body);
    if reader.array::<8>()? != magic {
        return Err(FormatError::Magic);
    }
    // The checksum comes before the version: a flipped bit must read as damage, not as a newer format.
    if crc != crc32c::crc32c(body).to_le_bytes() {
        return Err(FormatError::Checksum);
    }
    let (version, length) = (reader.u32()?, reader.u32()?);
    if version > FORMAT_VERSION {
        return Err(FormatError::Newer(version));
    }
    if version == 0 || (fixed && length != 4096) {
        return Err(FormatError::Field(if version == 0 { "version" } else { "header_bytes" }));
    }
    Ok((reader, length))
}

fn expect_zero(reader: &Reader<'_>) -> Result<(), FormatError> {
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
    fn a_newer_version_is_told_from_damage() {
        let mut sector = [0; SECTOR];
        StoreHeader { store: StoreId([1; 16]), segment_bytes: 1 << 20 }.encode(&mut sector);
        sector[8] = 2;
        assert_eq!(StoreHeader::decode(&sector), Err(FormatError::Checksum));
        seal(&mut sector);
        assert_eq!(StoreHeader::decode(&sector), Err(FormatError::Newer(2)));
    }

    #[test]
    fn a_namespace_descriptor_round_trips_and_refuses_to_overflow() {
        let layout = KvLayout::new(1, 4096).unwrap();
        let namespace = Namespace::builder(layout).field("model", "m").build().unwrap();
        let mut sector = [0; SECTOR];
        assert!(NamespaceSector(namespace.clone()).encode(&mut sector));
        assert_eq!(NamespaceSector::decode(&sector), Ok(NamespaceSector(namespace)));
        let large = (0..5).fold(Namespace::builder(layout), |builder, i| {
            builder.field(format!("field{i}"), "x".repeat(1000))
        });
        assert!(!NamespaceSector(large.build().unwrap()).encode(&mut sector));
    }
}
