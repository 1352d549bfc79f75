//! A directory before it is opened: what it holds, and who owns it.
//!
//! 1. A directory that holds something else than a store is refused; nothing in it is touched.
//! 2. No store is opened in a child that was forked while a store was open.

use std::path::Path;
use std::sync::Arc;

use dalsegno_core::{
    Clock, EngineChoice, Error, ErrorKind, Result, SpaceFacts, may_be_segment_bytes,
};
use dalsegno_extent::format::{STORE_FILE, StoreHeader, namespace_of_file, segment_number};
use dalsegno_io::{
    BufferPool, Device, DirEntry, DirectoryLock, DirectoryOptions, LocalDirectory, LockError,
    SystemClock,
};

use crate::error::unavailable;

const STAGING_BYTES: u64 = 16 << 20;
const REQUEST_BYTES: u64 = 1 << 20;

/// The facts about a directory before it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryFacts {
    /// Whether it holds a store.
    pub(crate) is_store: bool,
    /// Its space, for `Config::validate`.
    pub(crate) space: SpaceFacts,
}

/// Reads a directory; one thread, no lock.
pub(crate) struct DirectoryReader {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) pool: BufferPool,
}

impl DirectoryReader {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        refuse_forked()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let pool = BufferPool::new(STAGING_BYTES, REQUEST_BYTES)
            .map_err(|error| unavailable(path, error))?;
        let options = DirectoryOptions {
            engine: EngineChoice::Psync,
            depth: 4,
            read_only: true,
            ..DirectoryOptions::default()
        };
        let device = LocalDirectory::open(path, options, &pool, Arc::clone(&clock))
            .map_err(|error| unavailable(path, error))?;
        Ok(Self { device: Arc::new(device), clock, pool })
    }

    /// The store's own header, if it can be read.
    pub(crate) fn store_header(&self) -> Option<StoreHeader> {
        let device = Arc::clone(&self.device);
        dalsegno_log::store_header(device, Arc::clone(&self.clock), self.pool.clone()).ok()
    }

    /// Looks at the directory without changing it.
    ///
    /// # Errors
    ///
    /// `Unavailable` if it cannot be read; `Invalid` if it holds something else than a store.
    pub(crate) fn facts(&self, path: &Path) -> Result<DirectoryFacts> {
        let entries = self.device.list().map_err(|error| unavailable(path, error))?;
        let space = self.device.space().map_err(|error| unavailable(path, error))?;
        let segments: Vec<_> =
            entries.iter().filter(|e| segment_number(&e.name).is_some()).collect();
        let is_ours = |name: &str| {
            name == STORE_FILE
                || segment_number(name).is_some()
                || namespace_of_file(name).is_some()
        };
        let is_store = entries.iter().any(|entry| is_ours(&entry.name));
        if let Some(other) = entries.iter().find(|e| e.name != "LOCK").filter(|_| !is_store) {
            return Err(Error::invalid(format!(
                "{} holds {:?} but no Dalsegno store; give an empty or a new directory",
                path.display(),
                other.name
            )));
        }
        Ok(DirectoryFacts {
            is_store,
            space: SpaceFacts {
                free_bytes: space.free_bytes,
                own_bytes: segments.iter().map(|e| e.allocated_bytes).sum(),
                existing_segment_bytes: self.segment_bytes(&segments),
            },
        })
    }

    /// The segment size in the store's header, else the size that most segment files have: a truncated file must not
    /// decide.
    fn segment_bytes(&self, segments: &[&DirEntry]) -> Option<u64> {
        if let Some(header) = self.store_header() {
            return Some(header.segment_bytes);
        }
        let mut sizes: Vec<u64> =
            segments.iter().map(|e| e.bytes).filter(|bytes| may_be_segment_bytes(*bytes)).collect();
        sizes.sort_unstable();
        sizes.get(sizes.len() / 2).copied()
    }
}

/// Locks a store that nobody has open against owners, and reads it.
///
/// # Errors
///
/// `Invalid` if there is none; `Unavailable` if a process has it open.
pub(crate) fn lock_shared(path: &Path) -> Result<(DirectoryReader, DirectoryLock)> {
    let reader = DirectoryReader::open(path)?;
    if !reader.facts(path)?.is_store {
        let message = format!("{} holds no Dalsegno store", path.display());
        return Err(Error::invalid(message));
    }
    let lock = DirectoryLock::acquire_shared(path).map_err(|error| lock_error(path, error))?;
    Ok((reader, lock))
}

/// Refuses to open anything in a child that was forked while a store was open: it could wait forever.
pub(crate) fn refuse_forked() -> Result<()> {
    let Some(parent) = dalsegno_io::forked_amid_threads() else { return Ok(()) };
    let message = format!(
        "process {} had a store open when it forked this one, so none can be opened here: fork before you open a \
         store, or start the child as a new process (with multiprocessing, the start method \"spawn\")",
        parent.id()
    );
    Err(Error::new(ErrorKind::Unavailable, message))
}

pub(crate) fn lock_error(path: &Path, error: LockError) -> Error {
    let message = match &error {
        LockError::Held { owner } => format!(
            "{} is in use by {owner}; one process owns a store, so close it there or use another directory{}",
            path.display(),
            if owner.starts_with(&format!("pid {} ", std::process::id())) {
                // Another container may have the same pid and host name.
                "; that is the pid of this process: it has the store open, or closed it and its I/O is still in \
                 flight, or the owner runs in another container"
            } else {
                ""
            }
        ),
        LockError::ReadOnly => {
            format!(
                "{} is on a read-only file system; mount it writable or use another directory",
                path.display()
            )
        }
        LockError::Os { .. } => format!("{} cannot be locked", path.display()),
    };
    let shown = Error::new(ErrorKind::Unavailable, message);
    if matches!(error, LockError::Os { .. }) { shown.with_source(error) } else { shown }
}
