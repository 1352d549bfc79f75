//! Files in memory that tests can damage.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::Deadline;
use dalsegno_io::{DirEntry, FileId, IoError, Opened};
use parking_lot::{Mutex, RwLock};

use crate::lsm::files::table_files::TableFiles;

type Bytes = Arc<RwLock<Vec<u8>>>;

/// A directory in memory.
#[derive(Debug, Default)]
pub(super) struct MemoryFiles {
    names: Mutex<BTreeMap<String, Bytes>>,
    open: RwLock<HashMap<FileId, (String, Bytes)>>,
    next: AtomicU64,
    /// How many writes and syncs still succeed; `None` for all.
    pub(super) failing_after: Mutex<Option<u64>>,
    /// Files whose names end like this cannot be created.
    pub(super) refused: Mutex<Option<&'static str>>,
    pub(super) reads: AtomicU64,
    pub(super) unreadable: Mutex<Option<Unreadable>>,
}

/// Which opens and reads of files fail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unreadable {
    /// The end of the names of the files.
    pub(super) end: &'static str,
    /// How many operations fail.
    pub(super) times: u32,
    /// How many succeed before.
    pub(super) skip: u32,
    /// The Linux error number.
    pub(super) number: i32,
}

fn os(operation: &'static str, file: &str, kind: std::io::ErrorKind) -> IoError {
    IoError::Os { operation, file: file.to_owned(), source: kind.into() }
}

impl MemoryFiles {
    /// The bytes of a file, to be read or changed.
    pub(super) fn bytes(&self, name: &str) -> Bytes {
        Arc::clone(&self.names.lock()[name])
    }

    pub(super) fn open_count(&self) -> usize {
        self.open.read().len()
    }

    fn handle(&self, name: &str, bytes: &Bytes) -> FileId {
        let file = FileId(self.next.fetch_add(1, Ordering::Relaxed));
        self.open.write().insert(file, (name.to_owned(), Arc::clone(bytes)));
        file
    }

    fn opened(&self, file: FileId) -> Result<(String, Bytes), IoError> {
        self.open.read().get(&file).cloned().ok_or(IoError::Closed)
    }

    fn may_not_read(&self, operation: &'static str, name: &str) -> Result<(), IoError> {
        let mut unreadable = self.unreadable.lock();
        match &mut *unreadable {
            Some(rule) if name.ends_with(rule.end) && rule.skip > 0 => {
                rule.skip -= 1;
                Ok(())
            }
            Some(rule) if name.ends_with(rule.end) && rule.times > 0 => {
                rule.times -= 1;
                let source = std::io::Error::from_raw_os_error(rule.number);
                Err(IoError::Os { operation, file: name.to_owned(), source })
            }
            _ => Ok(()),
        }
    }

    fn may_fail(&self, operation: &'static str, name: &str) -> Result<(), IoError> {
        match &mut *self.failing_after.lock() {
            None => Ok(()),
            Some(0) => Err(os(operation, name, std::io::ErrorKind::StorageFull)),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

impl TableFiles for MemoryFiles {
    fn open(&self, name: &str) -> Result<Opened, IoError> {
        self.may_not_read("open", name)?;
        let missing = || os("open", name, std::io::ErrorKind::NotFound);
        let bytes = self.names.lock().get(name).cloned().ok_or_else(missing)?;
        let length = bytes.read().len() as u64;
        Ok(Opened { file: self.handle(name, &bytes), bytes: length })
    }

    fn create(&self, name: &str, bytes: u64) -> Result<FileId, IoError> {
        if self.refused.lock().is_some_and(|end| name.ends_with(end)) {
            return Err(os("create", name, std::io::ErrorKind::StorageFull));
        }
        let mut names = self.names.lock();
        if names.contains_key(name) {
            return Err(os("create", name, std::io::ErrorKind::AlreadyExists));
        }
        assert!(bytes.is_multiple_of(4096), "whole sectors");
        let zeros = Bytes::new(RwLock::new(vec![0; usize::try_from(bytes).unwrap()]));
        names.insert(name.to_owned(), Arc::clone(&zeros));
        Ok(self.handle(name, &zeros))
    }

    fn read_at(
        &self,
        file: FileId,
        offset: u64,
        buffer: &mut [u8],
        _deadline: Deadline,
    ) -> Result<(), IoError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let open = self.open.read();
        let (name, bytes) = open.get(&file).ok_or(IoError::Closed)?;
        self.may_not_read("read", name)?;
        let bytes = bytes.read();
        let from = usize::try_from(offset).unwrap().min(bytes.len());
        let Some(found) = bytes.get(from..from + buffer.len()) else {
            let (expected, got) = (buffer.len() as u64, (bytes.len() - from) as u64);
            return Err(IoError::Short { operation: "read", file: name.clone(), expected, got });
        };
        buffer.copy_from_slice(found);
        Ok(())
    }

    fn try_sector(&self, name: &str) -> Result<(), IoError> {
        let opened = self.open(name)?;
        let read = self.read_at(opened.file, 0, &mut [0; 4096], Deadline::Never);
        self.close(opened.file);
        read
    }

    fn write_at(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        assert!(offset.is_multiple_of(4096) && bytes.len().is_multiple_of(4096), "whole sectors");
        let (name, file) = self.opened(file)?;
        self.may_fail("write", &name)?;
        let from = usize::try_from(offset).unwrap();
        file.write()[from..from + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self, file: FileId) -> Result<(), IoError> {
        let (name, _) = self.opened(file)?;
        self.may_fail("sync", &name)
    }

    fn close(&self, file: FileId) {
        self.open.write().remove(&file);
    }

    fn remove(&self, name: &str) -> Result<(), IoError> {
        let missing = || os("remove", name, std::io::ErrorKind::NotFound);
        self.names.lock().remove(name).map(drop).ok_or_else(missing)
    }

    fn sync_names(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn list(&self) -> Result<Vec<DirEntry>, IoError> {
        let names = self.names.lock();
        let entry = |(name, bytes): (&String, &Bytes)| {
            let bytes = bytes.read().len() as u64;
            DirEntry { name: name.clone(), bytes, allocated_bytes: bytes }
        };
        Ok(names.iter().map(entry).collect())
    }
}
