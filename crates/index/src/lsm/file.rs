//! How the index reaches its files: what it needs of a device, and nothing else.

use std::fmt::Debug;

use dalsegno_io::{DirEntry, FileId, IoError, Opened, WaitLimit};

/// A directory of files that are written once, from beginning to end, and then read at any offset.
///
/// Every call is synchronous and on the caller's thread: reads are expected to be served by the page cache mostly.
pub(crate) trait TableFiles: Send + Sync + Debug {
    /// Opens a file for reading.
    fn open(&self, name: &str) -> Result<Opened, IoError>;

    /// Creates a file that must not exist, with room for `bytes`, whole sectors; its name is not durable yet.
    fn create(&self, name: &str, bytes: u64) -> Result<FileId, IoError>;

    /// Fills `buffer`; any offset and length within the file will do. Within a limit it reads what the page cache has,
    /// and waits for the device no longer than that.
    fn read_at(
        &self,
        file: FileId,
        offset: u64,
        buffer: &mut [u8],
        wait: WaitLimit,
    ) -> Result<(), IoError>;

    /// Reads the first sector of a file of at least one, whosever it is: from the device, and not from the page cache.
    fn try_sector(&self, name: &str) -> Result<(), IoError>;

    /// Writes whole sectors at a whole sector.
    fn write_at(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), IoError>;

    /// Makes what was written to a file durable.
    fn sync(&self, file: FileId) -> Result<(), IoError>;

    /// Forgets a file.
    fn close(&self, file: FileId);

    /// Removes a file; whoever has it open may go on reading.
    fn remove(&self, name: &str) -> Result<(), IoError>;

    /// Makes created and removed names durable.
    fn sync_names(&self) -> Result<(), IoError>;

    /// Lists the files.
    fn list(&self) -> Result<Vec<DirEntry>, IoError>;
}
