//! Initialization, the device and its primary context.

#![expect(clippy::missing_safety_doc, reason = "the contract is that of cuda.h")]

use crate::abi::{
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUcontext, CUdevice, CUresult, error_name,
};
use crate::calls::{self, Needs, call, store};
use crate::handles::as_pointer;
use crate::settings;
use std::ffi::{CStr, c_char, c_int, c_uint};

const NAME: &[u8] = b"FakeCuda";
/// The priorities that an H100 reports.
const LEAST_PRIORITY: c_int = 0;
const GREATEST_PRIORITY: c_int = -5;

fn check_device(device: CUdevice) -> Result<(), CUresult> {
    if device == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_DEVICE) }
}

/// Initializes the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: c_uint) -> CUresult {
    call("cuInit", Needs::Nothing, || {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        calls::initialize();
        Ok(())
    })
}

/// Returns the version of the driver, 1000 * major + 10 * minor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    call("cuDriverGetVersion", Needs::Nothing, || {
        // SAFETY: As cuda.h requires.
        unsafe { store(version, || Ok(settings::current().driver_version)) }
    })
}

/// Returns the name of a result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: CUresult, name: *mut *const c_char) -> CUresult {
    call("cuGetErrorName", Needs::Nothing, || {
        let found = error_name(error);
        let pointer = found.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: As cuda.h requires.
        unsafe { store(name, || Ok(pointer))? };
        found.map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
    })
}

/// Returns the number of devices: 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    call("cuDeviceGetCount", Needs::Init, || {
        // SAFETY: As cuda.h requires.
        unsafe { store(count, || Ok(1)) }
    })
}

/// Returns a device by its ordinal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult {
    call("cuDeviceGet", Needs::Init, || {
        // SAFETY: As cuda.h requires.
        unsafe { store(device, || check_device(ordinal).map(|()| ordinal)) }
    })
}

/// Returns the name of a device, cut to `bytes` - 1 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(
    name: *mut c_char,
    bytes: c_int,
    device: CUdevice,
) -> CUresult {
    call("cuDeviceGetName", Needs::Init, || {
        check_device(device)?;
        let bytes = usize::try_from(bytes).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        if name.is_null() || bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let count = NAME.len().min(bytes - 1);
        // SAFETY: As cuda.h requires, the buffer has `bytes` bytes, and `count` is less.
        unsafe {
            name.cast::<u8>().copy_from_nonoverlapping(NAME.as_ptr(), count);
            name.add(count).write(0);
        }
        Ok(())
    })
}

/// Returns an attribute of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    device: CUdevice,
) -> CUresult {
    call("cuDeviceGetAttribute", Needs::Init, || {
        check_device(device)?;
        // SAFETY: As cuda.h requires.
        unsafe { store(value, || settings::attribute(attribute)) }
    })
}

/// Retains the primary context of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(
    context: *mut CUcontext,
    device: CUdevice,
) -> CUresult {
    call("cuDevicePrimaryCtxRetain", Needs::Init, || {
        check_device(device)?;
        // SAFETY: As cuda.h requires.
        unsafe { store(context, || Ok(as_pointer(calls::retain_context()))) }
    })
}

/// Releases the primary context of a device. What was made in it stays, unlike in CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult {
    call("cuDevicePrimaryCtxRelease_v2", Needs::Init, || {
        check_device(device)?;
        calls::release_context()
    })
}

/// Pushes a context on the calling thread's stack, which makes it current.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPushCurrent_v2(context: CUcontext) -> CUresult {
    call("cuCtxPushCurrent_v2", Needs::Init, || calls::push_context(context.expose_provenance()))
}

/// Pops the current context of the calling thread. The pointer may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut CUcontext) -> CUresult {
    call("cuCtxPopCurrent_v2", Needs::Init, || {
        let popped = as_pointer(calls::pop_context()?);
        if !context.is_null() {
            // SAFETY: As cuda.h requires.
            unsafe { context.write(popped) };
        }
        Ok(())
    })
}

/// Replaces the current context of the calling thread; null pops it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    call("cuCtxSetCurrent", Needs::Init, || calls::set_current(context.expose_provenance()))
}

/// Returns the context of the calling thread, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult {
    call("cuCtxGetCurrent", Needs::Init, || {
        // SAFETY: As cuda.h requires.
        unsafe { store(context, || Ok(as_pointer(calls::current_context()))) }
    })
}

/// Returns the range of priorities. Both pointers may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> CUresult {
    call("cuCtxGetStreamPriorityRange", Needs::Context, || {
        for (out, value) in [(least, LEAST_PRIORITY), (greatest, GREATEST_PRIORITY)] {
            if !out.is_null() {
                // SAFETY: As cuda.h requires.
                unsafe { out.write(value) };
            }
        }
        Ok(())
    })
}
