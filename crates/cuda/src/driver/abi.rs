//! What `cuda.h` says: types, numbers and signatures.
//!
//! They are those of CUDA 11.1 and later. The batched copy has two signatures: one of 12.8, and one of 13.0 that has no
//! index of the failed copy.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

/// A handle of the driver: a context, stream, event, module or function.
pub(crate) type Handle = *mut c_void;
/// An address in the memory of a device, or of registered memory as a device has it.
pub(crate) type DevicePointer = u64;

pub(super) type Code = c_int;

pub(super) const SUCCESS: Code = 0;

/// How the source of a batched copy is read, as `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyAttributes {
    source_order: c_int,
    source_hint: [c_int; 2],
    destination_hint: [c_int; 2],
    flags: c_uint,
}

impl CopyAttributes {
    /// The source is read in the order of the stream. Copies may run while kernels do.
    pub(crate) const IN_STREAM_ORDER: Self =
        Self { source_order: 1, source_hint: [0; 2], destination_hint: [0; 2], flags: 1 };
}

/// What a thread may do while a stream of the process is captured, as `CUstreamCaptureMode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CaptureMode(pub(super) c_int);

impl CaptureMode {
    /// All that does not touch the captured stream itself.
    pub(crate) const RELAXED: Self = Self(2);
}

/// Numbers of `CUdevice_attribute`.
pub(crate) mod attribute {
    use std::ffi::c_int;

    pub(crate) const MULTIPROCESSORS: c_int = 16;
    pub(crate) const HOST_REGISTER: c_int = 99;
    pub(crate) const READ_ONLY_HOST_REGISTER: c_int = 113;
}

pub(super) type BatchCopy128 = unsafe extern "C" fn(
    *mut DevicePointer,
    *mut DevicePointer,
    *mut usize,
    usize,
    *mut CopyAttributes,
    *mut usize,
    usize,
    *mut usize,
    Handle,
) -> Code;
pub(super) type BatchCopy130 = unsafe extern "C" fn(
    *mut DevicePointer,
    *mut DevicePointer,
    *mut usize,
    usize,
    *mut CopyAttributes,
    *mut usize,
    usize,
    Handle,
) -> Code;

/// The batched copy in one of its two signatures.
#[derive(Clone, Copy)]
pub(super) enum BatchCopy {
    Since128(BatchCopy128),
    Since130(BatchCopy130),
}

macro_rules! calls {
    ($($field:ident = $symbol:literal ($($argument:ty),* $(,)?);)*) => {
        /// Pointers to the calls.
        pub(super) struct Calls {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Calls {
            /// Finds all calls. Fails with the name of one that is missing.
            pub(super) fn find(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the type is that of `cuda.h`. `Driver` keeps the library as long as the pointer.
                        let found = unsafe { library.get($symbol.to_bytes_with_nul()) };
                        let name = $symbol.to_str().unwrap_or_default();
                        *found.map_err(|_| name)?
                    },)*
                })
            }
        }
    };
}

calls! {
    init = c"cuInit"(c_uint);
    driver_version = c"cuDriverGetVersion"(*mut c_int);
    error_name = c"cuGetErrorName"(Code, *mut *const c_char);
    device = c"cuDeviceGet"(*mut c_int, c_int);
    device_name = c"cuDeviceGetName"(*mut c_char, c_int, c_int);
    device_attribute = c"cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
    retain_context = c"cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    release_context = c"cuDevicePrimaryCtxRelease_v2"(c_int);
    push_context = c"cuCtxPushCurrent_v2"(Handle);
    pop_context = c"cuCtxPopCurrent_v2"(*mut Handle);
    exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode"(*mut c_int);
    is_capturing = c"cuStreamIsCapturing"(Handle, *mut c_int);
    stream_priorities = c"cuCtxGetStreamPriorityRange"(*mut c_int, *mut c_int);
    create_stream = c"cuStreamCreateWithPriority"(*mut Handle, c_uint, c_int);
    destroy_stream = c"cuStreamDestroy_v2"(Handle);
    synchronize_stream = c"cuStreamSynchronize"(Handle);
    stream_wait = c"cuStreamWaitEvent"(Handle, Handle, c_uint);
    create_event = c"cuEventCreate"(*mut Handle, c_uint);
    destroy_event = c"cuEventDestroy_v2"(Handle);
    record_event = c"cuEventRecord"(Handle, Handle);
    synchronize_event = c"cuEventSynchronize"(Handle);
    register = c"cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
    unregister = c"cuMemHostUnregister"(*mut c_void);
    device_pointer = c"cuMemHostGetDevicePointer_v2"(*mut DevicePointer, *mut c_void, c_uint);
    allocate_host = c"cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    free_host = c"cuMemFreeHost"(*mut c_void);
    allocate = c"cuMemAlloc_v2"(*mut DevicePointer, usize);
    free = c"cuMemFree_v2"(DevicePointer);
    copy_to_device = c"cuMemcpyHtoDAsync_v2"(DevicePointer, *const c_void, usize, Handle);
    copy_to_host = c"cuMemcpyDtoHAsync_v2"(*mut c_void, DevicePointer, usize, Handle);
    load_module = c"cuModuleLoadData"(*mut Handle, *const c_void);
    unload_module = c"cuModuleUnload"(Handle);
    module_function = c"cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    launch = c"cuLaunchKernel"(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void,
    );
}

impl BatchCopy {
    /// The call of a driver of this version. A library may have the names of calls that its driver does not know.
    pub(super) fn find(library: &Library, version: u32) -> Option<Self> {
        if version >= 13_000 {
            // SAFETY: as in `Calls::find`.
            let call = unsafe { library.get(c"cuMemcpyBatchAsync_v2".to_bytes_with_nul()) };
            return call.ok().map(|call| Self::Since130(*call));
        }
        // SAFETY: as in `Calls::find`.
        let call = unsafe { library.get(c"cuMemcpyBatchAsync".to_bytes_with_nul()) };
        call.ok().filter(|_| version >= 12_080).map(|call| Self::Since128(*call))
    }
}
