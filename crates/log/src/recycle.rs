//! Giving up a segment, and removing blocks for good.
//!
//! 1. A segment is recycled only when nobody reads or writes it.
//! 2. What is removed is announced before the index is looked at, and durable before the removal returns.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Extent, MAX_EXTENT_BLOCKS, NamespaceId, SECTOR_BYTES};

use crate::error::LogError;
use crate::format::{RecordHeader, RecordKind, SegmentHeader, record_header_bytes};
use crate::log::Log;
use crate::scan::scan_records;
use crate::segment::SegmentState;
use crate::stats::LogStats;
use crate::tombstones::Tombstone;

impl Log {
    /// Makes room: everything in the segment is gone afterwards, and it is free. The caller has moved what it keeps and
    /// made sure that no index entry leads into it once this returns `true`.
    ///
    /// Returns `false` if readers or writers stayed longer than `patience`, or if the segment's tombstones leave too
    /// little room: then another one has to go first.
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
        let done = match state {
            SegmentState::Damaged => core.discard(&segment, before),
            _ => core.renew(&segment, before),
        };
        match done {
            Ok(true) => LogStats::add(&core.stats.segments_recycled, 1),
            Ok(false) => segment.reopen(segment.epoch()),
            Err(_) => {
                segment.reopen(segment.epoch());
                core.set_state(number, SegmentState::Damaged);
            }
        }
        done
    }

    /// Removes a free segment, so that its room is for others; the file system is not asked for it again soon. `false`
    /// if there is none but the reserve, or if its tombstones would take that.
    ///
    /// # Errors
    ///
    /// If the device fails; a segment that may be gone already is then set aside as damaged, and goes when room is made
    /// next.
    pub fn give_back(&self, patience: Duration) -> Result<bool, LogError> {
        let core = &self.core;
        core.check_writable()?;
        // Before it is set aside: no checkpoint is to be without it as long as it is there.
        let checkpointing = core.checkpointing.lock();
        let Some(segment) = core.segments.lock().leave(core.options.segment_bytes) else {
            return Ok(false);
        };
        let keep = || core.set_state(segment.number, SegmentState::Free);
        if !segment.close(patience) {
            keep();
            return Ok(false);
        }
        let moved = core.move_tombstones(&segment);
        if !matches!(moved, Ok(true)) {
            segment.reopen(segment.epoch());
            keep();
            return moved;
        }
        if let Err(error) = core.remove_segment(&segment, &checkpointing) {
            segment.reopen(segment.epoch());
            return Err(error);
        }
        LogStats::add(&core.stats.segments_given_back, 1);
        Ok(true)
    }

    /// The extents that lie in a segment, read from their headers; those whose header is bad are left out. And why
    /// these are not all that can be read, if they are not: the device failed, or took too long.
    #[must_use]
    pub fn extents_in(&self, number: u64) -> (Vec<Extent>, Option<LogError>) {
        let core = &self.core;
        let Some(segment) =
            core.segments.lock().slots.get(&number).map(|slot| Arc::clone(&slot.segment))
        else {
            return (Vec::new(), None);
        };
        let header = SegmentHeader {
            store: core.store,
            segment: number,
            epoch: segment.epoch(),
            segment_bytes: core.options.segment_bytes,
            first_sequence: 0,
            carrying: false,
        };
        let range = SECTOR_BYTES..core.options.segment_bytes;
        let scan = scan_records(core, segment.file, &header, range);
        (scan.records.iter().filter_map(RecordHeader::extent).collect(), scan.failure)
    }

    /// Makes sure that the device reads at all, of a segment or of the store's own file.
    ///
    /// # Errors
    ///
    /// How it fails.
    pub fn check_reads(&self, number: u64) -> Result<(), LogError> {
        let file = self.core.segments.lock().slots.get(&number).map(|slot| slot.segment.file);
        file.map_or(Ok(()), |file| self.core.check_reads(file))
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
        if let Some((pin, offset)) = seal {
            self.core.write_marker(pin, offset, RecordKind::Seal);
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
        let (segment, offset) = (0, 0);
        let removal = Tombstone { segment, offset, namespace, hashes, kills_before };
        segments.tombstones.announce(removal);
        kills_before
    }

    /// Makes an announced removal hold for good: the blocks do not come back at the next open. Durable when it returns.
    ///
    /// # Errors
    ///
    /// As [`Log::reserve`]; then the removal is called off, for the log.
    pub fn finish_removal(&self, kills_before: u64) -> Result<(), LogError> {
        let found = self.core.segments.lock().tombstones.announced(kills_before).cloned();
        let Some(Tombstone { namespace, hashes, .. }) = found else { return Ok(()) };
        let written = self.core.write_tombstone(namespace, hashes, kills_before);
        self.abandon_removal(kills_before);
        written
    }

    /// Calls an announced removal off: it is over when the store is closed.
    pub fn abandon_removal(&self, kills_before: u64) {
        self.core.segments.lock().tombstones.call_off(kills_before);
    }

    /// Which of these blocks of a namespace were removed after the log gave out sequence number `born`.
    #[must_use]
    pub fn removed_since(
        &self,
        namespace: NamespaceId,
        born: u64,
        hashes: &[ChainHash],
    ) -> HashSet<ChainHash> {
        self.core.segments.lock().tombstones.removed_since(namespace, born, hashes)
    }
}
