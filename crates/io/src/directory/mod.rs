//! A directory of the local file system: its files, whether they bypass the page cache, and who owns it.

mod direct_io;
mod local;
mod lock;

pub use self::local::{DirectoryOptions, LocalDirectory};
pub use self::lock::{DirectoryLock, LockError};
