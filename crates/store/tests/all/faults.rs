//! Damage on disk, full disks, unknown files: always a miss or a clear error, never wrong bytes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{Setup, chain, config, files, get, namespace, next, open, put, setups};
use dalsegno_store::{ChainHash, Config, ErrorKind, NamespaceId, PutOutcome, Store, Terms, verify};

const BLOCK: usize = 3 * 5000;
const CHAINS: u64 = 12;
const BLOCKS: usize = 9;

/// A store with chains of blocks in several extents, closed.
fn filled(dir: &Path, setup: Setup) -> Config {
    let config =
        Config { segment: Some(1 << 20), extent: Some(64 << 10), ..setup.config(16 << 20) };
    let store = open(dir, &config);
    let ns = namespace(&store, 3, 5000, "faults");
    for name in 0..CHAINS {
        put(&store, ns, &chain(name, BLOCKS), 0, BLOCK);
    }
    config
}

/// Opens the store and reads everything; every hit is checked byte by byte. Returns the blocks that are still there.
fn survivors(
    dir: &Path,
    config: &Config,
    terms: &Terms,
) -> (Store, NamespaceId, BTreeSet<ChainHash>) {
    let store = open(dir, config);
    let ns = namespace(&store, 3, 5000, "faults");
    let mut alive = BTreeSet::new();
    for name in 0..CHAINS {
        for hash in chain(name, BLOCKS) {
            if get(&store, ns, &[hash], BLOCK, terms) == 1 {
                alive.insert(hash);
            }
        }
    }
    (store, ns, alive)
}

/// The files that `verify` reads. The index's files are damaged in `index_files.rs`.
fn log_files(dir: &Path) -> Vec<PathBuf> {
    let is_index = |path: &Path| path.file_name().unwrap().to_str().unwrap().starts_with("index-");
    files(dir).into_iter().filter(|path| !is_index(path)).collect()
}

/// Every byte that the log has written: all small files, and the segments up to their last record.
fn stored_ranges(dir: &Path) -> Vec<(PathBuf, u64)> {
    let ends: std::collections::BTreeMap<u64, u64> = dalsegno_store::list(dir)
        .unwrap()
        .1
        .iter()
        .fold(std::collections::BTreeMap::new(), |mut ends, row| {
            let end = ends.entry(row.segment).or_insert(4096);
            *end = (*end).max(row.offset + row.bytes);
            ends
        });
    let end_of = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let number =
            name.strip_prefix("segment-").and_then(|n| u64::from_str_radix(&n[..16], 16).ok());
        number.map_or(4096, |number| ends.get(&number).copied().unwrap_or(4096))
    };
    log_files(dir).into_iter().map(|path| (path.clone(), end_of(&path))).collect()
}

/// Shares rounds out over all setups: calls `body` for each with the numbers of its rounds.
fn share_out(rounds: u64, body: impl Fn(Setup, std::ops::Range<u64>)) {
    let setups = setups();
    let each = rounds / setups.len() as u64;
    for (number, setup) in (0..).zip(setups) {
        body(setup, number * each..(number + 1) * each);
    }
}

#[test]
fn verify_finds_any_overwritten_byte_and_no_get_serves_it() {
    share_out(200, overwrite_bytes);
}

fn overwrite_bytes(setup: Setup, rounds: std::ops::Range<u64>) {
    let dir = tempfile::tempdir().unwrap();
    let config = filled(dir.path(), setup);
    let clean = verify(dir.path(), &|_, _| {}).unwrap();
    assert_eq!(clean.findings, [], "a healthy store passes");
    assert_eq!(clean.blocks, CHAINS * BLOCKS as u64);
    let ranges = stored_ranges(dir.path());
    let total: u64 = ranges.iter().map(|(_, end)| end).sum();
    let all: BTreeSet<_> = (0..CHAINS).flat_map(|name| chain(name, BLOCKS)).collect();
    let mut random = 0xda15_e900_u64 + rounds.start;
    for round in rounds {
        random = next(random);
        let mut at = random % total;
        let (path, _) = ranges
            .iter()
            .find(|(_, end)| {
                let inside = at < *end;
                at = if inside { at } else { at - end };
                inside
            })
            .unwrap();
        let pristine = snapshot(dir.path());
        let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        let flip = u8::try_from(next(random) % 255 + 1).unwrap();
        file.write_all_at(&[byte[0] ^ flip], at).unwrap();
        drop(file);
        let what = format!("{setup:?}, round {round}: {} at {at}", path.display());
        let report = verify(dir.path(), &|_, _| {}).unwrap();
        assert!(!report.findings.is_empty(), "verify missed it, {what}");
        let terms =
            if round % 2 == 0 { Terms::default() } else { Terms::within(Duration::from_secs(20)) };
        let (store, ns, alive) = survivors(dir.path(), &config, &terms);
        let lost = all.len() - alive.len();
        let counters = store.stats();
        let counted: u64 =
            counters.log.transfers.misses.values().sum::<u64>() + counters.open_faults;
        assert!(lost == 0 || counted > 0, "{lost} blocks lost without a cause, {what}");
        // Lost blocks can be put again, and are then served.
        for name in 0..CHAINS {
            put(&store, ns, &chain(name, BLOCKS), 0, BLOCK);
            assert_eq!(get(&store, ns, &chain(name, BLOCKS), BLOCK, &terms), BLOCKS, "{what}");
        }
        drop(store);
        restore(dir.path(), &pristine);
    }
}

#[test]
fn a_file_truncated_anywhere_costs_only_misses() {
    share_out(50, cut_files);
}

fn cut_files(setup: Setup, rounds: std::ops::Range<u64>) {
    let dir = tempfile::tempdir().unwrap();
    let config = filled(dir.path(), setup);
    let mut random = 77_u64 + rounds.start;
    for round in rounds {
        let pristine = snapshot(dir.path());
        let files = log_files(dir.path());
        random = next(random);
        let path = &files[usize::try_from(random).unwrap() % files.len()];
        let bytes = fs::metadata(path).unwrap().len();
        random = next(random);
        let cut = random % bytes;
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(cut).unwrap();
        let what = format!("{setup:?}, round {round}: {} truncated to {cut}", path.display());
        let report = verify(dir.path(), &|_, _| {}).unwrap();
        assert!(!report.findings.is_empty(), "verify missed it, {what}");
        let (store, ns, alive) = survivors(dir.path(), &config, &Terms::default());
        let lost = usize::try_from(CHAINS).unwrap() * BLOCKS - alive.len();
        let counters = store.stats();
        assert!(
            lost == 0 || counters.open_faults > 0 || counters.log.transfers.misses["truncated"] > 0,
            "{what}"
        );
        put(&store, ns, &chain(100, BLOCKS), 0, BLOCK);
        assert_eq!(get(&store, ns, &chain(100, BLOCKS), BLOCK, &Terms::default()), BLOCKS);
        drop(store);
        restore(dir.path(), &pristine);
    }
}

type Snapshot = Vec<(PathBuf, Vec<u8>)>;

fn snapshot(dir: &Path) -> Snapshot {
    files(dir).into_iter().map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
}

fn restore(dir: &Path, snapshot: &Snapshot) {
    for path in files(dir) {
        if !snapshot.iter().any(|(kept, _)| *kept == path) {
            fs::remove_file(path).unwrap();
        }
    }
    for (path, bytes) in snapshot {
        fs::write(path, bytes).unwrap();
    }
}

#[test]
fn swapped_segments_serve_no_wrong_bytes() {
    setups().into_iter().for_each(swap_segments);
}

fn swap_segments(setup: Setup) {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = filled(one.path(), setup);
    filled(two.path(), setup);
    let segment = |dir: &Path, number: u64| dir.join(format!("segment-{number:016x}.log"));
    fs::copy(segment(one.path(), 1), segment(one.path(), 2)).unwrap();
    let (store, ..) = survivors(one.path(), &config, &Terms::default());
    assert!(store.stats().open_faults > 0);
    drop(store);
    fs::copy(segment(two.path(), 1), segment(one.path(), 1)).unwrap();
    let unknown = fs::read(segment(one.path(), 1)).unwrap();
    let (store, ..) = survivors(one.path(), &config, &Terms::default());
    assert!(store.stats().open_faults > 0);
    drop(store);
    assert_eq!(fs::read(segment(one.path(), 1)).unwrap(), unknown, "an unknown file is unchanged");
}

#[test]
fn disk_use_stays_under_the_capacity_at_every_moment() {
    // Two fills cover both engines and both indexes.
    let setups = setups();
    for setup in [setups[0], setups[setups.len() - 1]] {
        fill_three_times(setup);
    }
}

fn fill_three_times(setup: Setup) {
    let dir = tempfile::tempdir().unwrap();
    let config = setup.config(24 << 20);
    let capacity = config.capacity.unwrap();
    let store = open(dir.path(), &config);
    let ns = namespace(&store, 1, 64 << 10, "fill");
    let used = || -> u64 {
        use std::os::unix::fs::MetadataExt;
        // Files of the index disappear while this reads the directory.
        let entries = fs::read_dir(dir.path()).unwrap();
        entries.filter_map(|entry| Some(entry.unwrap().metadata().ok()?.blocks() * 512)).sum()
    };
    // Dropped also when an assertion fails, so that the watcher always ends.
    let (running, stopped) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let running = running;
        let watcher = scope.spawn(move || {
            let mut most = 0;
            while stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                most = most.max(used());
            }
            most
        });
        // One chain is read repeatedly, the others once: it must survive longer.
        let hot = chain(0, 16);
        put(&store, ns, &hot, 0, 64 << 10);
        let chains = 3 * capacity / (16 * (64 << 10));
        for name in 1..=chains {
            let report = put(&store, ns, &chain(name, 16), 0, 64 << 10);
            assert_eq!(report.count(PutOutcome::Stored), 16, "chain {name}");
            assert_eq!(
                get(&store, ns, &hot, 64 << 10, &Terms::default()),
                16,
                "after chain {name}"
            );
            assert_eq!(get(&store, ns, &chain(name, 16), 64 << 10, &Terms::default()), 16);
        }
        drop(running);
        let most = watcher.join().unwrap();
        assert!(most <= capacity, "{most} bytes of disk, capacity {capacity}");
    });
    let stats = store.stats();
    assert!(stats.evicted_blocks > 0 && stats.relocated_bytes > 0, "{stats:?}");
    drop(store);
    assert_eq!(verify(dir.path(), &|_, _| {}).unwrap().findings, []);
}

#[test]
fn a_prefix_is_never_evicted_before_its_suffix() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &config(24 << 20));
    let ns = namespace(&store, 1, 64 << 10, "order");
    let long = chain(1, 32);
    for part in 0..8 {
        put(&store, ns, &long[..(part + 1) * 4], part * 4, 64 << 10);
        put(&store, ns, &chain(50 + part as u64, 16), 0, 64 << 10);
    }
    for name in 100..160 {
        put(&store, ns, &chain(name, 8), 0, 64 << 10);
        let present = store.contains(ns, &long).unwrap();
        let first_gap = present.iter().position(|p| !p).unwrap_or(present.len());
        assert!(
            present[first_gap..].iter().all(|p| !p),
            "a suffix outlived its prefix: {present:?}"
        );
    }
}

#[test]
fn an_open_of_a_store_in_use_names_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let _store = open(dir.path(), &config(16 << 20));
    let error = Store::open(dir.path(), &config(16 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
}

#[test]
fn a_directory_with_other_files_is_refused_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.tex"), "years of work").unwrap();
    let error = Store::open(dir.path(), &config(16 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("thesis.tex"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn an_unknown_file_next_to_the_store_is_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let config = filled(dir.path(), Setup::SIMPLEST);
    let strange = [dir.path().join("notes.txt"), dir.path().join("segment-00000000000000ff.log")];
    for path in &strange {
        fs::write(path, vec![b'x'; 1 << 20]).unwrap();
    }
    let (store, _, alive) = survivors(dir.path(), &config, &Terms::default());
    assert_eq!(alive.len(), usize::try_from(CHAINS).unwrap() * BLOCKS);
    let ns = namespace(&store, 1, 64 << 10, "more");
    for name in 0..60 {
        put(&store, ns, &chain(name, 8), 0, 64 << 10);
    }
    for path in &strange {
        assert!(fs::read(path).unwrap().iter().all(|b| *b == b'x'));
    }
}

#[test]
fn a_newer_format_is_reported_and_nothing_changes() {
    let dir = tempfile::tempdir().unwrap();
    let config = filled(dir.path(), Setup::SIMPLEST);
    let path = dir.path().join("store.meta");
    let mut sector = fs::read(&path).unwrap();
    sector[8] = 9;
    let crc = dalsegno_core::crc32c(&sector[..4092]);
    sector[4092..].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, &sector).unwrap();
    let error = Store::open(dir.path(), &config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("version 9"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), sector);
    assert_eq!(verify(dir.path(), &|_, _| {}).unwrap_err().kind(), ErrorKind::Incompatible);
}

#[test]
fn a_lost_store_header_is_rebuilt_from_the_segments() {
    for setup in setups() {
        let dir = tempfile::tempdir().unwrap();
        let config = filled(dir.path(), setup);
        fs::remove_file(dir.path().join("store.meta")).unwrap();
        let (_, _, alive) = survivors(dir.path(), &config, &Terms::default());
        assert_eq!(alive.len(), usize::try_from(CHAINS).unwrap() * BLOCKS, "{setup:?}");
    }
}

#[test]
fn regression_a_store_without_header_and_with_truncated_segments_opens() {
    for (cut, segment) in [(0, None), (4096, None), (4096, Some(1 << 20)), (512 << 10, None)] {
        let dir = tempfile::tempdir().unwrap();
        let config = filled(dir.path(), setups()[0]);
        for path in log_files(dir.path()) {
            let is_segment = path.extension().is_some_and(|ending| ending == "log");
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(if is_segment { cut } else { 0 }).unwrap();
        }
        let config = Config { segment, ..config };
        let (store, ns, alive) = survivors(dir.path(), &config, &Terms::default());
        assert!(alive.len() < usize::try_from(CHAINS).unwrap() * BLOCKS, "cut to {cut}");
        put(&store, ns, &chain(100, BLOCKS), 0, BLOCK);
        assert_eq!(get(&store, ns, &chain(100, BLOCKS), BLOCK, &Terms::default()), BLOCKS);
    }
}

#[test]
fn a_deadline_in_the_past_is_a_miss_with_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let config = filled(dir.path(), Setup::SIMPLEST);
    let store = open(dir.path(), &config);
    let ns = namespace(&store, 3, 5000, "faults");
    assert_eq!(get(&store, ns, &chain(0, BLOCKS), BLOCK, &Terms::within(Duration::ZERO)), 0);
    assert!(store.stats().log.transfers.misses["deadline"] > 0);
    assert_eq!(get(&store, ns, &chain(0, BLOCKS), BLOCK, &Terms::default()), BLOCKS);
}
