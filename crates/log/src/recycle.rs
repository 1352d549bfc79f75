//! Giving up a segment, and removing blocks for good.
//!
//! 1. A segment is recycled only when nobody reads or writes it; its next epoch is durable before it is free.
//! 2. A tombstone outlives every segment that may hold what it removed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, MAX_EXTENT_BLOCKS, NamespaceId};

use crate::call::Call;
use crate::error::LogError;
use crate::format::{RecordHeader, RecordKind, record_header_bytes, segment_file};
use crate::log::{Core, Log};
use crate::segment::{Segment, SegmentState, Tombstone};
use crate::stats::LogStats;
use crate::write::Writing;

impl Log {
    /// Makes room: everything in the segment is gone afterwards, and it is free. The caller has moved what it keeps and
    /// made sure that no index entry leads into it once this returns `true`.
    ///
    /// Returns `false` if readers or writers stayed longer than `patience`, or if there is no room to write the segment's
    /// tombstones again: then another one has to go first.
    ///
    /// `before` runs when nobody is in the segment any more and nobody can enter: the place to drop index entries.
    ///
    /// # Errors
    ///
    /// If the device fails; the segment is then set aside as damaged.
    pub fn recycle(
        &self,
        number: u64,
        patience: Duration,
        before: impl FnOnce(),
    ) -> Result<bool, LogError> {
        let core = &self.core;
        core.check_writable()?;
        let (segment, state) = {
            let segments = core.segments.lock();
            let Some(slot) = segments.slots.get(&number) else { return Ok(false) };
            (Arc::clone(&slot.segment), slot.state)
        };
        if !matches!(state, SegmentState::Sealed | SegmentState::Damaged)
            || !segment.close(patience)
        {
            return Ok(false);
        }
        // Before anything is given up: without room for its tombstones the segment stays as it is.
        if let Err(error) = core.carry_tombstones(number) {
            segment.reopen(segment.epoch());
            return if matches!(error, LogError::Full) { Ok(false) } else { Err(error) };
        }
        before();
        let done = match state {
            SegmentState::Damaged => core.discard(&segment),
            _ => core.renew(&segment),
        };
        if let Err(error) = done {
            segment.reopen(segment.epoch());
            core.set_state(number, SegmentState::Damaged);
            return Err(error);
        }
        LogStats::add(&core.stats.segments_recycled, 1);
        Ok(true)
    }

    /// Seals the open segment, so that it can be recycled; `false` if there is none. For a store that has no other.
    #[must_use]
    pub fn seal_open(&self) -> bool {
        let mut segments = self.core.segments.lock();
        if segments.open.is_none() {
            return false;
        }
        let seal = segments.seal_open(self.core.options.segment_bytes);
        drop(segments);
        if let Some((segment, offset)) = seal {
            self.core.write_marker(&segment, offset, RecordKind::Seal);
        }
        true
    }

    /// Bytes that a removal of `blocks` blocks takes in the log.
    #[must_use]
    pub fn removal_bytes(blocks: usize) -> u64 {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX).min(MAX_EXTENT_BLOCKS);
        u64::from(record_header_bytes(blocks, 0))
    }

    /// Announces a removal of blocks of a namespace (all of them if `hashes` is empty): [`Log::removed_since`] tells it
    /// from now on. Returns the number to finish it with.
    ///
    /// # Panics
    ///
    /// If there are more than [`MAX_EXTENT_BLOCKS`] hashes.
    #[must_use]
    pub fn begin_removal(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> u64 {
        assert!(hashes.len() <= MAX_EXTENT_BLOCKS as usize, "one removal fits one record");
        let mut segments = self.core.segments.lock();
        let kills_before = segments.take_sequence();
        let hashes = hashes.to_vec();
        segments.removing.push(Tombstone { segment: 0, namespace, hashes, kills_before });
        kills_before
    }

    /// Makes an announced removal hold for good: the blocks do not come back at the next open. Durable when it returns.
    ///
    /// # Errors
    ///
    /// As [`Log::reserve`]; then the removal is called off, for the log.
    pub fn finish_removal(&self, kills_before: u64) -> Result<(), LogError> {
        let announced = |tombstone: &&Tombstone| tombstone.kills_before == kills_before;
        let found = self.core.segments.lock().removing.iter().find(announced).cloned();
        let Some(Tombstone { namespace, hashes, .. }) = found else { return Ok(()) };
        let written = self.core.write_tombstone(namespace, hashes, kills_before);
        self.core.segments.lock().removing.retain(|t| t.kills_before != kills_before);
        written
    }

    /// Which blocks of a namespace were removed after the log gave out sequence number `born`.
    #[must_use]
    pub fn removed_since(&self, namespace: NamespaceId, born: u64) -> RemovedBlocks {
        let segments = self.core.segments.lock();
        let mut removed = RemovedBlocks::default();
        for tombstone in segments.tombstones.iter().chain(&segments.removing) {
            if tombstone.namespace == namespace && tombstone.kills_before > born {
                removed.all |= tombstone.hashes.is_empty();
                removed.hashes.extend(&tombstone.hashes);
            }
        }
        removed
    }
}

/// Blocks of a namespace that were removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedBlocks {
    all: bool,
    hashes: HashSet<ChainHash>,
}

impl RemovedBlocks {
    /// Whether this block was removed.
    #[must_use]
    pub fn contains(&self, hash: &ChainHash) -> bool {
        self.all || self.hashes.contains(hash)
    }
}

impl Core {
    fn set_state(&self, number: u64, state: SegmentState) {
        if let Some(slot) = self.segments.lock().slots.get_mut(&number) {
            slot.state = state;
        }
    }

    /// The segment's next life: durable header, empty, free.
    fn renew(&self, segment: &Segment) -> Result<(), LogError> {
        let epoch = segment.epoch() + 1;
        let first_sequence = self.segments.lock().next_sequence + 1;
        self.write_segment_header(segment, epoch, first_sequence)?;
        let mut segments = self.segments.lock();
        segments.tombstones.retain(|tombstone| tombstone.segment != segment.number);
        let slot = segments.slots.get_mut(&segment.number).expect("a closed segment stays");
        slot.state = SegmentState::Free;
        slot.cursor = dalsegno_core::SECTOR_BYTES;
        slot.oldest_born = u64::MAX;
        slot.newest_sequence = first_sequence;
        segment.reopen(epoch);
        Ok(())
    }

    /// A damaged file is removed; a new one with a new number can take its room.
    fn discard(&self, segment: &Segment) -> Result<(), LogError> {
        match self.device.remove(&segment_file(segment.number)) {
            // An earlier attempt came so far.
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => self.device.sync_names()?,
        }
        let mut segments = self.segments.lock();
        segments.tombstones.retain(|tombstone| tombstone.segment != segment.number);
        segments.slots.remove(&segment.number);
        self.device.close(segment.file);
        Ok(())
    }

    /// Writes the segment's tombstones again if older data may exist elsewhere: all of them, or none if there is no room.
    fn carry_tombstones(&self, number: u64) -> Result<(), LogError> {
        let carried: Vec<Tombstone> = {
            let segments = self.segments.lock();
            let oldest_elsewhere = segments
                .slots
                .values()
                .filter(|slot| slot.segment.number != number)
                .map(|slot| slot.oldest_born)
                .min()
                .unwrap_or(u64::MAX);
            let here = segments.tombstones.iter().filter(|tombstone| tombstone.segment == number);
            let carried: Vec<Tombstone> = here
                .filter(|tombstone| oldest_elsewhere < tombstone.kills_before)
                .cloned()
                .collect();
            let bytes = carried.iter().map(Tombstone::record_bytes).sum();
            let options = &self.options;
            if !segments.fits_open(bytes, options.segment_bytes)
                && !segments.may_open(options.segment_count, true)
                && !carried.is_empty()
            {
                return Err(LogError::Full);
            }
            carried
        };
        for tombstone in carried {
            self.write_tombstone(tombstone.namespace, tombstone.hashes, tombstone.kills_before)?;
        }
        Ok(())
    }

    fn write_tombstone(
        &self,
        namespace: NamespaceId,
        hashes: Vec<ChainHash>,
        kills_before: u64,
    ) -> Result<(), LogError> {
        let place = self.reserve(Log::removal_bytes(hashes.len()), true)?;
        let at = (place.pin.segment.number, place.epoch, place.offset);
        let bare = self.bare_header(at, place.sequence, RecordKind::Tombstone { kills_before });
        let header = RecordHeader { namespace, hashes: hashes.clone(), ..bare };
        let writing = Writing::header(Arc::clone(&place.pin), &header, self.rules(false));
        self.write_one(writing, &Call::background())?;
        self.sync_segment(&place.pin.segment)?;
        let segment = place.pin.segment.number;
        self.segments.lock().tombstones.push(Tombstone {
            segment,
            namespace,
            hashes,
            kills_before,
        });
        Ok(())
    }
}
