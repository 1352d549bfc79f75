//! Directories: local ones, their files and who owns them; and those that hosts share.

mod direct_io;
mod entries;
mod local;
mod lock;
mod look;
mod open_files;
mod place;
mod publish;
mod shared;

pub use self::local::{DirectoryOptions, LocalDirectory};
pub use self::lock::{DirectoryLock, LockError};
pub use self::look::{DirectoryNames, read_file};
pub use self::place::{
    DirectoryPlace, MountId, dangling_link, is_within, mount_below, nearest_with_file,
};
pub use self::shared::{FolderEntry, SharedDirectory};
