//! File systems that are full or read-only. A user who is not root mounts them as root of a namespace of users; where
//! that is not allowed either these are skipped, aloud.
#![expect(clippy::disallowed_methods, reason = "plays the world outside of the store")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use dalsegno_store::{
    Config, Durability, ErrorKind, IndexChoice, Keep, NamespaceId, Put, PutOutcome, Store, Terms,
    lend, verify,
};
use support::mount::{Mount, make_image, succeeds};
use support::{Setup, block, chain, get, namespace, open, put, setups, skip};

/// Chains of a MiB; about sixty fit.
const CHAINS: u64 = 110;

/// Set in a process that is root of its own namespace of users.
const NAMESPACED: &str = "DALSEGNO_TEST_NAMESPACED";

/// Runs `body` where a file system can be mounted: here, or in a process of its own that runs the test of this name.
fn where_mounts_work(name: &str, body: impl FnOnce()) {
    let dir = tempfile::tempdir().unwrap();
    if Mount::tmpfs(dir.path(), "size=64k").is_some() || std::env::var_os(NAMESPACED).is_some() {
        return body();
    }
    let unshare = |program: &Path| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount"]).arg(program).env(NAMESPACED, "1");
        command
    };
    if !unshare(Path::new("true")).output().is_ok_and(|output| output.status.success()) {
        return skip("mount", &format!("{name}: nothing can be mounted here (needs root)"));
    }
    let test = std::env::current_exe().unwrap();
    let status = unshare(&test).args(["--exact", name, "--nocapture"]).status().unwrap();
    assert!(status.success(), "{name} failed in a namespace of its own");
}

fn fill_and_check(dir: &Path, setup: Setup) {
    // The capacity is far more than the file system has.
    let config = setup.config(256 << 20);
    let store = open(dir, &config);
    let ns = namespace(&store, 1, 64 << 10, "full");
    let mut stored = 0;
    for name in 0..CHAINS {
        stored += put(&store, ns, &chain(name, 16), 0, 64 << 10).count(PutOutcome::Stored);
        for earlier in 0..name {
            // Checks every byte of every hit.
            get(&store, ns, &chain(earlier, 1), 64 << 10, &Terms::default());
        }
    }
    let stats = store.stats();
    assert!(stats.log.creations_refused > 0, "{setup:?}: it was never full: {stats:?}");
    assert!(stored > 16 * 40, "{setup:?}: puts went on by giving up old blocks: {stored}");
    assert_eq!(get(&store, ns, &chain(CHAINS - 1, 16), 64 << 10, &Terms::default()), 16);
    drop(store);
    let store = open(dir, &config);
    assert_eq!(get(&store, ns, &chain(CHAINS - 1, 16), 64 << 10, &Terms::default()), 16);
    drop(store);
    assert_eq!(verify(dir, &|_, _| {}).unwrap().findings, []);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_full_file_system_of_64_mib_costs_only_misses() {
    where_mounts_work("a_full_file_system_of_64_mib_costs_only_misses", || {
        let dir = tempfile::tempdir().unwrap();
        let (image, ext4, tmpfs) =
            (dir.path().join("image"), dir.path().join("ext4"), dir.path().join("tmpfs"));
        for path in [&ext4, &tmpfs] {
            std::fs::create_dir(path).unwrap();
        }
        let made = make_image("mkfs.ext4", &image, 64);
        let mounted = [
            ("an ext4 image", ext4.clone(), made.then(|| Mount::image(&image, &ext4)).flatten()),
            ("a tmpfs", tmpfs.clone(), Mount::tmpfs(&tmpfs, "size=64m")),
        ];
        for (number, (kind, path, mount)) in mounted.into_iter().enumerate() {
            let Some(_mounted) = mount else {
                skip("mount", &format!("{kind} cannot be mounted here"));
                continue;
            };
            // On each file system every other setup, so that all have their turn.
            for setup in setups().into_iter().skip(number).step_by(2) {
                fill_and_check(&path.join("store"), setup);
            }
        }
    });
}

#[test]
fn a_full_file_system_gives_a_clear_error_and_breaks_nothing() {
    where_mounts_work("a_full_file_system_gives_a_clear_error_and_breaks_nothing", || {
        setups().into_iter().for_each(open_without_room);
    });
}

fn open_without_room(setup: Setup) {
    let dir = tempfile::tempdir().unwrap();
    let _mounted = Mount::tmpfs(dir.path(), "size=1m").unwrap();
    std::fs::write(dir.path().join("ballast"), vec![0; 1 << 20]).unwrap_or(());
    let path = dir.path().join("store");
    match Store::open(&path, &setup.config(64 << 20)) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{setup:?}: {error}"),
        Ok(store) => {
            let ns = namespace(&store, 1, 4096, "none");
            assert_eq!(put(&store, ns, &chain(1, 2), 0, 4096).count(PutOutcome::Failed), 2);
        }
    }
}

#[test]
fn a_read_only_mount_is_refused_clearly_but_can_be_verified() {
    where_mounts_work("a_read_only_mount_is_refused_clearly_but_can_be_verified", || {
        setups().into_iter().for_each(open_read_only);
    });
}

fn open_read_only(setup: Setup) {
    let dir = tempfile::tempdir().unwrap();
    let _mounted = Mount::tmpfs(dir.path(), "size=64m").unwrap();
    let path = dir.path().join("store");
    let config = setup.config(16 << 20);
    let store = open(&path, &config);
    let ns = namespace(&store, 1, 4096, "ro");
    put(&store, ns, &chain(1, 2), 0, 4096);
    drop(store);
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(dir.path()).status();
    assert!(remounted.is_ok_and(|status| status.success()));
    let error = Store::open(&path, &config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("read-only"), "{error}");
    assert_eq!(verify(&path, &|_, _| {}).unwrap().blocks, 2);
}

/// An ext4 image of `mib` MiB, mounted at `place` of `dir`; says so if that cannot be done here.
fn mounted_image(dir: &Path, mib: u64) -> Option<Mount> {
    let (image, place) = (dir.join("image"), dir.join("place"));
    std::fs::create_dir_all(&place).unwrap();
    let made = image.exists() || make_image("mkfs.ext4", &image, mib);
    let mount = made.then(|| Mount::image(&image, &place)).flatten();
    if mount.is_none() {
        skip("mount", "an ext4 image cannot be made and mounted here (needs root)");
    }
    mount
}

#[test]
fn regression_a_store_grows_again_when_the_file_system_has_space() {
    for setup in setups() {
        let dir = tempfile::tempdir().unwrap();
        let Some(_mounted) = mounted_image(dir.path(), 64) else { return };
        let place = dir.path().join("place");
        let ballast = place.join("ballast");
        std::fs::write(&ballast, vec![1; 36 << 20]).unwrap();
        let config = Config { segment: Some(1 << 20), ..setup.config(256 << 20) };
        let store = open(&place.join("store"), &config);
        let ns = namespace(&store, 1, 64 << 10, "full");
        let fill = |names: std::ops::Range<u64>| {
            let stored = |name| put(&store, ns, &chain(name, 8), 0, 64 << 10);
            names.map(|name| stored(name).count(PutOutcome::Stored)).sum::<u64>()
        };
        fill(0..60);
        let met = store.stats().log;
        assert!(met.creations_refused > 0, "{setup:?}: it was never full: {met:?}");
        std::fs::remove_file(&ballast).unwrap();
        // It does not try at every switch of segments. Until then puts evict other blocks.
        let has_grown = |first| {
            assert!(fill(first..first + 10) >= 8 * 9, "{setup:?}: puts work all the time");
            store.stats().log.segments_created > met.segments_created
        };
        assert!((1000..3000).step_by(10).any(has_grown), "{setup:?}: it never tried again");
        assert_eq!(fill(200..220), 8 * 20, "{setup:?}");
        let hits = |name| get(&store, ns, &chain(name, 8), 64 << 10, &Terms::default());
        assert!((200..220).all(|name| hits(name) == 8), "{setup:?}");
        drop(store);
        assert_eq!(verify(&place.join("store"), &|_, _| {}).unwrap().findings, []);
    }
}

#[test]
fn blocks_refused_by_a_full_disk_are_stored_when_it_has_space_and_nothing_leaks() {
    for setup in setups() {
        let dir = tempfile::tempdir().unwrap();
        let Some(_mounted) = mounted_image(dir.path(), 64) else { return };
        let place = dir.path().join("place");
        let config = Config {
            durability: Durability::Batch,
            segment: Some(1 << 20),
            ..setup.config(24 << 20)
        };
        let store = open(&place.join("store"), &config);
        let ns = namespace(&store, 1, 64 << 10, "refused");
        let hits = |name| get(&store, ns, &chain(name, 8), 64 << 10, &Terms::default());
        let all = 0..12;
        for round in 0..3 {
            let ballast = place.join("ballast");
            fill_up(&ballast);
            let refused: Vec<u64> =
                all.clone().filter(|name| stored(&store, ns, *name) < 8).collect();
            assert!(round > 0 || refused.len() == 12, "{setup:?}: it had space: {refused:?}");
            std::fs::remove_file(&ballast).unwrap();
            for name in refused {
                // It does not try to create a segment each time.
                let tries = (0..32).position(|_| stored(&store, ns, name) == 8 || hits(name) == 8);
                assert!(tries.is_some(), "{setup:?}: chain {name} cannot be stored any more");
                assert_eq!(hits(name), 8, "{setup:?}");
            }
            store.remove(ns, None, &Terms::default()).unwrap();
        }
        assert!(!store.stats().poisoned);
        let open = open_below(&place);
        let files = std::fs::read_dir(place.join("store")).unwrap().count();
        assert!(open.len() <= files + 4, "{setup:?}: {files} files, but open are {open:?}");
        drop(store);
        assert_eq!(verify(&place.join("store"), &|_, _| {}).unwrap().findings, []);
    }
}

#[test]
fn an_on_disk_index_continues_when_others_fill_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mounted) = mounted_image(dir.path(), 64) else { return };
    let (store_dir, ballast) = (dir.path().join("place/store"), dir.path().join("place/ballast"));
    for setup in setups().into_iter().filter(|setup| setup.index == IndexChoice::Lsm) {
        let config = Config {
            segment: Some(1 << 20),
            index_memory: Some(1 << 20),
            ..setup.config(40 << 20)
        };
        let store = open(&store_dir, &config);
        let ns = namespace(&store, 1, 4096, "squeezed");
        let failed = |names: std::ops::Range<u64>| {
            let failed =
                |name| put(&store, ns, &chain(name, 32), 0, 4096).count(PutOutcome::Failed);
            names.map(failed).sum::<u64>()
        };
        assert_eq!(failed(0..400), 0, "{setup:?}");
        let flushes = |store: &Store| store.stats().index.unwrap().lsm.flushes;
        let before = flushes(&store);
        fill_up(&ballast);
        let failed = failed(400..3000);
        let stats = store.stats();
        assert!(stats.log.segments_given_back > 0, "{setup:?}: it lacked nothing: {stats:?}");
        // How many depends on how far puts run ahead of them.
        assert!(flushes(&store) > before, "{setup:?}: {stats:?}");
        // Memory of the index may be full while the first segment goes.
        assert!(failed <= 64, "{setup:?}: {failed} blocks failed: {stats:?}");
        assert_eq!(get(&store, ns, &chain(2999, 32), 4096, &Terms::default()), 32);
        drop(store);
        assert_eq!(verify(&store_dir, &|_, _| {}).unwrap().findings, []);
        std::fs::remove_dir_all(&store_dir).unwrap();
        std::fs::remove_file(&ballast).unwrap();
    }
}

/// Fills a file system completely.
fn fill_up(ballast: &Path) {
    let mut file = std::fs::File::create(ballast).unwrap();
    for piece in [1 << 20, 4096] {
        while file.write_all(&vec![1; piece]).is_ok() {}
    }
}

/// The files in a directory, or once there, that this process has open: one name for each descriptor.
fn open_below(place: &Path) -> Vec<PathBuf> {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = descriptors.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    names.filter(|name| name.starts_with(place)).collect()
}

#[test]
fn a_file_system_that_turns_read_only_is_still_read() {
    for setup in setups() {
        let dir = tempfile::tempdir().unwrap();
        let Some(mounted) = mounted_image(dir.path(), 64) else { return };
        let place = dir.path().join("place");
        let config = Config { durability: Durability::Batch, ..setup.config(24 << 20) };
        let store = open(&place.join("store"), &config);
        let ns = namespace(&store, 1, 64 << 10, "read-only");
        assert_eq!(put(&store, ns, &chain(1, 8), 0, 64 << 10).count(PutOutcome::Stored), 8);
        if !break_ext4(&place) {
            return skip("mount", "an error cannot be reported to ext4 here");
        }
        let hits =
            |store: &Store, name| get(store, ns, &chain(name, 8), 64 << 10, &Terms::default());
        assert_eq!(hits(&store, 1), 8, "{setup:?}: gets go on");
        for name in 2..5 {
            assert_eq!(stored(&store, ns, name), 0, "{setup:?}: nothing can be written");
            assert_eq!(hits(&store, 1), 8, "{setup:?}: gets go on");
        }
        drop(store);
        let error = Store::open(&place.join("store"), &config).unwrap_err();
        assert!(error.to_string().contains("read-only"), "{setup:?}: {error}");
        mounted.close();
        // Repairs what was made up, and says by its status that it did.
        let image = dir.path().join("image");
        let _ = Command::new("fsck.ext4").args(["-f", "-y"]).arg(image).output().unwrap();
        let Some(_mounted) = mounted_image(dir.path(), 64) else { return };
        let store = open(&place.join("store"), &config);
        namespace(&store, 1, 64 << 10, "read-only");
        assert_eq!(hits(&store, 1), 8, "{setup:?}: what was acknowledged is there");
        assert_eq!(stored(&store, ns, 6), 8, "{setup:?}");
        assert_eq!(hits(&store, 6), 8, "{setup:?}");
    }
}

/// How many blocks of a chain a put stores, if it does not fail as a whole.
fn stored(store: &Store, ns: NamespaceId, name: u64) -> u64 {
    let chain = chain(name, 8);
    let blocks: Vec<Vec<u8>> = chain.iter().map(|hash| block(*hash, 64 << 10)).collect();
    let report = lend(|lender| {
        let blocks = blocks.iter().map(|bytes| vec![lender.shared(bytes)]).collect();
        store.put_batch(
            ns,
            Put { chain: &chain, first: 0, blocks, keep: Keep::Stored },
            &Terms::default(),
        )
    });
    report.map_or(0, |report| report.count(PutOutcome::Stored))
}

/// Has an ext4 file system take itself for damaged, upon which it goes on read-only; whether that worked.
fn break_ext4(place: &Path) -> bool {
    let found = Command::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(place).output();
    let Ok(found) = found else { return false };
    let device = String::from_utf8_lossy(&found.stdout).trim().replace("/dev/", "");
    let mut remount = Command::new("mount");
    remount.args(["-o", "remount,errors=remount-ro"]).arg(place);
    let trigger = Path::new("/sys/fs/ext4").join(device).join("trigger_fs_error");
    succeeds(&mut remount)
        && std::fs::write(trigger, "made up by a test").is_ok()
        && std::fs::write(place.join("probe"), "x").is_err()
}
