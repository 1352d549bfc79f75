//! Files that stay open between reads: an open over a network takes as long as a read.
//!
//! 1. At most `limit` files are open. The least recently used one is closed for another.
//! 2. No file is opened or closed while the lock is held: both may wait for the network.
//! 3. A request that reads a file keeps it open. Over the limit are at most as many files as requests under way.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;

/// A file that is open for reading.
#[derive(Debug)]
pub(super) struct SharedFile {
    pub(super) descriptor: OwnedFd,
    /// Whether it bypasses the page cache.
    pub(super) direct: bool,
}

/// The files that are open, by path.
#[derive(Debug)]
pub(super) struct OpenFiles {
    limit: usize,
    table: Mutex<FileTable>,
}

#[derive(Debug, Default)]
struct FileTable {
    files: HashMap<String, UsedFile>,
    /// Grows with every use.
    uses: u64,
}

#[derive(Debug)]
struct UsedFile {
    file: Arc<SharedFile>,
    last_use: u64,
}

impl OpenFiles {
    pub(super) fn new(limit: usize) -> Self {
        assert!(limit > 0, "no file may be open");
        Self { limit, table: Mutex::default() }
    }

    /// The file of this path, if it is open.
    pub(super) fn get(&self, path: &str) -> Option<Arc<SharedFile>> {
        let mut table = self.table.lock();
        table.uses += 1;
        let last_use = table.uses;
        let used = table.files.get_mut(path)?;
        used.last_use = last_use;
        Some(Arc::clone(&used.file))
    }

    /// Keeps a file open, instead of an earlier one of this path.
    pub(super) fn insert(&self, path: &str, file: Arc<SharedFile>) {
        let mut table = self.table.lock();
        table.uses += 1;
        let used = UsedFile { file, last_use: table.uses };
        let replaced = table.files.insert(path.to_owned(), used);
        let evicted = if table.files.len() > self.limit { table.take_oldest() } else { None };
        drop(table);
        // Closed here, without the lock.
        drop((replaced, evicted));
    }

    /// Closes a file once its requests are done.
    pub(super) fn close(&self, path: &str) {
        let closed = self.table.lock().files.remove(path);
        drop(closed);
    }
}

impl FileTable {
    /// Takes the least recently used file. A search of the whole table takes less than the open that needs the space.
    fn take_oldest(&mut self) -> Option<UsedFile> {
        let (path, _) = self.files.iter().min_by_key(|(_, used)| used.last_use)?;
        let path = path.clone();
        self.files.remove(&path)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "opens files for the table")]
mod tests {
    use super::*;

    fn file() -> Arc<SharedFile> {
        let descriptor = std::fs::File::open("/dev/null").unwrap().into();
        Arc::new(SharedFile { descriptor, direct: false })
    }

    #[test]
    fn the_least_recently_used_file_is_closed_at_the_limit() {
        let files = OpenFiles::new(2);
        for path in ["a", "b"] {
            files.insert(path, file());
        }
        assert!(files.get("a").is_some());
        files.insert("c", file());
        assert!(files.get("b").is_none());
        assert!(files.get("a").is_some() && files.get("c").is_some());
        assert_eq!(files.table.lock().files.len(), 2);
    }

    #[test]
    fn a_file_in_use_outlives_its_place_in_the_table() {
        let files = OpenFiles::new(1);
        files.insert("a", file());
        let used = files.get("a").unwrap();
        files.insert("b", file());
        assert_eq!(Arc::strong_count(&used), 1);
        assert!(rustix::fs::fstat(&used.descriptor).is_ok());
        files.close("b");
        files.close("b");
        assert!(files.get("b").is_none());
    }

    #[test]
    fn a_second_file_of_a_path_replaces_the_first() {
        let files = OpenFiles::new(1);
        let (first, second) = (file(), file());
        files.insert("a", Arc::clone(&first));
        files.insert("a", Arc::clone(&second));
        assert!(Arc::ptr_eq(&files.get("a").unwrap(), &second));
        assert_eq!(Arc::strong_count(&first), 1);
    }
}
