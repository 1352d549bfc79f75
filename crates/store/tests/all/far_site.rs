//! What happens to the directory of a far location: it is removed, made again, unmounted, or the wrong one from the
//! beginning. What happens to publishing: it fails for a while.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dalsegno_far::Tier;
use dalsegno_far::format::packs_of;
use dalsegno_store::testing::Tiers;
use dalsegno_store::{Config, ErrorKind, FarStats, NamespaceId, Store};

use crate::held_tier::HeldTier;
use crate::support::hanging::hanging_with;
use crate::support::mount::{Mount, succeeds};
use crate::support::{self, chain, namespace, put, until};

const BYTES: usize = 4 * 65_536;

fn config(far: &Path) -> Config {
    Config {
        far: Some(far.display().to_string()),
        far_capacity: Some(1 << 30),
        far_flush_s: Some(0.1),
        far_workers: Some(4),
        dram: Some(0),
        ..support::config(64 << 20)
    }
}

struct Host {
    store: Store,
    namespace: NamespaceId,
    _dir: tempfile::TempDir,
}

impl Host {
    fn new(far: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &config(far)).unwrap();
        let namespace = namespace(&store, 4, 65_536, "far");
        Self { store, namespace, _dir: dir }
    }

    fn put(&self, name: u64, blocks: usize) {
        let report = put(&self.store, self.namespace, &chain(name, blocks), 0, BYTES);
        assert!(report.kept().iter().all(|kept| *kept), "{report:?}");
    }

    fn probe(&self, name: u64, blocks: usize) -> usize {
        self.store.probe(self.namespace, &chain(name, blocks)).unwrap()
    }

    fn far(&self) -> FarStats {
        self.store.stats().far.unwrap()
    }
}

/// The names in a directory and its folders.
fn names(directory: &Path) -> Vec<PathBuf> {
    let inside = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let deep = |path: PathBuf| if path.is_dir() { names(&path) } else { vec![path] };
    inside.flat_map(deep).collect()
}

fn has_packs(directory: &Path) -> bool {
    names(directory).iter().any(|name| name.extension().is_some_and(|end| end == "catalog"))
}

#[test]
fn a_far_directory_that_is_made_again_is_used_for_what_is_put_from_then_on() {
    let home = tempfile::tempdir().unwrap();
    let far = home.path().join("far");
    fs::create_dir(&far).unwrap();
    let a = Host::new(&far);
    a.put(1, 8);
    until("blocks are published", || a.far().published.blocks >= 8);
    fs::remove_dir_all(&far).unwrap();
    until("the directory is away", || a.far().reads == "away");
    fs::create_dir(&far).unwrap();
    until("the new directory is used", || a.far().reads == "working" && a.far().reopened == 1);
    until("packs of the old directory are forgotten", || a.far().blocks == 0);
    a.put(2, 8);
    until("blocks are published there", || has_packs(&far));
    let described = names(&far).iter().any(|name| name.to_string_lossy().contains("namespace-"));
    assert!(described, "the namespace is described there, too");
    let b = Host::new(&far);
    until("another host finds them", || b.probe(2, 8) == 8);
    assert_eq!(b.probe(1, 8), 0);
    a.put(1, 8);
    until("what is put again is published again", || b.probe(1, 8) == 8);
}

#[test]
fn a_far_directory_without_its_file_system_is_not_used_until_one_is_mounted_again() {
    let home = tempfile::tempdir().unwrap();
    let point = home.path().join("mount");
    fs::create_dir(&point).unwrap();
    let mounted = || Mount::tmpfs(&point, "size=64m");
    // Mounting needs root.
    let Some(first) = mounted() else { return };
    let a = Host::new(&point);
    a.put(1, 8);
    until("blocks are published", || a.far().published.blocks >= 8);
    assert!(succeeds(std::process::Command::new("umount").arg("--lazy").arg(&point)));
    std::mem::forget(first);
    until("the file system is away", || a.far().reads == "away");
    a.put(2, 8);
    until("the extents wait", || a.far().waiting_extents > 0);
    assert_eq!(a.probe(1, 8), 8, "local blocks do not depend on it");
    assert!(names(&point).is_empty(), "nothing is written below the mount point");
    let second = mounted().unwrap();
    until("blocks are published there", || has_packs(&point));
    assert_eq!((a.far().reads, a.far().reopened), ("working", 1));
    let b = Host::new(&point);
    until("another host finds what was put meanwhile", || b.probe(2, 8) == 8);
    a.store.close();
    b.store.close();
    drop((a, b));
    second.close();
}

/// The number in the name of a pack or a catalog.
fn number_of(name: &Path) -> u64 {
    u64::from_str_radix(name.file_stem().unwrap().to_str().unwrap(), 16).unwrap()
}

#[test]
fn a_directory_that_is_replaced_at_once_gets_no_catalog_without_its_pack() {
    let home = tempfile::tempdir().unwrap();
    let link = home.path().join("link");
    let site = |number: u64| home.path().join(format!("site-{number}"));
    fs::create_dir(site(0)).unwrap();
    symlink(site(0), &link).unwrap();
    let a = Host::new(&link);
    for number in 1..6 {
        a.put(10 + number, 8);
        fs::create_dir(site(number)).unwrap();
        let next = home.path().join("next");
        symlink(site(number), &next).unwrap();
        fs::rename(&next, &link).unwrap();
        a.put(20 + number, 8);
        until("the new directory is used", || a.far().reopened >= number);
    }
    a.put(30, 8);
    until("the last blocks are published", || has_packs(&site(5)));
    a.store.close();
    for number in 0..6 {
        let all = names(&site(number));
        let catalogs =
            all.iter().filter(|name| name.extension().is_some_and(|end| end == "catalog"));
        for catalog in catalogs {
            let packs = packs_of(number_of(catalog));
            let is_of_it = |name: &PathBuf| {
                let is_pack = name.extension().is_some_and(|end| end == "pack");
                is_pack && name.parent() == catalog.parent() && packs.contains(&number_of(name))
            };
            assert!(all.iter().any(is_of_it), "{}", catalog.display());
        }
    }
}

#[test]
fn blocks_whose_publication_failed_are_published_when_they_are_put_again() {
    let far = tempfile::tempdir().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let tier = HeldTier::open(far.path(), 4);
    let tiers =
        Tiers { far: Some(Arc::<HeldTier>::clone(&tier) as Arc<dyn Tier>), ..Tiers::default() };
    let (_, store, _) = hanging_with(dir.path(), &config(far.path()), tiers);
    let namespace = namespace(&store, 4, 65_536, "far");
    let stats = || store.stats().far.unwrap();
    let put = |name| put(&store, namespace, &chain(name, 8), 0, BYTES);
    put(1);
    until("blocks are published", || stats().published.blocks == 8);
    put(1);
    tier.set_silent(true);
    put(2);
    until("their pack fails", || stats().published.failed_blocks >= 8);
    tier.set_silent(false);
    until("they are published when they are put again", || {
        put(2);
        stats().published.blocks >= 16
    });
    let b = Host::new(far.path());
    until("another host finds them", || b.probe(2, 8) == 8);
    assert_eq!(stats().published.blocks, 16, "each block once, and none that was published");
}

#[test]
fn a_far_directory_that_overlaps_the_store_is_refused_and_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    fs::create_dir_all(at("kv/inside")).unwrap();
    fs::create_dir(at("empty")).unwrap();
    symlink(at("kv"), at("link")).unwrap();
    symlink(at("empty"), at("link-to-empty")).unwrap();
    for (store, far) in [
        ("kv", "kv"),
        ("kv", "kv/inside"),
        ("kv", "link"),
        ("kv", "link/inside"),
        ("link", "kv"),
        ("empty/new", "empty"),
        ("empty/new/deeper", "link-to-empty"),
        ("link-to-empty/new", "empty"),
    ] {
        let error = Store::open(&at(store), &config(&at(far))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{store}, {far}: {error}");
        assert!(error.message().contains("apart from the store's directory"), "{error}");
    }
    assert_eq!(names(home.path()), Vec::<PathBuf>::new());
    assert!(fs::read_dir(at("empty")).unwrap().next().is_none());
    let other = Store::open(&at("other"), &support::config(64 << 20)).unwrap();
    fs::create_dir(at("other/inside")).unwrap();
    for far in ["other", "other/inside"] {
        let error = Store::open(&at("new"), &config(&at(far))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{far}: {error}");
        assert!(error.message().contains("holds a store"), "{error}");
    }
    assert!(!at("new").exists());
    other.close();
}

#[test]
fn a_missing_far_directory_leaves_no_directory_of_the_store() {
    for _ in 0..10 {
        let home = tempfile::tempdir().unwrap();
        let missing = config(&home.path().join("missing"));
        let began = Instant::now();
        let error = Store::open(&home.path().join("kv/deeper"), &missing).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        // An open waits a second for the first look. On a busy machine that may be too short.
        if began.elapsed() < Duration::from_secs(1) {
            assert!(fs::read_dir(home.path()).unwrap().next().is_none());
            return;
        }
    }
    panic!("no look at the far directory ended within a second");
}

#[test]
fn a_link_that_leads_into_the_store_later_is_not_followed() {
    let home = tempfile::tempdir().unwrap();
    let (kv, site, link) =
        (home.path().join("kv"), home.path().join("site"), home.path().join("link"));
    fs::create_dir(&site).unwrap();
    symlink(&site, &link).unwrap();
    let store = Store::open(&kv, &config(&link)).unwrap();
    let namespace = namespace(&store, 4, 65_536, "far");
    fs::remove_file(&link).unwrap();
    symlink(&kv, &link).unwrap();
    until("the link is refused", || store.stats().far.unwrap().reads == "away");
    put(&store, namespace, &chain(1, 4), 0, BYTES);
    store.close();
    let has_folder = fs::read_dir(&kv).unwrap().any(|entry| entry.unwrap().path().is_dir());
    assert!(!has_folder, "nothing is published in the store's own directory");
}
