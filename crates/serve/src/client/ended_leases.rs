//! Leases that ended in a client, until their server hears of it.

use parking_lot::Mutex;

/// Most leases of one message.
const MOST_TAKEN: usize = 4096;

/// Leases of a client that ended, by the epoch of their server. The attachments of a client share it, because a lease
/// may outlive its attachment, and the server that gave it.
#[derive(Debug, Default)]
pub(super) struct EndedLeases(Mutex<Vec<(u64, u64)>>);

impl EndedLeases {
    pub(super) fn add(&self, epoch: u64, lease: u64) {
        self.0.lock().push((epoch, lease));
    }

    /// Whether one server has heard of all.
    pub(super) fn are_none(&self, epoch: u64) -> bool {
        self.0.lock().iter().all(|(of, _)| *of != epoch)
    }

    /// Takes some of those of one server. The others are forgotten: their server has ended.
    pub(super) fn take(&self, epoch: u64) -> Vec<u64> {
        let mut all = self.0.lock();
        all.retain(|(of, _)| *of == epoch);
        let from = all.len().saturating_sub(MOST_TAKEN);
        all.split_off(from).into_iter().map(|(_, lease)| lease).collect()
    }
}
