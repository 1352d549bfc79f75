//! The calls of NVIDIA's driver that this crate uses, found when the process runs.
//!
//! 1. A machine without the library, with a stub of it, or with one that lacks a call is an answer, not a failure.
//! 2. Every result is checked. What a call returned is in the error.

mod abi;
mod error;

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::Path;

use libloading::Library;

use self::abi::{BatchCopy, Calls, Code, CopyAttributes, SUCCESS};
pub(crate) use self::abi::{CaptureMode, DevicePointer, Handle, attribute};
pub use self::error::{Absent, CudaError};

/// The name under which the driver installs its library.
pub(crate) const LIBRARY: &str = "libcuda.so.1";

/// The driver of this machine.
pub(crate) struct Driver {
    calls: Calls,
    version: u32,
    batch_copy: Option<BatchCopy>,
    /// Keeps what `calls` points to.
    library: Library,
}

/// Makes a call. `unsafe` is the caller's: it promises what the call requires of its arguments.
macro_rules! call {
    ($driver:expr, $field:ident($($argument:expr),* $(,)?)) => {
        $driver.check(stringify!($field), ($driver.calls.$field)($($argument),*))
    };
}

impl Driver {
    /// Loads the driver's library, or another one that has its calls.
    ///
    /// # Errors
    ///
    /// [`Absent`] if there is none that works.
    pub(crate) fn load(library: Option<&Path>) -> Result<Self, Absent> {
        let path = library.unwrap_or(Path::new(LIBRARY));
        // SAFETY: loading NVIDIA's library runs its initializers, as each CUDA program does. A caller who names another
        // one vouches for it.
        let library = unsafe { Library::new(path) };
        let library = library.map_err(|error| {
            // Which library it is, and why it cannot be loaded, says the cause.
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            Absent::NoLibrary(cause.unwrap_or_else(|| error.to_string()))
        })?;
        let calls = Calls::find(&library).map_err(Absent::NoCall)?;
        let mut driver = Self { calls, version: 0, batch_copy: None, library };
        // SAFETY: it has no requirements.
        unsafe { call!(driver, init(0)) }?;
        let mut version = 0;
        // SAFETY: it writes one number.
        unsafe { call!(driver, driver_version(&raw mut version)) }?;
        driver.version = u32::try_from(version).unwrap_or_default();
        driver.batch_copy = BatchCopy::find(&driver.library, driver.version);
        Ok(driver)
    }

    fn check(&self, call: &'static str, code: Code) -> Result<(), CudaError> {
        if code == SUCCESS { Ok(()) } else { Err(self.error(call, code)) }
    }

    fn error(&self, call: &'static str, code: Code) -> CudaError {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: it writes one pointer, to a text that is never freed.
        let found = unsafe { (self.calls.error_name)(code, &raw mut name) };
        let name = if found == SUCCESS && !name.is_null() {
            // SAFETY: see above.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            "an unknown error".to_owned()
        };
        CudaError::new(call, code, name)
    }

    /// Whether it can copy in batches.
    pub(crate) fn has_batch_copy(&self) -> bool {
        self.batch_copy.is_some()
    }

    /// Its version: 12080 is 12.8.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    pub(crate) fn device(&self, index: c_int) -> Result<c_int, CudaError> {
        let mut device = 0;
        // SAFETY: it writes one number.
        unsafe { call!(self, device(&raw mut device, index)) }?;
        Ok(device)
    }

    pub(crate) fn device_name(&self, device: c_int) -> Result<String, CudaError> {
        let mut name = [0; 128];
        // SAFETY: it writes at most so many bytes, with a zero at the end.
        unsafe { call!(self, device_name(name.as_mut_ptr(), 128, device)) }?;
        // SAFETY: see above.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// An attribute of a device; 0 if the driver does not know it.
    pub(crate) fn attribute(&self, attribute: c_int, device: c_int) -> c_int {
        let mut value = 0;
        // SAFETY: it writes one number.
        let found = unsafe { call!(self, device_attribute(&raw mut value, attribute, device)) };
        if found.is_ok() { value } else { 0 }
    }

    /// Retains the context that all users of a device share.
    pub(crate) fn retain_context(&self, device: c_int) -> Result<Handle, CudaError> {
        let mut context = std::ptr::null_mut();
        // SAFETY: it writes one handle.
        unsafe { call!(self, retain_context(&raw mut context, device)) }?;
        Ok(context)
    }

    /// # Safety
    ///
    /// The context was retained, and nothing of this crate uses it any more.
    pub(crate) unsafe fn release_context(&self, device: c_int) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { call!(self, release_context(device)) }
    }

    /// Makes a context the current one of this thread, until it is popped.
    ///
    /// # Safety
    ///
    /// The context is retained until then.
    pub(crate) unsafe fn push_context(&self, context: Handle) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { call!(self, push_context(context)) }
    }

    /// Makes the context the current one that was so before the last push.
    pub(crate) fn pop_context(&self) -> Result<(), CudaError> {
        let mut popped = std::ptr::null_mut();
        // SAFETY: it writes one handle.
        unsafe { call!(self, pop_context(&raw mut popped)) }
    }

    /// Changes what this thread may do while streams are captured, and returns what it might do before.
    pub(crate) fn exchange_capture_mode(
        &self,
        mut mode: CaptureMode,
    ) -> Result<CaptureMode, CudaError> {
        // SAFETY: it reads and writes one number.
        unsafe { call!(self, exchange_capture_mode(&raw mut mode.0)) }?;
        Ok(mode)
    }

    /// Whether the work of a stream is captured for a graph, and not done.
    ///
    /// # Safety
    ///
    /// The stream exists.
    pub(crate) unsafe fn is_capturing(&self, stream: Handle) -> Result<bool, CudaError> {
        let mut status = 0;
        // SAFETY: it writes one number. The rest is the caller's.
        unsafe { call!(self, is_capturing(stream, &raw mut status)) }?;
        Ok(status != 0)
    }

    /// The highest priority that a stream of the current context can have.
    pub(crate) fn highest_priority(&self) -> Result<c_int, CudaError> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: it writes two numbers.
        unsafe { call!(self, stream_priorities(&raw mut least, &raw mut greatest)) }?;
        Ok(greatest)
    }

    pub(crate) fn create_stream(&self, priority: c_int) -> Result<Handle, CudaError> {
        /// It does not wait for the default stream.
        const NON_BLOCKING: c_uint = 1;
        let mut stream = std::ptr::null_mut();
        // SAFETY: it writes one handle.
        unsafe { call!(self, create_stream(&raw mut stream, NON_BLOCKING, priority)) }?;
        Ok(stream)
    }

    /// # Safety
    ///
    /// The stream exists, and nobody uses it afterwards.
    pub(crate) unsafe fn destroy_stream(&self, stream: Handle) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { call!(self, destroy_stream(stream)) }
    }

    /// # Safety
    ///
    /// The stream exists.
    pub(crate) unsafe fn synchronize_stream(&self, stream: Handle) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { call!(self, synchronize_stream(stream)) }
    }

    /// Lets a stream wait for an event as it was recorded last.
    ///
    /// # Safety
    ///
    /// Both exist.
    pub(crate) unsafe fn stream_wait(
        &self,
        stream: Handle,
        event: Handle,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { call!(self, stream_wait(stream, event, 0)) }
    }

    pub(crate) fn create_event(&self) -> Result<Handle, CudaError> {
        /// A thread that waits for it sleeps; it has no time.
        const FLAGS: c_uint = 1 | 2;
        let mut event = std::ptr::null_mut();
        // SAFETY: it writes one handle.
        unsafe { call!(self, create_event(&raw mut event, FLAGS)) }?;
        Ok(event)
    }

    /// # Safety
    ///
    /// The event exists, and nobody uses it afterwards.
    pub(crate) unsafe fn destroy_event(&self, event: Handle) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { call!(self, destroy_event(event)) }
    }

    /// # Safety
    ///
    /// Both exist.
    pub(crate) unsafe fn record_event(
        &self,
        event: Handle,
        stream: Handle,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { call!(self, record_event(event, stream)) }
    }

    /// Waits for the work before an event.
    ///
    /// # Safety
    ///
    /// The event exists.
    pub(crate) unsafe fn synchronize_event(&self, event: Handle) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { call!(self, synchronize_event(event)) }
    }

    /// Registers mapped memory for all devices.
    ///
    /// # Safety
    ///
    /// The memory stays mapped until it is unregistered.
    pub(crate) unsafe fn register(
        &self,
        start: *mut c_void,
        bytes: usize,
        is_read_only: bool,
    ) -> Result<(), CudaError> {
        /// For all contexts, and with an address for devices.
        const FLAGS: c_uint = 1 | 2;
        const READ_ONLY: c_uint = 8;
        let flags = if is_read_only { FLAGS | READ_ONLY } else { FLAGS };
        // SAFETY: the caller's.
        unsafe { call!(self, register(start, bytes, flags)) }
    }

    /// # Safety
    ///
    /// The memory is registered, and no work of a device uses it any more.
    pub(crate) unsafe fn unregister(&self, start: *mut c_void) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { call!(self, unregister(start)) }
    }

    /// The address of registered or allocated memory as the device of the current context has it.
    pub(crate) fn device_pointer(&self, start: *mut c_void) -> Result<DevicePointer, CudaError> {
        let mut pointer = 0;
        // SAFETY: it writes one number, and finds out whether it knows the address.
        unsafe { call!(self, device_pointer(&raw mut pointer, start, 0)) }?;
        Ok(pointer)
    }

    pub(crate) fn allocate_host(&self, bytes: usize) -> Result<*mut c_void, CudaError> {
        /// For all contexts, and with an address for devices.
        const FLAGS: c_uint = 1 | 2;
        let mut start = std::ptr::null_mut();
        // SAFETY: it writes one pointer.
        unsafe { call!(self, allocate_host(&raw mut start, bytes, FLAGS)) }?;
        Ok(start)
    }

    /// # Safety
    ///
    /// The memory is of `allocate_host`, and nobody uses it afterwards.
    pub(crate) unsafe fn free_host(&self, start: *mut c_void) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { call!(self, free_host(start)) }
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Result<DevicePointer, CudaError> {
        let mut start = 0;
        // SAFETY: it writes one number.
        unsafe { call!(self, allocate(&raw mut start, bytes)) }?;
        Ok(start)
    }

    /// # Safety
    ///
    /// The memory is of `allocate`, and nobody uses it afterwards.
    pub(crate) unsafe fn free(&self, start: DevicePointer) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { call!(self, free(start)) }
    }

    /// Queues a copy from memory of this machine.
    ///
    /// # Safety
    ///
    /// Both ranges stay valid until the copy has ended, nobody writes the source, and nobody else uses the destination.
    pub(crate) unsafe fn copy_to_device(
        &self,
        to: DevicePointer,
        from: *const c_void,
        bytes: usize,
        stream: Handle,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { call!(self, copy_to_device(to, from, bytes, stream)) }
    }

    /// Queues a copy to memory of this machine.
    ///
    /// # Safety
    ///
    /// As [`Driver::copy_to_device`].
    pub(crate) unsafe fn copy_to_host(
        &self,
        to: *mut c_void,
        from: DevicePointer,
        bytes: usize,
        stream: Handle,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { call!(self, copy_to_host(to, from, bytes, stream)) }
    }

    /// Queues copies, between addresses as the device has them.
    ///
    /// # Panics
    ///
    /// If the driver has no such call, or the lists differ in length.
    ///
    /// # Safety
    ///
    /// As [`Driver::copy_to_device`], for each of them.
    pub(crate) unsafe fn copy_batch(
        &self,
        to: &mut [DevicePointer],
        from: &mut [DevicePointer],
        bytes: &mut [usize],
        stream: Handle,
    ) -> Result<(), CudaError> {
        let count = to.len();
        assert!(from.len() == count && bytes.len() == count, "one of each for each copy");
        let (to, from, bytes) = (to.as_mut_ptr(), from.as_mut_ptr(), bytes.as_mut_ptr());
        let (mut attributes, mut first) = (CopyAttributes::IN_STREAM_ORDER, 0);
        let (attributes, first) = (&raw mut attributes, &raw mut first);
        let mut failed = 0;
        let code = match self.batch_copy.expect("asked before") {
            BatchCopy::Since130(copy) => {
                // SAFETY: the lists have `count` elements each, and one set of attributes is for all from the first on.
                // The rest is the caller's.
                unsafe { copy(to, from, bytes, count, attributes, first, 1, stream) }
            }
            BatchCopy::Since128(copy) => {
                let failed = &raw mut failed;
                // SAFETY: as above; it writes one number to `failed`.
                unsafe { copy(to, from, bytes, count, attributes, first, 1, failed, stream) }
            }
        };
        self.check("copy_batch", code)
    }

    /// Loads a module from PTX, for the device of the current context.
    pub(crate) fn load_module(&self, ptx: &str) -> Result<Handle, CudaError> {
        let text = CString::new(ptx).expect("PTX has no zeros");
        let mut module = std::ptr::null_mut();
        // SAFETY: it reads the text up to its zero, and writes one handle.
        unsafe { call!(self, load_module(&raw mut module, text.as_ptr().cast())) }?;
        Ok(module)
    }

    /// # Safety
    ///
    /// The module exists, and nobody uses it or its functions afterwards.
    pub(crate) unsafe fn unload_module(&self, module: Handle) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { call!(self, unload_module(module)) }
    }

    /// # Safety
    ///
    /// The module exists.
    pub(crate) unsafe fn function(&self, module: Handle, name: &CStr) -> Result<Handle, CudaError> {
        let mut function = std::ptr::null_mut();
        // SAFETY: it reads the name, and writes one handle. The rest is the caller's.
        unsafe { call!(self, module_function(&raw mut function, module, name.as_ptr())) }?;
        Ok(function)
    }

    /// Queues a kernel.
    ///
    /// # Safety
    ///
    /// The function exists and has these arguments, and what it does is allowed until it has ended.
    pub(crate) unsafe fn launch(
        &self,
        function: Handle,
        blocks: c_uint,
        threads: c_uint,
        arguments: &mut [*mut c_void],
        stream: Handle,
    ) -> Result<(), CudaError> {
        let (arguments, extra) = (arguments.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: it copies the arguments before it returns. The rest is the caller's.
        unsafe {
            call!(self, launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, extra))
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver")
    }
}
