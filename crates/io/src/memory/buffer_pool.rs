//! Short-lived, aligned staging buffers for I/O, from one prefaulted arena.
//!
//! 1. The arena has the size of its limit. Staging never allocates anything else.
//! 2. A caller that holds a buffer never waits for another one ([`BufferPool::try_take`]), so callers cannot starve
//!    each other. Only a caller that holds none may wait ([`BufferPool::take`]).
//! 3. What nobody waits for takes at most half of the buffers of each size ([`BufferPool::for_patient_work`]): it may
//!    hold them while it waits for its turn at a device.
//! 4. A forked child has no arena: nothing there may touch its address.

use std::any::Any;
use std::sync::Arc;

use dalsegno_core::{Clock, Deadline, Stopped};
use parking_lot::{Condvar, Mutex};

use super::handle::Memory;
use super::region::{Region, Touch};
use crate::IoError;

/// Size of a small buffer, which is enough for most headers.
const SMALL_BYTES: usize = 64 << 10;

/// A bounded pool of aligned buffers in two sizes: 64 KiB, and the largest request.
#[derive(Clone, Debug)]
pub struct BufferPool {
    arena: Arc<PoolArena>,
    /// Buffers of each size that are left to others: small, large.
    left: (usize, usize),
}

#[derive(Debug)]
struct PoolArena {
    region: Region,
    large_bytes: usize,
    /// Small and large ones.
    counts: (usize, usize),
    free: Mutex<FreeBuffers>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct FreeBuffers {
    small: Vec<usize>,
    large: Vec<usize>,
}

/// Returns its buffer to the pool when the last piece of it is dropped.
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
    /// Maps and populates `total_bytes`. An eighth becomes buffers of 64 KiB, the rest buffers of `large_bytes`.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the system refuses the memory.
    ///
    /// # Panics
    ///
    /// If there is no space for two buffers of each size. `Limits` rules that out.
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
            region: Region::anonymous(total, Touch::Now, "staging memory")?,
            large_bytes,
            counts: (small_count, large_count),
            free: Mutex::new(free),
            returned: Condvar::new(),
        };
        Ok(Self { arena: Arc::new(arena), left: (0, 0) })
    }

    /// The same pool for work that nobody waits for: it leaves half of the buffers to others.
    #[must_use]
    pub fn for_patient_work(&self) -> Self {
        let (small, large) = self.arena.counts;
        Self { arena: Arc::clone(&self.arena), left: (small / 2, large / 2) }
    }

    /// Size of the largest buffer, in bytes.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.arena.large_bytes
    }

    /// The arena, for registration with `io_uring`.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.arena.region
    }

    /// Takes a buffer of `len` bytes if one is free. Its contents are undefined.
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
    /// [`Stopped::Deadline`] if no buffer was returned in time.
    pub fn take(
        &self,
        len: usize,
        deadline: Deadline,
        clock: &dyn Clock,
    ) -> Result<Memory, Stopped> {
        let mut free = self.arena.free.lock();
        loop {
            if let Some(memory) = self.take_from(&mut free, len) {
                return Ok(memory);
            }
            match deadline.remaining(clock.now()) {
                None => self.arena.returned.wait(&mut free),
                Some(left) if left.is_zero() => return Err(Stopped::Deadline),
                Some(left) => drop(self.arena.returned.wait_for(&mut free, left)),
            }
        }
    }

    /// Number of free buffers: (small, large).
    #[must_use]
    pub fn free_counts(&self) -> (usize, usize) {
        let free = self.arena.free.lock();
        (free.small.len(), free.large.len())
    }

    fn take_from(&self, free: &mut FreeBuffers, len: usize) -> Option<Memory> {
        assert!(len <= self.arena.large_bytes, "{len} bytes asked of a pool of {}", self.largest());
        let small = len <= SMALL_BYTES && free.small.len() > self.left.0;
        let (free, left) =
            if small { (&mut free.small, self.left.0) } else { (&mut free.large, self.left.1) };
        if free.len() <= left {
            return None;
        }
        let offset = free.pop()?;
        let owner: Arc<dyn Any + Send + Sync> =
            Arc::new(BufferLease { arena: Arc::clone(&self.arena), offset, small });
        // SAFETY: the buffer was in the free list, so nobody else holds it. It returns there only when the lease, which
        // every piece holds, and which holds the region, is dropped.
        Some(unsafe { self.arena.region.memory(offset, len, true, owner) })
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
    fn patient_work_leaves_half_of_the_buffers() {
        let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
        let (small, large) = pool.free_counts();
        let patient = pool.for_patient_work();
        let taken: Vec<_> = std::iter::from_fn(|| patient.try_take(1 << 20)).collect();
        assert_eq!(taken.len(), large - large / 2);
        let others: Vec<_> = std::iter::from_fn(|| patient.try_take(1)).collect();
        assert_eq!(others.len(), small - small / 2);
        let rest: Vec<_> = std::iter::from_fn(|| pool.try_take(1 << 20)).collect();
        assert_eq!(rest.len(), large / 2);
    }

    #[test]
    fn an_exhausted_pool_throttles_instead_of_hanging() {
        let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
        let clock = ManualClock::default();
        let _all: Vec<_> = std::iter::from_fn(|| pool.try_take(1 << 20)).collect();
        let result = pool.take(1 << 20, Deadline::At(clock.now()), &clock);
        assert_eq!(result.err(), Some(Stopped::Deadline));
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
