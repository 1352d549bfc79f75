//! Where a put keeps its blocks.

/// Where a put keeps its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// In the log. DRAM has a copy if it admits what is put.
    #[default]
    Stored,
    /// In DRAM only: neither the log nor the far tier gets the blocks. They are gone when DRAM evicts them, and when
    /// the store is closed.
    PoolOnly,
}
