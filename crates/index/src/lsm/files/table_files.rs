//! What the index needs of a device, and nothing else.

use std::fmt::Debug;

use dalsegno_core::Deadline;
use dalsegno_io::{DirEntry, FileId, IoError, Opened};

/// Bytes of a sector; every write is of whole sectors.
pub(crate) const SECTOR: usize = 4096;

/// A directory of files that are written once, from beginning to end, and then read at any offset.
///
/// Every call is synchronous and on the caller's thread: most reads are served by the page cache.
pub(crate) trait TableFiles: Send + Sync + Debug {
    /// Opens a file for reading.
    fn open(&self, name: &str) -> Result<Opened, IoError>;

    /// Creates a file of `bytes`, whole sectors. It must not exist, and its name is not durable yet.
    fn create(&self, name: &str, bytes: u64) -> Result<FileId, IoError>;

    /// Fills `buffer` from any offset within the file. With a limit it takes what the page cache holds, and waits for
    /// the device no longer than that.
    fn read_at(
        &self,
        file: FileId,
        offset: u64,
        buffer: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), IoError>;

    /// Reads the first sector of any file of at least one sector, from the device and not from the page cache.
    fn try_sector(&self, name: &str) -> Result<(), IoError>;

    /// Writes whole sectors at a whole sector.
    fn write_at(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), IoError>;

    /// Makes the contents of a file durable.
    fn sync(&self, file: FileId) -> Result<(), IoError>;

    /// Closes a file.
    fn close(&self, file: FileId);

    /// Removes a file. Readers that have it open may go on.
    fn remove(&self, name: &str) -> Result<(), IoError>;

    /// Makes created and removed names durable.
    fn sync_names(&self) -> Result<(), IoError>;

    /// Lists the files.
    fn list(&self) -> Result<Vec<DirEntry>, IoError>;
}
