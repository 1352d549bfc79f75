//! Tables against a plain map.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::Deadline;
use proptest::prelude::*;

use super::files::MemoryFiles;
use super::{Model, STORE, get, key, model, options, rest, table, table_in, write};
use crate::error::TableError;
use crate::lsm::files::table_files::TableFiles;
use crate::lsm::table::block_cache::BlockCache;
use crate::lsm::table::footer::table_file;
use crate::lsm::table::iter::{ReadMode, TableIter};
use crate::lsm::table::read_counts::Purpose;
use crate::lsm::table::reader::Table;
use crate::lsm::table::source::Source;
use crate::lsm::table::writer::{TableOptions, TableWriter};

fn points(count: u32) -> Model {
    (0..count).map(|n| ([&b"p"[..], &n.to_be_bytes()].concat(), vec![1; 30])).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_table_behaves_like_a_map(
        model in model(), others in prop::collection::vec(key(), 20), cache_sectors in 0_u64..200,
        ahead in 0_usize..100_000,
    ) {
        let (_, table) = table(&model);
        let cache = BlockCache::new(cache_sectors * 4096);
        for key in model.keys().chain(&others) {
            let value = get(&table, key, &cache).unwrap();
            prop_assert_eq!(value.as_deref(), model.get(key).map(|value| &value[..]));
        }
        let entries: Vec<_> = model.clone().into_iter().collect();
        let cached = ReadMode::Cached(cache.clone(), Purpose::Scan, Deadline::Never);
        for mode in [cached, ReadMode::Ahead(ahead)] {
            let mut iter = TableIter::new(&table, &[], mode.clone()).unwrap();
            prop_assert_eq!(&rest(&mut iter).unwrap(), &entries);
            iter.advance().unwrap();
            prop_assert_eq!(iter.key(), None);
            for key in others.iter().chain(model.keys().take(5)) {
                let mut iter = TableIter::new(&table, key, mode.clone()).unwrap();
                let wanted = model.range(key.clone()..).next();
                prop_assert_eq!(iter.key(), wanted.map(|(key, _)| &key[..]));
                prop_assert_eq!(iter.value(), wanted.map_or(&[][..], |(_, value)| value));
                prop_assert_eq!(rest(&mut iter).unwrap().len(), model.range(key.clone()..).count());
            }
        }
        prop_assert!(cache.usage().bytes <= cache_sectors * 4096);
    }

    #[test]
    fn a_table_reports_its_entries_keys_and_size(model in model()) {
        let files = Arc::new(MemoryFiles::default());
        let facts = write(&*files, 7, &model).unwrap();
        prop_assert_eq!(facts.file_bytes, files.bytes(&table_file(7)).read().len() as u64);
        prop_assert_eq!(facts.entries, model.len() as u64);
        prop_assert_eq!(facts.points, model.keys().filter(|key| key[0] == b'p').count() as u64);
        let keys = (model.first_key_value().unwrap().0, model.last_key_value().unwrap().0);
        prop_assert_eq!((&*facts.smallest, &*facts.largest), (&keys.0[..], &keys.1[..]));
        drop(files);
        let (_, table) = table(&model);
        prop_assert_eq!((table.entries(), table.points()), (facts.entries, facts.points));
        prop_assert_eq!((table.smallest(), table.largest()), (&keys.0[..], &keys.1[..]));
        prop_assert_eq!((table.number(), table.file_bytes()), (1, facts.file_bytes));
    }
}

#[test]
fn the_estimated_size_is_close_and_every_write_is_announced() {
    let files = MemoryFiles::default();
    let model = points(20_000);
    let options = TableOptions { filter_bits: 10.0, request_bytes: 65_536 };
    let mut writer = TableWriter::new(&files, STORE, 1, options);
    assert!(writer.is_empty());
    for (key, value) in &model {
        writer.add(key, value);
    }
    let estimated = writer.estimated_bytes();
    let (announced, most) = (AtomicU64::new(0), AtomicU64::new(0));
    let facts = writer.finish(&|bytes| {
        announced.fetch_add(bytes, Ordering::Relaxed);
        most.fetch_max(bytes, Ordering::Relaxed);
    });
    let file_bytes = facts.unwrap().0.file_bytes;
    assert_eq!((announced.into_inner(), most.into_inner()), (file_bytes, 65_536));
    assert!(estimated.abs_diff(file_bytes) < 3 * 4096, "{estimated} and {file_bytes}");
    assert_eq!(files.open_count(), 0);
}

#[test]
fn a_block_is_cached_at_its_second_read_and_a_ruled_out_key_costs_no_read() {
    let model = points(10_000);
    let (files, table) = table(&model);
    assert_eq!(files.open_count(), 1);
    let cache = BlockCache::new(1 << 20);
    let reads = || files.reads.load(Ordering::Relaxed);
    let before = reads();
    for expected in [1, 2, 2, 2] {
        let key = model.keys().nth(5_000).unwrap();
        assert!(get(&table, key, &cache).unwrap().is_some());
        assert_eq!(reads() - before, expected);
    }
    let counts = cache.usage();
    assert_eq!((counts.hits, counts.misses), (2, 2));
    for n in 10_000..11_000_u32 {
        let key = [&b"p"[..], &n.to_be_bytes()].concat();
        assert!(get(&table, &key, &cache).unwrap().is_none());
    }
    // These are after the last key, so not even a false positive costs a read.
    assert_eq!(reads() - before, 2);
    drop(table);
    assert_eq!(files.open_count(), 0);
}

#[test]
fn reading_ahead_costs_few_reads() {
    let (files, table) = table(&points(20_000));
    let before = files.reads.load(Ordering::Relaxed);
    let mut iter = TableIter::new(&table, &[], ReadMode::Ahead(256 << 10)).unwrap();
    assert_eq!(rest(&mut iter).unwrap().len(), 20_000);
    let reads = files.reads.load(Ordering::Relaxed) - before;
    assert_eq!(reads, (table.file_bytes() - 16_384).div_ceil(256 << 10));
}

#[test]
fn a_failed_write_or_sync_leaves_no_file() {
    for failing_after in 0..3 {
        let files = MemoryFiles::default();
        *files.failing_after.lock() = Some(failing_after);
        let options = TableOptions { request_bytes: 8_192, ..options() };
        let mut writer = TableWriter::new(&files, STORE, 1, options);
        writer.add(b"o", b"");
        let error = writer.finish(&|_| ());
        assert_eq!(matches!(error, Err(TableError::Io(_))), failing_after < 3);
        assert_eq!((files.open_count(), files.list().unwrap().len()), (0, 0));
    }
}

#[test]
fn a_table_of_another_store_or_number_is_rejected() {
    let files = Arc::new(MemoryFiles::default());
    drop(table_in(&files, 1, &points(3)));
    let bytes = files.bytes(&table_file(1)).read().clone();
    let copy = files.create(&table_file(2), bytes.len() as u64).unwrap();
    files.write_at(copy, 0, &bytes).unwrap();
    files.close(copy);
    let files: Arc<dyn TableFiles> = files;
    let open = |store, number| Table::open(&files, store, number).map(drop);
    assert!(open(STORE, 1).is_ok());
    assert!(matches!(open(STORE, 2), Err(TableError::Malformed(_))));
    assert!(matches!(open(dalsegno_core::StoreId([7; 16]), 1), Err(TableError::Malformed(_))));
    assert!(matches!(open(STORE, 3), Err(TableError::Io(_))));
}

#[test]
#[should_panic(expected = "the keys of a table ascend")]
fn keys_that_do_not_ascend_are_a_bug() {
    let files = MemoryFiles::default();
    let mut writer = TableWriter::new(&files, STORE, 1, options());
    writer.add(b"p2", b"");
    writer.add(b"p2", b"");
}
