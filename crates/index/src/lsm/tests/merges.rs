//! Merged sources against overlaid maps.

use std::sync::Arc;

use dalsegno_core::Deadline;
use proptest::prelude::*;

use super::files::MemoryFiles;
use super::{Model, key, rest, table_in};
use crate::error::TableError;
use crate::lsm::read::merge::MergedSources;
use crate::lsm::table::block_cache::BlockCache;
use crate::lsm::table::iter::ReadMode;
use crate::lsm::table::read_counts::Purpose;
use crate::lsm::table::reader::Table;
use crate::lsm::table::source::Source;
use crate::lsm::version::run_source::RunSource;

/// Sorted entries in memory.
struct SliceSource<'a, K, V>(&'a [(K, V)]);

impl<K: AsRef<[u8]>, V: AsRef<[u8]>> Source for SliceSource<'_, K, V> {
    fn key(&self) -> Option<&[u8]> {
        self.0.first().map(|(key, _)| key.as_ref())
    }

    fn value(&self) -> &[u8] {
        self.0.first().map_or(&[], |(_, value)| value.as_ref())
    }

    fn advance(&mut self) -> Result<(), TableError> {
        self.0 = self.0.get(1..).unwrap_or_default();
        Ok(())
    }
}

fn small_model() -> impl Strategy<Value = Model> {
    let value = prop::collection::vec(any::<u8>(), 0..40);
    prop::collection::btree_map(key(), value, 0..80)
}

/// Newest first.
fn overlay(models: &[Model]) -> Model {
    models.iter().rev().flatten().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// A run of tables of at most `entries` entries.
fn run(files: &Arc<MemoryFiles>, number: u64, model: &Model, entries: usize) -> Vec<Arc<Table>> {
    let all: Vec<_> = model.clone().into_iter().collect();
    let parts = all.chunks(entries).map(|part| part.iter().cloned().collect::<Model>());
    (number..).zip(parts).map(|(number, part)| table_in(files, number, &part)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn merged_sources_return_the_newest_entry_of_each_key(
        models in prop::collection::vec(small_model(), 0..20), entries in 1_usize..50, from in key(),
        is_cached: bool,
    ) {
        let files = Arc::new(MemoryFiles::default());
        let cache = BlockCache::new(1 << 20);
        let entries_of: Vec<Vec<_>> = models.iter().map(|m| m.clone().into_iter().collect()).collect();
        for from in [Vec::new(), from] {
            let mut sources: Vec<Box<dyn Source + '_>> = Vec::new();
            for ((at, model), slice) in (1_u64..).zip(&models).zip(&entries_of) {
                let cached =
                    || ReadMode::Cached(cache.clone(), Purpose::Scan, Deadline::Never);
                let mode = if is_cached { cached() } else { ReadMode::Ahead(8_192) };
                if at % 3 == 0 {
                    let begin = slice.partition_point(|(key, _)| *key < from);
                    sources.push(Box::new(SliceSource(&slice[begin..])));
                } else {
                    let number = (at + 100 * u64::from(from.is_empty())) * 1_000;
                    let run = run(&files, number, model, entries);
                    sources.push(Box::new(RunSource::new(run, &from, mode).unwrap()));
                }
            }
            let merged = rest(&mut MergedSources::new(sources)).unwrap();
            let wanted = overlay(&models);
            prop_assert!(merged.into_iter().eq(wanted.range(from..).map(|(k, v)| (k.clone(), v.clone()))));
        }
    }
}

/// A source that fails after some entries.
struct Failing<'a>(SliceSource<'a, &'static str, &'static str>, u32);

impl Source for Failing<'_> {
    fn key(&self) -> Option<&[u8]> {
        (self.1 > 0).then(|| self.0.key()).flatten()
    }

    fn value(&self) -> &[u8] {
        self.0.value()
    }

    fn advance(&mut self) -> Result<(), TableError> {
        self.1 -= 1;
        if self.1 == 0 { Err(TableError::Checksum) } else { self.0.advance() }
    }
}

#[test]
fn after_an_error_there_is_no_entry_any_more() {
    let (one, two) = ([("a", "1"), ("c", "1"), ("e", "1")], [("b", "2"), ("d", "2"), ("f", "2")]);
    let mut merge =
        MergedSources::new(vec![Failing(SliceSource(&one), 9), Failing(SliceSource(&two), 2)]);
    let mut seen = Vec::new();
    let error = loop {
        let Some(key) = merge.key() else { break None };
        seen.push(String::from_utf8(key.to_vec()).unwrap());
        if let Err(error) = merge.advance() {
            break Some(error);
        }
    };
    assert!(error.is_some());
    assert_eq!((seen.concat().as_str(), merge.key(), merge.value()), ("abcd", None, &[][..]));
    merge.advance().unwrap();
}

#[test]
fn a_run_reads_a_table_only_when_it_is_reached() {
    let files = Arc::new(MemoryFiles::default());
    let model: Model = (0..100_u8).map(|n| (vec![b'p', n], vec![n])).collect();
    let run = run(&files, 1, &model, 10);
    let reads = || files.reads.load(std::sync::atomic::Ordering::Relaxed);
    let before = reads();
    let mut source = RunSource::new(Arc::new(run), b"p\x37", ReadMode::Ahead(4096)).unwrap();
    assert_eq!((source.key(), reads() - before), (Some(&[b'p', 0x37][..]), 1));
    for _ in 0x37..60 {
        source.advance().unwrap();
    }
    assert_eq!((source.key(), reads() - before), (Some(&[b'p', 60][..]), 2));
}
