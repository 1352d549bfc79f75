//! The folder below the mount, and operations on it.

#![expect(clippy::disallowed_methods, reason = "simulates the system outside of the store")]

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{Errno, FileAttr, OpenAccMode, OpenFlags};

use crate::faults::Faults;
use crate::nodes::{Entry, Handle, Nodes, attributes, kind};

/// The folder with its numbers and its rules.
pub(crate) struct Folder {
    pub(crate) faults: Arc<Faults>,
    pub(crate) root: PathBuf,
    nodes: Mutex<Nodes>,
}

impl Folder {
    pub(crate) fn new(root: &Path, faults: Arc<Faults>) -> Self {
        let nodes = Mutex::new(Nodes::new(root));
        Self { faults, root: root.to_owned(), nodes }
    }

    pub(crate) fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn entry(&self, path: &Path) -> io::Result<FileAttr> {
        let outcome = path.symlink_metadata()?;
        Ok(attributes(self.nodes().number(path), &outcome))
    }

    /// The attributes of an open file, of a path, or of a file that is open although its name is gone.
    pub(crate) fn attributes(&self, node: u64, handle: Option<u64>) -> Result<FileAttr, Errno> {
        let nodes = self.nodes();
        let open = handle.and_then(|handle| nodes.handle(handle).ok());
        if let Some(open) = open.or_else(|| nodes.handle_of(node)) {
            return Ok(attributes(node, &open.file.metadata()?));
        }
        Ok(attributes(node, &nodes.path(node)?.symlink_metadata()?))
    }

    pub(crate) fn list(&self, path: &Path) -> Result<u64, Errno> {
        let mut entries: Vec<Entry> = Vec::new();
        for found in path.read_dir()? {
            let found = found?;
            let node = self.nodes().number(&found.path());
            entries.push((node, kind(found.file_type()?), found.file_name()));
        }
        Ok(self.nodes().keep_listing(entries))
    }

    pub(crate) fn open(&self, path: &Path, flags: OpenFlags) -> Result<u64, Errno> {
        let (read, write) = match flags.acc_mode() {
            OpenAccMode::O_RDONLY => (true, false),
            OpenAccMode::O_WRONLY => (false, true),
            OpenAccMode::O_RDWR => (true, true),
        };
        let file = OpenOptions::new().read(read).write(write).open(path)?;
        Ok(self.nodes().open(file, path))
    }

    pub(crate) fn create(
        &self,
        path: &Path,
        mode: u32,
        is_new: bool,
    ) -> Result<(FileAttr, u64), Errno> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).create_new(is_new).mode(mode);
        let file = options.open(path)?;
        let outcome = file.metadata()?;
        let mut nodes = self.nodes();
        let handle = nodes.open(file, path);
        Ok((attributes(nodes.number(path), &outcome), handle))
    }

    pub(crate) fn truncate(&self, node: u64, handle: Option<u64>, size: u64) -> Result<(), Errno> {
        let open = handle.and_then(|handle| self.nodes().handle(handle).ok());
        if let Some(open) = open {
            open.file.set_len(size)?;
        } else {
            let path = self.nodes().path(node)?;
            OpenOptions::new().write(true).open(path)?.set_len(size)?;
        }
        Ok(())
    }
}

/// Reads until the file ends or the buffer is full.
pub(crate) fn read(handle: &Handle, offset: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
    let mut out = vec![0; bytes];
    let mut done = 0;
    while done < bytes {
        match handle.file.read_at(&mut out[done..], offset + done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    out.truncate(done);
    Ok(out)
}
