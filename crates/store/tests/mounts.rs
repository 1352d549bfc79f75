//! File systems that are full or read-only. These need root to mount one and are skipped, aloud, without it.
#![allow(clippy::disallowed_methods, reason = "plays the world outside of the store")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and tells"
)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use dalsegno_store::{ErrorKind, PutOutcome, Store, Terms, verify};
use support::{chain, config, get, namespace, open, put};

/// A mounted file system; unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    fn tmpfs(path: &Path, options: &str) -> Option<Self> {
        Self::run(&["-t", "tmpfs", "-o", options, "dalsegno-test"], path)
    }

    /// An ext4 file system in an image file of `mib` MiB.
    fn ext4(image: &Path, path: &Path, mib: u64) -> Option<Self> {
        std::fs::File::create(image).ok()?.set_len(mib << 20).ok()?;
        let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(image).status();
        if !made.is_ok_and(|status| status.success()) {
            return None;
        }
        Self::run(&["-o", "loop", image.to_str()?], path)
    }

    fn run(arguments: &[&str], path: &Path) -> Option<Self> {
        let status = Command::new("mount")
            .args(arguments)
            .arg(path)
            .stderr(std::process::Stdio::null())
            .status();
        status.is_ok_and(|status| status.success()).then(|| Self(path.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(&self.0).status());
    }
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn skip(what: &str) {
    eprintln!("skipped: {what} cannot be mounted here (needs root)");
}

fn fill_and_check(dir: &Path) {
    // The capacity is far more than the file system has.
    let store = open(dir, &config(256 << 20));
    let ns = namespace(&store, 1, 64 << 10, "full");
    let mut stored = 0;
    for name in 0..200 {
        stored += put(&store, ns, &chain(name, 16), 0, 64 << 10).count(PutOutcome::Stored);
        for earlier in 0..name {
            // Checks every byte of every hit.
            get(&store, ns, &chain(earlier, 1), 64 << 10, &Terms::default());
        }
    }
    let stats = store.stats();
    assert!(stats.log.creations_refused > 0, "the file system was never full: {stats:?}");
    assert!(stored > 16 * 40, "puts went on by giving up old blocks: {stored}");
    assert_eq!(get(&store, ns, &chain(199, 16), 64 << 10, &Terms::default()), 16);
    drop(store);
    let store = open(dir, &config(256 << 20));
    assert_eq!(get(&store, ns, &chain(199, 16), 64 << 10, &Terms::default()), 16);
    drop(store);
    assert_eq!(verify(dir, &|_, _| {}).unwrap().findings, []);
}

#[test]
fn a_full_file_system_of_64_mib_costs_only_misses() {
    let dir = tempfile::tempdir().unwrap();
    let (image, ext4, tmpfs) =
        (dir.path().join("image"), dir.path().join("ext4"), dir.path().join("tmpfs"));
    for path in [&ext4, &tmpfs] {
        std::fs::create_dir(path).unwrap();
    }
    match Mount::ext4(&image, &ext4, 64) {
        Some(_mounted) => fill_and_check(&ext4.join("store")),
        None => skip("an ext4 image"),
    }
    match Mount::tmpfs(&tmpfs, "size=64m") {
        Some(_mounted) => fill_and_check(&tmpfs.join("store")),
        None => skip("a tmpfs"),
    }
}

#[test]
fn a_file_system_without_any_room_refuses_clearly_and_breaks_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mounted) = Mount::tmpfs(dir.path(), "size=1m") else { return skip("a tmpfs") };
    std::fs::write(dir.path().join("ballast"), vec![0; 1 << 20]).unwrap_or(());
    let path = dir.path().join("store");
    match Store::open(&path, &config(64 << 20)) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        Ok(store) => {
            let ns = namespace(&store, 1, 4096, "none");
            assert_eq!(put(&store, ns, &chain(1, 2), 0, 4096).count(PutOutcome::Failed), 2);
        }
    }
}

#[test]
fn a_read_only_mount_is_refused_clearly_but_can_be_verified() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mounted) = Mount::tmpfs(dir.path(), "size=64m") else { return skip("a tmpfs") };
    let path = dir.path().join("store");
    let store = open(&path, &config(16 << 20));
    let ns = namespace(&store, 1, 4096, "ro");
    put(&store, ns, &chain(1, 2), 0, 4096);
    drop(store);
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(dir.path()).status();
    assert!(remounted.is_ok_and(|status| status.success()));
    let error = Store::open(&path, &config(16 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("read-only"), "{error}");
    assert_eq!(verify(&path, &|_, _| {}).unwrap().blocks, 2);
}
