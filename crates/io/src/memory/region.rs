//! A region: one mapping of fixed size, from which its users give out ranges.
//!
//! 1. A range is claimed by at most one [`Claim`](super::Claim) at a time, so claims of one region never overlap.
//! 2. An address that a region hands out, and the bytes requested with it, are inside the region.
//! 3. A forked child has no region: nothing there may touch its address.
//! 4. Nobody changes the size of a shared region while it is mapped, and nobody else writes it: a memory file is sealed
//!    as soon as it is mapped, other files must belong to a user of their own.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::backing::{Backing, is_in_memory, is_regular, refused};
use super::handle::{Memory, RegionId};
use super::mapping::{Mapping, MappingKeeper};
use super::shared::BackingFile;
use super::{huge_pages, lent, shared};
use crate::{IoError, StopSignal};

/// When the system provides the physical memory of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// When it is mapped, in huge pages if possible.
    Now,
    /// Page by page, when a page is first used.
    AtUse,
}

/// What a process may do with a region of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Read and write it.
    ReadWrite,
}

/// One mapping. Shared by all claims of its ranges.
pub struct Region {
    id: RegionId,
    /// `None` only while it is dropped.
    mapping: Option<Mapping>,
    /// Takes the mapping when the region ends.
    keeper: Mutex<Option<MappingKeeper>>,
    access: Access,
    /// The file behind it, if other processes may map it.
    file: Option<OwnedFd>,
    /// Whether its memory goes back to the system with it, although others may have the file open.
    is_lent: bool,
    /// Ends of claimed ranges by their starts.
    claimed: Mutex<BTreeMap<usize, usize>>,
}

// SAFETY: the mapping is plain memory, which any thread may use and unmap. Claims rule access (invariant 1).
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` gives no access by itself.
unsafe impl Sync for Region {}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.bytes())
    }
}

impl Region {
    /// Maps `bytes` of this process's own memory for a `purpose`, which an error names. A request beyond the machine's
    /// memory fails here, unless `vm.overcommit_memory` defers that failure.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] with purpose and size if the system refuses the memory.
    pub fn anonymous(bytes: usize, touch: Touch, purpose: &str) -> Result<Self, IoError> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh anonymous mapping; no existing memory is involved.
        let start =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) };
        let start = start.map_err(|error| refused(bytes, purpose, error))?;
        let region = Self::of(start, bytes, Access::ReadWrite, None);
        // Huge pages keep a request in few physical pieces: 2.5 instead of 1.3 GB/s on a virtio disk, whose requests
        // hold 254 of them. Without huge pages, ordinary pages are used. In a guest whose host reclaims free memory,
        // the first touch of huge pages costs 1.5 to 3.1 CPU seconds per GiB, that of ordinary ones 0.4 to 0.5: once
        // per process.
        region.advise(Advice::LinuxHugepage);
        if touch == Touch::Now {
            // So that no request pays for the page faults. A kernel before 5.14 ignores this and faults on first use.
            region.advise(Advice::LinuxPopulateWrite);
        }
        Ok(region)
    }

    /// Creates memory of `bytes` that other processes can map, and maps it. The system sets all of it aside now, so
    /// that no access fails later for lack of memory.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] with purpose and size if the system refuses the memory or the file.
    pub fn shared(backing: &Backing, bytes: usize, purpose: &str) -> Result<Self, IoError> {
        Self::shared_unless(backing, bytes, purpose, &StopSignal::default())
    }

    /// As [`Self::shared`], and stops when a signal is set. A named file that was created for it is removed then.
    ///
    /// # Errors
    ///
    /// As [`Self::shared`]; `ECANCELED` if the signal was set.
    pub fn shared_unless(
        backing: &Backing,
        bytes: usize,
        purpose: &str,
        stop: &StopSignal,
    ) -> Result<Self, IoError> {
        let failed = |error| refused(bytes, purpose, error);
        let BackingFile { file, created, has_size } = shared::open(backing, bytes, purpose)?;
        let region = Self::map(file, bytes, Access::ReadWrite, purpose)?;
        if has_size {
            shared::provide(region.file(), region.mapping().start, bytes, stop).map_err(failed)?;
        }
        if let Some(created) = created {
            created.keep();
        }
        if *backing == Backing::MemoryFile {
            shared::seal(region.file()).map_err(failed)?;
        }
        Ok(region)
    }

    /// Creates memory of `bytes` that another process can read, and maps it. The system provides it when it is used, or
    /// by [`Region::provide`], and takes it back by [`Region::give_back`], or when the region is dropped.
    ///
    /// # Errors
    ///
    /// As [`Region::shared`].
    pub fn lent(bytes: usize, purpose: &str) -> Result<Self, IoError> {
        let file = lent::open(bytes, purpose)?;
        let mut region = Self::map(file, bytes, Access::ReadWrite, purpose)?;
        region.is_lent = true;
        Ok(region)
    }

    /// Has the system provide the memory of `len` bytes at `offset`, so that no access fails for lack of it.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if it refuses.
    ///
    /// # Panics
    ///
    /// If the region has no file of its own.
    pub fn provide(&self, offset: usize, len: usize) -> Result<(), IoError> {
        lent::provide(self.file(), offset, len)
    }

    /// Gives the memory of `len` bytes at `offset` back to the system, although others have the file open. They are
    /// zeros from then on, until somebody writes them. Only for regions of [`Region::lent`].
    ///
    /// # Panics
    ///
    /// If one of the bytes is claimed, or not inside the region.
    pub fn give_back(&self, offset: usize, len: usize) {
        if self.is_here() {
            self.begin_claim(offset, len);
            lent::give_back(self.file(), offset, len);
            self.end_claim(offset);
        }
    }

    /// Maps `bytes` of a file that another process gave us.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the file is shorter, or does not allow the access.
    pub fn map(
        file: OwnedFd,
        bytes: usize,
        access: Access,
        purpose: &str,
    ) -> Result<Self, IoError> {
        let failed = |error| refused(bytes, purpose, error);
        let size = rustix::fs::fstat(&file).map_err(failed)?.st_size;
        if is_regular(&file) && u64::try_from(size).is_ok_and(|size| size < bytes as u64) {
            // A read behind the end would end this process.
            return Err(failed(Errno::OVERFLOW));
        }
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let in_memory = is_in_memory(&file);
        let at = if in_memory { huge_pages::aligned_address(bytes) } else { std::ptr::null_mut() };
        // SAFETY: a fresh mapping; no existing memory is involved, since without a flag that says otherwise the kernel
        // chooses another address if something is mapped at this one.
        let start = unsafe { rustix::mm::mmap(at, bytes, protection, MapFlags::SHARED, &file, 0) };
        Ok(Self::of(start.map_err(failed)?, bytes, access, Some(file)))
    }

    fn of(start: *mut c_void, bytes: usize, access: Access, file: Option<OwnedFd>) -> Self {
        let start = NonNull::new(start.cast::<u8>()).expect("a mapping is never at address zero");
        // SAFETY: the callers have just mapped it.
        let mapping = unsafe { Mapping::of(start, bytes) };
        let region = Self {
            id: RegionId::next(),
            mapping: Some(mapping),
            keeper: Mutex::default(),
            access,
            file,
            is_lent: false,
            claimed: Mutex::default(),
        };
        // A fork would copy all of it if the device holds its pages, or share the pages under a running read: open(2)
        // warns of that. The child does not need them.
        region.advise(Advice::LinuxDontFork);
        region
    }

    fn mapping(&self) -> &Mapping {
        self.mapping.as_ref().expect("mapped until it is dropped")
    }

    fn advise(&self, advice: Advice) {
        let start = self.mapping().start.as_ptr().cast();
        // SAFETY: advice about our own mapping, none of which changes its bytes. A forked child never touches it
        // (invariant 3). Advice that the kernel does not know is no loss.
        let _ = unsafe { rustix::mm::madvise(start, self.bytes(), advice) };
    }

    /// A descriptor of the same memory through which nothing can be written.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the system refuses it.
    ///
    /// # Panics
    ///
    /// If the region is not shared.
    pub fn reader_file(&self) -> Result<OwnedFd, IoError> {
        let file = self.file();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let opened = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        opened.map_err(|error| IoError::os("open", path, error))
    }

    /// The file behind it.
    ///
    /// # Panics
    ///
    /// If other processes cannot map it.
    fn file(&self) -> &OwnedFd {
        self.file.as_ref().expect("a region that others can map has a file")
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> RegionId {
        self.id
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.mapping().bytes
    }

    /// Address and length.
    #[must_use]
    pub fn range(&self) -> (usize, usize) {
        self.mapping().range()
    }

    /// What this process may do with it.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Whether it has the same physical memory as long as it exists. That of [`Region::lent`] goes back to the system
    /// in between, so nothing may remember where it is.
    #[must_use]
    pub fn keeps_memory(&self) -> bool {
        !self.is_lent
    }

    /// Has `keeper` take the mapping when nobody uses the region any more, for something that must let go of the memory
    /// before it is unmapped, such as a GPU. Returns `false`, and does not keep it, if the region has a keeper.
    #[must_use]
    pub fn keep_mapping(&self, keeper: MappingKeeper) -> bool {
        let mut place = self.keeper.lock();
        let is_free = place.is_none();
        if is_free {
            *place = Some(keeper);
        }
        is_free
    }

    /// The address of `len` bytes at `offset`, for foreign code that reads them in place; `None` if they are not inside
    /// the region.
    #[must_use]
    pub fn address_of(&self, offset: usize, len: usize) -> Option<usize> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.bytes());
        fits.then(|| self.mapping().start.as_ptr() as usize + offset)
    }

    /// Whether it was mapped by this process.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.mapping().is_here()
    }

    /// The address of `len` bytes at `offset`.
    ///
    /// # Panics
    ///
    /// If they are not inside the region.
    pub(crate) fn part(&self, offset: usize, len: usize) -> NonNull<u8> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.bytes());
        assert!(fits, "{len} bytes at {offset} of a region of {}", self.bytes());
        // SAFETY: at most the end of the mapping.
        unsafe { self.mapping().start.add(offset) }
    }

    /// The `len` bytes at `offset`, which `owner` keeps mapped.
    ///
    /// # Panics
    ///
    /// If they are not inside the region.
    ///
    /// # Safety
    ///
    /// As of [`Memory::from_raw`]: `owner` holds the region and whatever gives the caller access to these bytes.
    pub(super) unsafe fn memory(
        &self,
        offset: usize,
        len: usize,
        writable: bool,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Memory {
        let start = self.part(offset, len);
        // SAFETY: `part` is inside the mapping; the rest is the caller's promise.
        unsafe { Memory::from_raw(start, len, writable, owner) }.in_region(self.id, offset)
    }

    /// Begins a claim of `len` bytes at `offset`.
    ///
    /// # Panics
    ///
    /// If one of the bytes is claimed already (invariant 1), if they are not inside the region, if this process may
    /// only read it, or in a forked child.
    pub(super) fn begin_claim(&self, offset: usize, len: usize) {
        assert!(self.is_here(), "a forked child has no region (invariant 3)");
        assert_eq!(self.access, Access::ReadWrite, "another process writes this region");
        let _ = self.part(offset, len);
        let mut claimed = self.claimed.lock();
        let before = claimed.range(..=offset).next_back();
        let after = claimed.range(offset..).next();
        let is_free = before.is_none_or(|(_, end)| *end <= offset)
            && after.is_none_or(|(start, _)| offset + len <= *start);
        assert!(is_free, "{len} bytes at {offset} are claimed already (invariant 1)");
        claimed.insert(offset, offset + len);
    }

    /// Copies bytes at `offset` that another process may be writing. The caller must find out afterwards whether it
    /// was, and if so must not use the copy.
    ///
    /// # Panics
    ///
    /// If the bytes are not inside the region, or in a forked child.
    pub fn copy_racing(&self, offset: usize, pieces: &mut [Memory]) {
        assert!(self.is_here(), "a forked child has no region (invariant 3)");
        let mut at = offset;
        for piece in pieces {
            let (from, to) = (self.part(at, piece.len()), piece.as_mut_slice());
            at += to.len();
            // SAFETY: `part` is inside the mapping, and `piece` is exclusive memory of this process that cannot overlap
            // with it. A write by another process during the copy leaves arbitrary bytes, which is all that bytes can
            // be.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        }
    }

    /// Reads a number at `offset` that another process may be writing; `None` if it is not aligned or not inside the
    /// region. Other reads are not ordered by it: the caller needs a fence.
    ///
    /// # Panics
    ///
    /// In a forked child.
    #[must_use]
    pub fn counter(&self, offset: usize) -> Option<u64> {
        assert!(self.is_here(), "a forked child has no region (invariant 3)");
        let fits = offset.checked_add(size_of::<u64>()).is_some_and(|end| end <= self.bytes());
        if !fits || !offset.is_multiple_of(size_of::<u64>()) {
            return None;
        }
        let start = self.part(offset, size_of::<u64>()).cast::<AtomicU64>();
        // SAFETY: inside the mapping, which starts at a page, so it is aligned. A relaxed load of eight bytes is
        // allowed of memory that this process may only read. Our own writes to such numbers are atomic as well.
        let counter = unsafe { start.as_ref() };
        Some(counter.load(Ordering::Relaxed))
    }

    /// Ends a claim.
    pub(super) fn end_claim(&self, offset: usize) {
        // In a forked child, a thread of the parent may hold the lock forever.
        if self.is_here() {
            self.claimed.lock().remove(&offset);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let mapping = self.mapping.take().expect("dropped once");
        let keeper = self.keeper.get_mut().take();
        if !mapping.is_here() {
            // What keeps mappings belongs to the parent.
            std::mem::forget(keeper);
            return;
        }
        if self.is_lent {
            lent::give_back(self.file(), 0, mapping.bytes);
        }
        // Every claim and every part holds its owner, and so this region, alive.
        match keeper {
            Some(keeper) => keeper(mapping),
            None => drop(mapping),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lend;
    use crate::memory::claim::Claim;
    use std::sync::Arc;

    fn shared(bytes: usize) -> Arc<Region> {
        Arc::new(Region::shared(&Backing::MemoryFile, bytes, "a test").unwrap())
    }

    #[test]
    fn an_impossible_size_is_refused_by_name_and_size() {
        let error = Region::anonymous(1 << 62, Touch::AtUse, "notes").unwrap_err().to_string();
        assert!(error.contains("4611686018427387904 bytes of notes"), "{error}");
        let error = Region::shared(&Backing::MemoryFile, 1 << 62, "notes").unwrap_err().to_string();
        assert!(error.contains("4611686018427387904 bytes of notes"), "{error}");
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095 of a region of 4096")]
    fn addresses_outside_the_region_are_never_handed_out() {
        let _ = Region::anonymous(4096, Touch::AtUse, "notes").unwrap().part(4095, 2);
    }

    #[test]
    fn claims_of_one_region_never_overlap() {
        let region = Arc::new(Region::anonymous(4096, Touch::AtUse, "notes").unwrap());
        let first = Claim::of(&region, 1000, 500, ());
        let _second = Claim::of(&region, 1500, 100, ());
        for (offset, len) in [(999, 2), (1000, 1), (1499, 1), (1200, 10), (0, 4096), (1599, 1)] {
            let claimed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _claim = Claim::of(&region, offset, len, ());
            }));
            assert!(claimed.is_err(), "{len} bytes at {offset}");
        }
        drop(first);
        let _again = Claim::of(&region, 999, 501, ());
    }

    #[test]
    fn what_one_mapping_holds_a_reader_of_its_file_sees() {
        let region = shared(1 << 20);
        let reader = Region::map(region.reader_file().unwrap(), 1 << 20, Access::Read, "a test");
        let reader = reader.unwrap();
        let mut claim = Claim::of(&region, 5000, 3, ());
        claim.memory().as_mut_slice().copy_from_slice(b"abc");
        let _filled = claim.fill().unwrap();
        let mut out = [0; 3];
        lend(|lender| reader.copy_racing(5000, &mut [lender.exclusive(&mut out)]));
        assert_eq!(&out, b"abc");
    }

    /// What a client may try with the descriptor that it was given.
    #[test]
    fn a_sealed_region_cannot_be_written_truncated_or_mapped_for_writing_by_others() {
        let region = shared(1 << 16);
        let reader = region.reader_file().unwrap();
        let mapped = |file: OwnedFd| Region::map(file, 1 << 16, Access::ReadWrite, "a test");
        assert!(mapped(reader.try_clone().unwrap()).is_err(), "through a read-only descriptor");
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let writable = rustix::fs::open(&path, OFlags::RDWR, Mode::empty()).unwrap();
        assert!(rustix::io::write(&writable, b"x").is_err());
        assert!(rustix::fs::ftruncate(&writable, 0).is_err());
        assert!(mapped(writable).is_err(), "through a descriptor that was opened again");
    }

    #[test]
    fn a_file_that_is_too_short_is_not_mapped() {
        let region = shared(1 << 16);
        let file = region.reader_file().unwrap();
        assert!(Region::map(file, 1 << 17, Access::Read, "a test").is_err());
    }
}
