//! Real files in one flat directory.
//!
//! 1. Files are opened relative to the open directory, never by its path. Renaming a parent changes nothing.
//! 2. A file's descriptor lives until it is closed and its last request has completed.
//! 3. If a file cannot be created completely, it is removed.
//! 4. Nothing is written through a directory that was opened read-only.

use std::collections::HashMap;
use std::fs::DirBuilder;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{Clock, EngineChoice};
use parking_lot::RwLock;
use rustix::fs::{Advice, AtFlags, CWD, Dir, FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::direct_io::{self, DirectIoTrial};
use super::entries::{
    CONFINED, OWNER_ONLY, check_name, is_plain, is_regular, size, space_of, stat_at,
};
use crate::engine::{self, Engine, OpenFile, Setup, check_bounds};
use crate::{
    BufferPool, CallRing, Device, DirEntry, FileId, Geometry, IoError, OpenMode, Opened, Request,
    Source, Space,
};

/// Most requests the device works on at a time. More would only lengthen queues.
const MAX_DEPTH: u32 = 128;
/// The unit of `Stat::st_blocks`, on every file system.
const STAT_BLOCK_BYTES: u64 = 512;

/// How to open a [`LocalDirectory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryOptions {
    /// Which engine executes the requests.
    pub engine: EngineChoice,
    /// Requests the device works on at a time, 1 to 128. `psync` uses that many threads, at most 16. A quarter of them
    /// is reserved for reads, and a quarter for writes and syncs.
    pub depth: u32,
    /// Requests of each direction that are accepted but not completed. More are refused as busy.
    pub queue: usize,
    /// Bypasses the page cache where the file system allows it.
    pub direct: bool,
    /// Refuses every change of a file or the directory, for offline tools.
    pub read_only: bool,
}

impl Default for DirectoryOptions {
    fn default() -> Self {
        Self { engine: EngineChoice::Auto, depth: 64, queue: 1024, direct: true, read_only: false }
    }
}

/// A directory of the local file system as a [`Device`].
#[derive(Debug)]
pub struct LocalDirectory {
    path: PathBuf,
    directory: OwnedFd,
    read_only: bool,
    /// Alignment of memory that direct I/O requires; `None` without direct I/O.
    direct: Option<usize>,
    files: RwLock<HashMap<FileId, Arc<OpenFile>>>,
    next_file: AtomicU64,
    engine: Box<dyn Engine>,
}

impl LocalDirectory {
    /// Opens an existing directory, tests its file system for direct I/O, and starts an engine.
    ///
    /// `pool` is registered with `io_uring` if the limits allow it, and lives as long as the directory.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the directory cannot be opened or the engine cannot be started.
    ///
    /// # Panics
    ///
    /// If the options' depth or queue are out of range.
    pub fn open(
        path: &Path,
        options: DirectoryOptions,
        pool: &BufferPool,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, IoError> {
        assert!(
            (1..=MAX_DEPTH).contains(&options.depth),
            "depth {} is out of range",
            options.depth
        );
        assert!(options.queue > 0, "the queue has no space");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(|e| IoError::os("open", path.display().to_string(), e))?;
        let setup = Setup { depth: options.depth, queue: options.queue, pool: pool.clone(), clock };
        let mut opened = Self {
            path: path.to_owned(),
            directory,
            read_only: options.read_only,
            direct: None,
            files: RwLock::default(),
            next_file: AtomicU64::new(1),
            engine: engine::start(options.engine, &setup)?,
        };
        if options.direct {
            opened.direct = opened.probe_direct()?;
        }
        Ok(opened)
    }

    /// Creates a directory and its missing parents for their owner only (mode 0700), and makes their names durable.
    /// Leaves an existing directory as it is.
    ///
    /// Returns the directories that it created, the deepest one first, for [`Self::remove_created`].
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] with the path.
    #[expect(clippy::disallowed_methods, reason = "this crate touches files")]
    pub fn create_dir(path: &Path) -> Result<Vec<PathBuf>, IoError> {
        let missing: Vec<&Path> = path.ancestors().take_while(|p| !p.is_dir()).collect();
        let failed = |error| IoError::Os {
            operation: "create",
            file: path.display().to_string(),
            source: error,
        };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        for parent in missing.iter().filter_map(|made| made.parent()) {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(CWD, parent, flags, Mode::empty())
                .and_then(rustix::fs::fsync)
                .map_err(|errno| failed(errno.into()))?;
        }
        Ok(missing.into_iter().map(Path::to_path_buf).collect())
    }

    /// Removes what [`Self::create_dir`] created, as far as it is empty. Never fails: an empty directory does no harm.
    pub fn remove_created(created: &[PathBuf]) {
        for path in created {
            if rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR).is_err() {
                return;
            }
        }
    }

    fn probe_direct(&self) -> Result<Option<usize>, IoError> {
        if !self.read_only {
            return Ok(direct_io::probe(&self.directory, DirectIoTrial::Write));
        }
        // Without a file there is nothing to try and nothing to read.
        let files = self.list()?;
        let trial = files.first().map(|file| DirectIoTrial::Read(&file.name));
        Ok(trial.and_then(|trial| direct_io::probe(&self.directory, trial)))
    }

    fn refuse_changes(&self, operation: &'static str, name: &str) -> Result<(), IoError> {
        if self.read_only { Err(IoError::os(operation, name, Errno::ROFS)) } else { Ok(()) }
    }

    fn open_file(&self, name: &str, mode: OpenMode, flags: OFlags) -> Result<Opened, IoError> {
        check_name(name);
        let (descriptor, bytes) = match mode {
            OpenMode::Read => self.open_existing(name, OFlags::RDONLY | flags)?,
            OpenMode::ReadWrite => {
                self.refuse_changes("open", name)?;
                self.open_existing(name, OFlags::RDWR | flags)?
            }
            OpenMode::Create { bytes } => {
                self.refuse_changes("create", name)?;
                (self.create(name, bytes, flags)?, bytes)
            }
        };
        let file = FileId(self.next_file.fetch_add(1, Ordering::Relaxed));
        let opened = OpenFile { descriptor, name: name.to_owned() };
        self.files.write().insert(file, Arc::new(opened));
        Ok(Opened { file, bytes })
    }

    fn open_existing(&self, name: &str, access: OFlags) -> Result<(OwnedFd, u64), IoError> {
        let failed = |errno| IoError::os("open", name, errno);
        let stat = stat_at(&self.directory, name).map_err(failed)?;
        if !is_regular(&stat) {
            // Checked before opening, because opening a pipe would wait forever.
            return Err(failed(Errno::INVAL));
        }
        let file =
            rustix::fs::openat(&self.directory, name, access, Mode::empty()).map_err(failed)?;
        Ok((file, size(&stat)))
    }

    fn create(&self, name: &str, bytes: u64, flags: OFlags) -> Result<OwnedFd, IoError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | flags;
        let file = rustix::fs::openat(&self.directory, name, flags, OWNER_ONLY)
            .map_err(|errno| IoError::os("create", name, errno))?;
        let made = allocate(&file, name, bytes).and_then(|()| {
            rustix::fs::fsync(&file).map_err(|errno| IoError::os("sync", name, errno))
        });
        if let Err(error) = made {
            // Report the first error, not that of the removal.
            let _ = rustix::fs::unlinkat(&self.directory, name, AtFlags::empty());
            return Err(error);
        }
        Ok(file)
    }

    /// The entry of a regular file.
    fn entry(&self, name: &str) -> Result<Option<DirEntry>, IoError> {
        match stat_at(&self.directory, name) {
            Ok(stat) if is_regular(&stat) => {
                let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
                let allocated_bytes = blocks.saturating_mul(STAT_BLOCK_BYTES);
                Ok(Some(DirEntry { name: name.to_owned(), bytes: size(&stat), allocated_bytes }))
            }
            // Not a file, or removed since it was listed.
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(IoError::os("stat", name, errno)),
        }
    }

    fn opened(&self, file: FileId) -> Result<Arc<OpenFile>, IoError> {
        let known = self.files.read().get(&file).map(Arc::clone);
        known.ok_or_else(|| IoError::os("read", format!("closed file {}", file.0), Errno::BADF))
    }

    fn path(&self) -> String {
        self.path.display().to_string()
    }
}

impl Source for LocalDirectory {
    /// See [`Device::submit`].
    ///
    /// # Panics
    ///
    /// If a request fails [`Request::check`], has more than 1024 pieces or more than 1 GiB. Nothing is submitted then.
    fn submit(&self, requests: Vec<Request>) {
        requests.iter().for_each(check_bounds);
        let mut known = Vec::with_capacity(requests.len());
        let mut unknown = Vec::new();
        let files = self.files.read();
        for request in requests {
            match files.get(&request.file) {
                Some(file) => known.push((request, Arc::clone(file))),
                None => unknown.push(request),
            }
        }
        drop(files);
        self.engine.submit(known);
        for request in unknown {
            let name = format!("closed file {}", request.file.0);
            let error = IoError::os(request.operation.name(), name, Errno::BADF);
            request.complete(Err(error));
        }
    }

    fn call_ring(&self) -> Option<CallRing> {
        self.engine.call_ring()
    }

    fn submit_on(&self, ring: &mut CallRing, request: Request) {
        check_bounds(&request);
        let file = self.files.read().get(&request.file).map(Arc::clone);
        let Some(file) = file else { return self.submit(vec![request]) };
        if let Some(for_the_queue) = ring.submit(request, file) {
            self.engine.submit(vec![for_the_queue]);
        }
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            memory_align: self.direct.unwrap_or(1),
            engine: self.engine.name(),
            direct: self.direct.is_some(),
            places: self.engine.places(),
        }
    }
}

impl Device for LocalDirectory {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        if self.direct.is_some() {
            return self.open_file(name, mode, CONFINED | OFlags::DIRECT);
        }
        let opened = self.open_file(name, mode, CONFINED)?;
        if !matches!(mode, OpenMode::Create { .. }) {
            // After a failed sync the page cache still has the unwritten bytes, marked clean. A new open must see what
            // the disk has. This is best effort: some file systems have only the cache.
            let file = self.opened(opened.file)?;
            let _ = rustix::fs::fadvise(&file.descriptor, 0, None, Advice::DontNeed);
        }
        Ok(opened)
    }

    fn open_cached(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        self.open_file(name, mode, CONFINED)
    }

    fn read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        let opened = self.opened(file)?;
        let mut done = 0;
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            match rustix::io::pread(&opened.descriptor, rest, offset + done as u64) {
                Ok(0) => {
                    let (operation, file) = ("read", opened.name.clone());
                    let (expected, got) = (buffer.len() as u64, done as u64);
                    return Err(IoError::Short { operation, file, expected, got });
                }
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(IoError::os("read", &opened.name, errno)),
            }
        }
        Ok(())
    }

    fn try_read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<bool, IoError> {
        let opened = self.opened(file)?;
        let wanted = buffer.len();
        let mut parts = [IoSliceMut::new(buffer)];
        match rustix::io::preadv2(&opened.descriptor, &mut parts, offset, ReadWriteFlags::NOWAIT) {
            Ok(count) => Ok(count == wanted),
            // Not in the page cache, or on a file system that cannot say, such as those over a network.
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR) => Ok(false),
            Err(errno) => Err(IoError::os("read", &opened.name, errno)),
        }
    }

    fn close(&self, file: FileId) {
        // Closed outside of the lock: the last close of a removed file frees its blocks, which takes time.
        let closed = self.files.write().remove(&file);
        drop(closed);
    }

    fn remove(&self, name: &str) -> Result<(), IoError> {
        check_name(name);
        self.refuse_changes("remove", name)?;
        rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())
            .map_err(|errno| IoError::os("remove", name, errno))
    }

    fn sync_names(&self) -> Result<(), IoError> {
        if self.read_only {
            return Ok(());
        }
        rustix::fs::fsync(&self.directory).map_err(|errno| IoError::os("sync", self.path(), errno))
    }

    /// Lists regular files. Skips others, and names that [`Device::open`] would not accept.
    fn list(&self) -> Result<Vec<DirEntry>, IoError> {
        let failed = |errno| IoError::os("list", self.path(), errno);
        let mut entries = Vec::new();
        for found in Dir::read_from(&self.directory).map_err(failed)? {
            let found = found.map_err(failed)?;
            if let Some(name) = found.file_name().to_str().ok().filter(|name| is_plain(name)) {
                entries.extend(self.entry(name)?);
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn space(&self) -> Result<Space, IoError> {
        space_of(&self.directory).map_err(|errno| IoError::os("statvfs", self.path(), errno))
    }
}

/// Allocates the blocks of a new file, so that no later write of it runs out of space.
fn allocate(file: &OwnedFd, name: &str, bytes: u64) -> Result<(), IoError> {
    if bytes == 0 {
        return Ok(());
    }
    let allocated = rustix::io::retry_on_intr(|| {
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes)
    });
    match allocated {
        Ok(()) => Ok(()),
        // The file system, the kernel or a sandbox does not have the call.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            tracing::warn!(
                file = name,
                "the file system cannot allocate in advance; later writes may run out of space"
            );
            rustix::fs::ftruncate(file, bytes).map_err(|errno| IoError::os("truncate", name, errno))
        }
        Err(errno) => Err(IoError::os("allocate", name, errno)),
    }
}
