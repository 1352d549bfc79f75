//! Numbers in a region that one process writes and others read at the same time.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::claim::Claim;
use super::handle::Memory;
use super::region::Region;

const COUNTER_BYTES: usize = size_of::<u64>();

/// Numbers that this process writes, in a range that it has claimed.
#[derive(Debug)]
pub struct Counters {
    /// Keeps the range.
    memory: Memory,
}

impl Counters {
    /// Claims `count` numbers at `offset` of a region.
    ///
    /// # Panics
    ///
    /// As [`Claim::of`], and if `offset` is not a multiple of eight.
    #[must_use]
    pub fn of(region: &Arc<Region>, offset: usize, count: usize) -> Self {
        let memory = Claim::of(region, offset, count * COUNTER_BYTES, ()).memory();
        assert!(memory.is_aligned(COUNTER_BYTES), "numbers at {offset} are not aligned");
        Self { memory }
    }
}

impl AsRef<[AtomicU64]> for Counters {
    fn as_ref(&self) -> &[AtomicU64] {
        let count = self.memory.len() / COUNTER_BYTES;
        // SAFETY: the memory is valid, writable and aligned for `count` numbers as long as `self` lives, and in this
        // process nobody else has access to it. Other processes read it, with atomic loads.
        unsafe { std::slice::from_raw_parts(self.memory.address() as *const AtomicU64, count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::backing::Backing;
    use crate::memory::region::Access;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_reader_sees_what_the_writer_counts() {
        let writer = Arc::new(Region::shared(&Backing::MemoryFile, 1 << 16, "a test").unwrap());
        let reader = Region::map(writer.reader_file().unwrap(), 1 << 16, Access::Read, "a test");
        let reader = reader.unwrap();
        let counters = Counters::of(&writer, 4096, 10);
        assert_eq!((counters.as_ref().len(), reader.counter(4104)), (10, Some(0)));
        counters.as_ref()[1].fetch_add(7, Ordering::Relaxed);
        assert_eq!(reader.counter(4104), Some(7));
        for outside in [4097, 1 << 16, (1 << 16) - 7, usize::MAX] {
            assert_eq!(reader.counter(outside), None, "{outside}");
        }
    }
}
