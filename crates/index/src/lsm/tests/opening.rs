//! Opening an index whose files cannot be read, for a moment or forever.

use std::sync::Arc;

use dalsegno_core::{Deadline, ManualClock};

use super::STORE;
use super::chains::{NAMESPACE, hash, put};
use super::files::{MemoryFiles, Unreadable};
use crate::Index;
use crate::lsm::files::table_files::TableFiles;
use crate::lsm::index::on_disk::LsmIndex;
use crate::lsm::index::open::LsmOptions;

const BLOCKS: u64 = 40;
const CHECKPOINT: &[u8] = b"indexed up to here, and removals";
const REMOVED: &[u8] = b"and removals";
const EIO: i32 = 5;
const EMFILE: i32 = 24;

fn removals(checkpoint: &[u8]) -> Vec<u8> {
    assert!(checkpoint.ends_with(REMOVED), "a checkpoint of another index: {checkpoint:?}");
    REMOVED.to_vec()
}

type Opened = (LsmIndex, Option<Vec<u8>>);

fn open(files: &Arc<MemoryFiles>) -> Result<Opened, dalsegno_io::IoError> {
    let files: Arc<dyn TableFiles> = Arc::<MemoryFiles>::clone(files);
    LsmIndex::open_in(
        files,
        Arc::new(ManualClock::default()),
        STORE,
        LsmOptions { without_tables: removals, ..LsmOptions::default() },
    )
}

/// An index of two tables next to a file of the log.
fn closed() -> Arc<MemoryFiles> {
    let files = Arc::new(MemoryFiles::default());
    files.create("store.meta", 4096).unwrap();
    let (index, checkpoint) = open(&files).unwrap();
    assert_eq!(checkpoint, None);
    for half in 0..2 {
        for number in half * BLOCKS / 2..(half + 1) * BLOCKS / 2 {
            put(&index, number + 1, &[hash(number)], 0, 1);
        }
        index.freeze(CHECKPOINT.to_vec());
        assert!(index.step());
    }
    assert_eq!(index.lsm_stats().tables, 2);
    files
}

fn names(files: &MemoryFiles, end: &str) -> Vec<String> {
    let names = files.list().unwrap().into_iter().map(|entry| entry.name);
    names.filter(|name| name.ends_with(end)).collect()
}

fn held(index: &LsmIndex) -> usize {
    (0..BLOCKS).map(|number| index.probe(NAMESPACE, &[hash(number)], Deadline::Never)).sum()
}

fn expect_whole(files: &Arc<MemoryFiles>) {
    let (index, checkpoint) = open(files).unwrap();
    assert_eq!((held(&index), checkpoint.as_deref()), (40, Some(CHECKPOINT)));
}

/// Every open finds an empty index that knows the removals.
fn expect_removals(files: &Arc<MemoryFiles>) {
    for _ in 0..3 {
        let (index, checkpoint) = open(files).unwrap();
        assert_eq!((held(&index), checkpoint.as_deref()), (0, Some(REMOVED)));
        assert_eq!(names(files, ".manifest").len(), 1);
        assert_eq!(names(files, ".table"), [""; 0], "tables without a manifest are removed");
    }
}

#[test]
fn a_read_that_fails_once_is_repeated_and_costs_nothing() {
    for end in [".manifest", ".table"] {
        // A manifest is opened and read; a table is opened, and read three times.
        for skip in 0..if end == ".table" { 8 } else { 2 } {
            let files = closed();
            let tables = names(&files, ".table");
            let fault = Unreadable { end, times: 1, skip, number: EIO };
            *files.unreadable.lock() = Some(fault);
            expect_whole(&files);
            assert_eq!(names(&files, ".table"), tables);
            assert_eq!(
                files.unreadable.lock().map(|fault| fault.times),
                Some(0),
                "the fault was met"
            );
        }
    }
}

#[test]
fn an_open_without_reads_or_descriptors_fails_and_changes_nothing() {
    for (end, number) in [("", EIO), (".table", EMFILE), (".manifest", EMFILE)] {
        let files = closed();
        let before = names(&files, "");
        *files.unreadable.lock() = Some(Unreadable { end, times: u32::MAX, skip: 0, number });
        let error = open(&files).map(drop).unwrap_err();
        assert_eq!(error.is_out_of_files(), number == EMFILE, "{error}");
        assert_eq!(names(&files, ""), before);
        *files.unreadable.lock() = None;
        expect_whole(&files);
    }
}

#[test]
fn an_index_that_lost_a_table_keeps_its_removals() {
    let files = closed();
    let table = names(&files, ".table").remove(0);
    files.bytes(&table).write().fill(0);
    expect_removals(&files);

    let files = closed();
    // Everything else can be read.
    *files.unreadable.lock() =
        Some(Unreadable { end: "1.table", times: u32::MAX, skip: 0, number: EIO });
    expect_removals(&files);
}

#[test]
fn dropping_the_tables_keeps_the_removals() {
    for is_served in [true, false] {
        let files = closed();
        let (index, _) = open(&files).unwrap();
        if is_served {
            index.condemn();
        } else {
            index.empty();
        }
        assert_eq!(held(&index), if is_served { 40 } else { 0 });
        assert!(index.reset(), "its manifest names no tables already");
        index.freeze(CHECKPOINT.to_vec());
        assert!(!index.step(), "nothing is written any more");
        drop(index);
        expect_removals(&files);
    }
}

#[test]
fn tables_stay_if_the_removals_cannot_be_written() {
    let files = closed();
    let (index, _) = open(&files).unwrap();
    *files.refused.lock() = Some(".manifest");
    index.empty();
    assert_eq!(held(&index), 0);
    assert!(!index.reset(), "its manifest still names them");
    drop(index);
    *files.refused.lock() = None;
    expect_whole(&files);
}
