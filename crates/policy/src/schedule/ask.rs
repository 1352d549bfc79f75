//! A request that waits for its turn.

use dalsegno_core::Nanos;

/// Who waits for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// An engine.
    Need,
    /// Nobody yet, but an engine is about to.
    Prefetch,
    /// Nobody: what engines have computed.
    Save,
    /// Nobody: reclaiming, merging, scrubbing, the index, publication.
    Upkeep,
}

impl Class {
    /// All classes, the most urgent first.
    pub const ALL: [Self; 4] = [Self::Need, Self::Prefetch, Self::Save, Self::Upkeep];
}

/// Which direction bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
}

/// A request that waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Names it until it is done.
    pub id: u64,
    /// Which direction its bytes go.
    pub direction: Direction,
    /// Who waits for it.
    pub class: Class,
    /// Its bytes.
    pub bytes: u64,
    /// When an engine needs it; `None` for as soon as possible. Only for [`Class::Need`].
    pub due: Option<Nanos>,
}
