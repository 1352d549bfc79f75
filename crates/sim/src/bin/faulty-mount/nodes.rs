//! Numbers of everything that the kernel refers to: names, open files, and listings of open directories.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use fuser::{Errno, FileAttr, FileType, INodeNo};

/// An open file.
pub(crate) struct Handle {
    pub(crate) file: File,
    pub(crate) name: String,
    node: u64,
}

/// An entry of a directory.
pub(crate) type Entry = (u64, FileType, OsString);

/// All assigned numbers.
pub(crate) struct Nodes {
    paths: HashMap<u64, PathBuf>,
    numbers: HashMap<PathBuf, u64>,
    handles: HashMap<u64, Arc<Handle>>,
    listings: HashMap<u64, Arc<Vec<Entry>>>,
    last: u64,
}

impl Nodes {
    pub(crate) fn new(root: &Path) -> Self {
        let number = INodeNo::ROOT.0;
        Self {
            paths: HashMap::from([(number, root.to_owned())]),
            numbers: HashMap::from([(root.to_owned(), number)]),
            handles: HashMap::new(),
            listings: HashMap::new(),
            last: number,
        }
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The number of a path. A new one if it has none.
    pub(crate) fn number(&mut self, path: &Path) -> u64 {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        let number = self.next();
        self.numbers.insert(path.to_owned(), number);
        self.paths.insert(number, path.to_owned());
        number
    }

    pub(crate) fn path(&self, node: u64) -> Result<PathBuf, Errno> {
        self.paths.get(&node).cloned().ok_or(Errno::ENOENT)
    }

    pub(crate) fn child(&self, parent: u64, name: &OsStr) -> Result<PathBuf, Errno> {
        Ok(self.path(parent)?.join(name))
    }

    /// Removes a name. Open files of it stay.
    pub(crate) fn forget(&mut self, path: &Path) {
        if let Some(number) = self.numbers.remove(path) {
            self.paths.remove(&number);
        }
    }

    pub(crate) fn rename(&mut self, from: &Path, to: &Path) {
        self.forget(to);
        let moved: Vec<PathBuf> =
            self.numbers.keys().filter(|path| path.starts_with(from)).cloned().collect();
        for path in moved {
            let Some(number) = self.numbers.remove(&path) else { continue };
            let rest = path.strip_prefix(from).map_or(PathBuf::new(), Path::to_owned);
            let new = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
            self.paths.insert(number, new.clone());
            self.numbers.insert(new, number);
        }
    }

    pub(crate) fn open(&mut self, file: File, path: &Path) -> u64 {
        let node = self.number(path);
        let handle = self.next();
        self.handles.insert(handle, Arc::new(Handle { file, name: name_of(path), node }));
        handle
    }

    pub(crate) fn handle(&self, handle: u64) -> Result<Arc<Handle>, Errno> {
        self.handles.get(&handle).map(Arc::clone).ok_or(Errno::EBADF)
    }

    /// An open file of a node whose name is gone.
    pub(crate) fn handle_of(&self, node: u64) -> Option<Arc<Handle>> {
        self.handles.values().find(|handle| handle.node == node).map(Arc::clone)
    }

    pub(crate) fn close(&mut self, handle: u64) -> Option<Arc<Handle>> {
        self.handles.remove(&handle)
    }

    pub(crate) fn keep_listing(&mut self, entries: Vec<Entry>) -> u64 {
        let number = self.next();
        self.listings.insert(number, Arc::new(entries));
        number
    }

    pub(crate) fn listing(&self, number: u64) -> Result<Arc<Vec<Entry>>, Errno> {
        self.listings.get(&number).map(Arc::clone).ok_or(Errno::EBADF)
    }

    pub(crate) fn drop_listing(&mut self, number: u64) {
        self.listings.remove(&number);
    }
}

/// The part of a path that rules compare: the last one.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

pub(crate) fn kind(kind: std::fs::FileType) -> FileType {
    FileType::from_std(kind).unwrap_or(FileType::RegularFile)
}

pub(crate) fn attributes(node: u64, outcome: &Metadata) -> FileAttr {
    FileAttr {
        ino: INodeNo(node),
        size: outcome.len(),
        blocks: outcome.blocks(),
        atime: outcome.accessed().unwrap_or(UNIX_EPOCH),
        mtime: outcome.modified().unwrap_or(UNIX_EPOCH),
        ctime: outcome.modified().unwrap_or(UNIX_EPOCH),
        crtime: UNIX_EPOCH,
        kind: kind(outcome.file_type()),
        perm: u16::try_from(outcome.permissions().mode() & 0o7777).unwrap_or(0o600),
        nlink: u32::try_from(outcome.nlink()).unwrap_or(1),
        uid: outcome.uid(),
        gid: outcome.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
