//! Ranges of memory that the device may use, and the work that uses them.
//!
//! 1. Regions of a table do not overlap.
//! 2. A `Place` is inside one region, and keeps the memory behind it until it is dropped.
//! 3. A region counts its places, so that giving it back too early is noticed.

use crate::process_memory::{self, MappedFile};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The memory behind a region.
#[derive(Debug)]
pub(crate) enum Backing {
    /// A memfd. The region starts `skew` bytes into it.
    Device { file: File, skew: usize },
    /// Memory of the caller that is registered, and what was mapped there at that time.
    Registered { is_read_only: bool, files: Vec<MappedFile> },
    /// Host memory that the fake allocated.
    Allocated { _mapping: HostMapping },
    /// Memory of the caller that is not registered.
    Pageable,
}

/// An anonymous mapping, unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct HostMapping(Range<usize>);

impl HostMapping {
    /// Maps zeroed memory.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: The kernel chooses an address that is not in use.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)? };
        let start = start.expose_provenance();
        Ok(Self(start..start + bytes))
    }

    /// Returns the address range.
    pub(crate) fn range(&self) -> Range<usize> {
        self.0.clone()
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        // SAFETY: The mapping is ours. Callers that still use the address behave as after cuMemFreeHost.
        let result =
            unsafe { rustix::mm::munmap(with_exposed_provenance_mut(self.0.start), self.0.len()) };
        debug_assert!(result.is_ok());
    }
}

/// A range of memory.
#[derive(Debug)]
pub(crate) struct Region {
    start: usize,
    bytes: usize,
    backing: Backing,
    places: AtomicUsize,
}

impl Region {
    /// Describes a range.
    pub(crate) fn new(start: usize, bytes: usize, backing: Backing) -> Arc<Self> {
        Arc::new(Self { start, bytes, backing, places: AtomicUsize::new(0) })
    }

    /// Returns the addresses of the region.
    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes
    }

    /// Returns the memory behind the region.
    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Returns how many places of queued or running work are in the region.
    pub(crate) fn places(&self) -> usize {
        self.places.load(Ordering::Acquire)
    }
}

/// A part of a region that some work uses.
#[derive(Debug)]
pub(crate) struct Place {
    region: Arc<Region>,
    range: Range<usize>,
}

impl Place {
    fn new(region: Arc<Region>, range: Range<usize>) -> Self {
        region.places.fetch_add(1, Ordering::AcqRel);
        Self { region, range }
    }

    /// Makes a place of memory that is in no table.
    pub(crate) fn pageable(range: Range<usize>) -> Self {
        Self::new(Region::new(range.start, range.len(), Backing::Pageable), range)
    }

    /// Returns the addresses of the place.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns whether the memory was registered as read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self.region.backing, Backing::Registered { is_read_only: true, .. })
    }

    /// Reads from `at` bytes into the place.
    pub(crate) fn read(&self, at: usize, buffer: &mut [u8]) -> io::Result<()> {
        assert!(at + buffer.len() <= self.range.len());
        let address = self.range.start + at;
        match &self.region.backing {
            Backing::Device { file, skew } => {
                file.read_exact_at(buffer, (address - self.region.start + skew) as u64)
            }
            _ => process_memory::read(address, buffer),
        }
    }

    /// Writes at `at` bytes into the place.
    pub(crate) fn write(&self, at: usize, buffer: &[u8]) -> io::Result<()> {
        assert!(at + buffer.len() <= self.range.len());
        let address = self.range.start + at;
        match &self.region.backing {
            Backing::Device { file, skew } => {
                file.write_all_at(buffer, (address - self.region.start + skew) as u64)
            }
            _ => process_memory::write(address, buffer),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.region.places.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The position of a range relative to the regions of a table.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// Inside one region.
    Inside(Place),
    /// Partly in a region, or in several.
    Across,
    /// In no region.
    Apart,
}

/// Regions by their start.
pub(crate) struct RegionTable(Mutex<BTreeMap<usize, Arc<Region>>>);

impl RegionTable {
    /// Starts an empty table.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Locks the table.
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Region>>> {
        self.0.lock()
    }

    /// Finds the region that contains a range of at least one byte.
    pub(crate) fn locate(&self, range: Range<usize>) -> Lookup {
        let regions = self.0.lock();
        // Regions do not overlap, so the last one that starts before the end of the range also ends last.
        let Some((_, last)) = regions.range(..range.end).next_back() else { return Lookup::Apart };
        let found = last.range();
        if found.end <= range.start {
            Lookup::Apart
        } else if found.start <= range.start && range.end <= found.end {
            Lookup::Inside(Place::new(Arc::clone(last), range))
        } else {
            Lookup::Across
        }
    }
}
