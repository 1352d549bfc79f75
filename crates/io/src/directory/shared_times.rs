//! Times and ages in a directory that hosts share.
//!
//! 1. The clock is that of the file system. A host's clock counts only where the file system uses it.

use std::time::Duration;

use rustix::io::Errno;

use super::entries::{modified, stat_at};
use super::publish::TemporaryFile;
use super::shared::{SharedDirectory, check_visible, path_of};
use crate::IoError;

impl SharedDirectory {
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
}
