//! Space for one record.

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
}

/// Which space a record may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpaceUse {
    /// Space that is ready now.
    Ready,
    /// Space that is ready now, for a merged extent whose newest source was born then.
    Merge { born: u64 },
    /// Also a new segment, whose creation the caller waits for.
    Creatable,
    /// Also the reserve that plain appends leave: for moved extents and for tombstones.
    Reserve,
}

impl Reservation {
    pub(super) fn new(bytes: u64, pin: Arc<Pin>, place: RecordPlace, sequence: u64) -> Self {
        Self { bytes, pin, place, sequence }
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
