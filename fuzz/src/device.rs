//! A directory of files in memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use dalsegno_io::{
    Device, DirEntry, FileId, Geometry, IoError, Memory, OpenMode, Opened, Operation, Request,
    Source, Space,
};
use parking_lot::Mutex;

type File = Arc<Mutex<Vec<u8>>>;

/// Clones share nothing.
#[derive(Debug, Default)]
pub(crate) struct MemoryDevice {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, File>,
    open: BTreeMap<u64, (String, File)>,
    last: u64,
}

impl MemoryDevice {
    /// Adds a file.
    pub(crate) fn plant(&self, name: &str, bytes: Vec<u8>) {
        self.state.lock().files.insert(name.to_owned(), Arc::new(Mutex::new(bytes)));
    }

    /// All files.
    pub(crate) fn files(&self) -> Vec<(String, Vec<u8>)> {
        let state = self.state.lock();
        state.files.iter().map(|(name, file)| (name.clone(), file.lock().clone())).collect()
    }

    fn opened(&self, operation: &'static str, file: FileId) -> Result<(String, File), IoError> {
        let found = self.state.lock().open.get(&file.0).cloned();
        found.ok_or_else(|| failed(operation, "a closed file", io::ErrorKind::InvalidInput))
    }

    fn carry_out(&self, request: &mut Request) -> Result<(), IoError> {
        let operation = request.operation.name();
        let (name, file) = self.opened(operation, request.file)?;
        let mut bytes = file.lock();
        let mut at = usize::try_from(request.offset).unwrap_or(usize::MAX);
        let short = |got: usize| IoError::Short {
            operation,
            file: name.clone(),
            expected: request.memory.iter().map(|memory| memory.len() as u64).sum(),
            got: got as u64,
        };
        if request.operation == Operation::Sync {
            return Ok(());
        }
        let wanted: usize = request.memory.iter().map(Memory::len).sum();
        // No file of a store grows.
        let end = at.saturating_add(wanted);
        if end > bytes.len() {
            return Err(short(bytes.len().saturating_sub(at)));
        }
        for piece in &mut request.memory {
            let range = &mut bytes[at..at + piece.len()];
            at += piece.len();
            match request.operation {
                Operation::Read => piece.as_mut_slice().copy_from_slice(range),
                _ => range.copy_from_slice(piece.as_slice()),
            }
        }
        Ok(())
    }
}

fn failed(operation: &'static str, name: &str, kind: io::ErrorKind) -> IoError {
    // The store compares the numbers of errors, not their kinds.
    let number = match kind {
        io::ErrorKind::NotFound => 2,
        io::ErrorKind::AlreadyExists => 17,
        _ => 9,
    };
    let source = io::Error::from_raw_os_error(number);
    IoError::Os { operation, file: name.to_owned(), source }
}

impl Source for MemoryDevice {
    fn submit(&self, requests: Vec<Request>) {
        for mut request in requests {
            request.check();
            let result = self.carry_out(&mut request);
            request.complete(result);
        }
    }

    fn geometry(&self) -> Geometry {
        Geometry { memory_align: 1, engine: "memory", direct: false, places: 64 }
    }
}

impl Device for MemoryDevice {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        let state = &mut *self.state.lock();
        let file = match (state.files.get(name), mode) {
            (Some(_), OpenMode::Create { .. }) => {
                return Err(failed("create", name, io::ErrorKind::AlreadyExists));
            }
            (None, OpenMode::Create { bytes }) => {
                let bytes = usize::try_from(bytes).expect("segments are small here");
                let file: File = Arc::new(Mutex::new(vec![0; bytes]));
                state.files.insert(name.to_owned(), Arc::clone(&file));
                file
            }
            (Some(file), _) => Arc::clone(file),
            (None, _) => return Err(failed("open", name, io::ErrorKind::NotFound)),
        };
        state.last += 1;
        let bytes = file.lock().len() as u64;
        state.open.insert(state.last, (name.to_owned(), file));
        Ok(Opened { file: FileId(state.last), bytes })
    }

    fn open_cached(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        self.open(name, mode)
    }

    fn try_read_at(&self, _: FileId, _: u64, _: &mut [u8]) -> Result<bool, IoError> {
        // There is no page cache.
        Ok(false)
    }

    fn read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        let (name, file) = self.opened("read", file)?;
        let bytes = file.lock();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let Some(range) = bytes[from..].get(..buffer.len()) else {
            let (expected, got) = (buffer.len() as u64, (bytes.len() - from) as u64);
            return Err(IoError::Short { operation: "read", file: name, expected, got });
        };
        buffer.copy_from_slice(range);
        Ok(())
    }

    fn close(&self, file: FileId) {
        self.state.lock().open.remove(&file.0);
    }

    fn remove(&self, name: &str) -> Result<(), IoError> {
        let removed = self.state.lock().files.remove(name);
        removed.map(drop).ok_or_else(|| failed("remove", name, io::ErrorKind::NotFound))
    }

    fn sync_names(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn list(&self) -> Result<Vec<DirEntry>, IoError> {
        let entry = |(name, file): (&String, &File)| {
            let bytes = file.lock().len() as u64;
            DirEntry { name: name.clone(), bytes, allocated_bytes: bytes }
        };
        Ok(self.state.lock().files.iter().map(entry).collect())
    }

    fn space(&self) -> Result<Space, IoError> {
        Ok(Space { free_bytes: 1 << 30, total_bytes: 1 << 31 })
    }
}
