//! Owners of CUDA objects, and a `Session` that tests hold one after the other.

use fake_cuda::{
    CAPTURE_MODE_GLOBAL, CUDA_SUCCESS, CUcontext, CUdeviceptr, CUevent, CUresult, CUstream,
    EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING, controls,
};
use parking_lot::{Mutex, MutexGuard};
use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::null_mut;

/// Calls an exported function and returns its result.
macro_rules! result {
    ($call:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: The tests pass pointers that are valid, null, or that the fake refuses.
        unsafe { fake_cuda::$call($($argument),*) }
    }};
}

/// Calls an exported function that has to succeed.
macro_rules! ok {
    ($($call:tt)*) => {
        assert_eq!($crate::support::result!($($call)*), fake_cuda::CUDA_SUCCESS)
    };
}

pub(crate) use {ok, result};

/// Asserts that something was given back. A test that fails already only shows its own message.
pub(crate) fn assert_given_back(result: CUresult) {
    assert!(result == CUDA_SUCCESS || std::thread::panicking(), "not given back: {result}");
}

pub(crate) const PAGE: usize = 4096;
pub(crate) const CHUNK: usize = 16 << 10;

static SERIAL: Mutex<()> = Mutex::new(());

/// The fake for one test: initialized, with a current context, without old violations.
pub(crate) struct Session {
    expected: Cell<usize>,
    _serial: MutexGuard<'static, ()>,
}

impl Session {
    /// Waits for the other tests and starts without delays.
    pub(crate) fn new() -> Self {
        Self::with_delay(1, 0)
    }

    /// Starts with random delays.
    pub(crate) fn with_delay(seed: u64, max_delay_us: u32) -> Self {
        let serial = SERIAL.lock();
        controls::fake_cuda_reset(seed, max_delay_us);
        ok!(cuInit(0));
        let mut context: CUcontext = null_mut();
        ok!(cuDevicePrimaryCtxRetain(&raw mut context, 0));
        ok!(cuCtxSetCurrent(context));
        // That of a new thread, whatever the test before has left.
        let mut mode = CAPTURE_MODE_GLOBAL;
        ok!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
        Self { expected: Cell::new(0), _serial: serial }
    }

    /// Asserts that there is one new violation, of this kind.
    pub(crate) fn expect_violation(&self, kind: &str) {
        self.expect_violations(kind, 1);
    }

    /// Asserts that there are so many new violations, all of this kind.
    pub(crate) fn expect_violations(&self, kind: &str, count: usize) {
        let before = self.expected.replace(self.expected.get() + count);
        let texts = violations();
        assert_eq!(texts.len(), before + count, "{count} more expected: {texts:?}");
        let is_of_kind = |text: &String| text.starts_with(&format!("{kind}: "));
        assert!(texts[before..].iter().all(is_of_kind), "{kind} expected: {texts:?}");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        assert_given_back(result!(cuDevicePrimaryCtxRelease_v2(0)));
        if !std::thread::panicking() {
            let texts = violations();
            assert_eq!(texts.len(), self.expected.get(), "not expected: {texts:?}");
        }
    }
}

pub(crate) fn violations() -> Vec<String> {
    let mut buffer = vec![0_u8; 1 << 16];
    let count = result!(fake_cuda_violations(buffer.as_mut_ptr().cast(), buffer.len()));
    let end = buffer.iter().position(|byte| *byte == 0).expect("a zero byte");
    let texts: Vec<_> =
        String::from_utf8_lossy(&buffer[..end]).lines().map(str::to_owned).collect();
    assert_eq!(texts.len(), count);
    texts
}

pub(crate) fn calls(name: &str) -> u64 {
    let name = CString::new(name).expect("a name");
    result!(fake_cuda_calls(name.as_ptr()))
}

pub(crate) fn fail(name: &str, after: u32, times: u32, error: CUresult) -> CUresult {
    let name = CString::new(name).expect("a name");
    result!(fake_cuda_fail(name.as_ptr(), after, times, error))
}

/// Distinct bytes, none of them 0.
pub(crate) fn pattern(bytes: usize, salt: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| u8::try_from((at * 7 + at / 255 + salt * 31) % 255 + 1).expect("at most 255"))
        .collect()
}

pub(crate) struct Stream(pub(crate) CUstream);

impl Stream {
    pub(crate) fn new() -> Self {
        let mut stream = null_mut();
        ok!(cuStreamCreateWithPriority(&raw mut stream, STREAM_NON_BLOCKING, 0));
        Self(stream)
    }

    pub(crate) fn held() -> Self {
        let stream = Self::new();
        stream.hold();
        stream
    }

    pub(crate) fn hold(&self) {
        assert_eq!(controls::fake_cuda_hold(self.0), CUDA_SUCCESS);
    }

    pub(crate) fn release(&self) {
        assert_eq!(controls::fake_cuda_release(self.0), CUDA_SUCCESS);
    }

    pub(crate) fn step(&self, count: u64) -> u64 {
        controls::fake_cuda_step(self.0, count)
    }

    pub(crate) fn synchronize(&self) {
        ok!(cuStreamSynchronize(self.0));
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        assert_given_back(result!(cuStreamDestroy_v2(self.0)));
    }
}

pub(crate) struct Event(pub(crate) CUevent);

impl Event {
    pub(crate) fn new() -> Self {
        Self::with_flags(EVENT_DISABLE_TIMING)
    }

    pub(crate) fn with_flags(flags: u32) -> Self {
        let mut event = null_mut();
        ok!(cuEventCreate(&raw mut event, flags));
        Self(event)
    }

    pub(crate) fn record(&self, stream: &Stream) {
        ok!(cuEventRecord(self.0, stream.0));
    }

    pub(crate) fn query(&self) -> CUresult {
        result!(cuEventQuery(self.0))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        assert_given_back(result!(cuEventDestroy_v2(self.0)));
    }
}

/// An allocation of device memory.
pub(crate) struct Device {
    pub(crate) address: CUdeviceptr,
    pub(crate) bytes: usize,
}

impl Device {
    pub(crate) fn new(bytes: usize) -> Self {
        let mut address = 0;
        ok!(cuMemAlloc_v2(&raw mut address, bytes));
        Self { address, bytes }
    }

    pub(crate) fn with(content: &[u8]) -> Self {
        let device = Self::new(content.len());
        ok!(fake_cuda_write(device.address, content.as_ptr().cast(), content.len()));
        device
    }

    /// Returns what the memory holds now.
    pub(crate) fn content(&self) -> Vec<u8> {
        let mut content = vec![0_u8; self.bytes];
        ok!(fake_cuda_read(self.address, content.as_mut_ptr().cast(), self.bytes));
        content
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        assert_given_back(result!(cuMemFree_v2(self.address)));
    }
}

/// Whole pages of host memory.
pub(crate) struct Pages {
    pub(crate) start: *mut u8,
    pub(crate) bytes: usize,
    /// The page that was unmapped, or 0.
    hole: Cell<usize>,
}

impl Pages {
    pub(crate) fn new(pages: usize) -> Self {
        let bytes = pages * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: The kernel chooses an address that is not in use.
        let start = unsafe {
            libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start: start.cast(), bytes, hole: Cell::new(0) }
    }

    pub(crate) fn with(content: &[u8]) -> Self {
        let pages = Self::new(content.len().div_ceil(PAGE));
        pages.write(content);
        pages
    }

    pub(crate) fn at(&self, offset: usize) -> *mut c_void {
        self.start.wrapping_add(offset).cast()
    }

    pub(crate) fn write(&self, content: &[u8]) {
        assert!(content.len() <= self.bytes);
        // SAFETY: The pages have at least that many bytes, and tests do not unmap pages that they write.
        unsafe { self.start.copy_from(content.as_ptr(), content.len()) };
    }

    pub(crate) fn read(&self, bytes: usize) -> Vec<u8> {
        assert!(bytes <= self.bytes);
        let mut content = vec![0; bytes];
        // SAFETY: The pages have at least that many bytes, and tests do not unmap pages that they read.
        unsafe { self.start.copy_to(content.as_mut_ptr(), bytes) };
        content
    }

    pub(crate) fn protect(&self, first_page: usize, pages: usize, protection: i32) {
        // SAFETY: The tests do not touch protected pages themselves.
        let result =
            unsafe { libc::mprotect(self.at(first_page * PAGE), pages * PAGE, protection) };
        assert_eq!(result, 0);
    }

    /// Unmaps a page in the middle. A hole of one page is too small for a mapping of another thread.
    pub(crate) fn unmap(&self, page: usize) {
        assert!(page > 0 && (page + 1) * PAGE < self.bytes && self.hole.replace(page) == 0);
        self.unmap_range(page, 1);
    }

    fn unmap_range(&self, first_page: usize, pages: usize) {
        // SAFETY: The tests do not touch unmapped pages themselves.
        let result = unsafe { libc::munmap(self.at(first_page * PAGE), pages * PAGE) };
        assert_eq!(result, 0);
    }

    /// Maps a new file over the pages.
    pub(crate) fn map_file(&self, file_pages: usize) -> File {
        // SAFETY: The name is a C string.
        let fd = unsafe { libc::memfd_create(c"pages".as_ptr(), 0) };
        // SAFETY: The descriptor is new.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len((file_pages * PAGE) as u64).expect("a memfd can grow");
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: The mapping replaces pages of the test.
        let start =
            unsafe { libc::mmap(self.at(0), self.bytes, protection, flags, file.as_raw_fd(), 0) };
        assert_eq!(start, self.at(0));
        file
    }

    pub(crate) fn register(&self, flags: u32) -> CUresult {
        result!(cuMemHostRegister_v2(self.at(0), self.bytes, flags))
    }

    pub(crate) fn unregister(&self) -> CUresult {
        result!(cuMemHostUnregister(self.at(0)))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let pages = self.bytes / PAGE;
        match self.hole.get() {
            0 => self.unmap_range(0, pages),
            hole => {
                self.unmap_range(0, hole);
                self.unmap_range(hole + 1, pages - hole - 1);
            }
        }
    }
}

/// Registered pages.
pub(crate) struct Pinned(pub(crate) Pages);

impl Pinned {
    pub(crate) fn new(pages: usize) -> Self {
        Self::of(Pages::new(pages))
    }

    pub(crate) fn with(content: &[u8]) -> Self {
        Self::of(Pages::with(content))
    }

    fn of(pages: Pages) -> Self {
        assert_eq!(pages.register(0), CUDA_SUCCESS);
        Self(pages)
    }

    pub(crate) fn device_pointer(&self) -> CUdeviceptr {
        let mut pointer = 0;
        ok!(cuMemHostGetDevicePointer_v2(&raw mut pointer, self.0.at(0), 0));
        pointer
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        assert_given_back(self.0.unregister());
    }
}

/// Queues a copy to the device.
pub(crate) fn to_device(to: &Device, from: &Pages, bytes: usize, stream: &Stream) -> CUresult {
    result!(cuMemcpyHtoDAsync_v2(to.address, from.at(0), bytes, stream.0))
}

/// Queues a copy to the host.
pub(crate) fn to_host(to: &Pages, from: &Device, bytes: usize, stream: &Stream) -> CUresult {
    result!(cuMemcpyDtoHAsync_v2(to.at(0), from.address, bytes, stream.0))
}
