//! How far a store is with removals at a far location: docs/formats/log.md, Removals at a far location.
//!
//! 1. Decoding never panics, and bytes that decode encode to the same bytes again.

use std::time::Duration;

use dalsegno_core::StoreId;
use dalsegno_extent::format::{
    FieldReader, FieldWriter, FormatError, SECTOR, all_zero, begin, check_counts, expect_zero,
    open, seal,
};

use super::removals::{RemovalList, read_removal, write_removal};
use super::writer::{read_writer, write_writer};
use crate::removal::{Applied, Removal, RemovalId};

const MAGIC: [u8; 8] = *b"DSGNFARM";
const VERSION: u32 = 2;
const APPLIED_BYTES: usize = 32;
/// Most entries of applied removals. Further ones are left out.
const MAX_APPLIED: usize = 65_536;
/// Most bytes of the entries of pending removals.
pub const MAX_PENDING_BYTES: usize = 8 << 20;

/// Largest file.
pub const MAX_RECORD_BYTES: u64 =
    (SECTOR + MAX_APPLIED * APPLIED_BYTES + MAX_PENDING_BYTES).next_multiple_of(SECTOR) as u64;

/// How far a store is with removals at a far location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovalRecord {
    /// The store.
    pub store: StoreId,
    /// Grows by one each time. Of two files, the one with the larger generation counts.
    pub generation: u64,
    /// The location's time at the last complete poll, in milliseconds since 1970; `None` if there was none.
    pub polled_at_ms: Option<u64>,
    /// The removals that are applied in the store.
    pub applied: Applied,
    /// Removals of this store that are not published yet, in the order of their ids.
    pub pending: Vec<Removal>,
}

impl RemovalRecord {
    /// The record of a store that has not used a far location.
    #[must_use]
    pub fn new(store: StoreId) -> Self {
        let (applied, pending) = (Applied::default(), Vec::new());
        Self { store, generation: 0, polled_at_ms: None, applied, pending }
    }

    /// The location's time at the last complete poll.
    #[must_use]
    pub fn polled_at(&self) -> Option<Duration> {
        self.polled_at_ms.map(Duration::from_millis)
    }

    /// Bytes of pending removals.
    #[must_use]
    pub fn pending_bytes(removals: &[Removal]) -> usize {
        removals.iter().map(RemovalList::entry_bytes).sum()
    }

    /// The whole file.
    ///
    /// # Panics
    ///
    /// If the pending removals have more than [`MAX_PENDING_BYTES`]: the store widens them before.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let applied_count = self.applied.iter().len().min(MAX_APPLIED);
        let pending = Self::pending_bytes(&self.pending);
        assert!(pending <= MAX_PENDING_BYTES, "{pending} bytes of pending removals");
        let body = (applied_count * APPLIED_BYTES + pending).next_multiple_of(SECTOR);
        let mut bytes = vec![0; SECTOR + body];
        let mut writer = FieldWriter::new(&mut bytes[SECTOR..]);
        for RemovalId { by, number } in self.applied.iter().take(applied_count) {
            write_writer(&mut writer, by);
            writer.put(&number.to_le_bytes());
        }
        for removal in &self.pending {
            write_removal(&mut writer, removal);
        }
        let body_crc = dalsegno_core::crc32c(&bytes[SECTOR..]);
        let header = &mut bytes[..SECTOR];
        let mut writer = begin(header, MAGIC, VERSION, 4096);
        writer.put(&self.store.0);
        writer.put(&self.generation.to_le_bytes());
        writer.put(&self.polled_at_ms.unwrap_or(0).to_le_bytes());
        writer.put(&(body as u64).to_le_bytes());
        writer.put(&body_crc.to_le_bytes());
        for count in [applied_count, self.pending.len()] {
            writer.put(&u32::try_from(count).expect("bounded").to_le_bytes());
        }
        seal(header);
        bytes
    }

    /// Reads the whole file.
    ///
    /// # Errors
    ///
    /// Why it is not valid.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (mut reader, version, _) = open(bytes, MAGIC, VERSION, true)?;
        if version != VERSION {
            return Err(FormatError::Older(version));
        }
        let (store, generation) = (StoreId(reader.array()?), reader.u64()?);
        let (polled_at_ms, body_bytes) = (reader.u64()?, reader.u64()?);
        let (body_crc, applied_count) = (reader.u32()?, reader.u32()?);
        let pending_count = reader.u32()?;
        expect_zero(&reader)?;
        check_counts(&[("generation", generation), ("polled_at", polled_at_ms)])?;
        let body = &bytes[SECTOR..];
        if (body.len() as u64) < body_bytes {
            return Err(FormatError::Truncated);
        }
        if body.len() as u64 != body_bytes || bytes.len() as u64 > MAX_RECORD_BYTES {
            return Err(FormatError::Field("body_bytes"));
        }
        if dalsegno_core::crc32c(body) != body_crc {
            return Err(FormatError::Checksum);
        }
        if applied_count as usize > MAX_APPLIED {
            return Err(FormatError::Field("applied_count"));
        }
        let mut body = FieldReader(body);
        let applied = (0..applied_count).map(|_| read_applied(&mut body));
        let applied = applied.collect::<Result<Vec<_>, _>>()?;
        if !applied.is_sorted_by(|one, next| one.by < next.by) {
            return Err(FormatError::Field("applied"));
        }
        let pending = (0..pending_count).map(|_| read_removal(&mut body));
        let pending = pending.collect::<Result<Vec<_>, _>>()?;
        if !pending.is_sorted_by(|one, next| one.id < next.id) {
            return Err(FormatError::Field("pending"));
        }
        if Self::pending_bytes(&pending) > MAX_PENDING_BYTES {
            return Err(FormatError::Field("pending_count"));
        }
        if !all_zero(body.0) || body.0.len() >= SECTOR {
            return Err(FormatError::Field("padding"));
        }
        let applied = applied.into_iter().collect();
        let polled_at_ms = Some(polled_at_ms).filter(|ms| *ms > 0);
        Ok(Self { store, generation, polled_at_ms, applied, pending })
    }
}

fn read_applied(reader: &mut FieldReader<'_>) -> Result<RemovalId, FormatError> {
    let id = RemovalId { by: read_writer(reader)?, number: reader.u64()? };
    check_counts(&[("open", id.by.open), ("number", id.number)])?;
    if id.number == 0 {
        return Err(FormatError::Field("number"));
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use dalsegno_core::{ChainHash, NamespaceId};

    use super::*;
    use crate::names::WriterId;

    fn id(open: u64, number: u64) -> RemovalId {
        RemovalId { by: WriterId { store: StoreId([8; 16]), open }, number }
    }

    fn removal(number: u64, hashes: u8) -> Removal {
        let hashes = (0..hashes).map(|byte| ChainHash([byte; 32])).collect();
        Removal { id: id(9, number), namespace: NamespaceId([1; 16]), hashes }
    }

    fn sample(applied: u64, pending: u64) -> RemovalRecord {
        RemovalRecord {
            store: StoreId([7; 16]),
            generation: 5,
            polled_at_ms: Some(1000),
            applied: (1..=applied).map(|open| id(open, 3)).collect(),
            pending: (1..=pending).map(|number| removal(number, 2)).collect(),
        }
    }

    #[test]
    fn the_record_round_trips_and_has_the_documented_bytes() {
        for (applied, pending) in [(0, 0), (1, 0), (0, 1), (128, 1), (129, 3000)] {
            let record = sample(applied, pending);
            assert_eq!(RemovalRecord::decode(&record.encode()), Ok(record));
        }
        let new = RemovalRecord::new(StoreId([7; 16]));
        assert_eq!(RemovalRecord::decode(&new.encode()), Ok(new));
        let mut record = sample(2, 0);
        record.pending = vec![removal(1, 0), removal(2, 1)];
        let bytes = record.encode();
        assert_eq!(bytes.len(), 2 * SECTOR);
        assert_eq!(&bytes[..16], b"DSGNFARM\x02\0\0\0\0\x10\0\0");
        let numbers = [5_u64, 1000, 4096].map(u64::to_le_bytes).concat();
        assert_eq!(&bytes[16..56], [[7; 16].as_slice(), &numbers].concat());
        assert_eq!(&bytes[60..68], [2_u32, 2].map(u32::to_le_bytes).concat());
        let applied = [[8; 16].as_slice(), &[1_u64, 3].map(u64::to_le_bytes).concat()].concat();
        assert_eq!(&bytes[4096..4128], applied);
        let by = [[8; 16].as_slice(), &[9_u64, 1].map(u64::to_le_bytes).concat()].concat();
        assert_eq!(&bytes[4160..4192], by);
        assert_eq!(&bytes[4192..4216], [[1; 16].as_slice(), &[0; 8]].concat());
        assert_eq!(&bytes[4264..4272], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert!(bytes[4272..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn every_flipped_byte_and_every_truncation_is_noticed() {
        let bytes = sample(3, 2).encode();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(RemovalRecord::decode(&flipped).is_err(), "byte {at}");
            assert!(RemovalRecord::decode(&bytes[..at]).is_err(), "{at} bytes");
        }
        assert!(RemovalRecord::decode(&[bytes, vec![0; SECTOR]].concat()).is_err());
    }

    #[test]
    fn entries_out_of_order_are_refused() {
        for (first, second, what) in [(0, 32, "applied"), (64, 64 + 120, "pending")] {
            let mut bytes = sample(2, 2).encode();
            let length = second - first;
            let (one, two) = bytes[SECTOR + first..SECTOR + second + length].split_at(length);
            let swapped = [two, one].concat();
            bytes[SECTOR + first..SECTOR + second + length].copy_from_slice(&swapped);
            let body_crc = dalsegno_core::crc32c(&bytes[SECTOR..]);
            bytes[56..60].copy_from_slice(&body_crc.to_le_bytes());
            seal(&mut bytes[..SECTOR]);
            assert_eq!(RemovalRecord::decode(&bytes), Err(FormatError::Field(what)));
        }
    }

    #[test]
    fn applied_removals_beyond_the_bound_are_left_out() {
        let bytes = sample(70_000, 1).encode();
        let record = RemovalRecord::decode(&bytes).unwrap();
        assert_eq!((record.applied.iter().len(), record.pending.len()), (MAX_APPLIED, 1));
        assert!(bytes.len() as u64 <= MAX_RECORD_BYTES);
    }
}
