//! The tiers of a store.

use serde::Serialize;

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockTier {
    /// The memory of the store.
    Dram,
    /// The local disk.
    Log,
    /// The far directory.
    Far,
}

impl BlockTier {
    /// All tiers, the fastest first.
    pub const ALL: [Self; 3] = [Self::Dram, Self::Log, Self::Far];

    /// The name, as users see it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Dram => "dram",
            Self::Log => "log",
            Self::Far => "far",
        }
    }
}
