//! Who waits for a request to a device.

/// Who waits for a request to a device. The order in which requests start follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// An engine or a caller.
    Need,
    /// Nobody yet, but an engine is about to.
    Prefetch,
    /// Nobody: what engines have computed, and the space for it.
    Save,
    /// Nobody: merging, scrubbing, the index, publication.
    Upkeep,
}

impl Class {
    /// All classes, the most urgent first.
    pub const ALL: [Self; 4] = [Self::Need, Self::Prefetch, Self::Save, Self::Upkeep];
}
