//! Memory of this machine that a GPU reads and writes directly.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::device::Device;
use crate::driver::{CudaError, DevicePointer};

/// Allocated memory. Its users keep track of who writes which part.
#[derive(Debug)]
pub(crate) struct Pinned {
    device: Arc<Device>,
    start: NonNull<u8>,
    bytes: usize,
    address: DevicePointer,
}

// SAFETY: plain memory, which any thread may use and free.
unsafe impl Send for Pinned {}
// SAFETY: as above; `&Pinned` gives no access by itself.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(crate) fn allocate(device: &Arc<Device>, bytes: usize) -> Result<Self, CudaError> {
        let driver = device.enter()?;
        let start = driver.allocate_host(bytes)?;
        let allocated = NonNull::new(start.cast()).expect("memory is never at address zero");
        let mut pinned = Self { device: Arc::clone(device), start: allocated, bytes, address: 0 };
        pinned.address = driver.device_pointer(start)?;
        Ok(pinned)
    }

    /// The address of the byte at `offset`.
    ///
    /// # Panics
    ///
    /// If `len` bytes from there on are not inside.
    pub(crate) fn part(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.bytes), "inside the memory");
        // SAFETY: at most the end of the allocation.
        unsafe { self.start.add(offset) }
    }

    /// The same address as the GPU has it.
    pub(crate) fn address(&self, offset: usize) -> DevicePointer {
        self.address + offset as u64
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.device.is_here()
            && let Ok(driver) = self.device.enter()
        {
            // SAFETY: its users hold it until the last copy has ended.
            let _ = unsafe { driver.free_host(self.start.as_ptr().cast()) };
        }
    }
}
