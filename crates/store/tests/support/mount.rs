//! File systems of a test's own: in memory, or in an image file.
#![expect(clippy::disallowed_methods, reason = "makes the world that a store lives in")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long unmounting waits for files of a process that was killed: the kernel closes them behind its back.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(20);
const UNMOUNT_POLL: Duration = Duration::from_millis(20);

/// A mounted file system; unmounted when dropped.
pub(crate) struct Mount(PathBuf);

impl Mount {
    pub(crate) fn tmpfs(path: &Path, options: &str) -> Option<Self> {
        Self::run(&["-t", "tmpfs", "-o", options, "dalsegno-test"], path)
    }

    /// The file system in an image file.
    pub(crate) fn image(image: &Path, path: &Path) -> Option<Self> {
        Self::run(&["-o", "loop", image.to_str()?], path)
    }

    fn run(arguments: &[&str], path: &Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        succeeds(mount.args(arguments).arg(path)).then(|| Self(path.to_owned()))
    }

    /// Unmounts.
    ///
    /// # Panics
    ///
    /// If something still uses the file system after a while.
    pub(crate) fn close(self) {
        let path = self.0.clone();
        assert!(self.unmount(), "{} is still used by something", path.display());
        // It is unmounted, so there is nothing left to drop.
        std::mem::forget(self);
    }

    fn unmount(&self) -> bool {
        let tries = UNMOUNT_PATIENCE.as_millis() / UNMOUNT_POLL.as_millis();
        (0..tries).any(|_| {
            succeeds(Command::new("umount").arg(&self.0)) || {
                std::thread::sleep(UNMOUNT_POLL);
                false
            }
        })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.unmount() {
            // Out of everybody's sight, and gone with its last user.
            succeeds(Command::new("umount").arg("--lazy").arg(&self.0));
        }
    }
}

/// An image file of `mib` MiB, as far as it is written, with a file system made by `mkfs`; whether that worked.
pub(crate) fn make_image(mkfs: &str, image: &Path, mib: u64) -> bool {
    let made = std::fs::File::create(image).and_then(|file| file.set_len(mib << 20));
    // Both would ask before they overwrite something.
    let force = if mkfs == "mkfs.ext4" { "-F" } else { "-f" };
    made.is_ok() && succeeds(Command::new(mkfs).args(["-q", force]).arg(image))
}

/// Whether a command can be run and succeeds; what it says is not shown.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
