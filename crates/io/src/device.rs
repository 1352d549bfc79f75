//! The traits [`Source`] and [`Device`]: the only way to files for the crates above, so that a simulation can replace
//! real files.

use dalsegno_core::Class;

use crate::{CallRing, FileId, IoError, Operation, Request};

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
    /// Bytes allocated on disk.
    pub allocated_bytes: u64,
}

/// Space of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes an ordinary user can still allocate.
    pub free_bytes: u64,
    /// Total bytes.
    pub total_bytes: u64,
}

/// What the device requires of memory, and which engine serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Required alignment in bytes of memory addresses and lengths. Other memory needs a copy.
    pub memory_align: usize,
    /// `"uring"`, `"psync"` or `"sim"`; a tier's own name.
    pub engine: &'static str,
    /// Whether requests bypass the page cache.
    pub direct: bool,
    /// Requests of one direction that it works on at a time. It keeps others waiting in the order of submission.
    pub places: usize,
}

/// What moves bytes between files and memory. Reading and writing extents needs no more of a device, so that a tier
/// without a directory of its own can serve the same requests.
pub trait Source: Send + Sync + std::fmt::Debug {
    /// Submits requests. Never waits. Each request gets one completion, which is an error if the queue is
    /// full ([`Stopped::Busy`](dalsegno_core::Stopped::Busy)).
    fn submit(&self, requests: Vec<Request>);

    /// A ring for one call that waits for its requests, or `None` if none is available. A request on it changes no
    /// threads, neither on the way to the device nor back.
    fn call_ring(&self) -> Option<CallRing> {
        None
    }

    /// Like [`Self::submit`], on a ring of this device. The call must [wait on the ring](CallRing::wait) while it has
    /// requests in flight: completions arrive only there or when the ring is dropped. A request that may not start
    /// immediately is submitted like any other.
    fn submit_on(&self, ring: &mut CallRing, request: Request) {
        let _ = ring;
        self.submit(vec![request]);
    }

    /// Whether it has what keeps it busy with reads, or with writes, so that a call of a class with requests in flight
    /// gains nothing from more.
    fn is_full(&self, operation: Operation, class: Class) -> bool {
        let _ = (operation, class);
        false
    }

    /// What the device requires of memory, and which engine serves it.
    fn geometry(&self) -> Geometry;
}

/// A directory of preallocated files, read and written in whole sectors.
///
/// Implementations: [`crate::LocalDirectory`] over real files, and the simulated device of the sim crate.
pub trait Device: Source {
    /// Opens or creates a file. Creating makes the allocation durable, but not the name: see [`Self::sync_names`].
    fn open(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError>;

    /// Like [`Self::open`], for a file with many small reads: its bytes go through the page cache.
    fn open_cached(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError>;

    /// Fills `buffer` from a file on the caller's thread, at any offset and length. For files opened with
    /// [`Self::open_cached`]: a read from the page cache takes a microsecond, less than a queue and a change of
    /// threads.
    fn read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<(), IoError>;

    /// Like [`Self::read_at`] if the read need not wait for the device. Otherwise returns `false`, and `buffer` is
    /// undefined.
    fn try_read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<bool, IoError>;

    /// Closes a file once its requests are done.
    fn close(&self, file: FileId);

    /// Removes a file. Open handles stay valid.
    fn remove(&self, name: &str) -> Result<(), IoError>;

    /// Makes the creation and removal of names durable.
    fn sync_names(&self) -> Result<(), IoError>;

    /// Lists the files, sorted by name.
    fn list(&self) -> Result<Vec<DirEntry>, IoError>;

    /// Space of the file system.
    fn space(&self) -> Result<Space, IoError>;
}
