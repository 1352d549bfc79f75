//! A look at a directory that may be anything. Nothing is written, and nothing stays open.

use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::entries::{names_in, stat_at};
use crate::IoError;

/// The names in a directory. Hidden ones, links and other kinds of files are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryNames {
    /// Names of folders.
    pub folders: Vec<String>,
    /// Names of regular files.
    pub files: Vec<String>,
}

impl DirectoryNames {
    /// Reads the names of an existing directory.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] with the path.
    pub fn read(path: &Path) -> Result<Self, IoError> {
        let failed = |errno: Errno| IoError::os("list", path.display().to_string(), errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
        let mut names = Self::default();
        for (name, kind) in names_in(&directory).map_err(failed)? {
            if name.starts_with('.') {
                continue;
            }
            let kind = match kind {
                FileType::Unknown => stat_at(&directory, &name)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            match kind {
                FileType::Directory => names.folders.push(name),
                FileType::RegularFile => names.files.push(name),
                _ => {}
            }
        }
        names.folders.sort_unstable();
        names.files.sort_unstable();
        Ok(names)
    }
}
