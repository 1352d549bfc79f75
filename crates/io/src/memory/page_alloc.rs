//! A heap allocator for large vectors, whose memory returns to the system as soon as it is dropped.
//!
//! `malloc` keeps the memory of large, short-lived buffers for its next caller. The on-disk index builds tables in
//! 16 MiB a few times a minute, in a process with better uses for that memory.
//!
//! 1. Every allocation is its own mapping, in whole pages, zeroed by the kernel.
//! 2. A mapping is unmapped exactly once, with the length it was mapped or last remapped with.

use std::alloc::Layout;
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

/// Largest alignment that every mapping has.
const PAGE_BYTES: usize = 4096;

/// Allocates mappings. Suits few, large allocations.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageAllocator;

/// A vector whose memory returns to the system when it is dropped.
pub type PageVec<T> = allocator_api2::vec::Vec<T, PageAllocator>;

/// Bytes whose memory returns to the system when they are dropped: a [`PageVec`] that copies in one step, not byte by
/// byte.
#[derive(Debug)]
pub struct PageBuffer(PageVec<u8>);

impl Default for PageBuffer {
    fn default() -> Self {
        Self(PageVec::new_in(PageAllocator))
    }
}

impl PageBuffer {
    /// Reserves space for `bytes`. Bytes that are never written take no physical memory.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self(PageVec::with_capacity_in(bytes, PageAllocator))
    }

    /// How many bytes fit before the buffer grows.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.0.reserve(bytes.len());
        let len = self.0.len();
        // SAFETY: there is space for them after `len`, and borrowed bytes never belong to this vector. All of them
        // are initialised before `set_len`.
        unsafe {
            let end = self.0.as_mut_ptr().add(len);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), end, bytes.len());
            self.0.set_len(len + bytes.len());
        }
    }

    /// Truncates the buffer to `len` bytes, or appends zeros up to `len`.
    pub fn resize(&mut self, len: usize) {
        let old = self.0.len();
        if len <= old {
            self.0.truncate(len);
            return;
        }
        self.0.reserve(len - old);
        // SAFETY: there is space up to `len`, and all of it is initialised before `set_len`.
        unsafe {
            std::ptr::write_bytes(self.0.as_mut_ptr().add(old), 0, len - old);
            self.0.set_len(len);
        }
    }

    /// Removes all bytes and keeps the memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

fn mapped_bytes(layout: Layout) -> usize {
    layout.size().next_multiple_of(PAGE_BYTES)
}

fn slice(start: *mut c_void, bytes: usize) -> Result<NonNull<[u8]>, AllocError> {
    let start = NonNull::new(start.cast()).ok_or(AllocError)?;
    Ok(NonNull::slice_from_raw_parts(start, bytes))
}

// SAFETY: a mapping stays valid until `deallocate`, or until `grow` or `shrink` moves it, whatever happens to the
// allocator. The allocator has no state, so copies of it are interchangeable. Mappings are page-aligned, and layouts
// with a larger alignment are refused. The lengths that are unmapped and remapped are those that were mapped:
// `next_multiple_of` gives the same length for every size that fits the mapping in whole pages.
unsafe impl Allocator for PageAllocator {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.align() > PAGE_BYTES {
            return Err(AllocError);
        }
        let bytes = mapped_bytes(layout);
        if bytes == 0 {
            let dangling = std::ptr::without_provenance_mut(layout.align());
            return slice(dangling, 0);
        }
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping affects no memory in use.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        if start == libc::MAP_FAILED { Err(AllocError) } else { slice(start, bytes) }
    }

    unsafe fn deallocate(&self, start: NonNull<u8>, layout: Layout) {
        let bytes = mapped_bytes(layout);
        if bytes > 0 {
            // SAFETY: the caller returns a mapping of this allocator, which nobody uses any more.
            let unmapped = unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
            debug_assert_eq!(unmapped, 0, "a mapping is unmapped once");
        }
    }

    unsafe fn grow(
        &self,
        start: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: remapping requires what the caller guarantees for `start` and `old`.
        unsafe { self.remap(start, old, new) }
    }

    unsafe fn shrink(
        &self,
        start: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: as for `grow`.
        unsafe { self.remap(start, old, new) }
    }
}

impl PageAllocator {
    /// # Safety
    ///
    /// `start` is an allocation of this allocator with layout `old`, and nobody else uses it.
    unsafe fn remap(
        self,
        start: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        let (from, to) = (mapped_bytes(old), mapped_bytes(new));
        if new.align() > PAGE_BYTES {
            return Err(AllocError);
        }
        if from == 0 || to == 0 {
            let moved = self.allocate(new)?;
            // SAFETY: one of the two has no bytes, so there is nothing to copy. The old one is freed once.
            unsafe { self.deallocate(start, old) };
            return Ok(moved);
        }
        // SAFETY: the caller guarantees that the old mapping is ours and may move.
        let moved = unsafe { libc::mremap(start.as_ptr().cast(), from, to, libc::MREMAP_MAYMOVE) };
        if moved == libc::MAP_FAILED { Err(AllocError) } else { slice(moved, to) }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "reads what the kernel says of memory")]
mod tests {
    use super::*;

    #[test]
    fn a_vector_keeps_its_bytes_while_it_grows_and_shrinks() {
        let mut bytes: PageVec<u32> = PageVec::new_in(PageAllocator);
        for number in 0..100_000 {
            bytes.push(number);
        }
        bytes.truncate(3000);
        bytes.shrink_to_fit();
        assert!(bytes.iter().copied().eq(0..3000));
        bytes.clear();
        bytes.shrink_to_fit();
        bytes.push(7);
        assert_eq!(&bytes[..], [7]);
    }

    #[test]
    fn a_buffer_behaves_like_a_vector_of_bytes() {
        let (mut buffer, mut model) = (PageBuffer::default(), Vec::new());
        for number in 0..3000_u32 {
            buffer.extend_from_slice(&number.to_le_bytes());
            model.extend_from_slice(&number.to_le_bytes());
            if number % 500 == 0 {
                let len = (number as usize * 7) % 9000;
                buffer.resize(len);
                model.resize(len, 0);
            }
            assert_eq!(buffer.len(), model.len());
        }
        assert_eq!(&buffer[..], &model[..]);
        buffer.clear();
        buffer.resize(5);
        assert_eq!(&buffer[..], [0; 5]);
    }

    #[test]
    fn dropped_memory_returns_to_the_system() {
        // Without files in memory, which other tests map at the same time.
        let resident_kib = || -> u64 {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
            line.trim().strip_suffix("kB").unwrap().trim().parse().unwrap()
        };
        let mut bytes: PageVec<u8> = PageVec::new_in(PageAllocator);
        bytes.resize(64 << 20, 1);
        let with = resident_kib();
        drop(bytes);
        assert!(with - resident_kib() > 60_000, "64 MiB are 65,536 KiB");
    }

    #[test]
    fn an_alignment_above_a_page_is_refused() {
        let layout = Layout::from_size_align(64, 8192).unwrap();
        assert!(PageAllocator.allocate(layout).is_err());
    }
}
