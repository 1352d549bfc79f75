//! `FakeCuda` as tests use it: the library that the copier loads, an engine's stream and memory, and what went wrong.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dalsegno_cuda::{GpuCopier, GpuError, GpuOptions, StreamHandle};
use dalsegno_io::{Copier, CopyBatch, Memory, PagePart, PageShape, PagedMemory, SliceCopy};
use libloading::Library;
use parking_lot::{Mutex, MutexGuard};

/// The library has one state for the whole process.
static SERIAL: Mutex<()> = Mutex::new(());

/// Whether a test has left something.
static HAS_LEFT: AtomicBool = AtomicBool::new(false);

pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Things that the fake counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Streams = 0,
    Events = 1,
    Registrations = 2,
    HostAllocations = 3,
    DeviceAllocations = 4,
    Modules = 5,
    Contexts = 6,
}

/// The fake, during one test.
pub(crate) struct Fake {
    library: Library,
    path: PathBuf,
    _serial: MutexGuard<'static, ()>,
}

/// Calls a function of the library; its types are those of `cuda.h`, and of the fake's controls.
macro_rules! fake {
    ($fake:expr, $name:literal($($type:ty = $argument:expr),* $(,)?) -> $result:ty) => {{
        // SAFETY: the function has this type, and what it is given lives longer than the call.
        unsafe {
            let function = $fake.library.get::<unsafe extern "C" fn($($type),*) -> $result>($name);
            (function.unwrap())($($argument),*)
        }
    }};
}

impl Fake {
    pub(crate) fn new(seed: u64, delay_us: u32) -> Self {
        Self::at(built(), seed, delay_us)
    }

    pub(crate) fn at(path: PathBuf, seed: u64, delay_us: u32) -> Self {
        let serial = SERIAL.lock();
        // SAFETY: loading it runs nothing but its own initializers.
        let library = unsafe { Library::new(&path) }.unwrap();
        let fake = Self { library, path, _serial: serial };
        fake!(fake, b"fake_cuda_reset"(u64 = seed, u32 = delay_us) -> ());
        assert_eq!(fake!(fake, b"cuInit"(c_uint = 0) -> c_int), 0);
        // Once something was left, the tests after it cannot see what they leave themselves.
        assert!(!HAS_LEFT.swap(true, Ordering::SeqCst), "a test before has left something");
        eventually("the test before has left nothing", || fake.left().is_empty());
        HAS_LEFT.store(false, Ordering::SeqCst);
        let mut context: *mut c_void = std::ptr::null_mut();
        let retained = fake!(
            fake,
            b"cuDevicePrimaryCtxRetain"(
                *mut *mut c_void = &raw mut context,
                c_int = 0,
            ) -> c_int
        );
        assert_eq!(retained, 0);
        assert_eq!(fake!(fake, b"cuCtxSetCurrent"(*mut c_void = context) -> c_int), 0);
        fake
    }

    /// A function of the library.
    ///
    /// # Safety
    ///
    /// The function has this type.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller's.
        *unsafe { self.library.get::<F>(name.as_bytes()) }.unwrap()
    }

    pub(crate) fn alive(&self, kind: Kind) -> u64 {
        fake!(self, b"fake_cuda_alive"(u32 = kind as u32) -> u64)
    }

    /// What exists.
    pub(crate) fn left(&self) -> Vec<Kind> {
        let kinds = [
            Kind::Streams,
            Kind::Events,
            Kind::Registrations,
            Kind::HostAllocations,
            Kind::DeviceAllocations,
            Kind::Modules,
            Kind::Contexts,
        ];
        kinds.into_iter().filter(|kind| self.alive(*kind) > 0).collect()
    }

    pub(crate) fn open(&self) -> Result<GpuCopier, GpuError> {
        self.open_with(None)
    }

    pub(crate) fn open_with(&self, piece_bytes: Option<usize>) -> Result<GpuCopier, GpuError> {
        let library = Some(self.path.clone());
        GpuCopier::open(&GpuOptions { library, index: 0, piece_bytes })
    }

    pub(crate) fn fail(&self, call: &str, after: u32, times: u32, result: i32) {
        let name = CString::new(call).unwrap();
        let planted = fake!(
            self,
            b"fake_cuda_fail"(
                *const c_char = name.as_ptr(),
                u32 = after,
                u32 = times,
                c_int = result,
            ) -> c_int
        );
        assert_eq!(planted, 0, "{call}");
    }

    pub(crate) fn set_attribute(&self, attribute: i32, value: i32) {
        fake!(self, b"fake_cuda_set_attribute"(c_int = attribute, c_int = value) -> ());
    }

    pub(crate) fn set_version(&self, version: i32) {
        fake!(self, b"fake_cuda_set_driver_version"(c_int = version) -> ());
    }

    pub(crate) fn set_ptx(&self, major: u32, minor: u32) {
        fake!(self, b"fake_cuda_set_ptx"(u32 = major, u32 = minor) -> ());
    }

    pub(crate) fn set_memlock(&self, bytes: usize) {
        fake!(self, b"fake_cuda_set_memlock"(usize = bytes) -> ());
    }

    pub(crate) fn calls(&self, call: &str) -> u64 {
        let name = CString::new(call).unwrap();
        fake!(self, b"fake_cuda_calls"(*const c_char = name.as_ptr()) -> u64)
    }

    /// What was done that CUDA forbids.
    pub(crate) fn violations(&self) -> String {
        let mut buffer = vec![0_u8; 1 << 16];
        let (start, len) = (buffer.as_mut_ptr().cast::<c_char>(), buffer.len());
        fake!(self, b"fake_cuda_violations"(*mut c_char = start, usize = len) -> usize);
        let end = buffer.iter().position(|byte| *byte == 0).unwrap();
        String::from_utf8(buffer[..end].to_vec()).unwrap()
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        let start = bytes.as_ptr().cast::<c_void>();
        let done = fake!(
            self,
            b"fake_cuda_write"(
                u64 = address,
                *const c_void = start,
                usize = bytes.len(),
            ) -> c_int
        );
        assert_eq!(done, 0);
    }

    pub(crate) fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0_u8; bytes];
        let start = buffer.as_mut_ptr().cast::<c_void>();
        let done = fake!(
            self,
            b"fake_cuda_read"(
                u64 = address,
                *mut c_void = start,
                usize = bytes,
            ) -> c_int
        );
        assert_eq!(done, 0);
        buffer
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        fake!(self, b"cuDevicePrimaryCtxRelease_v2"(c_int = 0) -> c_int);
        if !std::thread::panicking() {
            assert_eq!(self.violations(), "");
        }
    }
}

/// The library that cargo has built for this program.
pub(crate) fn built() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name("libfake_cuda.so")
}

/// A library whose calls with these names cannot be found.
pub(crate) fn without(call: &str, folder: &Path) -> PathBuf {
    let mut bytes = std::fs::read(built()).unwrap();
    let name = call.as_bytes();
    let places: Vec<usize> = bytes
        .windows(name.len())
        .enumerate()
        .filter(|(_, found)| *found == name)
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at + name.len() - 1] = b'?';
    }
    let path = folder.join("libcuda-old.so");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// An engine's stream.
pub(crate) struct EngineStream<'a> {
    fake: &'a Fake,
    pub(crate) stream: *mut c_void,
}

impl<'a> EngineStream<'a> {
    pub(crate) fn new(fake: &'a Fake) -> Self {
        let mut stream = std::ptr::null_mut();
        let done = fake!(
            fake,
            b"cuStreamCreateWithPriority"(
                *mut *mut c_void = &raw mut stream,
                c_uint = 1,
                c_int = 0,
            ) -> c_int
        );
        assert_eq!(done, 0);
        Self { fake, stream }
    }

    pub(crate) fn handle(&self) -> StreamHandle {
        // SAFETY: it exists until this is dropped.
        unsafe { StreamHandle::new(self.stream.expose_provenance()) }
    }

    pub(crate) fn hold(&self) {
        assert_eq!(fake!(self.fake, b"fake_cuda_hold"(*mut c_void = self.stream) -> c_int), 0);
    }

    pub(crate) fn release(&self) {
        assert_eq!(fake!(self.fake, b"fake_cuda_release"(*mut c_void = self.stream) -> c_int), 0);
    }

    /// Queues a write of device memory: what a layer computes. The bytes are read now, as they are not registered.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        let start = bytes.as_ptr().cast::<c_void>();
        let done = fake!(
            self.fake,
            b"cuMemcpyHtoDAsync_v2"(
                u64 = address,
                *const c_void = start,
                usize = bytes.len(),
                *mut c_void = self.stream,
            ) -> c_int
        );
        assert_eq!(done, 0);
    }

    /// Reads device memory in the order of the stream: what attention does.
    pub(crate) fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0_u8; bytes];
        let start = out.as_mut_ptr().cast::<c_void>();
        let done = fake!(
            self.fake,
            b"cuMemcpyDtoHAsync_v2"(
                *mut c_void = start,
                u64 = address,
                usize = bytes,
                *mut c_void = self.stream,
            ) -> c_int
        );
        assert_eq!(done, 0);
        self.synchronize();
        out
    }

    pub(crate) fn synchronize(&self) {
        assert_eq!(fake!(self.fake, b"cuStreamSynchronize"(*mut c_void = self.stream) -> c_int), 0);
    }
}

impl Drop for EngineStream<'_> {
    fn drop(&mut self) {
        fake!(self.fake, b"cuStreamDestroy_v2"(*mut c_void = self.stream) -> c_int);
    }
}

/// An engine's KV cache on the GPU.
pub(crate) struct Cache<'a> {
    fake: &'a Fake,
    pub(crate) starts: Vec<u64>,
    pub(crate) shape: PageShape,
    pub(crate) memory: Arc<PagedMemory>,
    buffer_bytes: usize,
}

impl<'a> Cache<'a> {
    /// A cache of `pages` pages of this shape, all zeros.
    pub(crate) fn new(
        fake: &'a Fake,
        copier: &Arc<GpuCopier>,
        layers: usize,
        pages: usize,
        shape: PageShape,
    ) -> Self {
        let end = shape.parts.iter().map(|part| part.offset + part.bytes).max().unwrap();
        let buffer_bytes = (pages - 1) * shape.stride + end;
        let starts: Vec<u64> = (0..layers).map(|_| allocate(fake, buffer_bytes)).collect();
        for start in &starts {
            fake.write(*start, &vec![0; buffer_bytes]);
        }
        let copier: Arc<dyn Copier> = Arc::clone(copier) as _;
        // SAFETY: the buffers exist until the cache is dropped, and only the test and the copier use them.
        let memory = unsafe {
            let (starts, shape) = (starts.clone(), shape.clone());
            PagedMemory::on_device(starts, buffer_bytes, pages, shape, copier, Arc::new(()))
        };
        Self { fake, starts, shape, memory: Arc::new(memory.unwrap()), buffer_bytes }
    }

    /// The addresses and sizes of a slice, in order.
    pub(crate) fn pieces(&self, layer: usize, pages: &[u32]) -> Vec<(u64, usize)> {
        let of_page = |page: &u32| {
            let start = self.starts[layer] + u64::from(*page) * self.shape.stride as u64;
            let parts = self.shape.parts.clone();
            parts.into_iter().map(move |PagePart { offset, bytes }| (start + offset as u64, bytes))
        };
        pages.iter().flat_map(of_page).collect()
    }

    /// The bytes of a slice as they are now.
    pub(crate) fn slice(&self, layer: usize, pages: &[u32]) -> Vec<u8> {
        let pieces = self.pieces(layer, pages);
        pieces.into_iter().flat_map(|(at, bytes)| self.fake.read(at, bytes)).collect()
    }

    pub(crate) fn fill(&self, layer: usize, pages: &[u32], bytes: &[u8]) {
        let mut rest = bytes;
        for (at, bytes) in self.pieces(layer, pages) {
            let (part, rest_of_it) = rest.split_at(bytes);
            self.fake.write(at, part);
            rest = rest_of_it;
        }
    }

    /// All bytes of a layer's buffer.
    pub(crate) fn all(&self, layer: usize) -> Vec<u8> {
        self.fake.read(self.starts[layer], self.buffer_bytes)
    }
}

impl Drop for Cache<'_> {
    fn drop(&mut self) {
        for start in &self.starts {
            fake!(self.fake, b"cuMemFree_v2"(u64 = *start) -> c_int);
        }
    }
}

fn allocate(fake: &Fake, bytes: usize) -> u64 {
    let mut start = 0;
    let done = fake!(fake, b"cuMemAlloc_v2"(*mut u64 = &raw mut start, usize = bytes) -> c_int);
    assert_eq!(done, 0);
    start
}

/// Keys and values of one page apart, as `FlashAttention` has them.
pub(crate) fn keys_and_values(pages: usize, bytes: usize) -> PageShape {
    let parts = [0, pages * bytes].map(|offset| PagePart { offset, bytes });
    PageShape { stride: bytes, parts: parts.into(), pages_per_block: 1 }
}

pub(crate) fn batch(copies: impl IntoIterator<Item = SliceCopy>) -> CopyBatch {
    CopyBatch { copies: copies.into_iter().collect(), after: None }
}

pub(crate) fn owned(bytes: &[u8]) -> Vec<Memory> {
    vec![Memory::owned(bytes.to_vec(), ())]
}

/// Bytes that differ from place to place.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..bytes).map(next).collect()
}

/// Waits until something holds.
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < until, "{what} does not hold");
        std::thread::sleep(Duration::from_millis(1));
    }
}
