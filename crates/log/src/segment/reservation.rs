//! Space for one record.
//!
//! 1. The reservation of a merged extent says that the merge is in progress, from before the first write until it is
//!    dropped. One merge is in progress at a time. Meanwhile no segment's header claims that the merges so far are
//!    durable, so recovery chooses between a merged extent and its sources without reading them.

use std::sync::Arc;

use dalsegno_extent::PinnedFile;
use dalsegno_extent::format::RecordPlace;

use super::pin::Pin;

/// Space in a segment, which it pins.
#[derive(Debug)]
pub struct Reservation {
    bytes: u64,
    pin: Arc<Pin>,
    place: RecordPlace,
    sequence: u64,
    /// Only for a merged extent.
    merge: Option<MergeInProgress>,
}

/// The sequence number of a merged extent that is not durable yet. The segment table holds it weakly.
pub(super) type MergeInProgress = Arc<u64>;

/// Which space a record may use, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceUse {
    /// Space that is ready now: waits neither for the device nor for another call.
    Ready,
    /// Space that is ready now, for a merged extent. A removal that is announced after the reservation hides the merged
    /// extent as it hides its sources.
    Merge {
        /// [`Extent::born`](dalsegno_core::Extent::born) of the newest source.
        born: u64,
    },
    /// Also a new segment, whose creation the caller waits for.
    Creatable,
    /// Also the reserve that plain appends leave: for moved extents and for tombstones.
    Reserve,
}

impl Reservation {
    pub(super) fn new(
        bytes: u64,
        pin: Arc<Pin>,
        place: RecordPlace,
        sequence: u64,
        merge: Option<MergeInProgress>,
    ) -> Self {
        Self { bytes, pin, place, sequence, merge }
    }

    /// Whether it is for a merged extent.
    pub(crate) fn is_of_merge(&self) -> bool {
        self.merge.is_some()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn place(&self) -> RecordPlace {
        self.place
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn pin(&self) -> &Arc<Pin> {
        &self.pin
    }

    pub(crate) fn into_pin(self) -> Arc<Pin> {
        self.pin
    }

    pub(crate) fn pinned_file(&self) -> PinnedFile {
        self.pin.pinned_file()
    }
}
