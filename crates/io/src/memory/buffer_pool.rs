//! Aligned buffers from one prefaulted arena.
//!
//! 1. The arena is as large as the limit says; nothing else is ever allocated for staging.
//! 2. A caller that holds a buffer never waits for another one ([`BufferPool::try_take`]), so callers cannot starve
//!    each other; only a caller that holds none may wait ([`BufferPool::take`]).
//! 3. A forked child has no arena: nothing there may touch its address.

use std::any::Any;
use std::sync::Arc;

use dalsegno_core::{Clock, Deadline};
use parking_lot::{Condvar, Mutex};

use super::handle::Memory;
use super::mapping::{Mapping, Touch};
use crate::IoError;

/// Small buffers hold most headers.
const SMALL_BYTES: usize = 64 << 10;

/// A bounded pool of aligned buffers in two sizes: 64 KiB, and the largest request.
#[derive(Clone, Debug)]
pub struct BufferPool {
    arena: Arc<PoolArena>,
}

#[derive(Debug)]
struct PoolArena {
    mapping: Mapping,
    large_bytes: usize,
    free: Mutex<FreeBuffers>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct FreeBuffers {
    small: Vec<usize>,
    large: Vec<usize>,
}

/// Puts its buffer back when the last piece of it is dropped.
struct BufferLease {
    arena: Arc<PoolArena>,
    offset: usize,
    small: bool,
}

impl Drop for BufferLease {
    fn drop(&mut self) {
        let mut free = self.arena.free.lock();
        let list = if self.small { &mut free.small } else { &mut free.large };
        list.push(self.offset);
        self.arena.returned.notify_all();
    }
}

impl BufferPool {
    /// Maps and touches `total_bytes`, cut into buffers of `large_bytes` and, from an eighth of it, of 64 KiB.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the memory cannot be had.
    ///
    /// # Panics
    ///
    /// If there is no room for two buffers of each size; `Limits` rules that out.
    pub fn new(total_bytes: u64, large_bytes: u64) -> Result<Self, IoError> {
        let total = usize::try_from(total_bytes).expect("64-bit addresses");
        let large_bytes = usize::try_from(large_bytes).expect("64-bit addresses");
        let small_count = total / 8 / SMALL_BYTES;
        let large_start = small_count * SMALL_BYTES;
        let large_count = (total - large_start) / large_bytes;
        assert!(small_count >= 2 && large_count >= 2, "staging of {total} bytes is too small");
        let free = FreeBuffers {
            small: (0..small_count).map(|i| i * SMALL_BYTES).collect(),
            large: (0..large_count).map(|i| large_start + i * large_bytes).collect(),
        };
        let arena = PoolArena {
            mapping: Mapping::map(total, Touch::Now, "staging memory")?,
            large_bytes,
            free: Mutex::new(free),
            returned: Condvar::new(),
        };
        Ok(Self { arena: Arc::new(arena) })
    }

    /// The largest buffer one can take, in bytes.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.arena.large_bytes
    }

    /// Address and length of the arena, for registration with `io_uring`.
    #[must_use]
    pub fn address_range(&self) -> (usize, usize) {
        self.arena.mapping.range()
    }

    /// Takes a buffer of `len` bytes if one is free. The contents are whatever the last user left.
    ///
    /// # Panics
    ///
    /// If `len` is larger than [`Self::largest`].
    #[must_use]
    pub fn try_take(&self, len: usize) -> Option<Memory> {
        self.take_from(&mut self.arena.free.lock(), len)
    }

    /// Takes a buffer, waiting for one until `deadline`. The caller must hold no other buffer (invariant 2).
    ///
    /// # Errors
    ///
    /// [`IoError::Deadline`] when none came back in time.
    pub fn take(
        &self,
        len: usize,
        deadline: Deadline,
        clock: &dyn Clock,
    ) -> Result<Memory, IoError> {
        let mut free = self.arena.free.lock();
        loop {
            if let Some(memory) = self.take_from(&mut free, len) {
                return Ok(memory);
            }
            match deadline.remaining(clock.now()) {
                None => self.arena.returned.wait(&mut free),
                Some(left) if left.is_zero() => return Err(IoError::Deadline),
                Some(left) => drop(self.arena.returned.wait_for(&mut free, left)),
            }
        }
    }

    /// Buffers free now: (small, large).
    #[must_use]
    pub fn free_counts(&self) -> (usize, usize) {
        let free = self.arena.free.lock();
        (free.small.len(), free.large.len())
    }

    fn take_from(&self, free: &mut FreeBuffers, len: usize) -> Option<Memory> {
        assert!(len <= self.arena.large_bytes, "{len} bytes asked of a pool of {}", self.largest());
        let small = len <= SMALL_BYTES && !free.small.is_empty();
        let offset = if small { free.small.pop() } else { free.large.pop() }?;
        let owner: Arc<dyn Any + Send + Sync> =
            Arc::new(BufferLease { arena: Arc::clone(&self.arena), offset, small });
        let start = self.arena.mapping.part(offset, len);
        // SAFETY: `part` lies inside of the arena; the buffer was in the free list, so nobody else holds it, and it
        // returns there only when the lease, held by every piece, is dropped.
        Some(unsafe { Memory::from_raw(start, len, true, owner) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dalsegno_core::ManualClock;

    #[test]
    fn buffers_are_aligned_distinct_and_come_back() {
        let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
        let before = pool.free_counts();
        let mut taken = Vec::new();
        while let Some(memory) = pool.try_take(1 << 20) {
            assert!(memory.is_aligned(4096));
            taken.push((memory.address(), memory));
        }
        assert_eq!(taken.len(), before.1);
        taken.sort_by_key(|(address, _)| *address);
        assert!(taken.windows(2).all(|w| w[0].0 + (1 << 20) <= w[1].0));
        drop(taken);
        assert_eq!(pool.free_counts(), before);
    }

    #[test]
    fn an_exhausted_pool_throttles_instead_of_hanging() {
        let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
        let clock = ManualClock::default();
        let _all: Vec<_> = std::iter::from_fn(|| pool.try_take(1 << 20)).collect();
        let result = pool.take(1 << 20, Deadline::At(clock.now()), &clock);
        assert!(matches!(result, Err(IoError::Deadline)));
    }

    #[test]
    fn a_piece_keeps_its_whole_buffer() {
        let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
        let before = pool.free_counts();
        let mut memory = pool.try_take(1000).unwrap();
        let piece = memory.split_to(10);
        drop(memory);
        assert_eq!(pool.free_counts().0, before.0 - 1);
        drop(piece);
        assert_eq!(pool.free_counts(), before);
    }
}
