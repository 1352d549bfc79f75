//! Parts of a store that vanished without a trace: `verify` reports them, and no normal operation looks like that.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::support::{Setup, chain, get, namespace, open, put};
use dalsegno_store::{
    Config, Durability, Finding, IndexChoice, NamespaceId, Store, Terms, list, repair, verify,
};

const BLOCK: usize = 2 * 6000;
const BLOCKS: usize = 20;
/// More than one segment takes.
const CHAINS: usize = 10;
const SECTOR: u64 = 4096;

const SETUPS: [Setup; 2] = [Setup::SIMPLEST, Setup { index: IndexChoice::Lsm, ..Setup::SIMPLEST }];

fn config(setup: Setup, durability: Durability) -> Config {
    Config { durability, segment: Some(1 << 20), ..setup.config(16 << 20) }
}

fn space(store: &Store) -> NamespaceId {
    namespace(store, 2, 6000, "lost parts")
}

/// A closed store of several segments.
fn filled(dir: &Path, config: &Config) {
    let store = open(dir, config);
    let ns = space(&store);
    for name in 0..CHAINS as u64 {
        put(&store, ns, &chain(name, BLOCKS), 0, BLOCK);
    }
    store.close();
}

/// What is checked of every store with each index and either durability.
fn with_each(body: impl Fn(&Path, &Config)) {
    for setup in SETUPS {
        for durability in [Durability::None, Durability::Batch] {
            let dir = tempfile::tempdir().unwrap();
            let config = config(setup, durability);
            filled(dir.path(), &config);
            body(dir.path(), &config);
        }
    }
}

fn findings(dir: &Path) -> Vec<Finding> {
    verify(dir, &|_, _| ()).unwrap().findings
}

fn readable(dir: &Path, config: &Config) -> usize {
    let store = open(dir, config);
    let ns = space(&store);
    (0..CHAINS as u64)
        .map(|name| get(&store, ns, &chain(name, BLOCKS), BLOCK, &Terms::default()))
        .sum()
}

fn segment(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("segment-{number:016x}.log"))
}

/// File name and offset of each extent, in the order of writing.
fn places(dir: &Path) -> Vec<(u64, u64)> {
    let mut rows = list(dir).unwrap().1;
    rows.sort_by_key(|row| row.sequence);
    rows.iter().map(|row| (row.segment, row.offset)).collect()
}

fn zero(file: &Path, offset: u64, sectors: u64) {
    let file = fs::OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(&vec![0; usize::try_from(sectors * SECTOR).unwrap()], offset).unwrap();
}

/// Repairs a store with one finding; afterwards it is clean for good, and `blocks` are readable.
fn repair_restores(dir: &Path, config: &Config, blocks: usize) {
    let report = repair(dir, &|_, _| ()).unwrap();
    assert_eq!(report.after.findings, []);
    assert_eq!(findings(dir), []);
    assert_eq!(readable(dir, config), blocks);
    assert_eq!(findings(dir), []);
}

#[test]
fn regression_a_record_with_a_zeroed_header_is_reported_at_any_place() {
    with_each(|dir, config| {
        let places = places(dir);
        for at in [0, 1, places.len() / 2, places.len() - 1] {
            let (number, offset) = places[at];
            let file = segment(dir, number);
            let before = fs::read(&file).unwrap();
            zero(&file, offset, 1);
            let [finding] = &findings(dir)[..] else { panic!("{at}: {:?}", findings(dir)) };
            let name = file.file_name().unwrap().to_str().unwrap();
            assert_eq!((finding.file.as_str(), finding.offset), (name, offset), "{finding:?}");
            assert!(finding.what.starts_with("1 record of 20 blocks lost"), "{finding:?}");
            fs::write(&file, before).unwrap();
            assert_eq!(findings(dir), []);
        }
        let (number, offset) = places[1];
        zero(&segment(dir, number), offset, 1);
        // Opening and closing the store is no repair.
        drop(open(dir, config));
        assert_eq!(findings(dir).len(), 1);
        repair_restores(dir, config, (CHAINS - 1) * BLOCKS);
    });
}

#[test]
fn regression_a_missing_segment_file_is_reported() {
    with_each(|dir, config| {
        let numbers: Vec<u64> = places(dir).iter().map(|(number, _)| *number).collect();
        let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
        assert!(first < last, "several segments");
        for number in [last, first] {
            let (file, aside) = (segment(dir, number), dir.join("aside"));
            fs::rename(&file, &aside).unwrap();
            let [finding] = &findings(dir)[..] else { panic!("{:?}", findings(dir)) };
            let name = file.file_name().unwrap().to_str().unwrap();
            assert_eq!((finding.file.as_str(), finding.offset), (name, 0));
            assert!(finding.what.starts_with("the file is missing, with "), "{finding:?}");
            fs::rename(&aside, &file).unwrap();
            assert_eq!(findings(dir), []);
        }
        let gone = numbers.iter().filter(|number| **number == first).count();
        fs::remove_file(segment(dir, first)).unwrap();
        drop(open(dir, config));
        assert_eq!(findings(dir).len(), 1, "opening the store is no repair");
        repair_restores(dir, config, (CHAINS - gone) * BLOCKS);
    });
}

#[test]
fn a_segment_with_zeroed_first_sectors_is_not_mistaken_for_an_unfinished_one() {
    with_each(|dir, config| {
        let (number, _) = places(dir)[0];
        zero(&segment(dir, number), 0, 2);
        let [finding] = &findings(dir)[..] else { panic!("{:?}", findings(dir)) };
        assert_eq!(finding.what, "the segment's header is gone");
        let report = repair(dir, &|_, _| ()).unwrap();
        assert_eq!(report.after.findings, [], "{config:?}");
    });
}

#[test]
fn the_missing_only_record_of_a_segment_is_reported_and_repaired() {
    for setup in SETUPS {
        let dir = tempfile::tempdir().unwrap();
        let config = config(setup, Durability::None);
        let store = open(dir.path(), &config);
        let ns = space(&store);
        put(&store, ns, &chain(0, BLOCKS), 0, BLOCK);
        store.close();
        let (number, offset) = places(dir.path())[0];
        zero(&segment(dir.path(), number), offset, 1);
        assert_eq!(findings(dir.path()).len(), 1);
        repair_restores(dir.path(), &config, 0);
    }
}

#[test]
fn a_damaged_header_is_reported_once() {
    with_each(|dir, _| {
        let (number, offset) = places(dir)[1];
        let file = fs::OpenOptions::new().write(true).open(segment(dir, number)).unwrap();
        file.write_all_at(&[0xa5; 8], offset + 100).unwrap();
        assert_eq!(findings(dir).len(), 1, "{:?}", findings(dir));
    });
}

#[test]
fn eviction_removal_and_a_change_of_index_leave_no_finding() {
    let setups = [SETUPS[0], SETUPS[1], SETUPS[0], SETUPS[1], SETUPS[1]];
    for durability in [Durability::None, Durability::Batch] {
        let dir = tempfile::tempdir().unwrap();
        for (round, setup) in (0_u64..).zip(setups) {
            let store = open(dir.path(), &config(setup, durability));
            let ns = space(&store);
            for name in 100 * round..100 * round + 90 {
                put(&store, ns, &chain(name, BLOCKS), 0, BLOCK);
                if name % 7 == 0 {
                    let gone = chain(name, BLOCKS);
                    store.remove(ns, Some(&gone[3..]), &Terms::default()).unwrap();
                }
            }
            assert!(store.stats().evicted_blocks > 0, "space was freed");
            store.close();
            assert_eq!(findings(dir.path()), [], "{round}: {setup:?}, {durability:?}");
            // A loss behind that is found whether or not the index knew the blocks.
            let (number, offset) = places(dir.path())[places(dir.path()).len() / 2];
            let before = fs::read(segment(dir.path(), number)).unwrap();
            zero(&segment(dir.path(), number), offset, 1);
            assert_eq!(findings(dir.path()).len(), 1, "{round}: {setup:?}, {durability:?}");
            fs::write(segment(dir.path(), number), before).unwrap();
        }
    }
}

#[test]
fn a_store_with_a_missing_or_truncated_list_is_clean_and_opens() {
    with_each(|dir, config| {
        let list = dir.join("segments.meta");
        let whole = fs::read(&list).unwrap();
        let mut unfinished = whole.clone();
        unfinished[..4096].fill(0);
        for left in [Some(unfinished), Some(vec![0; whole.len()]), Some(Vec::new()), None] {
            fs::remove_file(&list).unwrap();
            if let Some(bytes) = left {
                fs::write(&list, bytes).unwrap();
            }
            assert_eq!(findings(dir), []);
            assert_eq!(readable(dir, config), CHAINS * BLOCKS);
            assert_eq!(findings(dir), []);
        }
        // Damage in it is a finding, and costs nothing.
        let mut damaged = fs::read(&list).unwrap();
        damaged[4100] ^= 1;
        fs::write(&list, damaged).unwrap();
        let [finding] = &findings(dir)[..] else { panic!("{:?}", findings(dir)) };
        assert_eq!((finding.file.as_str(), finding.offset), ("segments.meta", 0));
        repair_restores(dir, config, CHAINS * BLOCKS);
    });
}
