//! [`Memory`]: a range of bytes that a device may read or write, owned by one side at a time.
//!
//! 1. Live [`Memory`] values of one owner never overlap where one of them is writable. So holding the value is
//!    exclusive access to its bytes.
//! 2. The owner outlives every piece split from it. Lent slices: [`lend`] returns only after the last piece is dropped.
//!    Pooled memory and buffers of an engine: each piece holds the owner.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

/// The name of a region in this process. No other region has it, not even later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(NonZeroU64);

impl RegionId {
    /// A new name.
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(NonZeroU64::new(number).expect("fewer than 2^64 regions"))
    }
}

/// A range of a region, for all that know the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionRange {
    /// The region.
    pub region: RegionId,
    /// The first byte, from the region's start.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

/// A range of memory, passed from the caller to the device and back.
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    /// The region that `start` is in, and where.
    place: Option<(RegionId, usize)>,
    /// Never read. Keeps the bytes alive.
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: a Memory is exclusive access to its range (invariant 1) and its owner is Send. Moving the value to another
// thread moves that access.
unsafe impl Send for Memory {}
// SAFETY: `&Memory` gives only `&[u8]` of a range that nobody writes while the reference lives (invariant 1).
unsafe impl Sync for Memory {}

impl Memory {
    /// Wraps memory that `owner` keeps alive.
    ///
    /// # Safety
    ///
    /// Until the returned value and all pieces split from it are dropped: `start..start + len` stays valid for reads
    /// (for writes too if `writable`) as long as `owner` lives; nobody else writes it; if `writable`, nobody else
    /// reads it either.
    #[must_use]
    pub unsafe fn from_raw(
        start: NonNull<u8>,
        len: usize,
        writable: bool,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { start, len, writable, place: None, owner }
    }

    /// Names the place of the first byte in its region. Only [`Region`](super::Region) knows it.
    pub(super) fn in_region(mut self, region: RegionId, offset: usize) -> Self {
        self.place = Some((region, offset));
        self
    }

    /// Where in which region it is; `None` if it is in none. Whatever knows a region, such as another process, a ring
    /// or a GPU, can be given these numbers instead of an address.
    #[must_use]
    pub fn region_range(&self) -> Option<RegionRange> {
        let (region, offset) = self.place?;
        Some(RegionRange { region, offset, len: self.len })
    }

    /// Takes ownership of bytes for reading. The bytes and `with` live until the last piece is dropped.
    #[must_use]
    pub fn owned(bytes: Vec<u8>, with: impl Any + Send + Sync) -> Self {
        let (start, len) = (NonNull::from(bytes.as_slice()).cast(), bytes.len());
        let owner = Arc::new((bytes, with));
        // SAFETY: the owner keeps the vector, whose bytes do not move, and nobody else has access to it.
        unsafe { Self::from_raw(start, len, false, owner) }
    }

    /// Allocates writable, zeroed memory outside of any pool, for occasional reads.
    ///
    /// # Panics
    ///
    /// If `bytes` is zero.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Self {
        /// Only the [`Memory`] made of it has the allocation's address.
        struct Allocation(Mutex<Vec<u8>>);
        assert!(bytes > 0, "memory of no bytes");
        let owner = Arc::new(Allocation(Mutex::new(vec![0; bytes])));
        let start = NonNull::new(owner.0.lock().as_mut_ptr()).expect("a vector of some bytes");
        // SAFETY: the owner keeps the vector and nobody locks it again, so its bytes do not move and nobody else reads
        // or writes them.
        unsafe { Self::from_raw(start, bytes, true, owner) }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a read may write into it.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Address of the first byte, for alignment checks and system calls.
    #[must_use]
    pub fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Whether address and length are multiples of `align`.
    #[must_use]
    pub fn is_aligned(&self, align: usize) -> bool {
        self.address().is_multiple_of(align) && self.len.is_multiple_of(align)
    }

    /// Splits off the first `len` bytes.
    ///
    /// # Panics
    ///
    /// If there are fewer bytes.
    #[must_use]
    pub fn split_to(&mut self, len: usize) -> Self {
        assert!(len <= self.len, "split at {len} of {} bytes", self.len);
        let head = Self {
            start: self.start,
            len,
            writable: self.writable,
            place: self.place,
            owner: Arc::clone(&self.owner),
        };
        // SAFETY: `len <= self.len`, so the new start is inside or one past the end of the same range.
        self.start = unsafe { self.start.add(len) };
        self.place = self.place.map(|(region, offset)| (region, offset + len));
        self.len -= len;
        head
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is valid while the owner lives and nobody writes it while we hold it (invariant 1).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, for writing.
    ///
    /// # Panics
    ///
    /// If the memory is read-only.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(self.writable, "this memory was lent for reading only");
        // SAFETY: as in `as_slice`, and a writable Memory is the only access to its range.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.len)
    }
}

/// Turns slices into [`Memory`] for the duration of one [`lend`] call.
pub struct Lender<'env> {
    loans: Arc<Loans>,
    /// Invariant in 'env, so that a slice's lifetime can be neither shortened nor extended.
    env: PhantomData<&'env mut &'env ()>,
}

#[derive(Default)]
struct Loans {
    open: Mutex<usize>,
    all_back: Condvar,
}

/// Counts one loan. Dropping its last piece ends the loan.
struct Loan(Arc<Loans>);

impl Drop for Loan {
    fn drop(&mut self) {
        let mut open = self.0.open.lock();
        *open -= 1;
        if *open == 0 {
            self.0.all_back.notify_all();
        }
    }
}

impl<'env> Lender<'env> {
    /// Lends bytes for reading.
    #[must_use]
    pub fn shared(&self, bytes: &'env [u8]) -> Memory {
        // SAFETY: `lend` waits for the loan before 'env can end; the shared borrow excludes writers.
        unsafe { Memory::from_raw(NonNull::from(bytes).cast(), bytes.len(), false, self.loan()) }
    }

    /// Lends bytes for reading and writing.
    #[must_use]
    pub fn exclusive(&self, bytes: &'env mut [u8]) -> Memory {
        let len = bytes.len();
        // SAFETY: `lend` waits for the loan before 'env can end; the exclusive borrow excludes everybody else.
        unsafe { Memory::from_raw(NonNull::from(bytes).cast(), len, true, self.loan()) }
    }

    fn loan(&self) -> Arc<dyn Any + Send + Sync> {
        *self.loans.open.lock() += 1;
        Arc::new(Loan(Arc::clone(&self.loans)))
    }
}

/// Runs `body` with a [`Lender`]. Returns when every piece of lent memory has been dropped, including the device's.
///
/// Like `std::thread::scope`, the wait is what makes lending a borrowed slice to another thread or the kernel sound.
/// Work with a deadline must not lend memory to requests that may outlive it; it uses pooled buffers.
pub fn lend<'env, R>(body: impl FnOnce(&Lender<'env>) -> R) -> R {
    struct WaitForAll(Arc<Loans>);
    impl Drop for WaitForAll {
        fn drop(&mut self) {
            let mut open = self.0.open.lock();
            while *open > 0 {
                self.0.all_back.wait(&mut open);
            }
        }
    }
    let lender = Lender { loans: Arc::new(Loans::default()), env: PhantomData };
    // Also waits when `body` panics.
    let _wait = WaitForAll(Arc::clone(&lender.loans));
    body(&lender)
}

/// Copies pieces, in order, to the front of `to`.
///
/// # Panics
///
/// If `to` is shorter than the pieces.
pub fn copy_pieces(pieces: &[Memory], mut to: &mut [u8]) {
    for piece in pieces {
        let (now, rest) = to.split_at_mut(piece.len());
        now.copy_from_slice(piece.as_slice());
        to = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lend_returns_only_after_the_last_piece_is_dropped() {
        let mut bytes = vec![0_u8; 64];
        lend(|lender| {
            let mut memory = lender.exclusive(&mut bytes);
            let head = memory.split_to(16);
            crate::spawn("lend-test", move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                let mut head = head;
                head.as_mut_slice().fill(7);
            })
            .unwrap();
            drop(memory);
        });
        assert!(bytes[..16].iter().all(|b| *b == 7) && bytes[16..].iter().all(|b| *b == 0));
    }

    #[test]
    fn owned_bytes_live_until_the_last_piece_is_dropped() {
        let alive = Arc::new(());
        let mut memory = Memory::owned(vec![1, 2, 3], Arc::clone(&alive));
        let head = memory.split_to(1);
        drop(memory);
        assert_eq!((head.as_slice(), Arc::strong_count(&alive)), (&[1_u8][..], 2));
        drop(head);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    #[should_panic(expected = "reading only")]
    fn memory_lent_for_reading_cannot_be_written() {
        let bytes = [0_u8; 8];
        lend(|lender| {
            let _ = lender.shared(&bytes).as_mut_slice();
        });
    }
}
