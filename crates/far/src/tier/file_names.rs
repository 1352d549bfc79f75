//! Names for requests: which object a [`FileId`] of a tier is.
//!
//! 1. An id is given once. After it was forgotten, no other object has it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_io::{FileId, IoError};
use parking_lot::RwLock;

use crate::names::ObjectName;

/// The ids that a tier gave and that are still valid.
#[derive(Debug)]
pub struct FileNames {
    names: RwLock<HashMap<FileId, ObjectName>>,
    next: AtomicU64,
}

impl Default for FileNames {
    fn default() -> Self {
        Self { names: RwLock::default(), next: AtomicU64::new(1) }
    }
}

impl FileNames {
    /// Gives an object an id.
    pub fn add(&self, name: ObjectName) -> FileId {
        let file = FileId(self.next.fetch_add(1, Ordering::Relaxed));
        self.names.write().insert(file, name);
        file
    }

    /// Makes an id invalid. Returns its object.
    pub fn forget(&self, file: FileId) -> Option<ObjectName> {
        self.names.write().remove(&file)
    }

    /// The object of an id; `EBADF` if the id is not valid.
    pub fn get(&self, file: FileId) -> Result<ObjectName, IoError> {
        let name = self.names.read().get(&file).copied();
        name.ok_or_else(|| IoError::not_open("read", format!("forgotten file {}", file.0)))
    }
}
