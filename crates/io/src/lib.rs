//! The only crate that touches files: memory that a device may read and write, the [`Device`] trait, and its two
//! engines. It also starts all threads: those of lanes of jobs, and those of work that repeats.
//!
//! 1. Memory belongs to exactly one side at a time: the caller, or the device between submit and completion.
//! 2. Every completion has its byte count checked. A short transfer is an error, never a success.
//! 3. Every request gets exactly one completion, even when it is refused, is late, or the device is closed.

mod call;
mod channel;
mod clock;
mod cpu_copier;
mod device;
mod directory;
mod engine;
mod error;
mod file_limit;
mod jobs;
mod line_queue;
mod memory;
mod process;
mod random;
mod request;
mod threads;

pub use call::{CANCEL_POLL, Call, Cancel};
pub use channel::{BindError, Channel, ChannelError, Frame, Listener, Occupant, Peer, PeerName};
pub use clock::SystemClock;
pub use cpu_copier::CpuCopier;
pub use device::{Device, DirEntry, Geometry, OpenMode, Opened, Source, Space};
pub use directory::{
    DirectoryLock, DirectoryNames, DirectoryOptions, DirectoryPlace, FolderEntry, LocalDirectory,
    LockError, MountId, SharedDirectory, dangling_link, is_within, mount_below, nearest_with_file,
    read_file,
};
pub use engine::CallRing;
pub use error::IoError;
pub use file_limit::allow_open_files;
pub use jobs::{Duty, Executor, JobLane, JobPlace, NextStep, Periodic};
pub use line_queue::{LineQueue, flush_lines};
pub use memory::{
    Access, Backing, BufferPool, Claim, Copier, CopyBatch, CopyDone, CopyMark, CopySource,
    Counters, DevicePiece, DeviceSlice, Filled, Lender, Mapping, MappingKeeper, Memory,
    PageAllocator, PageBuffer, PagePart, PageShape, PageSlice, PageVec, PagedBlocks, PagedMemory,
    Region, RegionId, RegionRange, SealedFile, SliceCopy, StreamPoint, Touch, copy_all,
    copy_pieces, lend,
};
pub use process::{Process, StopSignal, forked_amid_threads};
pub use random::random_bytes;
pub use request::{Completion, DueTimes, FileId, Operation, Purpose, Request, Watch};
pub use threads::{Workers, share_work, spawn};
