//! How the blocks of a put ended.

/// How one block of a put ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// Written, and visible; with durability `batch`, durable.
    Stored,
    /// In DRAM only, and visible: the put is pool-only.
    PoolOnly,
    /// Present already.
    Present,
    /// Being written by another put.
    Pending,
    /// Declined by the admission policy, or DRAM has no place for a block of a pool-only put.
    Declined,
    /// Not written: no space, deadline, cancelled, the device failed, or the block was removed since its bytes were
    /// given. Also a block whose removal still waits for the device, and a present block that a get failed to read, as
    /// long as reads are suspended.
    Failed,
}

/// How each block of a put ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutReport {
    /// One per block, in order.
    pub outcomes: Vec<PutOutcome>,
}

impl PutReport {
    /// How many blocks ended like this.
    #[must_use]
    pub fn count(&self, outcome: PutOutcome) -> u64 {
        self.outcomes.iter().filter(|other| **other == outcome).count() as u64
    }

    /// Whether each block is in the store now, as far as this put knows.
    #[must_use]
    pub fn kept(&self) -> Vec<bool> {
        use PutOutcome::{PoolOnly, Present, Stored};
        let is_kept = |outcome: &PutOutcome| matches!(outcome, Stored | PoolOnly | Present);
        self.outcomes.iter().map(is_kept).collect()
    }
}
