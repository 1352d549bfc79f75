//! Tables against plain maps, damaged files and the clock.

mod blocks;
mod chains;
mod compaction;
mod damage;
mod files;
mod merges;
mod opening;
mod partial;
mod reads;
mod speed;
mod tables;

use std::collections::BTreeMap;
use std::sync::Arc;

use dalsegno_core::{Deadline, StoreId};
use proptest::prelude::*;

use crate::error::TableError;
use crate::lsm::files::table_files::TableFiles;
use crate::lsm::table::block_cache::BlockCache;
use crate::lsm::table::filter::KeyHash;
use crate::lsm::table::footer::TableFacts;
use crate::lsm::table::reader::Table;
use crate::lsm::table::source::Source;
use crate::lsm::table::writer::{TableOptions, TableWriter};
use crate::lsm::version::run_source::Tables;
use files::MemoryFiles;

const STORE: StoreId = StoreId([6; 16]);

/// What a table should hold.
type Model = BTreeMap<Vec<u8>, Vec<u8>>;
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

fn options() -> TableOptions {
    TableOptions { filter_bits: 10.0, request_bytes: 1 << 20 }
}

fn write(files: &dyn TableFiles, number: u64, model: &Model) -> Result<TableFacts, TableError> {
    let mut writer = TableWriter::new(files, STORE, number, options());
    for (key, value) in model {
        writer.add(key, value);
    }
    Ok(writer.finish(&|_| ())?.0)
}

/// A table of the model, and the files it is in.
fn table(model: &Model) -> (Arc<MemoryFiles>, Arc<Table>) {
    let files = Arc::new(MemoryFiles::default());
    (Arc::clone(&files), table_in(&files, 1, model))
}

fn table_in(files: &Arc<MemoryFiles>, number: u64, model: &Model) -> Arc<Table> {
    write(&**files, number, model).unwrap();
    let files: Arc<dyn TableFiles> = Arc::<MemoryFiles>::clone(files);
    Arc::new(Table::open(&files, STORE, number).unwrap())
}

impl Tables for Vec<Arc<Table>> {
    fn tables(&self) -> &[Arc<Table>] {
        self
    }
}

/// A copy of a key's value.
fn get(table: &Table, key: &[u8], cache: &BlockCache) -> Result<Option<Vec<u8>>, TableError> {
    table.get(key, KeyHash::of(key), cache, Deadline::Never, <[u8]>::to_vec)
}

/// What is left of a source.
fn rest(source: &mut impl Source) -> Result<Entries, TableError> {
    let mut rest = Vec::new();
    while let Some(key) = source.key() {
        rest.push((key.to_vec(), source.value().to_vec()));
        source.advance()?;
    }
    Ok(rest)
}

/// Keys of few letters, so that many share a beginning, of all kinds.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let tail = prop::collection::vec(prop::sample::select(&b"ab\xff"[..]), 0..8);
    let filler = prop::sample::select(vec![0, 0, 0, 17, 55]);
    (prop::sample::select(&b"fop"[..]), filler, tail).prop_map(|(kind, filler, tail)| {
        let mut key = vec![kind];
        key.resize(1 + filler, b'n');
        key.extend(tail);
        key
    })
}

/// Mostly small values, some empty, a few of many sectors.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![
        2 => Just(0_usize), 20 => 1_usize..60, 2 => 60_usize..5_000, 1 => 5_000_usize..300_000
    ];
    (length, any::<u8>()).prop_map(|(length, first)| {
        let counted = (0..length).map(|at| first.wrapping_add(u8::try_from(at % 251).unwrap()));
        counted.collect()
    })
}

fn model() -> impl Strategy<Value = Model> {
    prop::collection::btree_map(key(), value(), 1..200)
}
