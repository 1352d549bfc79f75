//! What of the log an index has taken in: so that opening reads only what came later.
//!
//! 1. Everything before a segment's `replay_from` offset was taken in, or given up, before the checkpoint was made; and
//!    nothing there is doubted or could not be read: it is told again.
//! 2. A checkpoint speaks of a segment only as long as that is in the epoch it names.
//! 3. Decoders never panic and never trust a length before it was checked against what is there.
//! 4. The places that a checkpoint names are whole sectors within the segment, `replay_from` not behind `cursor`. A
//!    segment of which one that is given back says otherwise counts as one that it does not know.

use std::sync::Arc;

use dalsegno_core::{COUNT_LIMIT, ChainHash, MAX_EXTENT_BLOCKS, NamespaceId, SECTOR_BYTES};

use crate::error::LogError;
use crate::log::Log;
use crate::segment::{SegmentState, Segments, Slot};
use crate::tombstones::Tombstone;

const VERSION: u32 = 1;

/// What was known of the log at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) next_sequence: u64,
    /// By number.
    pub(crate) segments: Vec<SegmentCheckpoint>,
    pub(crate) tombstones: Vec<Tombstone>,
}

/// What was known of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentCheckpoint {
    pub(crate) number: u64,
    pub(crate) epoch: u64,
    /// Whether it was full: then there is nothing behind `replay_from`, unless that is less than `cursor`.
    pub(crate) sealed: bool,
    pub(crate) cursor: u64,
    pub(crate) replay_from: u64,
    pub(crate) oldest_born: u64,
    pub(crate) newest_sequence: u64,
}

impl Log {
    /// What an index holds that has taken in everything whose pins are gone; and makes that durable, so that the index
    /// never leads to something that a crash took back.
    ///
    /// For one caller at a time: another would be told of what this one is syncing still.
    ///
    /// # Errors
    ///
    /// As [`Log::append`] if a sync fails.
    pub fn checkpoint(&self) -> Result<Vec<u8>, LogError> {
        let core = &self.core;
        let _no_file_goes = core.checkpointing.lock();
        let (checkpoint, unsynced) = {
            let mut segments = core.segments.lock();
            let is_written =
                |slot: &&mut Slot| slot.is_unsynced && slot.state != SegmentState::Damaged;
            let mut unsynced = Vec::new();
            for slot in segments.slots.values_mut().filter(is_written) {
                // What settles from here on is for the next checkpoint.
                slot.is_unsynced = false;
                unsynced.push(Arc::clone(&slot.segment));
            }
            (Checkpoint::of(&segments), unsynced)
        };
        let segment_bytes = core.options.segment_bytes;
        debug_assert!(checkpoint.segments.iter().all(|known| known.is_possible(segment_bytes)));
        for segment in &unsynced {
            if let Err(error) = core.sync_segment(segment, &crate::Call::foreground()) {
                core.segments.lock().mark_unsynced(&unsynced);
                return Err(error.into());
            }
        }
        Ok(checkpoint.encode())
    }
}

/// What a checkpoint says of removals, as one that knows no segment: for an index that is built anew. What removes lies
/// perhaps in a segment that cannot be read now.
#[must_use]
pub fn removals_of(checkpoint: &[u8]) -> Option<Vec<u8>> {
    let checkpoint = Checkpoint::decode(checkpoint)?;
    Some(Checkpoint { segments: Vec::new(), ..checkpoint }.encode())
}

impl Checkpoint {
    fn of(segments: &Segments) -> Self {
        let of_slot = |slot: &Slot| SegmentCheckpoint {
            number: slot.segment.number,
            epoch: slot.segment.epoch(),
            sealed: slot.state == SegmentState::Sealed,
            cursor: slot.cursor,
            replay_from: slot.replay_from(),
            oldest_born: slot.oldest_known,
            newest_sequence: slot.newest_sequence,
        };
        let sound = segments.slots.values().filter(|slot| slot.state != SegmentState::Damaged);
        Self {
            next_sequence: segments.next_sequence,
            segments: sound.map(of_slot).collect(),
            tombstones: segments.tombstones.iter().cloned().collect(),
        }
    }

    /// What it says of a segment.
    pub(crate) fn segment(&self, number: u64, epoch: u64) -> Option<&SegmentCheckpoint> {
        let at = self.segments.binary_search_by_key(&number, |known| known.number).ok()?;
        self.segments.get(at).filter(|known| known.epoch == epoch)
    }

    /// Forgets of segments what no log of ours can have said: they are read as ones that it does not know.
    pub(crate) fn forget_impossible(&mut self, segment_bytes: u64) {
        self.segments.retain(|known| known.is_possible(segment_bytes));
    }

    /// Whether it does not know a segment: that came later, or could not be read when the checkpoint was made.
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

    /// Reads what [`Log::checkpoint`] made; `None` if it is not that.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = crate::format::Reader(bytes);
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
    /// Whether its places are places of records.
    fn is_possible(&self, segment_bytes: u64) -> bool {
        let Self { replay_from, cursor, .. } = *self;
        let is_ordered =
            SECTOR_BYTES <= replay_from && replay_from <= cursor && cursor <= segment_bytes;
        is_ordered && [replay_from, cursor].iter().all(|place| place.is_multiple_of(SECTOR_BYTES))
    }

    /// Whether nothing of the segment has to be read.
    pub(crate) fn is_whole(&self) -> bool {
        self.sealed && self.replay_from == self.cursor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_round_trips_and_nothing_shorter_is_one() {
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
