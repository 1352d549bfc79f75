//! Two stores that share a far directory, as two hosts do.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dalsegno_store::{
    Config, ErrorKind, FarWrite, NamespaceId, Outcome, Scope, Store, Terms, lend,
};

use crate::support::{self, LIMIT, block, chain, get, namespace, put, until};

const BYTES: usize = 4 * 65_536;

/// A host: a store with a far directory, and the namespace of the tests.
struct Host {
    store: Store,
    namespace: NamespaceId,
    _dir: tempfile::TempDir,
}

fn config(far: &Path) -> Config {
    Config {
        far: Some(far.display().to_string()),
        far_flush_s: Some(0.1),
        far_workers: Some(4),
        dram: Some(16 << 20),
        ..support::config(64 << 20)
    }
}

impl Host {
    fn new(far: &Path) -> Self {
        Self::with(&config(far))
    }

    fn with(config: &Config) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), config).unwrap();
        let namespace = namespace(&store, 4, 65_536, "far");
        Self { store, namespace, _dir: dir }
    }

    /// Closes the store, changes its directory, and opens it again.
    fn reopen(self, config: &Config, change: impl FnOnce(&Path)) -> Self {
        let Self { store, _dir: dir, .. } = self;
        store.close();
        drop(store);
        change(dir.path());
        let store = Store::open(dir.path(), config).unwrap();
        let namespace = namespace(&store, 4, 65_536, "far");
        Self { store, namespace, _dir: dir }
    }

    fn put(&self, name: u64, blocks: usize) {
        let report = put(&self.store, self.namespace, &chain(name, blocks), 0, BYTES);
        assert_eq!(report.outcomes.len(), blocks);
    }

    fn get(&self, name: u64, blocks: usize) -> usize {
        get(&self.store, self.namespace, &chain(name, blocks), BYTES, &Terms::within(LIMIT))
    }

    fn outcomes(&self, name: u64, blocks: usize) -> Vec<Outcome> {
        let chain = chain(name, blocks);
        let mut out = vec![vec![0; BYTES]; blocks];
        let report = lend(|lender| {
            let targets = out.iter_mut().map(|b| vec![lender.exclusive(b)]).collect();
            let terms = Terms::within(LIMIT);
            self.store.get_batch(self.namespace, &chain, targets, Scope::Each, &terms).unwrap()
        });
        for ((hash, bytes), outcome) in chain.iter().zip(&out).zip(&report.outcomes) {
            assert!(!outcome.is_hit() || *bytes == block(*hash, BYTES), "wrong bytes");
        }
        report.outcomes
    }

    fn probe(&self, name: u64, blocks: usize) -> usize {
        self.store.probe(self.namespace, &chain(name, blocks)).unwrap()
    }

    fn far(&self) -> dalsegno_store::FarStats {
        self.store.stats().far.expect("it has a far tier")
    }

    /// Waits until all blocks of this host are published.
    fn publish(&self, blocks: u64) {
        until("blocks are published", || self.far().published.blocks >= blocks);
    }
}

/// The files in a directory whose names are like this.
fn objects_in(dir: &Path, is_meant: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| is_meant(&file.file_name().unwrap().to_string_lossy())).collect()
}

/// The objects at a far location whose names end like this, sorted.
fn objects(far: &Path, end: &str) -> Vec<PathBuf> {
    let folders = fs::read_dir(far).unwrap().map(|entry| entry.unwrap().path());
    let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap());
    let mut files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.to_string_lossy().ends_with(end));
    files.sort();
    files
}

#[test]
fn what_one_host_stored_another_one_loads() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    a.put(1, 20);
    a.publish(20);
    until("the other host finds them", || b.probe(1, 20) == 20);
    assert_eq!(b.probe(1, 30), 20);
    assert_eq!(b.outcomes(1, 20), [Outcome::Far; 20]);
    assert_eq!(b.outcomes(1, 20), [Outcome::Dram; 20], "the first hit fills DRAM");
    until("the second hit copies them to the log", || b.far().promoted_blocks == 20);
    assert_eq!(b.store.stats().blocks, 20);
    let stats = b.far();
    assert_eq!((stats.blocks, stats.used_bytes), (20, 20 * BYTES as u64));
    assert!(stats.fetched_bytes < 21 * BYTES as u64, "{stats:?}");
    a.store.close();
    assert_eq!(b.get(1, 20), 20);
    assert_eq!(b.far().published.packs, 0, "what is there is not written again");
}

#[test]
fn without_dram_the_second_hit_copies_blocks_to_the_log() {
    let far = tempfile::tempdir().unwrap();
    let a = Host::new(far.path());
    let b = Host::with(&Config { dram: Some(0), ..config(far.path()) });
    a.put(1, 10);
    a.publish(10);
    until("the other host finds them", || b.probe(1, 10) == 10);
    assert_eq!(b.outcomes(1, 10), [Outcome::Far; 10]);
    assert_eq!(b.outcomes(1, 10), [Outcome::Far; 10]);
    until("they are copied to the log", || b.store.stats().blocks == 10);
    assert_eq!(b.outcomes(1, 10), [Outcome::Log; 10]);
}

#[test]
fn three_blocks_of_a_long_prompt_are_read_and_not_their_pack() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    a.put(1, 40);
    a.publish(40);
    until("the other host finds them", || b.far().blocks == 40);
    assert_eq!(b.get(1, 3), 3);
    let stats = b.far();
    assert_eq!(stats.used_bytes, 3 * BYTES as u64);
    assert!(stats.fetched_bytes <= 3 * BYTES as u64 + (64 << 10), "{stats:?}");
}

#[test]
fn a_chain_continues_where_another_tier_has_it() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    a.put(1, 20);
    a.publish(20);
    until("the other host finds them", || b.probe(1, 20) == 20);
    put(&b.store, b.namespace, &chain(1, 8), 0, BYTES);
    put(&b.store, b.namespace, &chain(1, 30), 20, BYTES);
    put(&b.store, b.namespace, &chain(1, 14), 12, BYTES);
    assert_eq!(b.probe(1, 40), 30);
    let outcomes = b.outcomes(1, 30);
    let expected = |at: usize| {
        if at < 8 || (12..14).contains(&at) || at >= 20 { Outcome::Log } else { Outcome::Far }
    };
    assert_eq!(outcomes, (0..30).map(expected).collect::<Vec<_>>());
    assert_eq!(b.get(1, 30), 30);
}

#[test]
fn a_host_that_starts_later_finds_everything() {
    let far = tempfile::tempdir().unwrap();
    let a = Host::new(far.path());
    for name in 1..5 {
        a.put(name, 10);
    }
    a.publish(40);
    a.store.close();
    let b = Host::new(far.path());
    until("the other host finds them", || (1..5).all(|name| b.probe(name, 10) == 10));
    assert!((1..5).all(|name| b.get(name, 10) == 10));
}

#[test]
fn closing_publishes_what_waits() {
    let far = tempfile::tempdir().unwrap();
    let a = Host::with(&Config { far_flush_s: Some(1800.0), ..config(far.path()) });
    a.put(1, 10);
    a.store.close();
    let published = a.far().published;
    assert_eq!((published.blocks, published.failed_blocks), (10, 0));
    let b = Host::new(far.path());
    until("the other host finds them", || b.probe(1, 10) == 10);
}

#[test]
fn what_one_host_removed_does_not_come_back_on_another() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    a.put(1, 10);
    a.publish(10);
    until("the other host finds them", || b.probe(1, 10) == 10);
    b.outcomes(1, 10);
    b.outcomes(1, 10);
    until("the other host has copies", || b.store.stats().blocks == 10);
    let gone = chain(1, 10)[4];
    assert_eq!(a.store.remove(a.namespace, Some(&[gone]), &Terms::within(LIMIT)).unwrap(), 1);
    assert_eq!(a.probe(1, 10), 4);
    until("it is gone on the other host", || b.probe(1, 10) == 4);
    assert_eq!(b.outcomes(1, 10)[4], Outcome::Absent);
    let c = Host::new(far.path());
    until("a new host finds the rest", || {
        c.store.contains(c.namespace, &chain(1, 10)).unwrap().iter().filter(|is| **is).count() == 9
    });
    assert_eq!(c.probe(1, 10), 4);
    put(&a.store, a.namespace, &chain(1, 5), 4, BYTES);
    a.publish(11);
    until("it was put again", || c.probe(1, 10) == 10 && b.probe(1, 10) == 10);
    assert_eq!(c.get(1, 10), 10);
    a.store.remove(a.namespace, None, &Terms::within(LIMIT)).unwrap();
    until("all are gone", || b.probe(1, 1) == 0 && c.probe(1, 1) == 0);
}

#[test]
fn a_block_that_was_put_again_after_another_hosts_removal_stays_when_the_store_is_opened_again() {
    let far = tempfile::tempdir().unwrap();
    let config = config(far.path());
    let (a, mut b) = (Host::new(far.path()), Host::new(far.path()));
    a.put(1, 10);
    a.publish(10);
    // So it does not publish them once more.
    until("the other host finds them", || b.probe(1, 10) == 10);
    b.put(1, 10);
    assert_eq!(b.store.stats().blocks, 10);
    let gone = chain(1, 10)[4];
    a.store.remove(a.namespace, Some(&[gone]), &Terms::within(LIMIT)).unwrap();
    until("it is gone on the other host", || b.probe(1, 10) == 4);
    put(&b.store, b.namespace, &chain(1, 5), 4, BYTES);
    b.publish(1);
    assert_eq!(b.store.stats().blocks, 10);
    // The removal is found at each open. With a record it is known, without or with damaged ones it is not.
    let files = |dir: &Path| objects_in(dir, |name| name.starts_with("far-"));
    let damage = |dir: &Path| files(dir).iter().for_each(|it| fs::write(it, [7; 8192]).unwrap());
    let remove = |dir: &Path| files(dir).iter().for_each(|it| fs::remove_file(it).unwrap());
    let keep = |_: &Path| ();
    let changes: [&dyn Fn(&Path); 4] = [&keep, &keep, &damage, &remove];
    for (at, (blocks, change)) in [10, 10, 9, 9].into_iter().zip(changes).enumerate() {
        b = b.reopen(&config, change);
        until("the location is read", || b.far().packs >= 2);
        let settled = Instant::now();
        until("removals are applied", || {
            b.store.stats().blocks == blocks && settled.elapsed() > Duration::from_millis(500)
        });
        assert_eq!(b.store.stats().blocks, blocks, "{at}");
        put(&b.store, b.namespace, &chain(1, 5), 4, BYTES);
        assert_eq!(b.store.stats().blocks, 10);
    }
    assert_eq!(b.outcomes(1, 10)[4], Outcome::Log);
}

#[test]
fn a_block_that_is_put_again_right_after_its_removal_is_published() {
    let far = tempfile::tempdir().unwrap();
    let a = Host::with(&Config { far_flush_s: Some(1.5), ..config(far.path()) });
    a.put(1, 4);
    until("its pack is being filled", || a.far().waiting_extents == 0);
    std::thread::sleep(Duration::from_millis(300));
    let removed = chain(1, 1);
    a.store.remove(a.namespace, Some(&removed), &Terms::within(LIMIT)).unwrap();
    a.put(1, 4);
    a.publish(5);
    let b = Host::new(far.path());
    until("another host finds all of them", || b.probe(1, 4) == 4);
    assert_eq!(b.get(1, 4), 4);
}

#[test]
fn damage_costs_the_blocks_that_it_hits_and_nothing_else() {
    let far = tempfile::tempdir().unwrap();
    let (a, b) = (Host::new(far.path()), Host::new(far.path()));
    a.put(1, 10);
    a.publish(10);
    until("the other host finds them", || b.probe(1, 10) == 10);
    let pack = objects(far.path(), ".pack").remove(0);
    let mut bytes = fs::read(&pack).unwrap();
    let at = bytes.len() - 100;
    bytes[at] ^= 1;
    fs::write(&pack, &bytes).unwrap();
    let outcomes = b.outcomes(1, 10);
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_hit()).count(), 9, "{outcomes:?}");
    let found = b.store.contains(b.namespace, &chain(1, 10)).unwrap();
    assert_eq!(found.iter().filter(|is_there| **is_there).count(), 9, "it is not found again");
    assert_eq!(b.far().misses["slice_checksum"], 1);
}

#[test]
fn packs_and_catalogs_that_are_gone_truncated_or_foreign_are_misses() {
    let far = tempfile::tempdir().unwrap();
    let a = Host::new(far.path());
    for name in 1..5 {
        a.put(name, 4);
        a.publish(4 * name);
    }
    let b = Host::new(far.path());
    until("the other host finds them", || (1..5).all(|name| b.probe(name, 4) == 4));
    let packs = objects(far.path(), ".pack");
    assert_eq!(packs.len(), 4);
    fs::remove_file(&packs[0]).unwrap();
    fs::File::options().write(true).open(&packs[1]).unwrap().set_len(8192).unwrap();
    fs::copy(&packs[2], &packs[3]).unwrap();
    for name in [1, 2, 4] {
        assert_eq!(b.get(name, 4), 0, "pack {name}");
        assert_eq!(b.probe(name, 4), 0, "pack {name}");
    }
    assert_eq!(b.get(3, 4), 4);
    let catalogs = objects(far.path(), ".catalog");
    let bytes = fs::read(&catalogs[2]).unwrap();
    fs::write(&catalogs[2], &bytes[..bytes.len() - 4096]).unwrap();
    fs::write(&catalogs[0], b"").unwrap();
    let c = Host::new(far.path());
    until("the other catalogs are read", || c.far().bad_objects == 2);
    assert_eq!((c.probe(1, 4), c.probe(3, 4)), (0, 0));
    assert_eq!(a.get(1, 4), 4, "what is stored here does not depend on the far tier");
}

#[test]
fn own_packs_stay_within_their_bound() {
    let far = tempfile::tempdir().unwrap();
    let capacity = 40 * BYTES as u64;
    let a = Host::with(&Config { far_capacity: Some(capacity), ..config(far.path()) });
    for name in 1..20 {
        a.put(name, 8);
        a.publish(8 * name);
    }
    until("old packs are gone", || a.far().published.own_bytes <= capacity);
    let bytes: u64 =
        objects(far.path(), ".pack").iter().map(|pack| pack.metadata().unwrap().len()).sum();
    assert!(bytes <= capacity, "{bytes}");
    assert!(a.far().published.evicted_packs > 0);
    let b = Host::new(far.path());
    until("the newest are found", || b.probe(19, 8) == 8);
    assert_eq!((b.probe(1, 8), b.get(19, 8)), (0, 8));
}

/// Makes the files of a folder look older than they are.
fn make_older(folder: &Path, by: Duration) {
    for entry in fs::read_dir(folder).unwrap() {
        let file = fs::File::open(entry.unwrap().path()).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.set_modified(modified - by).unwrap();
    }
}

#[test]
fn packs_of_an_earlier_open_count_to_the_bound_and_leave_first() {
    let far = tempfile::tempdir().unwrap();
    let capacity = 40 * BYTES as u64;
    let a = Host::new(far.path());
    for name in 1..8 {
        a.put(name, 8);
        a.publish(8 * name);
    }
    let small = Config { far_capacity: Some(capacity), ..config(far.path()) };
    let folder = objects(far.path(), ".pack")[0].parent().unwrap().to_owned();
    // As if it had been closed for a while.
    let a = a.reopen(&small, |_| make_older(&folder, Duration::from_secs(660)));
    until("the earlier packs are taken over", || a.far().published.evicted_packs >= 3);
    for name in 11..13 {
        a.put(name, 8);
        a.publish(8 * (name - 10));
    }
    until("the earliest packs are gone", || {
        let published = a.far().published;
        published.evicted_packs >= 5 && published.own_bytes <= capacity
    });
    let packs = objects(far.path(), ".pack");
    let bytes: u64 = packs.iter().map(|pack| pack.metadata().unwrap().len()).sum();
    assert_eq!(bytes, a.far().published.own_bytes);
    // A slow machine publishes the blocks of a put in more than one pack.
    assert!(packs.iter().any(|pack| pack.starts_with(&folder)), "some of them stay");
    let b = Host::new(far.path());
    until("the newest are found", || [6, 7, 11, 12].into_iter().all(|name| b.probe(name, 8) == 8));
    assert_eq!((b.probe(5, 8), b.get(7, 8), b.get(12, 8)), (0, 8, 8));
}

#[test]
fn blocks_are_written_when_the_setting_says() {
    let far = tempfile::tempdir().unwrap();
    let second = Host::with(&Config { far_write: FarWrite::SecondPut, ..config(far.path()) });
    second.put(1, 8);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(second.far().published.blocks, 0);
    second.put(1, 8);
    second.publish(8);
    second.store.close();

    // An eviction does not wait for the far directory: what finds no space in a pack is dropped, and counted. So a put
    // waits until the eviction before it is dealt with, and chains are put until enough of them were published.
    let evict = Host::with(&Config { far_write: FarWrite::Evict, ..config(far.path()) });
    let names = std::cell::Cell::new(2);
    until("evicted blocks are published", || {
        evict.put(names.replace(names.get() + 1), 8);
        until("what was evicted is published or dropped", || {
            let stats = evict.store.stats();
            let (far, evicted) = (stats.far.unwrap(), stats.evicted_blocks);
            far.published.blocks + far.published.failed_blocks + far.dropped_blocks >= evicted
        });
        evict.far().published.blocks >= 64
    });
    let outcomes: Vec<_> = (2..names.get()).flat_map(|name| evict.outcomes(name, 8)).collect();
    let of = |wanted| outcomes.iter().filter(|one| **one == wanted).count() as u64;
    let far = evict.far();
    assert!(of(Outcome::Far) >= 64, "evicted here, and read from the far tier: {far:?}");
    assert!(of(Outcome::Absent) <= far.dropped_blocks + far.published.failed_blocks, "{far:?}");
}

#[test]
fn a_far_directory_that_is_not_there_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let error = Store::open(&dir.path().join("store"), &config(&missing)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("missing"), "{error}");
}
