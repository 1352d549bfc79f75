//! Bounds the memory of compressed extents that are not written yet.
//!
//! 1. The sum of all budgets never exceeds the bound, except for one extent that is larger than the bound: it gets its
//!    budget alone.
//! 2. A caller that holds a budget never waits for another one.

use dalsegno_io::Call;
use std::sync::Arc;

use dalsegno_core::{Clock, Stopped};
use parking_lot::{Condvar, Mutex};

/// Memory for one extent, from its compression until it is written.
#[derive(Debug)]
pub struct CompressionBudget {
    pool: Arc<BudgetPool>,
    bytes: u64,
}

/// Memory that all budgets share.
#[derive(Debug)]
pub(super) struct BudgetPool {
    bound: u64,
    used: Mutex<u64>,
    returned: Condvar,
}

impl BudgetPool {
    pub(super) fn new(bound: u64) -> Arc<Self> {
        Arc::new(Self { bound, used: Mutex::default(), returned: Condvar::new() })
    }

    /// A budget of `bytes`, if there is one now.
    pub(super) fn try_take(self: &Arc<Self>, bytes: u64) -> Option<CompressionBudget> {
        self.take_locked(&mut self.used.lock(), bytes)
    }

    /// A budget of `bytes`, waited for within the call's terms.
    pub(super) fn take(
        self: &Arc<Self>,
        bytes: u64,
        call: &Call,
        clock: &dyn Clock,
    ) -> Result<CompressionBudget, Stopped> {
        let mut used = self.used.lock();
        loop {
            if let Some(budget) = self.take_locked(&mut used, bytes) {
                return Ok(budget);
            }
            match call.timeout(clock)? {
                None => self.returned.wait(&mut used),
                Some(timeout) => drop(self.returned.wait_for(&mut used, timeout)),
            }
        }
    }

    /// A budget outside the bound.
    pub(super) fn unbounded(self: &Arc<Self>) -> CompressionBudget {
        CompressionBudget { pool: Arc::clone(self), bytes: 0 }
    }

    fn take_locked(self: &Arc<Self>, used: &mut u64, bytes: u64) -> Option<CompressionBudget> {
        if *used > 0 && *used + bytes > self.bound {
            return None;
        }
        *used += bytes;
        Some(CompressionBudget { pool: Arc::clone(self), bytes })
    }
}

impl Drop for CompressionBudget {
    fn drop(&mut self) {
        *self.pool.used.lock() -= self.bytes;
        self.pool.returned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_bounded_but_a_single_one_is_never_refused() {
        let pool = BudgetPool::new(100);
        let large = pool.try_take(1000).unwrap();
        assert!(pool.try_take(1).is_none());
        drop(large);
        let one = pool.try_take(60).unwrap();
        assert!(pool.try_take(41).is_none());
        let two = pool.try_take(40).unwrap();
        drop((one, two));
        assert_eq!(*pool.used.lock(), 0);
    }
}
