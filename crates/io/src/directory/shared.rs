//! A directory of a mounted file system that hosts share, with one level of folders.
//!
//! 1. A file appears under its name whole and durable, and is never replaced.
//! 2. Every path is resolved from the open directory, and no link is followed.
//! 3. The number of files kept open between reads is bounded.
//! 4. Every call waits as long as the file system does. The caller runs it on a thread that may hang.
//! 5. No feature is required that a network file system may lack: without direct I/O, or without a rename that
//!    refuses existing names, the same calls work another way.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::direct_io::{self, DirectIoTrial};
use super::entries::{
    CONFINED, check_name, is_plain, is_regular, modified, names_in, size, space_of, stat_at,
};
use super::open_files::{OpenFiles, SharedFile};
use super::publish::{Renames, TemporaryFile, create_folder, is_temporary, sync_directory};
use crate::engine::{check_bounds, read, retried};
use crate::{IoError, Memory, Operation, Request, Space};

/// Files that stay open for reads.
const OPEN_FILES: usize = 512;
/// Folders that are known to be durable. A writer uses one.
const DURABLE_FOLDERS: usize = 64;

/// A regular file of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderEntry {
    /// Name in the folder.
    pub name: String,
    /// Size of the file.
    pub bytes: u64,
}

/// A directory of a mounted file system. Names are plain. A folder's or a file's name never begins with a dot: such
/// names are temporary, and no listing shows them.
#[derive(Debug)]
pub struct SharedDirectory {
    path: PathBuf,
    pub(super) directory: OwnedFd,
    /// Alignment of memory that direct I/O requires; `None` without direct I/O.
    direct: Option<usize>,
    open_files: OpenFiles,
    renames: Renames,
    /// Folders whose names this value made durable.
    durable_folders: Mutex<HashSet<String>>,
}

impl SharedDirectory {
    /// Opens an existing directory, and tests its file system for direct I/O.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] with the path.
    pub fn open(path: &Path) -> Result<Self, IoError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(|errno| IoError::os("open", path.display().to_string(), errno))?;
        Ok(Self {
            path: path.to_owned(),
            direct: direct_io::probe(&directory, DirectIoTrial::Write),
            directory,
            open_files: OpenFiles::new(OPEN_FILES),
            renames: Renames::default(),
            durable_folders: Mutex::default(),
        })
    }

    /// The alignment of memory that direct I/O requires; `None` without direct I/O. Other memory works, more slowly.
    #[must_use]
    pub fn direct(&self) -> Option<usize> {
        self.direct
    }

    /// Writes a new file, and creates the folder if needed. Both are durable afterwards. After an error the name does
    /// not exist, unless the file system cannot be reached to remove it.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`]: with `EEXIST` if the name exists. [`IoError::Short`] if not all bytes were written.
    pub fn publish(&self, folder: &str, name: &str, memory: &[Memory]) -> Result<(), IoError> {
        let label = path_of(folder, name);
        let directory = self.folder_for_files(folder)?;
        let mut file = TemporaryFile::create(&directory, name, self.is_aligned(memory))?;
        file.write(memory, &label)?;
        file.rename(name, &label, &self.renames)
    }

    /// Reads a whole file of at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`]: with `ENOENT` if there is no such file, with `EFBIG` if it is larger.
    pub fn read_whole(&self, folder: &str, name: &str, limit: u64) -> Result<Vec<u8>, IoError> {
        let label = path_of(folder, name);
        let (file, bytes) = self.open_file(folder, name, OFlags::empty())?;
        let expected = usize::try_from(bytes).ok().filter(|_| bytes <= limit);
        let Some(expected) = expected else { return Err(IoError::too_large("read", label)) };
        let mut buffer = vec![0; expected];
        let mut got = 0;
        while got < expected {
            match retried(|| rustix::io::pread(&file, &mut buffer[got..], got as u64)) {
                Ok(0) => {
                    let (expected, got) = (bytes, got as u64);
                    return Err(IoError::Short { operation: "read", file: label, expected, got });
                }
                Ok(count) => got += count,
                Err(errno) => return Err(IoError::os("read", label, errno)),
            }
        }
        Ok(buffer)
    }

    /// Asserts what [`Self::serve`] requires of a request.
    ///
    /// # Panics
    ///
    /// If the request is not a read, fails [`Request::check`], or has more than 1024 pieces or 1 GiB.
    pub fn check(request: &Request) {
        check_bounds(request);
        assert_eq!(request.operation, Operation::Read, "a file here is written once");
    }

    /// Carries out a request, and completes it exactly once. Keeps the file open for later requests. Neither the
    /// request's file nor its deadline matters here.
    ///
    /// # Panics
    ///
    /// As [`Self::check`].
    pub fn serve(&self, folder: &str, name: &str, mut request: Request) {
        Self::check(&request);
        let label = path_of(folder, name);
        let served = catch_unwind(AssertUnwindSafe(|| {
            self.read_request(folder, name, &label, &mut request)
        }));
        let result = served.unwrap_or_else(|_| Err(IoError::panicked("read", &label)));
        if result.is_err() {
            // The next request opens the file again: this one may be gone, or its server was restarted.
            self.open_files.close(&label);
        }
        request.complete(result);
    }

    /// Closes a file that earlier reads kept open.
    pub fn close(&self, folder: &str, name: &str) {
        self.open_files.close(&path_of(folder, name));
    }

    /// Removes a file. Not an error if there is none. The removal is not synced: after a crash the file may be back.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] with the name.
    pub fn remove(&self, folder: &str, name: &str) -> Result<(), IoError> {
        let label = path_of(folder, name);
        // Some file systems keep a removed file as long as this host has it open.
        self.open_files.close(&label);
        let removed = self
            .folder(folder)
            .and_then(|directory| rustix::fs::unlinkat(directory, name, AtFlags::empty()));
        match removed {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(IoError::os("remove", label, errno)),
        }
    }

    /// Removes a folder that has no files, together with temporary files that a crash left there. Not an error if there
    /// is no such folder, or if it has files. The folder's writer must not publish meanwhile: that may fail then.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] with the name.
    pub fn remove_folder(&self, folder: &str) -> Result<(), IoError> {
        check_visible(folder);
        self.durable_folders.lock().remove(folder);
        let remove = || rustix::fs::unlinkat(&self.directory, folder, AtFlags::REMOVEDIR);
        let removed = match remove() {
            Err(Errno::NOTEMPTY | Errno::EXIST) => match self.remove_left_behind(folder) {
                Ok(()) => remove(),
                Err(errno) => Err(errno),
            },
            removed => removed,
        };
        match removed {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(errno) => Err(IoError::os("remove", folder, errno)),
        }
    }

    /// Lists the folders, sorted.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] with the path.
    pub fn folders(&self) -> Result<Vec<String>, IoError> {
        let failed = |errno| IoError::os("list", self.path.display().to_string(), errno);
        let mut folders = Vec::new();
        for (name, kind) in names_in(&self.directory).map_err(failed)? {
            let is_folder = match kind {
                FileType::Unknown => stat_at(&self.directory, &name)
                    .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir()),
                kind => kind.is_dir(),
            };
            if is_folder && is_visible(&name) {
                folders.push(name);
            }
        }
        folders.sort_unstable();
        Ok(folders)
    }

    /// Lists the regular files of a folder whose names are `wanted`, sorted by name. Only their metadata is read. A
    /// name whose metadata cannot be read has no bytes: reading it shows the error.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`]: with `ENOENT` if there is no such folder.
    pub fn entries(
        &self,
        folder: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<FolderEntry>, IoError> {
        let failed = |errno| IoError::os("list", folder, errno);
        let directory = self.folder(folder).map_err(failed)?;
        let mut entries = Vec::new();
        for (name, _) in names_in(&directory).map_err(failed)? {
            if !is_visible(&name) || !wanted(&name) {
                continue;
            }
            let bytes = match stat_at(&directory, &name) {
                Ok(stat) if is_regular(&stat) => size(&stat),
                // Not a file, or removed since it was listed.
                Ok(_) | Err(Errno::NOENT | Errno::STALE) => continue,
                Err(errno @ (Errno::ACCESS | Errno::PERM)) => return Err(failed(errno)),
                Err(_) => 0,
            };
            entries.push(FolderEntry { name, bytes });
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// The time since a file was written. A new temporary file has the file system's present time, so clocks of hosts
    /// matter only where the file system uses them.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`]: with `ENOENT` if there is no such file.
    pub fn age(&self, folder: &str, name: &str) -> Result<Duration, IoError> {
        let label = path_of(folder, name);
        let written = self
            .folder(folder)
            .and_then(|directory| stat_at(directory, name))
            .map_err(|errno| IoError::os("stat", label, errno))?;
        Ok(self.now()?.saturating_sub(modified(&written)))
    }

    /// The time since a file appeared in a folder or was removed from it, where the file system notes that, or since
    /// the folder was created. The clock is that of [`Self::age`].
    ///
    /// # Errors
    ///
    /// [`IoError::Os`]: with `ENOENT` if there is no such folder.
    pub fn folder_age(&self, folder: &str) -> Result<Duration, IoError> {
        check_visible(folder);
        let changed =
            stat_at(&self.directory, folder).map_err(|errno| IoError::os("stat", folder, errno))?;
        Ok(self.now()?.saturating_sub(modified(&changed)))
    }

    /// When a file last appeared in a folder or was removed from it, since 1970; zero if there is no such folder. The
    /// clock is that of [`Self::age`].
    ///
    /// # Errors
    ///
    /// [`IoError::Os`].
    pub fn folder_changed(&self, folder: &str) -> Result<Duration, IoError> {
        check_visible(folder);
        match stat_at(&self.directory, folder) {
            Ok(changed) => Ok(modified(&changed)),
            Err(Errno::NOENT) => Ok(Duration::ZERO),
            Err(errno) => Err(IoError::os("stat", folder, errno)),
        }
    }

    /// The present time of the file system, since 1970. The clock is that of [`Self::age`].
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if no file can be created.
    pub fn now(&self) -> Result<Duration, IoError> {
        let temporary = TemporaryFile::create(&self.directory, "now", false)?;
        let now = rustix::fs::fstat(temporary.descriptor())
            .map_err(|errno| IoError::os("stat", "a temporary file", errno))?;
        Ok(modified(&now))
    }

    /// Space of the file system.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] with the path.
    pub fn space(&self) -> Result<Space, IoError> {
        space_of(&self.directory)
            .map_err(|errno| IoError::os("statvfs", self.path.display().to_string(), errno))
    }

    /// An existing folder, as the start of a path.
    fn folder(&self, folder: &str) -> Result<OwnedFd, Errno> {
        self.open_folder(folder, OFlags::PATH)
    }

    fn open_folder(&self, folder: &str, access: OFlags) -> Result<OwnedFd, Errno> {
        check_visible(folder);
        let flags = access | OFlags::DIRECTORY | CONFINED;
        rustix::fs::openat(&self.directory, folder, flags, Mode::empty())
    }

    /// A folder for new files, which exists durably.
    fn folder_for_files(&self, folder: &str) -> Result<OwnedFd, IoError> {
        let failed =
            |operation: &'static str| move |errno: Errno| IoError::os(operation, folder, errno);
        let is_durable = self.durable_folders.lock().contains(folder);
        if is_durable {
            match self.open_folder(folder, OFlags::RDONLY) {
                // Removed, perhaps by another host.
                Err(Errno::NOENT) => {}
                opened => return opened.map_err(failed("open")),
            }
        }
        check_visible(folder);
        create_folder(&self.directory, folder).map_err(failed("create"))?;
        sync_directory(&self.directory).map_err(failed("sync"))?;
        let opened = self.open_folder(folder, OFlags::RDONLY).map_err(failed("open"))?;
        let mut durable = self.durable_folders.lock();
        if durable.len() >= DURABLE_FOLDERS {
            durable.clear();
        }
        durable.insert(folder.to_owned());
        Ok(opened)
    }

    /// Opens a regular file for reading. Returns its size, too.
    fn open_file(
        &self,
        folder: &str,
        name: &str,
        flags: OFlags,
    ) -> Result<(OwnedFd, u64), IoError> {
        let failed = |errno| IoError::os("open", path_of(folder, name), errno);
        let directory = self.folder(folder).map_err(failed)?;
        // Looked up before it is opened, because opening a pipe would wait forever.
        let stat = stat_at(&directory, name).map_err(failed)?;
        if !is_regular(&stat) {
            return Err(failed(Errno::INVAL));
        }
        let flags = OFlags::RDONLY | CONFINED | flags;
        let file = rustix::fs::openat(&directory, name, flags, Mode::empty()).map_err(failed)?;
        Ok((file, size(&stat)))
    }

    /// Opens a file and keeps it open.
    fn keep_open(
        &self,
        folder: &str,
        name: &str,
        direct: bool,
    ) -> Result<Arc<SharedFile>, IoError> {
        let open = |flags| self.open_file(folder, name, flags);
        let file = match direct.then(|| open(OFlags::DIRECT)) {
            Some(Ok((descriptor, _))) => SharedFile { descriptor, direct: true },
            Some(Err(error)) if !error.is_invalid() => return Err(error),
            // No direct I/O, or none for this file.
            _ => SharedFile { descriptor: open(OFlags::empty())?.0, direct: false },
        };
        let file = Arc::new(file);
        self.open_files.insert(&path_of(folder, name), Arc::clone(&file));
        Ok(file)
    }

    fn read_request(
        &self,
        folder: &str,
        name: &str,
        label: &str,
        request: &mut Request,
    ) -> Result<(), IoError> {
        let file = match self.open_files.get(label) {
            Some(file) => file,
            None => self.keep_open(folder, name, self.is_aligned(&request.memory))?,
        };
        let got = match read(request, file.descriptor.as_fd()) {
            // Memory that is not aligned, or direct I/O that the file system announced but refuses.
            Err(Errno::INVAL) if file.direct => {
                let buffered = self.keep_open(folder, name, false)?;
                read(request, buffered.descriptor.as_fd())
            }
            got => got,
        };
        let got = got.map_err(|errno| IoError::os("read", label, errno))?;
        let expected = request.bytes();
        if got == expected {
            return Ok(());
        }
        Err(IoError::Short { operation: "read", file: label.to_owned(), expected, got })
    }

    /// Whether this memory can be read or written with direct I/O.
    fn is_aligned(&self, memory: &[Memory]) -> bool {
        self.direct.is_some_and(|align| memory.iter().all(|piece| piece.is_aligned(align)))
    }

    /// Removes the temporary files of a folder if it has nothing else.
    fn remove_left_behind(&self, folder: &str) -> Result<(), Errno> {
        let directory = self.folder(folder)?;
        let names = names_in(&directory)?;
        if names.iter().all(|(name, _)| is_temporary(name)) {
            for (name, _) in names {
                rustix::fs::unlinkat(&directory, name, AtFlags::empty())?;
            }
        }
        Ok(())
    }
}

/// A file's name for errors and for the table of open files.
fn path_of(folder: &str, name: &str) -> String {
    check_visible(folder);
    check_visible(name);
    format!("{folder}/{name}")
}

fn check_visible(name: &str) {
    check_name(name);
    assert!(is_visible(name), "{name:?} is hidden");
}

/// Whether a name is one that this code gives to a folder or to a complete file.
fn is_visible(name: &str) -> bool {
    is_plain(name) && !name.starts_with('.')
}
