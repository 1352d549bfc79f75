//! Leases that ended in a client, until their server hears of it.

use parking_lot::Mutex;

/// Most leases of one message.
const MOST_TAKEN: usize = 4096;

/// Leases of a client that ended, by the epoch of their server. The attachments of a client share it, because a lease
/// may outlive its attachment, and the server that gave it.
#[derive(Debug, Default)]
pub(super) struct EndedLeases(Mutex<Vec<(u64, u64)>>);

impl EndedLeases {
    pub(super) fn add(&self, epoch: u64, leases: &[u64]) {
        self.0.lock().extend(leases.iter().map(|lease| (epoch, *lease)));
    }

    /// Whether one server has heard of all.
    pub(super) fn are_none(&self, epoch: u64) -> bool {
        self.0.lock().iter().all(|(of, _)| *of != epoch)
    }

    /// Takes some of those of one server.
    pub(super) fn take(&self, epoch: u64) -> Vec<u64> {
        let mut taken = Vec::new();
        self.0.lock().retain(|(of, lease)| {
            let is_taken = *of == epoch && taken.len() < MOST_TAKEN;
            if is_taken {
                taken.push(*lease);
            }
            !is_taken
        });
        taken
    }

    /// Forgets those of all servers but one: they have ended.
    pub(super) fn forget_others(&self, epoch: u64) {
        self.0.lock().retain(|(of, _)| *of == epoch);
    }
}
