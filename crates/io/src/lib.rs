//! The only room that touches files: memory that a device may read and write, the [`Device`] trait, and its two
//! engines.
//!
//! 1. Memory belongs to exactly one side at a time: the caller, or the device between submit and completion.
//! 2. Every completion has its byte count checked; a short transfer is an error, never success.
//! 3. Every request gets exactly one completion, also when it is refused, late or the device is closed.

mod arena;
mod clock;
mod device;
mod direct;
mod directory;
mod engine;
mod error;
mod files;
mod frames;
mod lock;
mod memory;
mod pages;
mod patience;
mod pool;
mod process;
mod random;
mod threads;

pub use clock::SystemClock;
pub use device::{
    Class, Completion, Device, DirEntry, FileId, Geometry, OpenMode, Opened, Operation, Request,
    Space, Watch,
};
pub use directory::{DirectoryOptions, LocalDirectory};
pub use engine::CallRing;
pub use error::IoError;
pub use files::allow_open_files;
pub use frames::{Framed, Frames, Reserved};
pub use lock::{DirectoryLock, LockError};
pub use memory::{Lender, Memory, lend};
pub use pages::{PageBuffer, PageVec, Pages};
pub use patience::{Patience, patiently};
pub use pool::BufferPool;
pub use process::{Process, forked_amid_threads};
pub use random::random_bytes;
pub use threads::{Workers, share_work, spawn};
