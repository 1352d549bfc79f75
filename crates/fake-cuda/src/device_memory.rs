//! Device memory: a memfd per allocation, and addresses that the CPU cannot use.
//!
//! 1. A device address is mapped without any permission, so that a CPU access faults.
//! 2. An address is not used again after it was freed, and between allocations are pages of no allocation.
//! 3. Addresses are aligned to 512 bytes only, because cuMemAlloc guarantees little more.
//! 4. New memory does not hold zeros, unless the allocation is larger than `FILLED_BYTES`.

use crate::abi::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUresult};
use crate::process_memory::{page_bytes, whole_pages};
use crate::regions::{Backing, Lookup, Region, RegionTable};
use crate::violations::{self, Kind};
use parking_lot::Mutex;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::OnceLock;

/// Address space for device memory. It is reserved only, so its size costs nothing.
const ARENA_BYTES: usize = 4 << 40;
/// The memory that the device has.
const TOTAL_BYTES: usize = 16 << 30;
const ALIGNMENT: usize = 512;
const FILL: u8 = 0xD5;
const FILLED_BYTES: usize = 64 << 20;

struct Arena {
    start: usize,
    /// The first address that was never used, and the number of allocations so far.
    next: Mutex<(usize, usize)>,
}

static ARENA: OnceLock<Arena> = OnceLock::new();
static ALLOCATIONS: RegionTable = RegionTable::new();

fn arena() -> io::Result<&'static Arena> {
    if let Some(arena) = ARENA.get() {
        return Ok(arena);
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: The kernel chooses an address that is not in use.
    let start =
        unsafe { rustix::mm::mmap_anonymous(null_mut(), ARENA_BYTES, ProtFlags::empty(), flags)? };
    let start = start.expose_provenance();
    let arena = ARENA.get_or_init(|| Arena { start, next: Mutex::new((start, 0)) });
    if arena.start != start {
        // Another thread was first.
        // SAFETY: No caller has an address of this mapping.
        unsafe { rustix::mm::munmap(with_exposed_provenance_mut(start), ARENA_BYTES)? };
    }
    Ok(arena)
}

/// Returns whether an address is one of device memory, allocated or not.
pub(crate) fn contains(address: usize) -> bool {
    ARENA.get().is_some_and(|one| (one.start..one.start + ARENA_BYTES).contains(&address))
}

/// Finds the allocation of a range of at least one byte.
pub(crate) fn locate(range: Range<usize>) -> Lookup {
    ALLOCATIONS.locate(range)
}

/// Allocates memory and returns its address.
pub(crate) fn allocate(bytes: usize) -> Result<usize, CUresult> {
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if bytes > free_bytes() {
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    let region = map(bytes).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
    let address = region.range().start;
    ALLOCATIONS.lock().insert(address, region);
    Ok(address)
}

fn map(bytes: usize) -> io::Result<std::sync::Arc<Region>> {
    let arena = arena()?;
    let mut next = arena.next.lock();
    let start = next.0;
    let skew = next.1 % (page_bytes() / ALIGNMENT) * ALIGNMENT;
    let mapped = whole_pages(start..start + skew + bytes);
    if mapped.end >= arena.start + ARENA_BYTES {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let file = File::from(rustix::fs::memfd_create("fake-cuda-device", MemfdFlags::CLOEXEC)?);
    file.set_len(mapped.len() as u64)?;
    if bytes <= FILLED_BYTES {
        file.write_all_at(&vec![FILL; mapped.len()], 0)?;
    }
    let at = with_exposed_provenance_mut(mapped.start);
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: The range is a part of the arena that was never used.
    unsafe { rustix::mm::mmap(at, mapped.len(), ProtFlags::empty(), flags, &file, 0)? };
    *next = (mapped.end + page_bytes(), next.1 + 1);
    Ok(Region::new(start + skew, bytes, Backing::Device { file, skew }))
}

/// Frees the allocation that starts at an address.
pub(crate) fn free(address: usize) -> Result<(), CUresult> {
    let region = ALLOCATIONS.lock().remove(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if region.places() > 0 {
        violations::record(
            Kind::InUse,
            format_args!("device memory {:x?} is freed while work uses it", region.range()),
        );
    }
    let mapped = whole_pages(region.range());
    let at = with_exposed_provenance_mut(mapped.start);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: The range is part of the arena, and no code reads or writes there. It stays reserved.
    unsafe { rustix::mm::mmap_anonymous(at, mapped.len(), ProtFlags::empty(), flags) }
        .map(drop)
        .map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
}

fn free_bytes() -> usize {
    let used: usize = ALLOCATIONS.lock().values().map(|region| region.range().len()).sum();
    TOTAL_BYTES.saturating_sub(used)
}

/// Returns the number of allocations.
pub(crate) fn count() -> usize {
    ALLOCATIONS.lock().len()
}
