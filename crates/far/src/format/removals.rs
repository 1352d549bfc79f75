//! A list of removals.
//!
//! 1. Decoders never panic, and check every length against its bound before they use it.
//! 2. Bytes that decode encode to the same bytes again.

use dalsegno_core::{ChainHash, NamespaceId};
use dalsegno_extent::format::{
    FieldReader, FieldWriter, FormatError, PLAIN_VERSION, SECTOR, all_zero, begin, check_counts,
    expect_zero, open, seal,
};

use super::writer::{read_writer, write_writer};
use crate::names::WriterId;
use crate::removal::{Removal, RemovalId};

const MAGIC: [u8; 8] = *b"DSGNREMV";
const ENTRY_BYTES: usize = 56;

/// Largest list.
pub const MAX_LIST_BYTES: u64 = 16 << 20;
/// A list of this size is full: the next one begins without its entries.
pub const FULL_LIST_BYTES: usize = 64 << 10;
/// Most hashes of a removal. One of more blocks is published for the whole namespace.
pub const MAX_LIST_HASHES: usize = ((16 << 20) - SECTOR - ENTRY_BYTES) / 32;

/// The contents of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovalList {
    /// Who wrote it.
    pub writer: WriterId,
    /// Its number.
    pub number: u64,
    /// The removals, in the order in which they were published.
    pub removals: Vec<Removal>,
}

impl RemovalList {
    /// Bytes of a removal in the body of a list.
    #[must_use]
    pub fn entry_bytes(removal: &Removal) -> usize {
        ENTRY_BYTES + 32 * removal.hashes.len()
    }

    /// The whole object, in whole sectors.
    ///
    /// # Panics
    ///
    /// If it is larger than [`MAX_LIST_BYTES`]: the writer begins another list before.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let entries: usize = self.removals.iter().map(Self::entry_bytes).sum();
        let body = entries.next_multiple_of(SECTOR);
        let mut bytes = vec![0; SECTOR + body];
        assert!(bytes.len() as u64 <= MAX_LIST_BYTES, "a list of {} bytes", bytes.len());
        let mut writer = FieldWriter::new(&mut bytes[SECTOR..]);
        for removal in &self.removals {
            write_removal(&mut writer, removal);
        }
        let body_crc = dalsegno_core::crc32c(&bytes[SECTOR..]);
        let header = &mut bytes[..SECTOR];
        let mut writer = begin(header, MAGIC, PLAIN_VERSION, 4096);
        write_writer(&mut writer, self.writer);
        writer.put(&self.number.to_le_bytes());
        writer.put(&(body as u64).to_le_bytes());
        writer.put(&body_crc.to_le_bytes());
        let count = u32::try_from(self.removals.len()).expect("bounded by MAX_LIST_BYTES");
        writer.put(&count.to_le_bytes());
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
        let (number, body_bytes) = (reader.u64()?, reader.u64()?);
        let (body_crc, entry_count) = (reader.u32()?, reader.u32()?);
        expect_zero(&reader)?;
        check_counts(&[("open", writer.open), ("number", number)])?;
        let body = &bytes[SECTOR..];
        if (body.len() as u64) < body_bytes {
            return Err(FormatError::Truncated);
        }
        if body.len() as u64 != body_bytes || bytes.len() as u64 > MAX_LIST_BYTES {
            return Err(FormatError::Field("body_bytes"));
        }
        if dalsegno_core::crc32c(body) != body_crc {
            return Err(FormatError::Checksum);
        }
        let mut body = FieldReader(body);
        let removals =
            (0..entry_count).map(|_| read_removal(&mut body)).collect::<Result<Vec<_>, _>>()?;
        if !all_zero(body.0) || body.0.len() >= SECTOR {
            return Err(FormatError::Field("padding"));
        }
        Ok(Self { writer, number, removals })
    }
}

pub(super) fn write_removal(writer: &mut FieldWriter<'_>, removal: &Removal) {
    let Removal { id, namespace, hashes } = removal;
    write_writer(writer, id.by);
    writer.put(&id.number.to_le_bytes());
    writer.put(&namespace.0);
    let count = u32::try_from(hashes.len()).expect("bounded by the size of the object");
    writer.put(&count.to_le_bytes());
    writer.put(&[0; 4]);
    for hash in hashes {
        writer.put(&hash.0);
    }
}

pub(super) fn read_removal(reader: &mut FieldReader<'_>) -> Result<Removal, FormatError> {
    let id = RemovalId { by: read_writer(reader)?, number: reader.u64()? };
    check_counts(&[("open", id.by.open), ("number", id.number)])?;
    if id.number == 0 {
        return Err(FormatError::Field("number"));
    }
    let namespace = NamespaceId(reader.array()?);
    let (count, reserved) = (reader.u32()?, reader.u32()?);
    if reserved != 0 {
        return Err(FormatError::Field("reserved"));
    }
    // The bytes that are left bound the memory for the hashes, not the count.
    let hashes = (0..count).map(|_| reader.array().map(ChainHash));
    Ok(Removal { id, namespace, hashes: hashes.collect::<Result<_, _>>()? })
}

#[cfg(test)]
mod tests;
