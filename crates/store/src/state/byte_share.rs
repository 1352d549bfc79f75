//! Memory of a bounded total, in shares: that of leases, and that of puts by layer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Part of a bounded number of bytes, for blocks of one size. Dropping it returns the part.
#[derive(Debug)]
pub(crate) struct ByteShare {
    taken_bytes: Arc<AtomicU64>,
    block_bytes: u64,
    count: usize,
}

impl ByteShare {
    /// Takes memory for at most `count` blocks of `block_bytes`, so that no more than `most` bytes are taken.
    pub(crate) fn take(
        taken_bytes: &Arc<AtomicU64>,
        most: u64,
        block_bytes: u64,
        count: usize,
    ) -> Self {
        let fitting = |taken: u64| {
            let left = most.saturating_sub(taken) / block_bytes;
            usize::try_from(left).unwrap_or(usize::MAX).min(count)
        };
        let after = |taken: u64| Some(taken + fitting(taken) as u64 * block_bytes);
        let before = taken_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, after);
        let count = fitting(before.expect("always an update"));
        Self { taken_bytes: Arc::clone(taken_bytes), block_bytes, count }
    }

    /// How many blocks it has memory for.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns what more than `count` blocks need.
    pub(crate) fn shrink(&mut self, count: usize) {
        let returned = (self.count - count) as u64 * self.block_bytes;
        self.taken_bytes.fetch_sub(returned, Ordering::AcqRel);
        self.count = count;
    }
}

impl Drop for ByteShare {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_exceed_the_bound_and_come_back() {
        let taken = Arc::new(AtomicU64::new(0));
        let mut first = ByteShare::take(&taken, 100, 30, 2);
        let second = ByteShare::take(&taken, 100, 30, 9);
        assert_eq!((first.count, second.count, taken.load(Ordering::Relaxed)), (2, 1, 90));
        assert_eq!(ByteShare::take(&taken, 100, 30, 1).count, 0);
        first.shrink(1);
        assert_eq!(ByteShare::take(&taken, 100, 30, 9).count, 1);
        drop((first, second));
        assert_eq!(taken.load(Ordering::Relaxed), 0);
    }
}
