//! What the log knows about one segment.
//!
//! | state | next state | when |
//! |---|---|---|
//! | free | open | it becomes the segment that takes records |
//! | free | leaving | its space is to go back to the file system |
//! | open | sealed | it is full, or it is sealed to be recycled |
//! | sealed | free | it is recycled, with a new epoch |
//! | sealed | damaged | recycling it failed |
//! | leaving | free | its file stays after all |
//! | leaving | damaged | removing its file failed |
//! | leaving, damaged | gone | its file is removed |
//!
//! Opening also finds segments that are damaged.

use std::sync::Arc;

use dalsegno_core::SECTOR_BYTES;

use super::pin::Segment;
use super::tally::Tally;

/// The state of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// New or recycled: takes records next.
    Free,
    /// Takes records now.
    Open,
    /// Full: only read.
    Sealed,
    /// Its header is damaged, its file was truncated, or a crash interrupted its recycling. It takes no records, and is
    /// the first to be reclaimed.
    Damaged,
    /// Healthy and free, but its file is being removed.
    Leaving,
}

impl SegmentState {
    /// Whether its records are as the log wrote them, and its file stays.
    #[must_use]
    pub fn is_sound(self) -> bool {
        matches!(self, Self::Free | Self::Open | Self::Sealed)
    }
}

/// A snapshot of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentView {
    /// Its number.
    pub number: u64,
    /// How often it was recycled, plus one.
    pub epoch: u64,
    /// Its state.
    pub state: SegmentState,
    /// Bytes reserved, including its header.
    pub cursor: u64,
    /// Smallest `born` of its records: `u64::MAX` if it has none, zero if it may have records that could not be read.
    pub oldest_born: u64,
    /// Largest sequence number of its records.
    pub newest_sequence: u64,
    /// Pins that readers and writers hold.
    pub pins: u32,
}

impl SegmentView {
    /// Whether some of it could not be read at open, so that the live bytes there are unknown.
    #[must_use]
    pub fn is_partly_unread(&self) -> bool {
        self.oldest_born == 0
    }
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) segment: Arc<Segment>,
    pub(crate) state: SegmentState,
    pub(crate) cursor: u64,
    /// Smallest `born` of its known records; see [`Self::oldest_born`].
    pub(crate) oldest_known: u64,
    pub(crate) newest_sequence: u64,
    /// Whether records may have settled since the last checkpoint synced it.
    pub(crate) is_unsynced: bool,
    pub(crate) doubt: Option<Doubt>,
    /// The first place that could not be read at open. A later open reads again from there.
    pub(crate) first_gap: Option<u64>,
    /// What it holds; unknown if the index alone knew it and the segment list did not.
    pub(crate) tally: Option<Tally>,
}

/// Merged extents of a segment that may not be whole. No header and no checkpoint claims that they, or the merges after
/// them, are durable, and every open reads them again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubt {
    /// Offset of the first of them.
    pub(crate) offset: u64,
    /// Their smallest sequence number.
    pub(crate) sequence: u64,
}

impl Slot {
    pub(crate) fn free(segment: Arc<Segment>) -> Self {
        Self {
            segment,
            state: SegmentState::Free,
            cursor: SECTOR_BYTES,
            oldest_known: u64::MAX,
            newest_sequence: 0,
            is_unsynced: true,
            doubt: None,
            first_gap: None,
            tally: Some(Tally::default()),
        }
    }

    /// Where the next open must begin to read, if the index knows all settled records.
    pub(crate) fn replay_from(&self) -> u64 {
        let unproven = self.doubt.map(|doubt| doubt.offset).into_iter().chain(self.first_gap);
        unproven.chain(self.segment.first_unsettled()).fold(self.cursor, u64::min)
    }

    /// Smallest `born` of its records. A later open may read records that cannot be read now, however old they are.
    pub(crate) fn oldest_born(&self) -> u64 {
        if self.first_gap.is_some() { 0 } else { self.oldest_known }
    }

    pub(crate) fn view(&self) -> SegmentView {
        SegmentView {
            number: self.segment.number,
            epoch: self.segment.epoch(),
            state: self.state,
            cursor: self.cursor,
            oldest_born: self.oldest_born(),
            newest_sequence: self.newest_sequence,
            pins: self.segment.pins(),
        }
    }
}
