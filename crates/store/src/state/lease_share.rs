//! The memory that leases may hold, shared by all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Part of the memory that leases may hold. Dropping it returns the part.
#[derive(Debug)]
pub(crate) struct LeaseShare {
    leased_bytes: Arc<AtomicU64>,
    block_bytes: u64,
    count: usize,
}

impl LeaseShare {
    /// Takes memory for at most `count` blocks of `block_bytes`, so that no more than `most` bytes are leased.
    pub(crate) fn take(
        leased_bytes: &Arc<AtomicU64>,
        most: u64,
        block_bytes: u64,
        count: usize,
    ) -> Self {
        let fitting = |leased: u64| {
            let left = most.saturating_sub(leased) / block_bytes;
            usize::try_from(left).unwrap_or(usize::MAX).min(count)
        };
        let after = |leased: u64| Some(leased + fitting(leased) as u64 * block_bytes);
        let before = leased_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, after);
        let count = fitting(before.expect("always an update"));
        Self { leased_bytes: Arc::clone(leased_bytes), block_bytes, count }
    }

    /// How many blocks it has memory for.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns what more than `count` blocks need.
    pub(crate) fn shrink(&mut self, count: usize) {
        let returned = (self.count - count) as u64 * self.block_bytes;
        self.leased_bytes.fetch_sub(returned, Ordering::AcqRel);
        self.count = count;
    }
}

impl Drop for LeaseShare {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_exceed_the_bound_and_come_back() {
        let leased = Arc::new(AtomicU64::new(0));
        let mut first = LeaseShare::take(&leased, 100, 30, 2);
        let second = LeaseShare::take(&leased, 100, 30, 9);
        assert_eq!((first.count, second.count, leased.load(Ordering::Relaxed)), (2, 1, 90));
        assert_eq!(LeaseShare::take(&leased, 100, 30, 1).count, 0);
        first.shrink(1);
        assert_eq!(LeaseShare::take(&leased, 100, 30, 9).count, 1);
        drop((first, second));
        assert_eq!(leased.load(Ordering::Relaxed), 0);
    }
}
