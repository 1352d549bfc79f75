//! The offline check and an on-disk index: damage anywhere in it is found and costs no block. The remains of a crash
//! are no damage.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

use crate::support::{Setup, chain, get, index_files, namespace, open, put};
use dalsegno_store::{Config, EngineChoice, Finding, IndexChoice, Store, Terms, verify};

const BLOCK: usize = 4096;
const BLOCKS: usize = 8;
const CHAINS: u64 = 60;
/// All blocks that are put.
const ALL: usize = 60 * BLOCKS;
const SECTOR: u64 = 4096;

fn config() -> Config {
    let setup = Setup { engine: EngineChoice::Psync, index: IndexChoice::Lsm };
    Config { segment: Some(1 << 20), extent: Some(32 << 10), ..setup.config(32 << 20) }
}

/// A closed store with several tables.
fn filled(dir: &Path) {
    for part in [0..CHAINS / 2, CHAINS / 2..CHAINS] {
        let store = open(dir, &config());
        let ns = namespace(&store, 1, 4096, "kept");
        for name in part {
            put(&store, ns, &chain(name, BLOCKS), 0, BLOCK);
        }
    }
}

fn hits(store: &Store) -> usize {
    let ns = namespace(store, 1, 4096, "kept");
    (0..CHAINS).map(|name| get(store, ns, &chain(name, BLOCKS), BLOCK, &Terms::default())).sum()
}

fn findings(dir: &Path) -> Vec<Finding> {
    verify(dir, &|_, _| ()).unwrap().findings
}

fn flip(dir: &Path, name: &str, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(dir.join(name)).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

fn copy(from: &Path, to: &Path) {
    for name in index_files(to) {
        fs::remove_file(to.join(name)).unwrap();
    }
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn only(dir: &Path, kind: &str) -> String {
    index_files(dir).into_iter().find(|name| name.ends_with(kind)).unwrap()
}

fn number(file: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*file[at..].first_chunk().unwrap())
}

#[test]
fn a_healthy_index_is_read_completely_and_is_clean() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let files = index_files(dir.path());
    let sizes = files.iter().map(|name| fs::metadata(dir.path().join(name)).unwrap().len());
    let (index_bytes, tables) = (sizes.sum::<u64>(), files.len() as u64 - 1);
    let heard = Mutex::new(Vec::new());
    let report = verify(dir.path(), &|done, all| heard.lock().unwrap().push((done, all))).unwrap();
    assert_eq!((report.findings, report.tables), (vec![], tables));
    assert!(tables > 1);
    let heard = heard.into_inner().unwrap();
    let all = heard.last().unwrap().1;
    assert!(heard.is_sorted() && heard.iter().all(|(done, of)| done <= of && *of == all));
    assert_eq!(heard.last(), Some(&(all, all)));
    for name in &files {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    let log = verify(dir.path(), &|_, _| ()).unwrap();
    assert_eq!((log.bytes + index_bytes, log.tables), (report.bytes, 0));
}

#[test]
fn damage_in_each_part_is_reported_with_its_place_and_healed_by_the_next_opens() {
    let pristine = tempfile::tempdir().unwrap();
    filled(pristine.path());
    let (table, manifest) = (only(pristine.path(), ".table"), only(pristine.path(), ".manifest"));
    let bytes = fs::read(pristine.path().join(&table)).unwrap();
    let footer = bytes.len() - 4096;
    let [filter, index] = [footer + 64, footer + 72].map(|at| number(&bytes, at));
    let at_open = "the index is rebuilt at the next open, and no block is lost";
    let at_read = "the index is rebuilt at the next open after this is read, and no block is lost";
    let parts = [
        (&table, 5, 0, at_read),
        (&table, filter - 5, filter - SECTOR, at_read),
        (&table, filter + 70, filter, at_open),
        (&table, index + 5, index, at_open),
        (&table, footer as u64 + 300, footer as u64, at_open),
        (&manifest, 300, 0, at_open),
        (&manifest, SECTOR + 5, SECTOR, at_open),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (name, damaged, reported, cost) in parts {
        copy(pristine.path(), dir.path());
        flip(dir.path(), name, damaged);
        let [finding] = &findings(dir.path())[..] else { panic!("one finding: {name} {damaged}") };
        assert_eq!((&finding.file, finding.offset), (name, reported), "{finding:?}");
        assert!(finding.what.ends_with(cost), "{finding:?}");
        let first = hits(&open(dir.path(), &config()));
        // What an open finds is healed at once.
        assert!(cost == at_read || first == ALL, "{finding:?}: {first} hits");
        assert_eq!(hits(&open(dir.path(), &config())), ALL, "{finding:?}");
        assert_eq!(findings(dir.path()), [], "{finding:?}");
    }
}

#[test]
fn every_byte_of_the_index_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    for name in index_files(dir.path()) {
        let bytes = fs::metadata(dir.path().join(&name)).unwrap().len();
        for offset in (0..bytes).step_by(577).chain([bytes - 1]) {
            flip(dir.path(), &name, offset);
            let found = findings(dir.path());
            assert!(!found.is_empty(), "{name} at {offset}");
            assert!(found.iter().all(|finding| finding.file == name), "{found:?}");
            flip(dir.path(), &name, offset);
        }
    }
    assert_eq!(findings(dir.path()), []);
}

#[test]
fn missing_and_exchanged_tables_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let files = index_files(dir.path());
    let [one, two] = [0, 1].map(|at| dir.path().join(&files[at]));
    let bytes = fs::read(&one).unwrap();
    fs::copy(&two, &one).unwrap();
    let [finding] = &findings(dir.path())[..] else { panic!("one finding") };
    assert!(finding.file == files[0] && finding.what.contains("another table"), "{finding:?}");
    fs::write(&one, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(findings(dir.path()).len(), 1);
    fs::remove_file(&one).unwrap();
    let [finding] = &findings(dir.path())[..] else { panic!("one finding") };
    assert!(finding.file == files[0] && finding.what.contains("is missing"), "{finding:?}");
    // The index says whose it is, even where the store's own header does not.
    flip(dir.path(), "store.meta", 20);
    let found = findings(dir.path());
    let named: Vec<&str> = found.iter().map(|finding| finding.file.as_str()).collect();
    assert_eq!(named, [files[0].as_str(), "store.meta"]);
    assert_eq!(hits(&open(dir.path(), &config())), ALL);
    assert_eq!(findings(dir.path()), []);
}

#[test]
fn remains_of_a_crash_are_no_finding() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let manifest = fs::read(dir.path().join(only(dir.path(), ".manifest"))).unwrap();
    let file = |number: u64, kind: &str| dir.path().join(format!("index-{number:016x}.{kind}"));
    // A table that was being written, an old manifest whose tables are gone, new ones that were not written to the end.
    fs::write(file(1000, "table"), vec![7; 5000]).unwrap();
    fs::write(file(0, "manifest"), &manifest).unwrap();
    fs::write(file(1001, "manifest"), []).unwrap();
    fs::write(file(1002, "manifest"), vec![0; 8192]).unwrap();
    let mut half = manifest;
    half[4096..].fill(0);
    fs::write(file(1003, "manifest"), half).unwrap();
    assert_eq!(findings(dir.path()), []);
    assert_eq!(hits(&open(dir.path(), &config())), ALL);
    assert_eq!(findings(dir.path()), []);
}
