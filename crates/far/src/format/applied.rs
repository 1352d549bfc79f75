//! The catalogs whose tombstones were applied to a store: `far.meta` in its directory, docs/formats/log.md.
//!
//! 1. Decoding never panics, and bytes that decode encode to the same bytes again.

use std::collections::BTreeSet;

use dalsegno_core::StoreId;
use dalsegno_extent::format::{
    FieldReader, FieldWriter, FormatError, PLAIN_VERSION, SECTOR, all_zero, begin, check_counts,
    expect_zero, open, seal,
};

use crate::names::WriterId;

const MAGIC: [u8; 8] = *b"DSGNFARM";
const ENTRY_BYTES: usize = 32;
/// Most catalogs of a file.
const MAX_ENTRIES: usize = 65_536;

/// Largest file.
pub const MAX_APPLIED_BYTES: u64 = (SECTOR + MAX_ENTRIES * ENTRY_BYTES) as u64;

/// The catalogs whose tombstones were applied to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedCatalogs {
    store: StoreId,
    catalogs: BTreeSet<(WriterId, u64)>,
}

impl AppliedCatalogs {
    /// None yet.
    #[must_use]
    pub fn none(store: StoreId) -> Self {
        Self { store, catalogs: BTreeSet::new() }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// Whether the tombstones of a catalog were applied.
    #[must_use]
    pub fn contains(&self, writer: WriterId, number: u64) -> bool {
        self.catalogs.contains(&(writer, number))
    }

    /// Adds a catalog. Beyond the bound it is left out, and its tombstones are applied again.
    pub fn add(&mut self, writer: WriterId, number: u64) {
        if self.catalogs.len() < MAX_ENTRIES {
            self.catalogs.insert((writer, number));
        }
    }

    /// Drops the catalogs of all writers but these.
    pub fn retain(&mut self, is_there: impl Fn(WriterId) -> bool) {
        self.catalogs.retain(|(writer, _)| is_there(*writer));
    }

    /// The whole file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let body = (self.catalogs.len() * ENTRY_BYTES).next_multiple_of(SECTOR);
        let mut bytes = vec![0; SECTOR + body];
        let mut writer = FieldWriter::new(&mut bytes[SECTOR..]);
        for (of, number) in &self.catalogs {
            writer.put(&of.store.0);
            writer.put(&of.open.to_le_bytes());
            writer.put(&number.to_le_bytes());
        }
        let body_crc = crc32c::crc32c(&bytes[SECTOR..]);
        let header = &mut bytes[..SECTOR];
        let mut writer = begin(header, MAGIC, PLAIN_VERSION, 4096);
        writer.put(&self.store.0);
        writer.put(&(self.catalogs.len() as u64).to_le_bytes());
        writer.put(&body_crc.to_le_bytes());
        seal(header);
        bytes
    }

    /// Reads the whole file.
    ///
    /// # Errors
    ///
    /// Why it is not valid.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (mut reader, _, _) = open(bytes, MAGIC, PLAIN_VERSION, true)?;
        let (store, count) = (StoreId(reader.array()?), reader.u64()?);
        let body_crc = reader.u32()?;
        expect_zero(&reader)?;
        let body = &bytes[SECTOR..];
        let count = usize::try_from(count).ok().filter(|count| *count <= MAX_ENTRIES);
        let entries = count.ok_or(FormatError::Field("catalog_count"))? * ENTRY_BYTES;
        if entries > body.len() {
            return Err(FormatError::Truncated);
        }
        if entries.next_multiple_of(SECTOR) != body.len() {
            return Err(FormatError::Field("catalog_count"));
        }
        if crc32c::crc32c(body) != body_crc {
            return Err(FormatError::Checksum);
        }
        let (entries, rest) = body.split_at(entries);
        if !all_zero(rest) {
            return Err(FormatError::Field("padding"));
        }
        let decoded = entries.chunks_exact(ENTRY_BYTES).map(decode_entry);
        let decoded = decoded.collect::<Result<Vec<_>, _>>()?;
        if !decoded.is_sorted_by(|one, next| one < next) {
            return Err(FormatError::Field("number"));
        }
        Ok(Self { store, catalogs: decoded.into_iter().collect() })
    }
}

fn decode_entry(entry: &[u8]) -> Result<(WriterId, u64), FormatError> {
    let mut reader = FieldReader(entry);
    let writer = WriterId { store: StoreId(reader.array()?), open: reader.u64()? };
    let number = reader.u64()?;
    check_counts(&[("open", writer.open), ("number", number)])?;
    Ok((writer, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(open: u64) -> WriterId {
        WriterId { store: StoreId([8; 16]), open }
    }

    fn sample(count: u64) -> AppliedCatalogs {
        let mut applied = AppliedCatalogs::none(StoreId([7; 16]));
        (0..count).for_each(|at| applied.add(writer(at % 3), at));
        applied
    }

    #[test]
    fn the_file_round_trips_and_has_the_documented_bytes() {
        for count in [0, 1, 128, 129, 1000] {
            let applied = sample(count);
            assert_eq!(AppliedCatalogs::decode(&applied.encode()), Ok(applied));
        }
        let bytes = sample(2).encode();
        assert_eq!(bytes.len(), 2 * SECTOR);
        assert_eq!(&bytes[..16], b"DSGNFARM\x01\0\0\0\0\x10\0\0");
        assert_eq!(&bytes[16..40], [[7; 16].as_slice(), &2_u64.to_le_bytes()].concat());
        assert_eq!(&bytes[4096..4112], [8; 16]);
        assert_eq!(&bytes[4128 + 16..4160], [1_u64, 1].map(u64::to_le_bytes).concat());
    }

    #[test]
    fn every_flipped_byte_and_every_truncation_is_noticed() {
        let bytes = sample(3).encode();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(AppliedCatalogs::decode(&flipped).is_err(), "byte {at}");
            assert!(AppliedCatalogs::decode(&bytes[..at]).is_err(), "{at} bytes");
        }
        assert!(AppliedCatalogs::decode(&[bytes, vec![0; SECTOR]].concat()).is_err());
    }

    #[test]
    fn entries_out_of_order_are_refused() {
        let mut bytes = sample(2).encode();
        let (first, second) = bytes[SECTOR..SECTOR + 64].split_at(32);
        let swapped = [second, first].concat();
        bytes[SECTOR..SECTOR + 64].copy_from_slice(&swapped);
        let body_crc = crc32c::crc32c(&bytes[SECTOR..]);
        bytes[40..44].copy_from_slice(&body_crc.to_le_bytes());
        seal(&mut bytes[..SECTOR]);
        assert_eq!(AppliedCatalogs::decode(&bytes), Err(FormatError::Field("number")));
    }

    #[test]
    fn the_number_of_catalogs_is_bounded_and_writers_that_are_gone_are_dropped() {
        let mut applied = sample(70_000);
        assert_eq!(applied.encode().len() as u64, MAX_APPLIED_BYTES);
        assert!(applied.contains(writer(0), 3) && !applied.contains(writer(1), 69_999));
        applied.retain(|of| of == writer(2));
        assert!(applied.contains(writer(2), 2) && !applied.contains(writer(0), 3));
        applied.add(writer(1), 69_999);
        assert!(applied.contains(writer(1), 69_999));
    }
}
