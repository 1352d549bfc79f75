//! The narrow waist: everything above speaks to files through [`Device`], so that a simulation can stand in for them.

use std::any::Any;
use std::sync::Arc;

use crossbeam_channel::Sender;
use dalsegno_core::{Deadline, SECTOR_BYTES};

use crate::{CallRing, IoError, Memory};

/// An open file of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId(pub u64);

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist; reads only.
    Read,
    /// The file must exist.
    ReadWrite,
    /// The file must not exist; `bytes` of disk are allocated for it before the call returns.
    Create {
        /// Size of the new file.
        bytes: u64,
    },
}

/// An opened file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its handle.
    pub file: FileId,
    /// Its size.
    pub bytes: u64,
}

/// A file of the device's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Name without its directory.
    pub name: String,
    /// Size of the file.
    pub bytes: u64,
    /// Bytes of disk it takes.
    pub allocated_bytes: u64,
}

/// Room of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes an ordinary user can still allocate.
    pub free_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// What the device asks of memory, and who serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Alignment in bytes of memory addresses and lengths that the device reaches without a copy.
    pub memory_align: usize,
    /// `"uring"`, `"psync"` or `"sim"`.
    pub engine: &'static str,
    /// Whether requests bypass the page cache.
    pub direct: bool,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// `fdatasync`: all completed writes of the file are durable when it completes.
    Sync,
}

impl Operation {
    /// The word for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
        }
    }
}

/// Who waits for a request; the scheduler above orders by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A request of the engine waits.
    Foreground,
    /// Nobody waits: eviction, verification, recovery.
    Background,
}

/// Learns how requests end.
pub trait Watch: Send + Sync {
    /// A request has ended; called once for each, before whoever waits hears of it, on the device's thread.
    fn ended(&self, result: Result<(), &IoError>);
}

/// Two watches of one request.
struct Both(Arc<dyn Watch>, Arc<dyn Watch>);

impl Watch for Both {
    fn ended(&self, result: Result<(), &IoError>) {
        self.0.ended(result);
        self.1.ended(result);
    }
}

/// One contiguous range of a file and the memory it moves to or from: what one `NVMe` command with a scatter list says.
pub struct Request {
    /// What to do.
    pub operation: Operation,
    /// Who waits.
    pub class: Class,
    /// The file.
    pub file: FileId,
    /// First byte in the file, a multiple of the sector.
    pub offset: u64,
    /// Memory in the order of the file's bytes; the lengths sum to a multiple of the sector. Empty for a sync.
    pub memory: Vec<Memory>,
    /// Returned with the completion.
    pub tag: u64,
    /// After this moment the request is not started any more.
    pub deadline: Deadline,
    /// Kept alive until the device is done: a segment's pin, say.
    pub guard: Option<Arc<dyn Any + Send + Sync>>,
    /// Told how it ended, also when nobody listens any more; kept alive until the device is done. A device that stands
    /// before another one adds its own with [`Self::add_watch`].
    pub watch: Option<Arc<dyn Watch>>,
    /// Where the completion goes. If nobody listens any more it is dropped, and with it the memory. The channel must
    /// have room for every completion it may be owed: a full one would stall the device's thread.
    pub reply: Sender<Completion>,
}

impl Request {
    /// Bytes it moves.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.iter().map(|m| m.len() as u64).sum()
    }

    /// Adds a watch to those that the request has. The one that was added last, next to the device, is called first.
    pub fn add_watch(&mut self, watch: Arc<dyn Watch>) {
        self.watch = Some(match self.watch.take() {
            None => watch,
            Some(earlier) => Arc::new(Both(watch, earlier)),
        });
    }

    /// Asserts what every engine relies on.
    ///
    /// # Panics
    ///
    /// If offset or length are not whole sectors, a read targets read-only memory, or a sync carries memory.
    pub fn check(&self) {
        assert!(self.offset.is_multiple_of(SECTOR_BYTES), "offset {} is not a sector", self.offset);
        let bytes = self.bytes();
        assert!(bytes.is_multiple_of(SECTOR_BYTES), "{bytes} bytes are not whole sectors");
        assert_eq!(
            self.operation == Operation::Sync,
            self.memory.is_empty(),
            "memory of a request"
        );
        if self.operation == Operation::Read {
            assert!(self.memory.iter().all(Memory::is_writable), "read into read-only memory");
        }
    }

    /// Answers a request that the kernel may still carry out: memory, guard and watch are never freed.
    pub(crate) fn abandon(mut self, error: IoError) {
        std::mem::forget(std::mem::take(&mut self.memory));
        std::mem::forget(self.guard.take());
        std::mem::forget(self.watch.clone());
        self.complete(Err(error));
    }

    /// Answers the request; the only way to consume it.
    pub fn complete(self, result: Result<(), IoError>) {
        drop(self.guard);
        if let Some(watch) = self.watch {
            watch.ended(result.as_ref().copied());
        }
        let completion = Completion { tag: self.tag, memory: self.memory, result };
        // A caller that gave up dropped its end; the memory goes back with the completion.
        drop(self.reply.send(completion));
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("operation", &self.operation)
            .field("file", &self.file)
            .field("offset", &self.offset)
            .field("bytes", &self.bytes())
            .field("tag", &self.tag)
            .finish_non_exhaustive()
    }
}

/// The answer to a [`Request`].
#[derive(Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// The request's memory, back with the caller. Empty only after an error that left it with the kernel for ever.
    pub memory: Vec<Memory>,
    /// Success means that every byte moved.
    pub result: Result<(), IoError>,
}

/// A directory of preallocated files, read and written in whole sectors.
///
/// Implementations: [`crate::LocalDirectory`] over real files, and the simulated device of the sim room.
pub trait Device: Send + Sync + std::fmt::Debug {
    /// Opens or creates a file. Creating also makes its allocation durable, not its name: see [`Self::sync_names`].
    fn open(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError>;

    /// As [`Self::open`], for a file that is read often and in small pieces: its bytes go through the page cache.
    fn open_cached(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError>;

    /// Fills `buffer` from a file on the caller's thread; any offset and length will do. For files opened with
    /// [`Self::open_cached`]: what the page cache holds costs a microsecond, where a request has a queue and a thread
    /// to pass.
    fn read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<(), IoError>;

    /// As [`Self::read_at`] if that does not have to wait for the device; else `false`, and `buffer` is undefined.
    fn try_read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<bool, IoError>;

    /// Forgets a file once its requests are done.
    fn close(&self, file: FileId);

    /// Hands over requests; never waits. Each gets one completion, [`IoError::Busy`] if the queue is full.
    fn submit(&self, requests: Vec<Request>);

    /// A ring for one call that waits for its requests; `None` if there is none to be had. What is submitted on it
    /// costs no change of threads, neither on the way to the device nor back.
    fn call_ring(&self) -> Option<CallRing> {
        None
    }

    /// As [`Self::submit`], on a ring of this device. The call must [wait on it](CallRing::wait) as long as it has
    /// requests in flight: only that, or dropping the ring, brings their completions. A request that may not start at
    /// once is submitted as any other.
    fn submit_on(&self, ring: &mut CallRing, request: Request) {
        let _ = ring;
        self.submit(vec![request]);
    }

    /// Removes a file. Open handles stay usable.
    fn remove(&self, name: &str) -> Result<(), IoError>;

    /// Makes created and removed names durable.
    fn sync_names(&self) -> Result<(), IoError>;

    /// Lists the files, sorted by name.
    fn list(&self) -> Result<Vec<DirEntry>, IoError>;

    /// Room of the file system.
    fn space(&self) -> Result<Space, IoError>;

    /// What the device asks of memory.
    fn geometry(&self) -> Geometry;
}
