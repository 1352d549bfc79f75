//! Flushes and removals in the middle of a compaction.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dalsegno_core::Deadline;

use super::chains::{NAMESPACE, hash, index_in, put};
use super::files::MemoryFiles;
use crate::lsm::files::table_files::TableFiles;
use crate::lsm::index::on_disk::LsmIndex;
use crate::lsm::maintenance::pace::Pace;
use crate::{Index, LsmStats};

fn put_one(index: &LsmIndex, number: u64) {
    put(index, number + 1, &[hash(number)], 0, 1);
}

/// Before a compaction writes, freezes a memtable whose manifest cannot be written.
#[derive(Debug)]
struct Refusing {
    index: Weak<LsmIndex>,
    files: Arc<MemoryFiles>,
}

impl Pace for Refusing {
    fn wait(&self, _bytes: u64) {
        let mut refused = self.files.refused.lock();
        if refused.is_none() {
            *refused = Some(".manifest");
            let index = self.index.upgrade().unwrap();
            put_one(&index, 1 << 20);
            index.freeze(Vec::new());
        }
    }
}

/// An index of a thousand blocks in two tables, which are compacted next.
fn before_a_compaction() -> (Arc<MemoryFiles>, Arc<LsmIndex>) {
    let files = Arc::new(MemoryFiles::default());
    let index = index_in(&files, u64::MAX);
    for half in 0..2 {
        (half * 500..(half + 1) * 500).for_each(|number| put_one(&index, number));
        index.freeze(Vec::new());
        assert!(index.step());
    }
    (files, index)
}

fn names(files: &MemoryFiles) -> Vec<String> {
    files.list().unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn a_compaction_ends_if_the_manifest_of_a_flush_in_its_middle_fails() {
    let (files, index) = before_a_compaction();
    let pace = Refusing { index: Arc::downgrade(&index), files: Arc::clone(&files) };
    index.set_pace(Arc::new(pace));
    let (before, all) = (index.lsm_stats(), names(&files));
    assert!(!index.step(), "the compaction continued");
    let after = index.lsm_stats();
    assert_eq!(after.runs, before.runs);
    let LsmStats { flushes, merges, .. } = after;
    assert_eq!((flushes, merges), (before.flushes + 1, before.merges));
    // The failed manifest may name the flushed table. No manifest names the tables of the compaction.
    let left: Vec<_> = names(&files).into_iter().filter(|name| !all.contains(name)).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(all.iter().all(|name| names(&files).contains(name)), "a table was removed");
    *files.refused.lock() = None;
    assert!(!index.step(), "nothing is written after a failed manifest");
    assert!((0..1000).all(|number| index.probe(NAMESPACE, &[hash(number)], Deadline::Never) == 1));
    assert_eq!(index.probe(NAMESPACE, &[hash(1 << 20)], Deadline::Never), 1);
}

/// Before a compaction writes, another thread removes a block in a damaged table. Then a memtable is frozen.
#[derive(Debug)]
struct Removing {
    index: Weak<LsmIndex>,
    files: Arc<MemoryFiles>,
    removed: parking_lot::Mutex<Option<Sender<u64>>>,
}

impl Pace for Removing {
    fn wait(&self, _bytes: u64) {
        let Some(removed) = self.removed.lock().take() else { return };
        for name in names(&self.files).iter().filter(|name| name.contains(".table")) {
            self.files.bytes(name).write().fill(0);
        }
        let index = self.index.upgrade().unwrap();
        let other = Arc::clone(&index);
        let remove = move || {
            removed.send(other.remove_blocks(NAMESPACE, &[hash(7)]).blocks).unwrap();
        };
        dalsegno_io::spawn("remover", remove).unwrap();
        let is_urgent = (0..6000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            index.is_urgent()
        });
        assert!(is_urgent, "a compaction keeps its pace though a caller waits for it");
        index.freeze(Vec::new());
        put_one(&index, 1 << 20);
    }
}

#[test]
fn a_removal_that_meets_a_damaged_table_during_a_compaction_ends() {
    let (files, index) = before_a_compaction();
    let (sender, removed) = channel();
    let pace = Removing {
        index: Arc::downgrade(&index),
        files: Arc::clone(&files),
        removed: parking_lot::Mutex::new(Some(sender)),
    };
    index.set_pace(Arc::new(pace));
    let compactor = Arc::clone(&index);
    let work = move || assert!(!compactor.step(), "its inputs cannot be read");
    let compaction = dalsegno_io::spawn("compactor", work).unwrap();
    let blocks = removed.recv_timeout(Duration::from_secs(60));
    assert_eq!(blocks, Ok(0), "the removal and the compaction wait for each other");
    compaction.join().unwrap();
    assert!(index.is_damaged());
    assert!(
        (0..1000).all(|number| index.probe(NAMESPACE, &[hash(number)], Deadline::Never) == 0),
        "no tables"
    );
    assert_eq!(
        index.probe(NAMESPACE, &[hash(1 << 20)], Deadline::Never),
        1,
        "what is in memory stays"
    );
}
