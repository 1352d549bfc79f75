//! The catalog of packs that were published together: what they hold, and which removals their writer had applied.
//!
//! 1. Decoders never panic, and check every length against its bound before they use it.
//! 2. Bytes that decode encode to the same bytes again.
//! 3. The number of a pack says which catalog names it: [`catalog_of`].

use dalsegno_core::{
    ChainHash, Extent, ExtentId, KvLayout, Location, MAX_EXTENT_BLOCKS, NamespaceId,
};
use dalsegno_extent::format::{
    FieldReader, FieldWriter, FormatError, MAX_RECORD_HEADER_BYTES, SECTOR, all_zero, begin,
    check_counts, expect_zero, open, seal,
};

use super::writer::{read_writer, write_writer};
use crate::names::WriterId;
use crate::removal::{Applied, RemovalId};

const MAGIC: [u8; 8] = *b"DSGNCATL";
/// Version 1 had removals in catalogs, version 2 a catalog for each pack.
const VERSION: u32 = 3;
/// Bytes of the fields of a pack, in front of its entries.
pub const PACK_FIELD_BYTES: usize = 32;
const ENTRY_BYTES: usize = 144;
const APPLIED_BYTES: usize = 32;

/// Most packs of a catalog.
pub const CATALOG_PACKS: u64 = 16;
/// Largest pack.
pub const MAX_PACK_BYTES: u64 = 64 << 20;
/// Largest catalog.
pub const MAX_CATALOG_BYTES: u64 = 16 << 20;
/// Most writers of whom a catalog says how many of their removals were applied. Others are left out.
pub const MAX_APPLIED_WRITERS: usize = 65_536;

/// The contents of a catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalog {
    /// Whose it is.
    pub writer: WriterId,
    /// Its number.
    pub number: u64,
    /// Its packs, by number.
    pub packs: Vec<CatalogPack>,
    /// The removals that its writer had applied when the packs were begun.
    pub applied: Applied,
}

/// A pack, as its catalog names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogPack {
    /// Its number.
    pub number: u64,
    /// Its size.
    pub bytes: u64,
    /// What it holds. Their locations name the pack.
    pub extents: Vec<Extent>,
}

impl CatalogPack {
    /// The number of its blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.extents.iter().map(|extent| extent.hashes.len() as u64).sum()
    }
}

/// The number of the catalog that names a pack.
#[must_use]
pub const fn catalog_of(pack: u64) -> u64 {
    pack / CATALOG_PACKS
}

/// The numbers of the packs that a catalog may name.
#[must_use]
pub const fn packs_of(catalog: u64) -> std::ops::Range<u64> {
    // A number of a catalog that no writer reaches has none.
    catalog.saturating_mul(CATALOG_PACKS)..catalog.saturating_add(1).saturating_mul(CATALOG_PACKS)
}

/// Bytes of an extent in the body of a catalog.
#[must_use]
pub fn extent_bytes(extent: &Extent) -> usize {
    entry_bytes(extent.hashes.len())
}

/// The same of an extent with so many blocks.
pub(crate) fn entry_bytes(blocks: usize) -> usize {
    ENTRY_BYTES + 32 * blocks
}

impl Catalog {
    /// The whole object, in whole sectors.
    ///
    /// # Panics
    ///
    /// If it is larger than [`MAX_CATALOG_BYTES`]: the writer closes a pack before.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let applied = self.applied.iter().take(MAX_APPLIED_WRITERS);
        let of_pack = |pack: &CatalogPack| {
            PACK_FIELD_BYTES + pack.extents.iter().map(extent_bytes).sum::<usize>()
        };
        let entries: usize = self.packs.iter().map(of_pack).sum();
        let body = (entries + APPLIED_BYTES * applied.len()).next_multiple_of(SECTOR);
        let mut bytes = vec![0; SECTOR + body];
        assert!(bytes.len() as u64 <= MAX_CATALOG_BYTES, "a catalog of {} bytes", bytes.len());
        let counts = [self.packs.len(), applied.len()];
        let mut writer = FieldWriter::new(&mut bytes[SECTOR..]);
        for pack in &self.packs {
            for field in [pack.number, pack.bytes, pack.extents.len() as u64, 0] {
                writer.put(&field.to_le_bytes());
            }
            pack.extents.iter().for_each(|extent| write_extent(&mut writer, extent));
        }
        for id in applied {
            write_writer(&mut writer, id.by);
            writer.put(&id.number.to_le_bytes());
        }
        let body_crc = dalsegno_core::crc32c(&bytes[SECTOR..]);
        let header = &mut bytes[..SECTOR];
        let mut writer = begin(header, MAGIC, VERSION, 4096);
        write_writer(&mut writer, self.writer);
        for field in [self.number, body as u64] {
            writer.put(&field.to_le_bytes());
        }
        writer.put(&body_crc.to_le_bytes());
        for count in counts {
            let count = u32::try_from(count).expect("bounded by MAX_CATALOG_BYTES");
            writer.put(&count.to_le_bytes());
        }
        seal(header);
        bytes
    }

    /// Reads a whole object.
    ///
    /// # Errors
    ///
    /// Why it is not valid.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (mut reader, version, _) = open(bytes, MAGIC, VERSION, true)?;
        if version < VERSION {
            return Err(FormatError::Older(version));
        }
        let writer = read_writer(&mut reader)?;
        let (number, body_bytes) = (reader.u64()?, reader.u64()?);
        let (body_crc, pack_count, applied_count) = (reader.u32()?, reader.u32()?, reader.u32()?);
        expect_zero(&reader)?;
        check_counts(&[("open", writer.open), ("number", number)])?;
        if u64::from(pack_count) > CATALOG_PACKS {
            return Err(FormatError::Field("pack_count"));
        }
        let body = &bytes[SECTOR..];
        if (body.len() as u64) < body_bytes {
            return Err(FormatError::Truncated);
        }
        if body.len() as u64 != body_bytes || bytes.len() as u64 > MAX_CATALOG_BYTES {
            return Err(FormatError::Field("body_bytes"));
        }
        if applied_count as usize > MAX_APPLIED_WRITERS {
            return Err(FormatError::Field("applied_count"));
        }
        if dalsegno_core::crc32c(body) != body_crc {
            return Err(FormatError::Checksum);
        }
        let mut body = BodyReader { fields: FieldReader(body), writer };
        let packs: Vec<CatalogPack> =
            (0..pack_count).map(|_| body.pack(number)).collect::<Result<_, _>>()?;
        if !packs.is_sorted_by(|one, next| one.number < next.number) {
            return Err(FormatError::Field("packs"));
        }
        let applied: Vec<RemovalId> =
            (0..applied_count).map(|_| body.applied()).collect::<Result<_, _>>()?;
        if !all_zero(body.fields.0) || body.fields.0.len() >= SECTOR {
            return Err(FormatError::Field("padding"));
        }
        if !applied.is_sorted_by(|one, next| one.by < next.by) {
            return Err(FormatError::Field("applied_writers"));
        }
        let applied = applied.into_iter().collect();
        Ok(Self { writer, number, packs, applied })
    }

    /// The number of blocks of its packs.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.packs.iter().map(CatalogPack::blocks).sum()
    }

    /// The extents of all its packs.
    pub fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.packs.iter().flat_map(|pack| &pack.extents)
    }
}

fn write_extent(writer: &mut FieldWriter<'_>, extent: &Extent) {
    let Location { offset, header_bytes, compressed_bytes, .. } = extent.location;
    writer.put(&1_u32.to_le_bytes());
    writer.put(&header_bytes.to_le_bytes());
    for field in [offset, extent.id.0, extent.born] {
        writer.put(&field.to_le_bytes());
    }
    writer.put(&extent.namespace.0);
    writer.put(&extent.lineage.0);
    writer.put(&extent.parent.0);
    let layout = extent.layout;
    for field in
        [extent.first_block_index, extent.block_count(), layout.layers(), layout.slice_bytes()]
    {
        writer.put(&field.to_le_bytes());
    }
    writer.put(&compressed_bytes.to_le_bytes());
    writer.put(&[0; 8]);
    extent.hashes.iter().for_each(|hash| writer.put(&hash.0));
}

/// Reads the body of a catalog.
struct BodyReader<'a> {
    fields: FieldReader<'a>,
    writer: WriterId,
}

/// The pack whose entries are read.
struct PackReader {
    number: u64,
    bytes: u64,
    /// Where the last extent ends in it.
    end: u64,
}

/// The fixed fields of an entry.
struct EntryFields {
    kind: u32,
    header_bytes: u32,
    offset: u64,
    sequence: u64,
    born: u64,
    namespace: NamespaceId,
    lineage: ChainHash,
    parent: ChainHash,
    first_block_index: u32,
    block_count: u32,
    layers: u32,
    slice_bytes: u32,
    compressed_bytes: u64,
}

impl EntryFields {
    fn read(reader: &mut FieldReader<'_>) -> Result<Self, FormatError> {
        let fields = Self {
            kind: reader.u32()?,
            header_bytes: reader.u32()?,
            offset: reader.u64()?,
            sequence: reader.u64()?,
            born: reader.u64()?,
            namespace: NamespaceId(reader.array()?),
            lineage: ChainHash(reader.array()?),
            parent: ChainHash(reader.array()?),
            first_block_index: reader.u32()?,
            block_count: reader.u32()?,
            layers: reader.u32()?,
            slice_bytes: reader.u32()?,
            compressed_bytes: reader.u64()?,
        };
        if reader.u64()? != 0 {
            return Err(FormatError::Field("reserved"));
        }
        if fields.block_count > MAX_EXTENT_BLOCKS {
            return Err(FormatError::Field("block_count"));
        }
        check_counts(&[("sequence", fields.sequence), ("born", fields.born)])?;
        Ok(fields)
    }
}

impl BodyReader<'_> {
    fn pack(&mut self, catalog: u64) -> Result<CatalogPack, FormatError> {
        let (number, bytes) = (self.fields.u64()?, self.fields.u64()?);
        let (entry_count, reserved) = (self.fields.u64()?, self.fields.u64()?);
        if !packs_of(catalog).contains(&number) {
            return Err(FormatError::Field("pack"));
        }
        if bytes > MAX_PACK_BYTES || !bytes.is_multiple_of(SECTOR as u64) {
            return Err(FormatError::Field("pack_bytes"));
        }
        if reserved != 0 {
            return Err(FormatError::Field("reserved"));
        }
        let mut pack = PackReader { number, bytes, end: 0 };
        let extents = (0..entry_count).map(|_| self.entry(&mut pack)).collect::<Result<_, _>>()?;
        Ok(CatalogPack { number, bytes, extents })
    }

    fn entry(&mut self, pack: &mut PackReader) -> Result<Extent, FormatError> {
        let fields = EntryFields::read(&mut self.fields)?;
        let hashes = (0..fields.block_count).map(|_| self.fields.array().map(ChainHash));
        let hashes: Vec<ChainHash> = hashes.collect::<Result<_, _>>()?;
        if fields.kind != 1 {
            return Err(FormatError::Field("kind"));
        }
        let layout = KvLayout::new(fields.layers, fields.slice_bytes)
            .map_err(|_| FormatError::Field("slice_bytes"))?;
        let extent = Extent {
            id: ExtentId(fields.sequence),
            born: fields.born,
            namespace: fields.namespace,
            lineage: fields.lineage,
            first_block_index: fields.first_block_index,
            parent: fields.parent,
            layout,
            location: Location {
                segment: pack.number,
                epoch: self.writer.open,
                offset: fields.offset,
                header_bytes: fields.header_bytes,
                compressed_bytes: fields.compressed_bytes,
            },
            hashes,
        };
        if !extent.is_sound() || fields.header_bytes > MAX_RECORD_HEADER_BYTES {
            return Err(FormatError::Field("header_bytes"));
        }
        // Both are bounded: sound offsets by 2^48, payloads by the counts.
        let end = fields.offset.saturating_add(extent.total_bytes());
        if fields.offset < pack.end || end > pack.bytes {
            return Err(FormatError::Field("offset"));
        }
        pack.end = end;
        Ok(extent)
    }

    fn applied(&mut self) -> Result<RemovalId, FormatError> {
        let id = RemovalId { by: read_writer(&mut self.fields)?, number: self.fields.u64()? };
        check_counts(&[("open", id.by.open), ("number", id.number)])?;
        if id.number == 0 {
            return Err(FormatError::Field("number"));
        }
        Ok(id)
    }
}

#[cfg(test)]
mod tests;
