//! Device memory, and registered and allocated host memory.

#![expect(clippy::missing_safety_doc, reason = "the contract is that of cuda.h")]

use crate::abi::{CUDA_ERROR_INVALID_VALUE, CUdeviceptr, CUresult};
use crate::calls::{Needs, call, store};
use crate::device_memory;
use crate::host_memory;
use std::ffi::{c_uint, c_void};
use std::ptr::with_exposed_provenance_mut;

/// Returns a device pointer as an address.
pub(crate) fn address(pointer: CUdeviceptr) -> usize {
    usize::try_from(pointer).expect("usize has 64 bits")
}

/// Allocates device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(pointer: *mut CUdeviceptr, bytes: usize) -> CUresult {
    call("cuMemAlloc_v2", Needs::Context, || {
        // SAFETY: As cuda.h requires.
        unsafe { store(pointer, || device_memory::allocate(bytes).map(|at| at as CUdeviceptr)) }
    })
}

/// Frees device memory. The fake does not wait for work that uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(pointer: CUdeviceptr) -> CUresult {
    call("cuMemFree_v2", Needs::Context, || device_memory::free(address(pointer)))
}

/// Registers host memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostRegister_v2(
    start: *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> CUresult {
    call("cuMemHostRegister_v2", Needs::Context, || {
        host_memory::register(start.expose_provenance(), bytes, flags)
    })
}

/// Unregisters host memory. The fake does not wait for work that uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostUnregister(start: *mut c_void) -> CUresult {
    call("cuMemHostUnregister", Needs::Context, || {
        host_memory::unregister(start.expose_provenance())
    })
}

/// Returns the device pointer of pinned host memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    pointer: *mut CUdeviceptr,
    host: *mut c_void,
    flags: c_uint,
) -> CUresult {
    call("cuMemHostGetDevicePointer_v2", Needs::Context, || {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let find = || host_memory::device_pointer(host.expose_provenance());
        // SAFETY: As cuda.h requires.
        unsafe { store(pointer, || find().map(|at| at as CUdeviceptr)) }
    })
}

/// Allocates pinned host memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(
    pointer: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> CUresult {
    call("cuMemHostAlloc", Needs::Context, || {
        // SAFETY: As cuda.h requires.
        unsafe {
            store(pointer, || host_memory::allocate(bytes, flags).map(with_exposed_provenance_mut))
        }
    })
}

/// Frees pinned host memory. The fake does not wait for work that uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(pointer: *mut c_void) -> CUresult {
    call("cuMemFreeHost", Needs::Context, || host_memory::free(pointer.expose_provenance()))
}
