//! Claims: exclusive access to a range of a region, until it is filled, and read-only access afterwards.
//!
//! 1. A [`Claim`] gives out at most one [`Memory`] at a time, so its bytes have one writer.
//! 2. A [`Filled`] exists only when no [`Memory`] of its claim exists: nobody writes bytes that it reads.
//! 3. The range is claimed until the claim, its memory and its `Filled` are all gone. Memory that a device still writes
//!    to after its call has ended keeps the range.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::handle::Memory;
use super::region::Region;

/// Exclusive access to a range of a region.
pub struct Claim {
    held: Arc<Held>,
}

/// A claimed range. Dropping it ends the claim.
struct Held {
    region: Arc<Region>,
    range: Range<usize>,
    /// Dropped after the claim has ended.
    keeper: Option<Box<dyn Any + Send + Sync>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.region.end_claim(self.range.start);
        drop(self.keeper.take());
    }
}

impl Claim {
    /// Claims `len` bytes at `offset` of a region. `keeper` is dropped when nobody has access to them any more.
    ///
    /// # Panics
    ///
    /// If one of the bytes is claimed already, if they are not inside the region, if this process may only read it, or
    /// in a forked child.
    #[must_use]
    pub fn of(
        region: &Arc<Region>,
        offset: usize,
        len: usize,
        keeper: impl Any + Send + Sync,
    ) -> Self {
        region.begin_claim(offset, len);
        let (region, range) = (Arc::clone(region), offset..offset + len);
        Self { held: Arc::new(Held { region, range, keeper: Some(Box::new(keeper)) }) }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.range.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.range.is_empty()
    }

    /// All bytes, for writing.
    ///
    /// # Panics
    ///
    /// If an earlier memory of this claim still exists (invariant 1).
    #[must_use]
    pub fn memory(&mut self) -> Memory {
        assert!(self.is_alone(), "one memory at a time (invariant 1)");
        let owner: Arc<dyn Any + Send + Sync> = Arc::clone(&self.held) as _;
        // SAFETY: the owner keeps the range mapped and claimed, so nobody else has access to it. This claim gives out
        // no second memory while the owner is shared, and no `Filled`.
        unsafe { self.held.region.memory(self.held.range.start, self.len(), true, owner) }
    }

    /// Turns the claim into bytes for reading, once they are written. Returns the claim if its memory still exists.
    ///
    /// # Errors
    ///
    /// The claim itself.
    pub fn fill(mut self) -> Result<Filled, Self> {
        if self.is_alone() { Ok(Filled { held: self.held }) } else { Err(self) }
    }

    /// Whether no memory of this claim exists. If so, everything written through it is visible to this thread.
    #[must_use]
    pub fn is_alone(&mut self) -> bool {
        Arc::get_mut(&mut self.held).is_some()
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({:?})", self.held.range)
    }
}

/// Bytes of a region, for reading. Dropping them ends the claim.
pub struct Filled {
    held: Arc<Held>,
}

impl Filled {
    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.range.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.range.is_empty()
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        assert!(self.held.region.is_here(), "a forked child has no region (invariant 3)");
        let start = self.held.region.part(self.held.range.start, self.len());
        // SAFETY: the range is mapped while `held` lives. It is zeroed or was written, and nobody writes it now
        // (invariant 2): the claim's memory is gone, and no other claim overlaps.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len()) }
    }

    /// The bytes once more, for a device. The claim lasts until this memory is dropped, too.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.part(0, self.len())
    }

    /// Some of the bytes once more: see [`Filled::memory`].
    ///
    /// # Panics
    ///
    /// If there are fewer bytes.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Memory {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len());
        assert!(fits, "{len} bytes at {offset} of {}", self.len());
        let owner: Arc<dyn Any + Send + Sync> = Arc::clone(&self.held) as _;
        // SAFETY: the owner keeps the range mapped and claimed. Nobody writes it while `held` lives (invariant 2).
        unsafe { self.held.region.memory(self.held.range.start + offset, len, false, owner) }
    }

    /// Fills all pieces, in order, with the bytes starting at `offset`.
    ///
    /// # Panics
    ///
    /// If there are fewer bytes.
    pub fn copy_to(&self, offset: usize, pieces: &mut [Memory]) {
        let wanted: usize = pieces.iter().map(Memory::len).sum();
        let fits = offset.checked_add(wanted).is_some_and(|end| end <= self.len());
        assert!(fits, "{wanted} bytes at {offset} of {}", self.len());
        let mut from = &self.as_slice()[offset..];
        for piece in pieces {
            let (now, later) = from.split_at(piece.len());
            piece.as_mut_slice().copy_from_slice(now);
            from = later;
        }
    }
}

impl fmt::Debug for Filled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filled({:?})", self.held.range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::handle::RegionRange;
    use crate::memory::region::Touch;

    fn region() -> Arc<Region> {
        Arc::new(Region::anonymous(1 << 16, Touch::AtUse, "a test").unwrap())
    }

    #[test]
    fn memory_of_a_region_says_where_it_is() {
        let region = region();
        let range = |offset, len| Some(RegionRange { region: region.id(), offset, len });
        let mut claim = Claim::of(&region, 100, 50, ());
        let mut memory = claim.memory();
        assert_eq!(memory.region_range(), range(100, 50));
        let head = memory.split_to(20);
        assert_eq!((head.region_range(), memory.region_range()), (range(100, 20), range(120, 30)));
        drop((head, memory));
        assert_eq!(claim.fill().unwrap().memory().region_range(), range(100, 50));
        assert_eq!(Memory::owned(vec![1], ()).region_range(), None);
        assert_ne!(Region::anonymous(1, Touch::AtUse, "a test").unwrap().id(), region.id());
    }

    fn filled(region: &Arc<Region>, bytes: &[u8]) -> Filled {
        let mut claim = Claim::of(region, 100, bytes.len(), ());
        claim.memory().as_mut_slice().copy_from_slice(bytes);
        claim.fill().unwrap()
    }

    #[test]
    fn bytes_read_back_from_any_offset_in_any_pieces() {
        let bytes: Vec<u8> = (0..200).collect();
        let filled = filled(&region(), &bytes);
        for offset in [0, 1, 150, 200] {
            let mut out = vec![0; 200 - offset];
            crate::lend(|lender| {
                let (head, tail) = out.split_at_mut((200 - offset) / 3);
                filled.copy_to(offset, &mut [lender.exclusive(head), lender.exclusive(tail)]);
            });
            assert_eq!(out, bytes[offset..]);
        }
    }

    #[test]
    #[should_panic(expected = "2 bytes at 3 of 4")]
    fn reading_past_the_end_panics() {
        let filled = filled(&region(), b"abcd");
        let mut out = [0; 2];
        crate::lend(|lender| filled.copy_to(3, &mut [lender.exclusive(&mut out)]));
    }

    #[test]
    fn a_claim_is_not_filled_while_somebody_may_write_it() {
        let region = region();
        let mut claim = Claim::of(&region, 0, 10, ());
        let mut memory = claim.memory();
        let piece = memory.split_to(4);
        drop(memory);
        let mut claim = claim.fill().unwrap_err();
        drop(piece);
        drop(claim.memory());
        assert_eq!(claim.fill().unwrap().len(), 10);
    }

    #[test]
    #[should_panic(expected = "one memory at a time")]
    fn a_claim_gives_out_one_memory_at_a_time() {
        let mut claim = Claim::of(&region(), 0, 10, ());
        let _first = claim.memory();
        let _second = claim.memory();
    }

    /// Late writes of a device: the call has dropped its claim, the request still has the memory.
    #[test]
    fn a_range_stays_claimed_until_its_last_memory_is_gone() {
        let (region, kept) = (region(), Arc::new(()));
        let mut claim = Claim::of(&region, 0, 10, Arc::clone(&kept));
        let memory = claim.memory();
        drop(claim);
        assert_eq!(Arc::strong_count(&kept), 2);
        drop(memory);
        assert_eq!(Arc::strong_count(&kept), 1);
        let _again = Claim::of(&region, 0, 10, ());
    }
}
