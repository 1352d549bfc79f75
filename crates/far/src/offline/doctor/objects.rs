//! The objects that an examination writes.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Deadline, Nanos};
use dalsegno_extent::format::SECTOR;
use dalsegno_io::{IoError, Memory};

use super::report::DoctorError;
use crate::format::{Catalog, CatalogPack, packs_of};
use crate::names::{Object, ObjectName, WriterId};
use crate::offline::location::Location;
use crate::removal::Applied;
use crate::tier::Tier;

/// Workers of the tiers that check promises.
pub(super) const WORKERS: u32 = 8;

/// Opens the location through a mount, with this number of workers.
pub type OpenTier<'a> = &'a (dyn Fn(u32) -> Result<Arc<dyn Tier>, IoError> + Sync);

/// A location under examination.
pub(super) struct Subject<'a> {
    pub(super) near: Location,
    /// The other mount, or the same one.
    pub(super) other: Location,
    pub(super) writer: WriterId,
    pub(super) is_stopped: &'a dyn Fn() -> bool,
    pub(super) next_number: u64,
    pub(super) written_bytes: u64,
    pub(super) most_bytes: u64,
}

impl Subject<'_> {
    /// A number that no object has.
    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    pub(super) fn pack(&self, number: u64) -> ObjectName {
        self.writer.object(Object::Pack(packs_of(number).start))
    }

    pub(super) fn catalog(&self, number: u64) -> ObjectName {
        self.writer.object(Object::Catalog(number))
    }

    /// A valid catalog without entries.
    pub(super) fn catalog_bytes(&self, number: u64, pack_bytes: usize) -> Vec<u8> {
        let (extents, applied) = (Vec::new(), Applied::default());
        let pack =
            CatalogPack { number: packs_of(number).start, bytes: pack_bytes as u64, extents };
        Catalog { writer: self.writer, number, packs: vec![pack], applied }.encode()
    }

    /// Counts bytes that are about to be written; `false` if all would be more than `limit`.
    pub(super) fn may_write(&mut self, bytes: usize, limit: u64) -> bool {
        let may = self.written_bytes + bytes as u64 <= limit;
        self.written_bytes += if may { bytes as u64 } else { 0 };
        may
    }

    pub(super) fn check_stop(&self) -> Result<(), DoctorError> {
        if (self.is_stopped)() { Err(DoctorError::Stopped) } else { Ok(()) }
    }

    /// Publishes an object through the first mount.
    pub(super) fn publish(&self, name: ObjectName, bytes: &[u8]) -> Result<(), IoError> {
        let memory = vec![in_memory(bytes)];
        self.near.call(|tier, ask| tier.publish(name, memory, ask))
    }

    pub(super) fn now(&self) -> Nanos {
        self.near.clock.now()
    }

    /// A deadline after `time`.
    pub(super) fn until(&self, time: Duration) -> Deadline {
        Deadline::At(self.now().after(time))
    }
}

/// Bytes in memory that direct I/O accepts.
pub(super) fn in_memory(bytes: &[u8]) -> Memory {
    let mut memory = Memory::zeroed(bytes.len());
    memory.as_mut_slice().copy_from_slice(bytes);
    memory
}

/// Bytes that are different in every object and every sector.
pub(super) fn content(number: u64, bytes: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut content = vec![0; bytes];
    for word in content.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    content
}

/// Makes a copy of content different in every sector, which is quicker than making new content.
pub(super) fn numbered(content: &[u8], number: u64) -> Memory {
    let mut memory = in_memory(content);
    for sector in memory.as_mut_slice().chunks_mut(SECTOR) {
        sector[..8].copy_from_slice(&number.to_le_bytes());
    }
    memory
}

/// The time that passed, in thousandths of `time`; at most 1000.
pub(super) fn thousandths(passed: Duration, time: Duration) -> u64 {
    let part = passed.as_secs_f64() / time.as_secs_f64().max(0.001);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
    {
        (part.clamp(0.0, 1.0) * 1000.0) as u64
    }
}

/// The percentile of sorted times, in microseconds; 0 without any.
pub(super) fn percentile_us(sorted: &[Duration], percent: usize) -> u64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}
