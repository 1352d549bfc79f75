//! Leases of blocks that are read ahead.

use std::sync::Arc;

use dalsegno_core::Nanos;

use super::{Account, Grant, Held, Kind, NO_LEASE};

/// Takes at most `wanted` bytes, and at most half of those that the process may still lease, for blocks of `least`
/// bytes each that no request has named yet. `None` if that is not enough for one block.
pub(crate) fn grant_free(account: &Arc<Account>, wanted: u64, least: u64) -> Option<Grant> {
    let mut held = account.held.lock();
    let free = account.bounds.client_copy_bytes.saturating_sub(held.copy_bytes);
    let has_lease = 2 * held.leases.len() < account.bounds.client_leases;
    let bytes = wanted.min(free / 2);
    if !has_lease || bytes < least {
        return None;
    }
    held.copy_bytes += bytes;
    Some(Grant { account: Arc::clone(account), kind: Kind::Copy, bytes })
}

/// Lets a lease to copy last until `end`. Returns whether it has not ended. A lease without blocks never ends.
pub(crate) fn renew(account: &Account, lease: u64, end: Nanos) -> bool {
    match account.held.lock().leases.get_mut(&lease) {
        Some(Held::Copy { until, .. }) => *until = end,
        Some(Held::View { .. }) => {}
        None => return lease == NO_LEASE,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::{Accounts, Bounds};

    #[test]
    fn what_is_read_ahead_leaves_half_of_the_free_bytes_and_waits_for_nothing() {
        let bounds = Bounds { client_copy_bytes: 100, ..Bounds::of_pool(800) };
        let accounts = Accounts::new(bounds);
        let slot = accounts.open_session(1).unwrap();
        let account = slot.account();
        let first = grant_free(account, 30, 10).unwrap();
        let second = grant_free(account, 60, 10).unwrap();
        assert_eq!((first.bytes(), second.bytes()), (30, 35));
        assert!(grant_free(account, 60, 18).is_none(), "35 bytes are free");
        drop((first, second));
        assert_eq!(accounts.stats().copy_bytes, 0);
    }

    #[test]
    fn a_renewed_lease_lapses_later_and_a_lapsed_one_is_not_renewed() {
        let accounts = Accounts::new(Bounds::of_pool(800));
        let slot = accounts.open_session(1).unwrap();
        let lease = slot.account().grant(Kind::Copy, 10).hold_copy(Vec::new(), 10, Nanos(5));
        assert!(renew(slot.account(), lease, Nanos(9)));
        accounts.lapse(Nanos(8));
        assert_eq!(accounts.stats().leases, 1);
        accounts.lapse(Nanos(9));
        assert!(
            !renew(slot.account(), lease, Nanos(20)) && renew(slot.account(), NO_LEASE, Nanos(9))
        );
    }
}
