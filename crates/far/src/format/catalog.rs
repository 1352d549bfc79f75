//! The catalog of a pack: what it holds, and what was removed.
//!
//! 1. Decoders never panic, and check every length against its bound before they use it.
//! 2. Bytes that decode encode to the same bytes again.

use dalsegno_core::{
    ChainHash, Extent, ExtentId, KvLayout, Location, MAX_EXTENT_BLOCKS, NamespaceId, StoreId,
};
use dalsegno_extent::format::{
    FieldReader, FieldWriter, FormatError, MAX_RECORD_HEADER_BYTES, PLAIN_VERSION, SECTOR,
    all_zero, begin, check_counts, expect_zero, open, seal,
};

use crate::names::WriterId;

const MAGIC: [u8; 8] = *b"DSGNCATL";
const ENTRY_BYTES: usize = 144;
const KNOWN_BYTES: usize = 32;

/// Largest pack.
pub const MAX_PACK_BYTES: u64 = 64 << 20;
/// Largest catalog.
pub const MAX_CATALOG_BYTES: u64 = 16 << 20;

/// The contents of a catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalog {
    /// Whose it is.
    pub writer: WriterId,
    /// Its number, and that of its pack.
    pub number: u64,
    /// Size of the pack; 0 if there is none.
    pub pack_bytes: u64,
    /// What the pack holds, and what was removed.
    pub entries: Vec<Entry>,
    /// The packs to which its tombstones apply.
    pub known: Vec<KnownWriter>,
}

/// An entry of a catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An extent of the pack. Its location names the pack.
    Extent(Extent),
    /// Blocks that were removed.
    Tombstone(Tombstone),
}

/// Blocks that were removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// The number of the removal in the writer's log.
    pub sequence: u64,
    /// Their namespace.
    pub namespace: NamespaceId,
    /// The blocks; none for all of the namespace.
    pub hashes: Vec<ChainHash>,
}

/// How far the packs of a writer were known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KnownWriter {
    /// The writer.
    pub writer: WriterId,
    /// Its newest catalog that was known.
    pub number: u64,
}

impl Entry {
    /// Bytes in the body of a catalog.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        ENTRY_BYTES + 32 * self.hashes().len()
    }

    fn hashes(&self) -> &[ChainHash] {
        match self {
            Self::Extent(extent) => &extent.hashes,
            Self::Tombstone(tombstone) => &tombstone.hashes,
        }
    }
}

impl Catalog {
    /// The whole object, in whole sectors.
    ///
    /// # Panics
    ///
    /// If it is larger than [`MAX_CATALOG_BYTES`]: the writer closes a pack before.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let entries: usize = self.entries.iter().map(Entry::encoded_bytes).sum();
        let body = (entries + KNOWN_BYTES * self.known.len()).next_multiple_of(SECTOR);
        let mut bytes = vec![0; SECTOR + body];
        assert!(bytes.len() as u64 <= MAX_CATALOG_BYTES, "a catalog of {} bytes", bytes.len());
        let mut writer = FieldWriter::new(&mut bytes[SECTOR..]);
        for entry in &self.entries {
            write_entry(&mut writer, entry);
        }
        for known in &self.known {
            write_writer(&mut writer, known.writer);
            writer.put(&known.number.to_le_bytes());
        }
        let body_crc = crc32c::crc32c(&bytes[SECTOR..]);
        let header = &mut bytes[..SECTOR];
        let mut writer = begin(header, MAGIC, PLAIN_VERSION, 4096);
        write_writer(&mut writer, self.writer);
        for field in [self.number, self.pack_bytes, body as u64] {
            writer.put(&field.to_le_bytes());
        }
        writer.put(&body_crc.to_le_bytes());
        for count in [self.entries.len(), self.known.len()] {
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
        let (mut reader, _, _) = open(bytes, MAGIC, PLAIN_VERSION, true)?;
        let writer = read_writer(&mut reader)?;
        let (number, pack_bytes, body_bytes) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (body_crc, entry_count, known_count) = (reader.u32()?, reader.u32()?, reader.u32()?);
        expect_zero(&reader)?;
        check_counts(&[("open", writer.open), ("number", number)])?;
        if pack_bytes > MAX_PACK_BYTES || !pack_bytes.is_multiple_of(SECTOR as u64) {
            return Err(FormatError::Field("pack_bytes"));
        }
        let body = &bytes[SECTOR..];
        if (body.len() as u64) < body_bytes {
            return Err(FormatError::Truncated);
        }
        if body.len() as u64 != body_bytes || bytes.len() as u64 > MAX_CATALOG_BYTES {
            return Err(FormatError::Field("body_bytes"));
        }
        if crc32c::crc32c(body) != body_crc {
            return Err(FormatError::Checksum);
        }
        let mut body = BodyReader { fields: FieldReader(body), writer, number, end: 0 };
        let entries: Vec<Entry> =
            (0..entry_count).map(|_| body.entry(pack_bytes)).collect::<Result<_, _>>()?;
        let known: Vec<KnownWriter> =
            (0..known_count).map(|_| body.known()).collect::<Result<_, _>>()?;
        if !all_zero(body.fields.0) || body.fields.0.len() >= SECTOR {
            return Err(FormatError::Field("padding"));
        }
        if !known.is_sorted_by(|one, next| one.writer < next.writer) {
            return Err(FormatError::Field("known_writers"));
        }
        let has_tombstone = entries.iter().any(|entry| matches!(entry, Entry::Tombstone(_)));
        if !has_tombstone && !known.is_empty() {
            return Err(FormatError::Field("known_count"));
        }
        Ok(Self { writer, number, pack_bytes, entries, known })
    }

    /// Its extents.
    pub fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Extent(extent) => Some(extent),
            Entry::Tombstone(_) => None,
        })
    }

    /// Its tombstones.
    pub fn tombstones(&self) -> impl Iterator<Item = &Tombstone> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Tombstone(tombstone) => Some(tombstone),
            Entry::Extent(_) => None,
        })
    }
}

fn write_writer(writer: &mut FieldWriter<'_>, id: WriterId) {
    writer.put(&id.store.0);
    writer.put(&id.open.to_le_bytes());
}

fn read_writer(reader: &mut FieldReader<'_>) -> Result<WriterId, FormatError> {
    Ok(WriterId { store: StoreId(reader.array()?), open: reader.u64()? })
}

fn write_entry(writer: &mut FieldWriter<'_>, entry: &Entry) {
    match entry {
        Entry::Extent(extent) => {
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
            for field in [
                extent.first_block_index,
                extent.block_count(),
                layout.layers(),
                layout.slice_bytes(),
            ] {
                writer.put(&field.to_le_bytes());
            }
            writer.put(&compressed_bytes.to_le_bytes());
            writer.put(&[0; 8]);
        }
        Entry::Tombstone(Tombstone { sequence, namespace, hashes }) => {
            writer.put(&2_u32.to_le_bytes());
            writer.put(&[0; 12]);
            writer.put(&sequence.to_le_bytes());
            writer.put(&[0; 8]);
            writer.put(&namespace.0);
            writer.put(&[0; 68]);
            let count = u32::try_from(hashes.len()).expect("bounded by MAX_EXTENT_BLOCKS");
            writer.put(&count.to_le_bytes());
            writer.put(&[0; 24]);
        }
    }
    for hash in entry.hashes() {
        writer.put(&hash.0);
    }
}

/// Reads the body of a catalog.
struct BodyReader<'a> {
    fields: FieldReader<'a>,
    writer: WriterId,
    number: u64,
    /// Where the last extent ends in the pack.
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

    /// Whether all fields are zero that a tombstone does not have.
    fn are_of_tombstone(&self) -> bool {
        let numbers = [self.header_bytes, self.first_block_index, self.layers, self.slice_bytes];
        numbers.iter().all(|number| *number == 0)
            && self.offset == 0
            && self.born == 0
            && self.compressed_bytes == 0
            && self.lineage == ChainHash::default()
            && self.parent == ChainHash::default()
    }
}

impl BodyReader<'_> {
    fn entry(&mut self, pack_bytes: u64) -> Result<Entry, FormatError> {
        let fields = EntryFields::read(&mut self.fields)?;
        let hashes = (0..fields.block_count).map(|_| self.fields.array().map(ChainHash));
        let hashes: Vec<ChainHash> = hashes.collect::<Result<_, _>>()?;
        match fields.kind {
            1 => self.extent(&fields, hashes, pack_bytes).map(Entry::Extent),
            2 if fields.are_of_tombstone() => {
                let (sequence, namespace) = (fields.sequence, fields.namespace);
                Ok(Entry::Tombstone(Tombstone { sequence, namespace, hashes }))
            }
            _ => Err(FormatError::Field("kind")),
        }
    }

    fn extent(
        &mut self,
        fields: &EntryFields,
        hashes: Vec<ChainHash>,
        pack_bytes: u64,
    ) -> Result<Extent, FormatError> {
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
                segment: self.number,
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
        if fields.offset < self.end || end > pack_bytes {
            return Err(FormatError::Field("offset"));
        }
        self.end = end;
        Ok(extent)
    }

    fn known(&mut self) -> Result<KnownWriter, FormatError> {
        let known =
            KnownWriter { writer: read_writer(&mut self.fields)?, number: self.fields.u64()? };
        check_counts(&[("open", known.writer.open), ("number", known.number)])?;
        Ok(known)
    }
}

#[cfg(test)]
mod tests;
