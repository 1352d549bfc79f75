//! Which part of the log an index has indexed, so that opening reads only later records.
//!
//! 1. Every record before a segment's `replay_from` offset was indexed, or became a void, before the checkpoint was
//!    made. No record there is in doubt, and all could be read.
//! 2. What a checkpoint says about a segment holds only in the epoch that it names.
//! 3. Decoders never panic, and check every length against the bytes that are there before they use it.
//! 4. The places in a checkpoint are whole sectors within the segment, and `replay_from` is not behind `cursor`. If a
//!    stored checkpoint says otherwise about a segment, that segment counts as unknown to it.

use std::sync::Arc;

use dalsegno_core::{COUNT_LIMIT, ChainHash, Class, MAX_EXTENT_BLOCKS, NamespaceId, SECTOR_BYTES};
use dalsegno_extent::format::FieldReader;
use dalsegno_io::Call;

use super::segments::Segments;
use super::slot::{SegmentState, Slot};
use super::table::SegmentTable;
use super::tombstones::Tombstone;
use crate::error::LogError;
use crate::sync::Syncer;

const VERSION: u32 = 1;

/// What the log knew at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) next_sequence: u64,
    /// By number.
    pub(crate) segments: Vec<SegmentCheckpoint>,
    pub(crate) tombstones: Vec<Tombstone>,
}

/// What the log knew about one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentCheckpoint {
    pub(crate) number: u64,
    pub(crate) epoch: u64,
    /// Whether it was full. Then no record is behind `replay_from`, unless that is less than `cursor`.
    pub(crate) sealed: bool,
    pub(crate) cursor: u64,
    pub(crate) replay_from: u64,
    pub(crate) oldest_born: u64,
    pub(crate) newest_sequence: u64,
}

/// Makes a checkpoint for an index that knows all records without pins. All these records are durable afterwards, so
/// the index never refers to a record that a crash takes back.
///
/// One caller may make checkpoints at a time: a second one would not wait for the syncs of the first.
pub(crate) fn make_checkpoint(segments: &Segments, syncer: &Syncer) -> Result<Vec<u8>, LogError> {
    let _files = segments.keep_files();
    let (checkpoint, unsynced) = {
        let mut table = segments.table();
        let is_unsynced = |slot: &&mut Slot| slot.is_unsynced && slot.state.is_sound();
        let mut unsynced = Vec::new();
        for slot in table.slots.values_mut().filter(is_unsynced) {
            // Records that settle from here on are for the next checkpoint.
            slot.is_unsynced = false;
            unsynced.push(Arc::clone(&slot.segment));
        }
        (Checkpoint::of(&table), unsynced)
    };
    let segment_bytes = segments.segment_bytes();
    debug_assert!(checkpoint.segments.iter().all(|known| known.is_possible(segment_bytes)));
    for segment in &unsynced {
        if let Err(error) = segment.sync(syncer, &Call::of(Class::Need)) {
            segments.table().mark_unsynced(&unsynced);
            return Err(error.into());
        }
    }
    Ok(checkpoint.encode())
}

/// A checkpoint of the same removals that knows no segment, for an index that is rebuilt. The tombstones themselves may
/// be in a segment that cannot be read now.
#[must_use]
pub fn removals_of(checkpoint: &[u8]) -> Option<Vec<u8>> {
    let checkpoint = Checkpoint::decode(checkpoint)?;
    Some(Checkpoint { segments: Vec::new(), ..checkpoint }.encode())
}

impl Checkpoint {
    fn of(table: &SegmentTable) -> Self {
        let of_slot = |slot: &Slot| SegmentCheckpoint {
            number: slot.segment.number,
            epoch: slot.segment.epoch(),
            sealed: slot.state == SegmentState::Sealed,
            cursor: slot.cursor,
            replay_from: slot.replay_from(),
            oldest_born: slot.oldest_known,
            newest_sequence: slot.newest_sequence,
        };
        let sound = table.slots.values().filter(|slot| slot.state.is_sound());
        Self {
            next_sequence: table.next_sequence,
            segments: sound.map(of_slot).collect(),
            tombstones: table.tombstones.iter().cloned().collect(),
        }
    }

    /// What it says about a segment in this epoch.
    pub(crate) fn segment(&self, number: u64, epoch: u64) -> Option<&SegmentCheckpoint> {
        let at = self.segments.binary_search_by_key(&number, |known| known.number).ok()?;
        self.segments.get(at).filter(|known| known.epoch == epoch)
    }

    /// Forgets segments whose places are impossible. Opening reads them as segments that the checkpoint does not know.
    pub(crate) fn forget_impossible(&mut self, segment_bytes: u64) {
        self.segments.retain(|known| known.is_possible(segment_bytes));
    }

    /// Whether it does not know a segment, which came later or could not be read when the checkpoint was made.
    pub(crate) fn lacks(&self, number: u64) -> bool {
        self.segments.binary_search_by_key(&number, |known| known.number).is_err()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let counts = [self.segments.len(), self.tombstones.len()].map(|count| count as u64);
        out.extend_from_slice(&VERSION.to_le_bytes());
        put(&mut out, &[self.next_sequence, counts[0], counts[1]]);
        for segment in &self.segments {
            let SegmentCheckpoint { number, epoch, sealed, cursor, replay_from, .. } = *segment;
            let ends = [segment.oldest_born, segment.newest_sequence];
            put(
                &mut out,
                &[number, epoch, u64::from(sealed), cursor, replay_from, ends[0], ends[1]],
            );
        }
        for tombstone in &self.tombstones {
            let Tombstone { segment, offset, namespace, hashes, kills_before } = tombstone;
            put(&mut out, &[*segment, *offset, *kills_before, hashes.len() as u64]);
            out.extend_from_slice(&namespace.0);
            out.extend(hashes.iter().flat_map(|hash| hash.0));
        }
        out
    }

    /// Decodes what [`Self::encode`] wrote; `None` if it is not that.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = FieldReader(bytes);
        (reader.u32().ok()? == VERSION).then_some(())?;
        let mut fields = || reader.u64().ok();
        let (next_sequence, segments, tombstones) = (fields()?, fields()?, fields()?);
        let mut checkpoint = Self { next_sequence, ..Self::default() };
        let is_count = |count: &u64| *count < COUNT_LIMIT;
        is_count(&next_sequence).then_some(())?;
        for _ in 0..segments {
            let mut field = || reader.u64().ok();
            checkpoint.segments.push(SegmentCheckpoint {
                number: field().filter(is_count)?,
                epoch: field().filter(is_count)?,
                sealed: field()? != 0,
                cursor: field()?,
                replay_from: field()?,
                oldest_born: field()?,
                newest_sequence: field()?,
            });
        }
        for _ in 0..tombstones {
            let mut field = || reader.u64().ok();
            let (segment, offset, kills_before) = (field()?, field()?, field()?);
            let count = field().filter(|count| *count <= u64::from(MAX_EXTENT_BLOCKS))?;
            let namespace = NamespaceId(reader.array().ok()?);
            let mut hashes = Vec::new();
            for _ in 0..count {
                hashes.push(ChainHash(reader.array().ok()?));
            }
            checkpoint.tombstones.push(Tombstone {
                segment,
                offset,
                namespace,
                hashes,
                kills_before,
            });
        }
        reader.0.is_empty().then_some(checkpoint)
    }
}

fn put(out: &mut Vec<u8>, fields: &[u64]) {
    out.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
}

impl SegmentCheckpoint {
    /// Whether its places are possible places of records.
    fn is_possible(&self, segment_bytes: u64) -> bool {
        let Self { replay_from, cursor, .. } = *self;
        let is_ordered =
            SECTOR_BYTES <= replay_from && replay_from <= cursor && cursor <= segment_bytes;
        is_ordered && [replay_from, cursor].iter().all(|place| place.is_multiple_of(SECTOR_BYTES))
    }

    /// Whether opening need not read the segment.
    pub(crate) fn is_whole(&self) -> bool {
        self.sealed && self.replay_from == self.cursor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_round_trips_and_a_truncated_one_is_refused() {
        let segment = SegmentCheckpoint {
            number: 3,
            epoch: 9,
            sealed: true,
            cursor: 1 << 20,
            replay_from: 4096,
            oldest_born: 5,
            newest_sequence: 77,
        };
        let tombstone = Tombstone {
            segment: 3,
            offset: 8192,
            namespace: NamespaceId([1; 16]),
            hashes: vec![ChainHash([2; 32]), ChainHash([3; 32])],
            kills_before: 70,
        };
        let checkpoint =
            Checkpoint { next_sequence: 80, segments: vec![segment], tombstones: vec![tombstone] };
        let bytes = checkpoint.encode();
        assert_eq!(Checkpoint::decode(&bytes), Some(checkpoint));
        for length in 0..bytes.len() {
            assert_eq!(Checkpoint::decode(&bytes[..length]), None, "{length} bytes");
        }
    }
}
