//! The file system: it checks every operation against the rules, then executes it on the folder below.
//!
//! 1. Nothing is cached: every request of the store arrives here, in its own size.
//! 2. A held operation waits on its own thread, so that the others continue. The kernel bounds their number.

#![expect(clippy::disallowed_methods, reason = "simulates the system outside of the store")]

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use rustix::fs::FallocateFlags;

use crate::faults::{Effect, Faults};
use crate::folder::{Folder, read};
use crate::nodes::{Handle, name_of};

/// How long the kernel may cache an answer.
const NO_TIME: Duration = Duration::ZERO;
/// Most bytes of one request, and of requests that the kernel may send ahead.
const REQUEST_BYTES: u32 = 1 << 20;
const AHEAD: u16 = 128;

/// Every read and write arrives here, even without `O_DIRECT`. Writes of one file do not wait for each other.
const UNCACHED: FopenFlags =
    FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

/// A folder, seen through its faults.
#[derive(Clone)]
pub(crate) struct Faulty(Arc<Folder>);

impl Faulty {
    pub(crate) fn new(root: &Path, faults: Arc<Faults>) -> Self {
        Self(Arc::new(Folder::new(root, faults)))
    }

    /// Executes an operation once its rule permits it. `act` gets the most bytes that it may move, or its error.
    fn when(
        &self,
        operation: &'static str,
        name: &str,
        span: &Range<u64>,
        act: impl FnOnce(&Folder, Result<u32, Errno>) + Send + 'static,
    ) {
        let effect = self.0.faults.meet(operation, name, span);
        if !effect.holds() {
            return act(&self.0, verdict(&effect));
        }
        let shared = Arc::clone(&self.0);
        std::thread::spawn(move || {
            shared.faults.hold(&effect);
            act(&shared, verdict(&effect));
        });
    }

    /// Like [`Faulty::when`], for an operation on the path of a name.
    fn when_named(
        &self,
        operation: &'static str,
        parent: INodeNo,
        name: &OsStr,
        act: impl FnOnce(&Folder, Result<PathBuf, Errno>) + Send + 'static,
    ) {
        let path = self.0.nodes().child(parent.0, name);
        self.when(operation, &name.to_string_lossy(), &(0..0), move |shared, verdict| {
            act(shared, verdict.and(path));
        });
    }

    /// Like [`Faulty::when`], for an operation on a known node.
    fn when_node(
        &self,
        operation: &'static str,
        node: INodeNo,
        act: impl FnOnce(&Folder, Result<PathBuf, Errno>) + Send + 'static,
    ) {
        let path = self.0.nodes().path(node.0);
        let name = path.as_deref().map(name_of).unwrap_or_default();
        self.when(operation, &name, &(0..0), move |shared, verdict| act(shared, verdict.and(path)));
    }

    /// Like [`Faulty::when`], for an operation on an open file or a span of its bytes.
    fn when_open(
        &self,
        operation: &'static str,
        handle: FileHandle,
        span: &Range<u64>,
        act: impl FnOnce(Result<(&Handle, usize), Errno>) + Send + 'static,
    ) {
        let handle = self.0.nodes().handle(handle.0);
        let name = handle.as_ref().map(|handle| handle.name.clone()).unwrap_or_default();
        self.when(operation, &name, span, move |_, verdict| {
            let most = verdict.map(|most| usize::try_from(most).unwrap_or(0));
            act(most.and_then(|most| Ok((&**handle.as_ref().map_err(|e| *e)?, most))));
        });
    }
}

fn verdict(effect: &Effect) -> Result<u32, Errno> {
    effect.error.map_or(Ok(effect.short.unwrap_or(u32::MAX)), |error| Err(Errno::from_i32(error)))
}

fn answer(reply: ReplyEmpty, done: Result<(), Errno>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Faulty {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // A feature that this kernel does not support stays off.
        let wanted = [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_PARALLEL_DIROPS];
        let _ = wanted.map(|flag| config.add_capabilities(flag));
        let _ = config.set_max_write(REQUEST_BYTES);
        let _ = config.set_max_background(AHEAD);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.when_named("stat", parent, name, move |shared, path| {
            match path.and_then(|path| Ok(shared.entry(&path)?)) {
                Ok(outcome) => reply.entry(&NO_TIME, &outcome, Generation(0)),
                Err(error) => reply.error(error),
            }
        });
    }

    fn getattr(&self, _: &Request, node: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let open = handle.map(|handle| handle.0);
        self.when_node("stat", node, move |shared, path| {
            // A file that is open needs no path.
            let known =
                path.map(drop).or_else(|e| if e == Errno::ENOENT { Ok(()) } else { Err(e) });
            match known.and_then(|()| shared.attributes(node.0, open)) {
                Ok(outcome) => reply.attr(&NO_TIME, &outcome),
                Err(error) => reply.error(error),
            }
        });
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let open = handle.map(|handle| handle.0);
        self.when_node("truncate", node, move |shared, path| {
            let known = path.map(drop).or_else(|e| if open.is_some() { Ok(()) } else { Err(e) });
            let done = known
                .and_then(|()| size.map_or(Ok(()), |size| shared.truncate(node.0, open, size)))
                .and_then(|()| shared.attributes(node.0, open));
            match done {
                Ok(outcome) => reply.attr(&NO_TIME, &outcome),
                Err(error) => reply.error(error),
            }
        });
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.when_named("mkdir", parent, name, move |shared, path| {
            let done = path.and_then(|path| {
                DirBuilder::new().mode(mode & !umask).create(&path)?;
                Ok(shared.entry(&path)?)
            });
            match done {
                Ok(outcome) => reply.entry(&NO_TIME, &outcome, Generation(0)),
                Err(error) => reply.error(error),
            }
        });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.when_named("remove", parent, name, move |shared, path| {
            answer(
                reply,
                path.and_then(|path| {
                    std::fs::remove_file(&path)?;
                    shared.nodes().forget(&path);
                    Ok(())
                }),
            );
        });
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.when_named("remove", parent, name, move |shared, path| {
            answer(
                reply,
                path.and_then(|path| {
                    std::fs::remove_dir(&path)?;
                    shared.nodes().forget(&path);
                    Ok(())
                }),
            );
        });
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let to = self.0.nodes().child(new_parent.0, new_name);
        self.when_named("rename", parent, name, move |shared, path| {
            let done = path.and_then(|from| {
                let to = to?;
                std::fs::rename(&from, &to)?;
                shared.nodes().rename(&from, &to);
                Ok(())
            });
            answer(reply, done);
        });
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.when_node("open", node, move |shared, path| {
            match path.and_then(|path| shared.open(&path, flags)) {
                Ok(handle) => reply.opened(FileHandle(handle), UNCACHED),
                Err(error) => reply.error(error),
            }
        });
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let is_new = flags & rustix::fs::OFlags::EXCL.bits().cast_signed() != 0;
        self.when_named("create", parent, name, move |shared, path| {
            match path.and_then(|path| shared.create(&path, mode & !umask, is_new)) {
                Ok((outcome, handle)) => {
                    reply.created(&NO_TIME, &outcome, Generation(0), FileHandle(handle), UNCACHED);
                }
                Err(error) => reply.error(error),
            }
        });
    }

    fn read(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let size = usize::try_from(size).unwrap_or(0);
        self.when_open("read", handle, &(offset..offset + size as u64), move |open| {
            match open.and_then(|(handle, most)| read(handle, offset, size.min(most))) {
                Ok(bytes) => reply.data(&bytes),
                Err(error) => reply.error(error),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = data.to_vec();
        self.when_open("write", handle, &(offset..offset + data.len() as u64), move |open| {
            let done = open.and_then(|(handle, most)| {
                let written = &data[..data.len().min(most)];
                handle.file.write_all_at(written, offset)?;
                Ok(u32::try_from(written.len()).unwrap_or(0))
            });
            match done {
                Ok(count) => reply.written(count),
                Err(error) => reply.error(error),
            }
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        drop(self.0.nodes().close(handle.0));
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        self.when_open("sync", handle, &(0..0), move |open| {
            answer(reply, open.and_then(|(handle, _)| Ok(handle.file.sync_data()?)));
        });
    }

    fn fallocate(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let flags = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        self.when_open("allocate", handle, &(0..0), move |open| {
            let done = open.and_then(|(handle, _)| {
                let done = rustix::fs::fallocate(&handle.file, flags, offset, length);
                Ok(done.map_err(io::Error::from)?)
            });
            answer(reply, done);
        });
    }

    fn opendir(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.when_node("list", node, move |shared, path| {
            match path.and_then(|path| shared.list(&path)) {
                Ok(listing) => reply.opened(FileHandle(listing), FopenFlags::empty()),
                Err(error) => reply.error(error),
            }
        });
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = match self.0.nodes().listing(handle.0) {
            Ok(entries) => entries,
            Err(error) => return reply.error(error),
        };
        for (at, (node, kind, name)) in (1..).zip(entries.iter()) {
            if at > offset && reply.add(INodeNo(*node), at, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.nodes().drop_listing(handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, node: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.when_node("sync-names", node, move |_, path| {
            answer(reply, path.and_then(|path| Ok(File::open(path)?.sync_all()?)));
        });
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.when("stat", "", &(0..0), move |shared, verdict| {
            let outcome = verdict
                .and_then(|_| Ok(rustix::fs::statvfs(&shared.root).map_err(io::Error::from)?));
            match outcome {
                Ok(outcome) => reply.statfs(
                    outcome.f_blocks,
                    outcome.f_bfree,
                    outcome.f_bavail,
                    outcome.f_files,
                    outcome.f_ffree,
                    u32::try_from(outcome.f_bsize).unwrap_or(4096),
                    255,
                    u32::try_from(outcome.f_frsize).unwrap_or(4096),
                ),
                Err(error) => reply.error(error),
            }
        });
    }
}
