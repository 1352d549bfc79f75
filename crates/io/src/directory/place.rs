//! Which directory a path leads to, and how two paths are related.
//!
//! 1. Links are followed. A directory is the same one if its device and inode are, whatever its path.
//! 2. Nothing is written, and nothing stays open.

use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use rustix::io::Errno;

use super::SharedDirectory;
use crate::IoError;

/// A directory, and the mount through which a path leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryPlace {
    mount: MountId,
    device: (u32, u32),
    inode: u64,
}

/// A mount: its number, or the device where the kernel has no numbers of mounts (before Linux 5.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountId {
    /// The kernel's number.
    Number(u64),
    /// Major and minor number of the device.
    Device(u32, u32),
}

impl DirectoryPlace {
    /// The directory that a path leads to now.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] with the path: with `ENOENT` if there is none, with `ENOTDIR` if it is no directory.
    pub fn of(path: &Path) -> Result<Self, IoError> {
        let failed = |errno| IoError::os("stat", path.display().to_string(), errno);
        Self::look(CWD, path, AtFlags::empty()).map_err(failed)
    }

    /// Where an open directory is now: the path that it was opened by may lead to another one.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`].
    pub fn of_open(directory: &SharedDirectory) -> Result<Self, IoError> {
        let failed = |errno| IoError::os("stat", "an open directory", errno);
        Self::look(&directory.directory, Path::new(""), AtFlags::EMPTY_PATH).map_err(failed)
    }

    /// The mount that this directory is on.
    #[must_use]
    pub fn mount(&self) -> MountId {
        self.mount
    }

    /// Whether both are one directory, perhaps on two mounts of it.
    #[must_use]
    pub fn is_same_directory(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    fn look(directory: impl AsFd, path: &Path, flags: AtFlags) -> Result<Self, Errno> {
        let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::MNT_ID;
        let stat = match rustix::fs::statx(&directory, path, flags, wanted) {
            // An old kernel, or a container that allows only older calls.
            Err(Errno::NOSYS | Errno::PERM) => {
                let stat = rustix::fs::statat(&directory, path, flags)?;
                let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
                let mount = MountId::Device(device.0, device.1);
                let is_directory = FileType::from_raw_mode(stat.st_mode).is_dir();
                let place = Self { mount, device, inode: stat.st_ino };
                return if is_directory { Ok(place) } else { Err(Errno::NOTDIR) };
            }
            looked => looked?,
        };
        if !FileType::from_raw_mode(stat.stx_mode.into()).is_dir() {
            return Err(Errno::NOTDIR);
        }
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        let has_number = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
        let mount = if has_number {
            MountId::Number(stat.stx_mnt_id)
        } else {
            MountId::Device(device.0, device.1)
        };
        Ok(Self { mount, device, inode: stat.stx_ino })
    }
}

/// The mount on which the mount of an existing directory is mounted; `None` for the root, or if it cannot be found out.
#[must_use]
pub fn mount_below(path: &Path) -> Option<MountId> {
    let path = resolved(path);
    let own = DirectoryPlace::of(&path).ok()?.mount;
    let mounts = path.ancestors().skip(1).map(|ancestor| DirectoryPlace::of(ancestor).ok());
    mounts.map_while(|place| Some(place?.mount)).find(|mount| *mount != own)
}

/// Whether `inner` is `outer` or a directory in it. Either may be missing: then it counts where it would be created.
#[must_use]
pub fn is_within(inner: &Path, outer: &Path) -> bool {
    let inner = resolved(inner);
    if inner.starts_with(resolved(outer)) {
        return true;
    }
    // Other mounts of the same directories have other paths.
    let Ok(outer) = DirectoryPlace::of(outer) else { return false };
    inner.ancestors().any(|ancestor| {
        DirectoryPlace::of(ancestor).is_ok_and(|place| place.is_same_directory(&outer))
    })
}

/// The directory that has a file of this name: that of the path, or the nearest one around it.
#[must_use]
pub fn nearest_with_file(path: &Path, name: &str) -> Option<PathBuf> {
    let path = resolved(path);
    let has_file = |directory: &&Path| {
        let stat = rustix::fs::statat(CWD, directory.join(name), AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file())
    };
    path.ancestors().find(has_file).map(Path::to_owned)
}

/// The link on a path that leads to nothing, and where it leads.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this crate touches files")]
pub fn dangling_link(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let is_missing = |path: &&Path| !path.exists();
    // The highest directory that is missing.
    let missing = path.ancestors().take_while(is_missing).last()?;
    Some((missing.to_owned(), std::fs::read_link(missing).ok()?))
}

/// The path without links, as far as it exists. The rest is appended.
#[expect(clippy::disallowed_methods, reason = "this crate touches files")]
fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = path.ancestors().find_map(|ancestor| {
        Some((std::fs::canonicalize(ancestor).ok()?, path.strip_prefix(ancestor).ok()?))
    });
    let Some((mut resolved, missing)) = existing else { return path };
    for component in missing.components() {
        match component {
            Component::ParentDir => {
                resolved.pop();
            }
            component => resolved.push(component),
        }
    }
    resolved
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "makes directories and links")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_directory_that_is_made_again_under_its_name_is_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("far");
        fs::create_dir(&path).unwrap();
        let opened = SharedDirectory::open(&path).unwrap();
        let first = DirectoryPlace::of_open(&opened).unwrap();
        assert_eq!(DirectoryPlace::of(&path).unwrap(), first);
        assert_eq!(DirectoryPlace::of(dir.path()).unwrap().mount(), first.mount());
        fs::rename(&path, dir.path().join("moved")).unwrap();
        assert!(DirectoryPlace::of(&path).unwrap_err().is_not_found());
        fs::write(&path, b"").unwrap();
        assert!(DirectoryPlace::of(&path).is_err(), "a file is no directory");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(!DirectoryPlace::of(&path).unwrap().is_same_directory(&first));
        assert_eq!(DirectoryPlace::of_open(&opened).unwrap(), first);
    }

    #[test]
    fn paths_are_compared_through_links_and_before_they_exist() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("store/part")).unwrap();
        fs::create_dir(at("far")).unwrap();
        symlink(at("store/part"), at("link")).unwrap();
        for (inner, outer, expected) in [
            ("store", "store", true),
            ("store/part", "store", true),
            ("store/new/er", "store", true),
            ("link", "store", true),
            ("link/new", "store", true),
            ("far/../store/x", "store", true),
            ("none/../store/x", "store", true),
            ("new/a", "new", true),
            ("store", "store/part", false),
            ("far", "store", false),
            ("storey", "store", false),
            ("new", "new/a", false),
        ] {
            assert_eq!(is_within(&at(inner), &at(outer)), expected, "{inner} in {outer}");
        }
        assert!(is_within(&at("store"), Path::new("/")));
        fs::write(at("store/mark"), b"").unwrap();
        let store = Some(fs::canonicalize(at("store")).unwrap());
        for inside in ["store", "link", "store/part/new"] {
            assert_eq!(nearest_with_file(&at(inside), "mark"), store, "{inside}");
        }
        assert_eq!(nearest_with_file(&at("far"), "mark"), None);
        assert_eq!(nearest_with_file(&at("store"), "part"), None, "a folder is no file");
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found_on_the_way() {
        let dir = tempfile::tempdir().unwrap();
        symlink("missing", dir.path().join("link")).unwrap();
        let found = Some((dir.path().join("link"), PathBuf::from("missing")));
        for path in ["link", "link/store", "link/a/b"] {
            assert_eq!(dangling_link(&dir.path().join(path)), found);
        }
        assert_eq!(dangling_link(&dir.path().join("other/store")), None);
        assert_eq!(dangling_link(dir.path()), None);
    }

    #[test]
    fn the_root_is_on_no_other_mount() {
        assert_eq!(mount_below(Path::new("/")), None);
        let proc = Path::new("/proc/self");
        if let (Ok(proc_place), Ok(root)) =
            (DirectoryPlace::of(proc), DirectoryPlace::of(Path::new("/")))
            && proc_place.mount() != root.mount()
        {
            assert_eq!(mount_below(proc), Some(root.mount()));
        }
    }
}
