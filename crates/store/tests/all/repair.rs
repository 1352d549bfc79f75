//! Repair: afterwards the check finds nothing, and every block is there that was readable before.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::support::{
    Setup, chain, files, get, has_index_files, namespace, next, open, put, setups,
};
use dalsegno_store::{ChainHash, Config, ErrorKind, IndexChoice, Terms, repair, verify};

const BLOCK: usize = 3 * 5000;
const CHAINS: u64 = 12;
const BLOCKS: usize = 9;
const ROUNDS: u64 = 8;

fn config(setup: Setup) -> Config {
    Config { segment: Some(1 << 20), extent: Some(64 << 10), ..setup.config(16 << 20) }
}

/// A closed store with chains of blocks in several extents and segments; some were removed.
fn filled(dir: &Path, setup: Setup) {
    let store = open(dir, &config(setup));
    let ns = namespace(&store, 3, 5000, "repair");
    for name in 0..CHAINS {
        put(&store, ns, &chain(name, BLOCKS), 0, BLOCK);
    }
    let removed = store.remove(ns, Some(&chain(3, BLOCKS)[2..]), &Terms::default()).unwrap();
    assert_eq!(removed, BLOCKS as u64 - 2);
}

/// The readable blocks, each checked byte by byte.
fn readable(dir: &Path, setup: Setup) -> BTreeSet<ChainHash> {
    let store = open(dir, &config(setup));
    let ns = namespace(&store, 3, 5000, "repair");
    let all = (0..CHAINS).flat_map(|name| chain(name, BLOCKS));
    all.filter(|hash| get(&store, ns, &[*hash], BLOCK, &Terms::default()) == 1).collect()
}

fn copy(from: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in files(from) {
        fs::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
    }
    dir
}

/// Flips a few bits anywhere, or truncates a file.
fn damage(dir: &Path, random: &mut u64) {
    let mut draw = |below: u64| {
        *random = next(*random);
        *random % below
    };
    let files = files(dir);
    for _ in 0..=draw(5) {
        let path = &files[usize::try_from(draw(files.len() as u64)).unwrap()];
        let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let bytes = file.metadata().unwrap().len();
        if bytes == 0 {
            continue;
        }
        let at = draw(bytes);
        if draw(12) == 0 {
            file.set_len(at).unwrap();
            continue;
        }
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    }
}

#[test]
fn repair_of_any_damage_leaves_a_clean_store_with_every_readable_block() {
    let (mut repaired, mut dropped) = (0, 0);
    for (number, setup) in (0..).zip(setups()) {
        let pristine = tempfile::tempdir().unwrap();
        filled(pristine.path(), setup);
        let all = readable(pristine.path(), setup);
        for round in 0..ROUNDS {
            let dir = copy(pristine.path());
            let mut random = 1 + number * ROUNDS + round;
            damage(dir.path(), &mut random);
            let what = format!("{setup:?}, round {round}");
            let without = copy(dir.path());
            let report = repair(dir.path(), &|_, _| ()).unwrap();
            assert_eq!(report.after.findings, [], "{what}: {:?}", report.before.findings);
            assert_eq!(verify(dir.path(), &|_, _| ()).unwrap(), report.after, "{what}");
            repaired += report.segments;
            dropped += report.dropped_blocks;
            let had = readable(without.path(), setup);
            let has = readable(dir.path(), setup);
            let lost = had.difference(&has).count();
            assert_eq!(lost, 0, "{what}: good blocks were lost, {:?}", report.before.findings);
            // A removal whose record is damaged is forgotten, with repair and without.
            let is_forgotten = !had.is_subset(&all);
            assert!(is_forgotten || has.is_subset(&all), "{what}: removed blocks are back");
        }
    }
    assert!(repaired > 0 && dropped > 0, "{repaired} segments, {dropped} blocks");
}

#[test]
fn repair_does_not_change_a_healthy_store() {
    for setup in setups() {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path(), setup);
        let before: Vec<_> = files(dir.path()).iter().map(|path| fs::read(path).unwrap()).collect();
        let report = repair(dir.path(), &|_, _| ()).unwrap();
        assert_eq!((report.segments, report.dropped_blocks), (0, 0));
        assert_eq!(report.before, report.after);
        let after: Vec<_> = files(dir.path()).iter().map(|path| fs::read(path).unwrap()).collect();
        assert!(before == after, "{setup:?}");
    }
}

#[test]
fn repair_keeps_a_sound_index_and_rebuilds_a_damaged_one() {
    let setup = Setup { index: IndexChoice::Lsm, ..Setup::SIMPLEST };
    let pristine = tempfile::tempdir().unwrap();
    filled(pristine.path(), setup);
    // Twice, so that there are tables.
    drop(open(pristine.path(), &config(setup)));
    let all = readable(pristine.path(), setup);
    let is_segment = |path: &PathBuf| path.to_str().unwrap().ends_with("1.log");
    let is_table = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "table");
    for (is_wanted, kept) in [(&is_segment as &dyn Fn(&PathBuf) -> bool, true), (&is_table, false)]
    {
        let dir = copy(pristine.path());
        let file = files(dir.path()).into_iter().find(|path| is_wanted(path)).unwrap();
        let file = fs::OpenOptions::new().write(true).open(file).unwrap();
        file.write_all_at(&[0xa5; 64], 9000 % file.metadata().unwrap().len()).unwrap();
        let report = repair(dir.path(), &|_, _| ()).unwrap();
        assert!(!report.before.findings.is_empty());
        assert_eq!(report.after.findings, []);
        assert_eq!(has_index_files(dir.path()), kept);
        let lost = all.len() - readable(dir.path(), setup).len();
        assert_eq!(lost as u64, report.dropped_blocks);
        assert_eq!(lost > 0, kept);
    }
}

#[test]
fn an_open_store_is_not_repaired() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), Setup::SIMPLEST);
    let store = open(dir.path(), &config(Setup::SIMPLEST));
    let refused = repair(dir.path(), &|_, _| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    drop(store);
}
