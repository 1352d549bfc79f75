//! Shared helpers of this crate's tests.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

pub mod child;
pub mod mount;
mod skip;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use dalsegno_core::{Class, Deadline, EngineChoice};
use dalsegno_io::{
    BufferPool, Completion, Device, DirectoryOptions, FileId, IoError, LocalDirectory, Memory,
    OpenMode, Operation, Purpose, Request, SystemClock,
};
pub use skip::skip;

pub const SECTOR: usize = 4096;
/// Longer than the slowest machine needs. A test that waits this long has failed.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub fn pool() -> BufferPool {
    BufferPool::new(16 << 20, 1 << 20).unwrap()
}

pub fn open(path: &Path, options: DirectoryOptions, pool: &BufferPool) -> LocalDirectory {
    LocalDirectory::open(path, options, pool, Arc::new(SystemClock::new())).unwrap()
}

/// Whether the engine can run here. Reports it if not.
pub fn is_available(engine: EngineChoice) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let options = DirectoryOptions { engine, ..DirectoryOptions::default() };
    let opened =
        LocalDirectory::open(directory.path(), options, &pool(), Arc::new(SystemClock::new()));
    match opened {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(engine, EngineChoice::Uring, "psync always works: {error}");
            skip("io_uring", &error.to_string());
            false
        }
    }
}

/// A directory with an engine, and what is needed to use it.
pub struct Rig {
    pub directory: tempfile::TempDir,
    pub pool: BufferPool,
    pub device: Arc<LocalDirectory>,
}

impl Rig {
    pub fn new(engine: EngineChoice) -> Self {
        Self::with(DirectoryOptions { engine, ..DirectoryOptions::default() })
    }

    pub fn with(options: DirectoryOptions) -> Self {
        let (directory, pool) = (tempfile::tempdir().unwrap(), pool());
        let device = Arc::new(open(directory.path(), options, &pool));
        Self { directory, pool, device }
    }

    pub fn create(&self, name: &str, bytes: usize) -> FileId {
        self.device.open(name, OpenMode::Create { bytes: bytes as u64 }).unwrap().file
    }

    pub fn write(&self, file: FileId, offset: usize, bytes: &[u8]) {
        write(&*self.device, &self.pool, file, offset, bytes).unwrap();
    }

    pub fn read(&self, file: FileId, offset: usize, len: usize) -> Result<Vec<u8>, IoError> {
        read(&*self.device, &self.pool, file, offset, len)
    }

    /// Waits until every buffer is returned.
    pub fn await_free(&self, counts: (usize, usize)) {
        for _ in 0..TEST_TIMEOUT.as_millis() {
            if self.pool.free_counts() == counts {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("buffers are missing: {:?} of {counts:?}", self.pool.free_counts());
    }
}

pub fn request(
    operation: Operation,
    file: FileId,
    offset: usize,
    memory: Vec<Memory>,
    reply: &Sender<Completion>,
) -> Request {
    Request {
        operation,
        purpose: Purpose::of(Class::Need),
        file,
        offset: offset as u64,
        memory,
        tag: 0,
        deadline: Deadline::Never,
        guard: None,
        watch: None,
        reply: reply.clone(),
    }
}

/// Submits one request and waits for its only completion.
pub fn carry_out(
    device: &dyn Device,
    operation: Operation,
    file: FileId,
    offset: usize,
    memory: Vec<Memory>,
) -> Completion {
    let (reply, completions) = unbounded();
    device.submit(vec![request(operation, file, offset, memory, &reply)]);
    drop(reply);
    let completion = completions.recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(completions.recv_timeout(TEST_TIMEOUT).is_err(), "a second completion");
    completion
}

pub fn write(
    device: &dyn Device,
    pool: &BufferPool,
    file: FileId,
    offset: usize,
    bytes: &[u8],
) -> Result<(), IoError> {
    let mut memory = pool.try_take(bytes.len()).unwrap();
    memory.as_mut_slice().copy_from_slice(bytes);
    carry_out(device, Operation::Write, file, offset, vec![memory]).result
}

pub fn read(
    device: &dyn Device,
    pool: &BufferPool,
    file: FileId,
    offset: usize,
    len: usize,
) -> Result<Vec<u8>, IoError> {
    let mut memory = pool.try_take(len).unwrap();
    memory.as_mut_slice().fill(0xEE);
    let done = carry_out(device, Operation::Read, file, offset, vec![memory]);
    done.result.map(|()| done.memory.iter().flat_map(|m| m.as_slice().to_vec()).collect())
}

pub fn sync(device: &dyn Device, file: FileId) -> Result<(), IoError> {
    carry_out(device, Operation::Sync, file, 0, Vec::new()).result
}

/// Waits for `count` completions and asserts that there are no more.
pub fn collect(completions: &Receiver<Completion>, count: usize) -> Vec<Completion> {
    let all: Vec<Completion> =
        (0..count).map(|_| completions.recv_timeout(TEST_TIMEOUT).unwrap()).collect();
    assert!(completions.try_recv().is_err(), "more completions than requests");
    all
}

/// Deterministic bytes and choices.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x9E37_79B9_7F4A_7C15)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next().to_le_bytes()).flatten().take(len).collect()
    }
}
