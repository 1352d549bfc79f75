//! A look at a directory or a file that may be anything. Nothing is written, and nothing stays open.

use std::fs::File;
use std::io::Read;
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

/// Reads a whole regular file of at most `limit` bytes that a setting names.
///
/// # Errors
///
/// [`IoError::Os`] with the path: with `EFBIG` if it is larger, with `EINVAL` if it is no regular file.
pub fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>, IoError> {
    let label = || path.display().to_string();
    // A pipe without a writer is no reason to wait.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::openat(CWD, path, flags, Mode::empty());
    let opened = opened.map_err(|errno| IoError::os("open", label(), errno))?;
    let stat = rustix::fs::fstat(&opened).map_err(|errno| IoError::os("stat", label(), errno))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(IoError::os("read", label(), Errno::INVAL));
    }
    let mut bytes = Vec::new();
    let read = File::from(opened).take(limit + 1).read_to_end(&mut bytes);
    read.map_err(|source| IoError::Os { operation: "read", file: label(), source })?;
    if bytes.len() as u64 > limit {
        return Err(IoError::too_large("read", label()));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "makes a file to look at")]
    fn a_file_is_read_up_to_its_bound_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        File::create(&path).unwrap().set_len(100).unwrap();
        assert_eq!(read_file(&path, 100).unwrap(), [0; 100]);
        assert!(read_file(&path, 99).is_err());
        assert!(read_file(dir.path(), 100).is_err());
        assert!(read_file(&dir.path().join("none"), 100).unwrap_err().is_not_found());
    }
}
