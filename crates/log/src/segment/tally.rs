//! Counts of a segment's records, for the segment list.

use std::ops::Range;

use dalsegno_core::SECTOR_BYTES;
use dalsegno_extent::format::{ListedSegment, RecordHeader, RecordKind};

/// A number of records, extents and tombstones, and of the extents' blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordCount {
    pub(crate) records: u64,
    pub(crate) blocks: u64,
}

/// What a segment holds in its present epoch, as far as the log knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    held: RecordCount,
    /// How many more the list counted when the log was opened: they are lost.
    lost: RecordCount,
}

impl RecordCount {
    /// Counts those of `records` that begin in a range of their segment.
    pub(crate) fn of<'a>(
        records: impl Iterator<Item = &'a RecordHeader>,
        range: Range<u64>,
    ) -> Self {
        let blocks_of = |record: &RecordHeader| match record.kind {
            RecordKind::Extent { .. } => Some(record.hashes.len() as u64),
            RecordKind::Tombstone { .. } => Some(0),
            RecordKind::Void { .. } | RecordKind::Seal => None,
        };
        let inside = records.filter(|record| range.contains(&record.offset)).filter_map(blocks_of);
        inside.fold(Self::default(), |sum, blocks| Self {
            records: sum.records + 1,
            blocks: sum.blocks + blocks,
        })
    }

    fn plus(self, other: Self) -> Self {
        Self { records: self.records + other.records, blocks: self.blocks + other.blocks }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            records: self.records.saturating_sub(other.records),
            blocks: self.blocks.saturating_sub(other.blocks),
        }
    }
}

impl Tally {
    /// The tally of a segment whose `records` of `epoch` were read from `from` on. The list counts the records before;
    /// `None` if the list does not reach so far.
    pub(crate) fn of(
        records: &[RecordHeader],
        epoch: u64,
        from: u64,
        listed: Option<&ListedSegment>,
    ) -> Option<Self> {
        let listed = listed.copied().unwrap_or_default();
        let count = |range: Range<u64>| {
            // Where something cannot be read, tombstones of earlier epochs are among the records.
            RecordCount::of(records.iter().filter(|record| record.epoch == epoch), range)
        };
        let (before, behind) = (count(0..listed.end), count(listed.end..u64::MAX));
        let in_list = RecordCount { records: listed.records, blocks: listed.blocks };
        if from > SECTOR_BYTES {
            let (held, lost) = (in_list.plus(behind), RecordCount::default());
            return (listed.end >= from).then_some(Self { held, lost });
        }
        Some(Self { held: before.plus(behind), lost: in_list.minus(before) })
    }

    /// The tally of a segment's new epoch, which holds this many tombstones.
    pub(crate) fn of_tombstones(count: usize) -> Self {
        let held = RecordCount { records: count as u64, blocks: 0 };
        Self { held, ..Self::default() }
    }

    /// What the list says: the records that are there and those that are lost.
    pub(super) fn listed(&self) -> RecordCount {
        self.held.plus(self.lost)
    }

    pub(super) fn add_record(&mut self, blocks: u64) {
        self.held = self.held.plus(RecordCount { records: 1, blocks });
    }

    /// Removes an extent that becomes a void.
    pub(super) fn remove_extent(&mut self, blocks: u64) {
        self.held = self.held.minus(RecordCount { records: 1, blocks });
    }

    /// Forgets the lost records, because a repair dealt with them.
    pub(super) fn write_off(&mut self) {
        self.lost = RecordCount::default();
    }
}
