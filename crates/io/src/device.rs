//! The narrow waist: everything above speaks to files through [`Device`], so that a simulation can stand in for them.

use crate::{CallRing, FileId, IoError, Request};

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
