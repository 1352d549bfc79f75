//! Memory that goes back to the system at the moment it is given up.
//!
//! `malloc` keeps what large, short-lived buffers leave behind for whoever asks next. A table is put together in 16 MiB
//! a few times a minute, in a process that has better uses for memory than to keep that.
//!
//! 1. Every allocation is a mapping of its own, whole pages, zeroed by the kernel.
//! 2. A mapping is unmapped exactly once, with the length it was mapped or last remapped with.

use std::alloc::Layout;
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

/// Largest alignment that a mapping has by itself.
const PAGE_BYTES: usize = 4096;

/// Allocates mappings: for few and large pieces of memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageAllocator;

/// A vector whose memory goes back to the system when it is dropped.
pub type PageVec<T> = allocator_api2::vec::Vec<T, PageAllocator>;

/// Bytes whose memory goes back to the system when they are dropped: a [`PageVec`] that copies them at once, not one by
/// one.
#[derive(Debug)]
pub struct PageBuffer(PageVec<u8>);

impl Default for PageBuffer {
    fn default() -> Self {
        Self(PageVec::new_in(PageAllocator))
    }
}

impl PageBuffer {
    /// Room for `bytes` from the beginning; what is not written takes no memory.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self(PageVec::with_capacity_in(bytes, PageAllocator))
    }

    /// How many bytes fit before it has to grow.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.0.reserve(bytes.len());
        let len = self.0.len();
        // SAFETY: there is room for as many behind `len`, and borrowed bytes are not those of this vector; they are
        // all initialised before they count.
        unsafe {
            let end = self.0.as_mut_ptr().add(len);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), end, bytes.len());
            self.0.set_len(len + bytes.len());
        }
    }

    /// Cuts it to `len` bytes, or appends zeros up to as many.
    pub fn resize(&mut self, len: usize) {
        let old = self.0.len();
        if len <= old {
            self.0.truncate(len);
            return;
        }
        self.0.reserve(len - old);
        // SAFETY: there is room up to `len`, and all of it is initialised before it counts.
        unsafe {
            std::ptr::write_bytes(self.0.as_mut_ptr().add(old), 0, len - old);
            self.0.set_len(len);
        }
    }

    /// Forgets the bytes and keeps the memory.
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

// SAFETY: a mapping stays valid until `deallocate`, or until `grow` or `shrink` moved it, whatever becomes of the
// allocator, which has no state: so copies of it are the same one. Mappings are page-aligned, and layouts that ask for
// more are refused. The lengths that are unmapped and remapped are those that were mapped: `next_multiple_of` gives the
// same for every size that fits the mapping in whole pages.
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
        // SAFETY: a new anonymous mapping somewhere touches no memory that is in use.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        if start == libc::MAP_FAILED { Err(AllocError) } else { slice(start, bytes) }
    }

    unsafe fn deallocate(&self, start: NonNull<u8>, layout: Layout) {
        let bytes = mapped_bytes(layout);
        if bytes > 0 {
            // SAFETY: the caller gives back a mapping of this allocator, which nobody uses any more.
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
        // SAFETY: what the caller promises of `start` and `old` is what remapping asks for.
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
    /// `start` is an allocation of this allocator with layout `old`, and not used by anybody else.
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
            // SAFETY: one of the two has no bytes, so there is nothing to copy; the old one is given back once.
            unsafe { self.deallocate(start, old) };
            return Ok(moved);
        }
        // SAFETY: the old mapping is ours by the caller's promise, and may move.
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
    fn a_buffer_is_a_vector_of_bytes() {
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
    fn dropped_memory_is_the_systems() {
        let resident_pages = || -> u64 {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(1).unwrap().parse().unwrap()
        };
        let mut bytes: PageVec<u8> = PageVec::new_in(PageAllocator);
        bytes.resize(64 << 20, 1);
        let with = resident_pages();
        drop(bytes);
        assert!(with - resident_pages() > 15_000, "64 MiB are 16,384 pages");
    }

    #[test]
    fn a_stricter_alignment_than_a_page_is_refused() {
        let layout = Layout::from_size_align(64, 8192).unwrap();
        assert!(PageAllocator.allocate(layout).is_err());
    }
}
