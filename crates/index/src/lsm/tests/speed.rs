//! Measures lookups and merges: `cargo test --release -p dalsegno-index lsm::tests::speed -- --ignored --nocapture`.

#![expect(clippy::print_stdout, reason = "a measurement prints its result")]

use std::sync::Arc;

use dalsegno_core::Clock;
use dalsegno_io::SystemClock;

use super::files::MemoryFiles;
use super::{STORE, get, options};
use crate::lsm::files::table_files::TableFiles;
use crate::lsm::read::merge::MergedSources;
use crate::lsm::table::block_cache::BlockCache;
use crate::lsm::table::filter::KeyHash;
use crate::lsm::table::iter::{ReadMode, TableIter};
use crate::lsm::table::reader::Table;
use crate::lsm::table::source::Source;
use crate::lsm::table::writer::TableWriter;
use crate::lsm::version::run_source::RunSource;

const KEYS: u64 = 1_000_000;

/// The splitmix64 of a number, so that keys look like hashes.
fn mixed(number: u64) -> u64 {
    let bits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn point(number: u64) -> [u8; 33] {
    let mut key = [b'p'; 33];
    key[17..25].copy_from_slice(&mixed(number).to_le_bytes());
    key[25..].copy_from_slice(&mixed(!number).to_le_bytes());
    key
}

fn sorted(numbers: impl Iterator<Item = u64>) -> Vec<[u8; 33]> {
    let mut keys: Vec<_> = numbers.map(point).collect();
    keys.sort_unstable();
    keys
}

fn written(files: &Arc<dyn TableFiles>, number: u64, keys: &[[u8; 33]]) -> Arc<Table> {
    let mut writer = TableWriter::new(&**files, STORE, number, options());
    for key in keys {
        writer.add(key, &key[5..]);
    }
    writer.finish(&|_| ()).unwrap();
    Arc::new(Table::open(files, STORE, number).unwrap())
}

/// Prints how many nanoseconds each of `count` steps took.
fn timed<T>(name: &str, count: u64, run: impl FnOnce() -> T) -> T {
    let clock = SystemClock::new();
    let before = clock.now();
    let result = run();
    let nanoseconds = clock.now().since(before).as_nanos() / u128::from(count);
    println!("{name:40} {nanoseconds:6} ns");
    result
}

#[test]
#[ignore = "a measurement: run it alone, on an idle machine, with --release"]
fn a_lookup_takes_about_a_microsecond() {
    let files: Arc<dyn TableFiles> = Arc::new(MemoryFiles::default());
    let keys = sorted(0..KEYS);
    let table = timed("write and open, a key", KEYS, || written(&files, 1, &keys));
    println!("{} bytes of file, {} of memory", table.file_bytes(), table.memory_bytes());
    let found = |key: &[u8], cache: &BlockCache| get(&table, key, cache).unwrap().is_some();
    let shuffled: Vec<_> = (0..KEYS).map(point).collect();
    let missing: Vec<_> = (KEYS..2 * KEYS).map(point).collect();
    let count = |keys: &[[u8; 33]], cache: &BlockCache| {
        keys.iter().filter(|key| found(&**key, cache)).count() as u64
    };
    let none = BlockCache::new(0);
    assert_eq!(timed("hit, no cache", KEYS, || count(&shuffled, &none)), KEYS);
    let cache = BlockCache::new(1 << 30);
    count(&keys, &cache);
    assert_eq!(timed("hit, all cached", KEYS, || count(&shuffled, &cache)), KEYS);
    assert_eq!(timed("hit, all cached, in order", KEYS, || count(&keys, &cache)), KEYS);
    assert_eq!(timed("miss", KEYS, || count(&missing, &cache)), 0);
    let may = |keys: &[[u8; 33]]| {
        keys.iter().filter(|key| table.may_contain(KeyHash::of(&key[..]))).count()
    };
    println!("{} of {KEYS} false", timed("filter, hash included", KEYS, || may(&missing)));
    let other = KeyHash::of(b"");
    timed("hash", KEYS, || missing.iter().filter(|key| KeyHash::of(&key[..]) == other).count());
    let mut iter = TableIter::new(&table, &[], ReadMode::Ahead(256 << 10)).unwrap();
    timed("walk, an entry", KEYS, || {
        while iter.key().is_some() {
            iter.advance().unwrap();
        }
    });
}

#[test]
#[ignore = "a measurement: run it alone, on an idle machine, with --release"]
fn merging_sources_is_faster_than_the_device() {
    let files: Arc<dyn TableFiles> = Arc::new(MemoryFiles::default());
    for sources in [2, 4, 10, 20] {
        let run = |source: u64| {
            let keys = sorted((0..KEYS).filter(|n| n % sources == source));
            let table = written(&files, 100 * sources + source, &keys);
            RunSource::new(vec![table], &[], ReadMode::Ahead(256 << 10)).unwrap()
        };
        let mut merge = MergedSources::new((0..sources).map(run).collect());
        let mut count = 0;
        timed(&format!("merge of {sources}, an entry"), KEYS, || {
            while merge.key().is_some() {
                count += 1;
                merge.advance().unwrap();
            }
        });
        assert_eq!(count, KEYS);
    }
}
