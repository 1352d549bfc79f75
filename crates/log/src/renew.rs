//! A segment's next life, and the tombstones that outlive the last one.
//!
//! 1. A tombstone, or a later one that removes the same, outlives every segment that may hold what it removed.
//! 2. Recycling needs no room elsewhere, so a log can always make some: tombstones move within their segment. Their
//!    copies of the next epoch are durable, clear of the old ones, before only that epoch counts.
//! 3. No extent counts any more, for good, before copies are written over it: else an index in files would lead there
//!    after a crash.
//! 4. The next epoch is durable before the segment is free.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dalsegno_core::{ChainHash, NamespaceId, SECTOR_BYTES};
use dalsegno_io::{IoError, Operation};
use parking_lot::MutexGuard;

use crate::call::Call;
use crate::error::LogError;
use crate::format::{RecordHeader, RecordKind, segment_file};
use crate::log::{Core, Log};
use crate::reserve::Room;
use crate::segment::{Segment, SegmentState, Slot};
use crate::segment_list::Tally;
use crate::tombstones::Tombstone;
use crate::write::Writing;

impl Core {
    pub(crate) fn set_state(&self, number: u64, state: SegmentState) {
        if let Some(slot) = self.segments.lock().slots.get_mut(&number) {
            slot.state = state;
        }
    }

    /// The segment's next life: durable header, nothing in it but tombstones, free. `false` if these would leave less
    /// than half of it. `before` runs when it is sure that the segment goes.
    pub(crate) fn renew(&self, segment: &Segment, before: impl FnOnce()) -> Result<bool, LogError> {
        let (all, carried) = self.tombstones_of(segment.number);
        let Some(carried) = between(&all, carried, self.options.segment_bytes / 2) else {
            return Ok(false);
        };
        before();
        let epoch = segment.epoch() + 1;
        let first_sequence = self.segments.lock().first_sequence();
        if !carried.is_empty() {
            self.write_segment_header(segment, epoch, first_sequence, true)?;
            self.copy_tombstones(segment, epoch, &carried)?;
        }
        self.write_segment_header(segment, epoch, first_sequence, false)?;
        let mut segments = self.segments.lock();
        segments.tombstones.drop_segment(segment.number);
        let slot = segments.slots.get_mut(&segment.number).expect("a closed segment stays");
        slot.state = SegmentState::Free;
        slot.cursor = carried.last().map_or(SECTOR_BYTES, Tombstone::end);
        slot.oldest_known = u64::MAX;
        slot.newest_sequence = first_sequence;
        slot.is_unsynced = true;
        slot.doubt = None;
        slot.first_gap = None;
        slot.tally = Some(Tally::of_tombstones(carried.len()));
        for tombstone in carried {
            segments.tombstones.push(tombstone);
        }
        segment.reopen(epoch);
        Ok(true)
    }

    /// Removes a damaged segment; a new one with a new number can take its room. `false` if its tombstones find none.
    pub(crate) fn discard(
        &self,
        segment: &Segment,
        before: impl FnOnce(),
    ) -> Result<bool, LogError> {
        if !self.move_tombstones(segment)? {
            return Ok(false);
        }
        before();
        self.remove_segment(segment, &self.checkpointing.lock())?;
        Ok(true)
    }

    /// Writes a segment's tombstones to the open one; `false` if that has no room for them.
    pub(crate) fn move_tombstones(&self, segment: &Segment) -> Result<bool, LogError> {
        for tombstone in self.tombstones_of(segment.number).1 {
            let Tombstone { namespace, hashes, kills_before, .. } = tombstone;
            match self.write_tombstone(namespace, hashes, kills_before) {
                Err(LogError::Full) => return Ok(false),
                written => written?,
            }
        }
        Ok(true)
    }

    /// Removes a segment and its file. Meanwhile nobody makes a checkpoint, which would sync the file.
    pub(crate) fn remove_segment(
        &self,
        segment: &Segment,
        _checkpointing: &MutexGuard<'_, ()>,
    ) -> Result<(), LogError> {
        self.drop_list()?;
        match self.device.remove(&segment_file(segment.number)) {
            // An earlier attempt came so far.
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => self.sync_names()?,
        }
        let mut segments = self.segments.lock();
        segments.tombstones.drop_segment(segment.number);
        segments.slots.remove(&segment.number);
        drop(segments);
        self.device.close(segment.file);
        Ok(())
    }

    /// A segment's tombstones by place, and those of them that still have something to hide in another one.
    fn tombstones_of(&self, number: u64) -> (Vec<Tombstone>, Vec<Tombstone>) {
        let segments = self.segments.lock();
        let others = segments.slots.values().filter(|slot| slot.segment.number != number);
        let oldest_known = others.map(Slot::oldest_born).min().unwrap_or(u64::MAX);
        let oldest_elsewhere = if segments.is_one_missing { 0 } else { oldest_known };
        let here = segments.tombstones.iter().filter(|tombstone| tombstone.segment == number);
        let mut all: Vec<Tombstone> = here.cloned().collect();
        all.sort_unstable_by_key(|tombstone| tombstone.offset);
        let mut latest: HashMap<(NamespaceId, &[ChainHash]), u64> = HashMap::new();
        for tombstone in segments.tombstones.iter() {
            let kills_before = latest.entry(tombstone.removes()).or_default();
            *kills_before = tombstone.kills_before.max(*kills_before);
        }
        let hides = |tombstone: &&Tombstone| {
            oldest_elsewhere < tombstone.kills_before
                && tombstone.kills_before == latest[&tombstone.removes()]
        };
        let mut carried: Vec<&Tombstone> = all.iter().filter(hides).collect();
        // A segment that was given up may hold a tombstone and its copies.
        let mut seen = HashSet::new();
        carried.retain(|tombstone| seen.insert(tombstone.removes()));
        let carried = carried.into_iter().cloned().collect();
        (all, carried)
    }

    /// Writes tombstones at their places as records of a coming epoch, and syncs them.
    fn copy_tombstones(
        &self,
        segment: &Segment,
        epoch: u64,
        carried: &[Tombstone],
    ) -> Result<(), IoError> {
        let call = self.patient_call();
        for tombstone in carried {
            let mut offset = tombstone.offset;
            let kind = RecordKind::Tombstone { kills_before: tombstone.kills_before };
            let sequence = self.segments.lock().take_sequence();
            let header = RecordHeader {
                namespace: tombstone.namespace,
                hashes: tombstone.hashes.clone(),
                ..self.bare_header((segment.number, epoch, offset), sequence, kind)
            };
            let mut bytes = vec![0; header.header_bytes() as usize];
            header.encode(&mut bytes);
            for part in bytes.chunks_mut(self.pool.largest()) {
                self.transfer(Operation::Write, segment.file, offset, part, &call)?;
                offset += part.len() as u64;
            }
        }
        self.sync_file(segment.file)
    }

    pub(crate) fn write_tombstone(
        &self,
        namespace: NamespaceId,
        hashes: Vec<ChainHash>,
        kills_before: u64,
    ) -> Result<(), LogError> {
        let place = self.reserve(Log::removal_bytes(hashes.len()), Room::Reserve)?;
        let (segment, offset) = (place.pin.segment.number, place.offset);
        let at = (segment, place.epoch, offset);
        let bare = self.bare_header(at, place.sequence, RecordKind::Tombstone { kills_before });
        let header = RecordHeader { namespace, hashes: hashes.clone(), ..bare };
        let writing = Writing::header(Arc::clone(&place.pin), &header, self.rules(false));
        self.write_one(writing, &self.patient_call())?;
        self.sync_segment(&place.pin.segment, &Call::foreground())?;
        let tombstone = Tombstone { segment, offset, namespace, hashes, kills_before };
        let mut segments = self.segments.lock();
        segments.count_record(segment, 0);
        segments.tombstones.push(tombstone);
        Ok(())
    }
}

/// Gives `carried` places, in their order, clear of the records `all`, which are sorted by place; `None` if they would
/// end behind `limit`.
fn between(all: &[Tombstone], mut carried: Vec<Tombstone>, limit: u64) -> Option<Vec<Tombstone>> {
    let (mut offset, mut ahead) = (SECTOR_BYTES, all);
    for tombstone in &mut carried {
        while let Some((next, behind)) = ahead.split_first()
            && offset + tombstone.record_bytes() > next.offset
        {
            offset = offset.max(next.end());
            ahead = behind;
        }
        tombstone.offset = offset;
        offset = tombstone.end();
    }
    carried.last().is_none_or(|last| last.end() <= limit).then_some(carried)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tombstone(offset: u64, blocks: usize) -> Tombstone {
        let (segment, namespace, kills_before) = (1, NamespaceId::default(), 7);
        let hashes = vec![ChainHash::default(); blocks];
        Tombstone { segment, offset, namespace, hashes, kills_before }
    }

    #[test]
    fn copies_never_lie_over_what_they_are_copied_from() {
        let places = |all: &[Tombstone], carried: &[Tombstone], limit| {
            let placed = between(all, carried.to_vec(), limit);
            placed.map(|placed| placed.iter().map(|t| t.offset).collect::<Vec<_>>())
        };
        let all = [tombstone(4096, 1), tombstone(12_288, 1), tombstone(40_960, 1)];
        assert_eq!(places(&all, &all[..0], 1 << 20), Some(vec![]));
        assert_eq!(places(&all, &all[..1], 1 << 20), Some(vec![8192]));
        assert_eq!(places(&all, &all, 1 << 20), Some(vec![8192, 16_384, 20_480]));
        // One between any two, as with a put between any two removals.
        let spread: Vec<_> = (0..20).map(|at| tombstone(4096 + at * 8192, 1)).collect();
        assert_eq!(places(&spread, &spread, 1 << 20).unwrap()[19], 8192 + 19 * 8192);
        let large = [tombstone(4096, 4096)];
        assert_eq!(places(&large, &large, 1 << 20), Some(vec![large[0].end()]));
        assert_eq!(places(&large, &large, 1 << 17), None);
    }
}
