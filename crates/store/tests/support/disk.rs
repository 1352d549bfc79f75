//! A file system whose power can be cut.
#![expect(clippy::disallowed_methods, reason = "makes the world that a store lives in")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::mount::{Mount, make_image, succeeds};
use super::power::{Cut, cut_power};

/// A mounted file system in an image file of a temporary folder.
pub(crate) struct Disk {
    /// First, so that it is dropped before the folder.
    mount: Option<Mount>,
    image: PathBuf,
    place: PathBuf,
    _folder: tempfile::TempDir,
}

impl Disk {
    /// One of `mib` MiB; `None` if it cannot be made or mounted.
    pub(crate) fn make(mkfs: &str, mib: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let (image, place) = (folder.path().join("image"), folder.path().join("place"));
        std::fs::create_dir(&place).unwrap();
        let made = make_image(mkfs, &image, mib);
        let mount = made.then(|| Mount::image(&image, &place)).flatten()?;
        Some(Self { mount: Some(mount), image, place, _folder: folder })
    }

    /// Where it is mounted.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// Cuts the power, calls `end_users` to end the processes that use it, and mounts the rest.
    pub(crate) fn cut_power(&mut self, cut: Cut, end_users: impl FnOnce()) {
        cut_power(&File::open(&self.place).unwrap(), cut).unwrap();
        end_users();
        self.mount.take().unwrap().close();
        self.mount = Some(Mount::image(&self.image, &self.place).expect("it was mounted before"));
    }

    /// Whether the file system's own tool `check` finds nothing wrong.
    pub(crate) fn passes(mut self, check: &str) -> bool {
        self.mount.take().unwrap().close();
        succeeds(Command::new(check).args(["-n", "-f"]).arg(&self.image))
    }
}
