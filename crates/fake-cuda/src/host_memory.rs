//! Registered and allocated host memory.
//!
//! 1. Registrations are byte-exact for copies, but no two of them share a page.
//! 2. The device pointer of host memory is never its host address, and no CPU can use it.
//! 3. The pinned bytes, in whole pages, never exceed the memlock setting.

use crate::abi::{
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY, CUresult,
    REGISTER_DEVICE_MAP, REGISTER_PORTABLE, REGISTER_READ_ONLY,
};
use crate::process_memory::{MappedFile, mapped_in, page_bytes, touch, whole_pages};
use crate::regions::{Backing, HostMapping, Lookup, Region, RegionTable};
use crate::settings::{self, HOST_REGISTER_SUPPORTED, READ_ONLY_HOST_REGISTER_SUPPORTED};
use crate::violations::{self, Kind};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The distance from a host address to its device pointer. It is above all addresses of user space.
pub(crate) const DEVICE_POINTER_OFFSET: usize = 1 << 50;

/// `CU_MEMHOSTALLOC_PORTABLE`, `_DEVICEMAP` and `_WRITECOMBINED`
const ALLOCATE_FLAGS: u32 = 7;

static PINNED: RegionTable = RegionTable::new();

/// Finds the registration or allocation of a range of at least one byte, by host addresses.
pub(crate) fn locate(range: Range<usize>) -> Lookup {
    PINNED.locate(range)
}

/// Checks whether memory can be pinned, and returns what is mapped there.
fn check_mapped(range: &Range<usize>, is_read_only: bool) -> Result<Vec<MappedFile>, CUresult> {
    if is_read_only && settings::attribute(READ_ONLY_HOST_REGISTER_SUPPORTED)? == 0 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let mapped = mapped_in(range).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let is_allowed = mapped.is_readable && (mapped.is_writable || is_read_only);
    // A page behind the end of a mapped file is not readable either.
    if !is_allowed || touch(range).is_err() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(mapped.files)
}

fn check_budget(
    pinned: &BTreeMap<usize, Arc<Region>>,
    added: &Range<usize>,
) -> Result<(), CUresult> {
    let used: usize = pinned.values().map(|region| whole_pages(region.range()).len()).sum();
    if used.saturating_add(added.len()) > settings::current().memlock {
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    Ok(())
}

/// Registers memory of the caller.
pub(crate) fn register(start: usize, bytes: usize, flags: u32) -> Result<(), CUresult> {
    const FLAGS: u32 = REGISTER_PORTABLE | REGISTER_DEVICE_MAP | REGISTER_READ_ONLY;
    let range = start..start.checked_add(bytes).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if range.is_empty() || flags & !FLAGS != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if range.end > DEVICE_POINTER_OFFSET - page_bytes() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if settings::attribute(HOST_REGISTER_SUPPORTED)? == 0 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let pages = whole_pages(range.clone());
    let mut pinned = PINNED.lock();
    let is_shared = |region: &Arc<Region>| {
        let other = whole_pages(region.range());
        other.start < pages.end && pages.start < other.end
    };
    if pinned.range(..pages.end).next_back().is_some_and(|(_, last)| is_shared(last)) {
        return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    let is_read_only = flags & REGISTER_READ_ONLY != 0;
    let files = check_mapped(&range, is_read_only)?;
    check_budget(&pinned, &pages)?;
    pinned.insert(start, Region::new(start, bytes, Backing::Registered { is_read_only, files }));
    Ok(())
}

fn is_registration(region: &Region) -> bool {
    matches!(region.backing(), Backing::Registered { .. })
}

fn remove(start: usize, is_registered: bool) -> Option<Arc<Region>> {
    let mut pinned = PINNED.lock();
    let region = pinned.get(&start)?;
    if is_registration(region) != is_registered {
        return None;
    }
    if region.places() > 0 {
        let verb = if is_registered { "unregistered" } else { "freed" };
        violations::record(
            Kind::InUse,
            format_args!("host memory {:x?} is {verb} while work uses it", region.range()),
        );
    }
    pinned.remove(&start)
}

/// Unregisters the registration that starts at an address.
pub(crate) fn unregister(start: usize) -> Result<(), CUresult> {
    let region = remove(start, true).ok_or(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)?;
    let mapped = mapped_in(&region.range()).map(|mapped| mapped.files);
    if let Backing::Registered { files, .. } = region.backing()
        && mapped.as_ref() != Some(files)
    {
        violations::record(
            Kind::Unmapped,
            format_args!(
                "host memory {:x?} was unmapped before it is unregistered",
                region.range()
            ),
        );
    }
    Ok(())
}

/// Allocates pinned host memory and returns its host address.
pub(crate) fn allocate(bytes: usize, flags: u32) -> Result<usize, CUresult> {
    if bytes == 0 || flags & !ALLOCATE_FLAGS != 0 || bytes > DEVICE_POINTER_OFFSET {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut pinned = PINNED.lock();
    let pages = whole_pages(0..bytes);
    check_budget(&pinned, &pages)?;
    let mapping = HostMapping::new(pages.len()).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
    let start = mapping.range().start;
    pinned.insert(start, Region::new(start, bytes, Backing::Allocated { _mapping: mapping }));
    Ok(start)
}

/// Frees the host memory that starts at an address. It stays mapped until the work that uses it has ended.
pub(crate) fn free(start: usize) -> Result<(), CUresult> {
    remove(start, false).map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Returns the device pointer of an address in pinned memory.
pub(crate) fn device_pointer(address: usize) -> Result<usize, CUresult> {
    let end = address.checked_add(1).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    match locate(address..end) {
        Lookup::Inside(_) => Ok(address + DEVICE_POINTER_OFFSET),
        Lookup::Across | Lookup::Apart => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// Returns the number of registrations and of allocations.
pub(crate) fn counts() -> (usize, usize) {
    let pinned = PINNED.lock();
    let registered = pinned.values().filter(|region| is_registration(region)).count();
    (registered, pinned.len() - registered)
}
