//! Damaged tables give an error or the right value, never a panic and never another value.

use std::sync::Arc;

use dalsegno_core::Deadline;
use proptest::prelude::*;

use super::files::MemoryFiles;
use super::{Model, STORE, get, rest, write};
use crate::error::TableError;
use crate::lsm::files::table_files::TableFiles;
use crate::lsm::table::block::BlockPlace;
use crate::lsm::table::block_cache::BlockCache;
use crate::lsm::table::footer::table_file;
use crate::lsm::table::iter::{ReadMode, TableIter};
use crate::lsm::table::read_counts::Purpose;
use crate::lsm::table::reader::Table;

/// A few blocks of each kind.
fn small() -> Model {
    let key = |kind: &[u8], n: u32| [kind, b"namespace", &n.to_be_bytes()].concat();
    let orders = (0..6).map(|n| (key(b"o", n), vec![7; 5_000]));
    let points = (0..150).map(|n| (key(b"p", n), n.to_le_bytes().repeat(8)));
    let forks = (0..3).map(|n| (key(b"f", n), Vec::new()));
    forks.chain(orders).chain(points).collect()
}

/// The file of a table, which can be changed.
struct Damaged {
    files: Arc<MemoryFiles>,
    original: Vec<u8>,
}

impl Damaged {
    fn new(model: &Model) -> Self {
        let files = Arc::new(MemoryFiles::default());
        write(&*files, 1, model).unwrap();
        let original = files.bytes(&table_file(1)).read().clone();
        Self { files, original }
    }

    fn set(&self, bytes: &[u8]) {
        *self.files.bytes(&table_file(1)).write() = bytes.to_vec();
    }

    fn open(&self) -> Result<Arc<Table>, TableError> {
        let files: Arc<dyn TableFiles> = Arc::<MemoryFiles>::clone(&self.files);
        Table::open(&files, STORE, 1).map(Arc::new)
    }

    /// Reads everything in both modes and returns whether damage was detected. Values that are read must be the
    /// model's.
    fn is_detected(&self, model: &Model) -> bool {
        let Ok(table) = self.open() else { return true };
        let mut is_detected = false;
        let cache = BlockCache::new(1 << 20);
        for (key, value) in model {
            match get(&table, key, &cache) {
                Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
                Err(_) => is_detected = true,
            }
        }
        for mode in
            [ReadMode::Cached(cache, Purpose::Scan, Deadline::Never), ReadMode::Ahead(65_536)]
        {
            match TableIter::new(&table, &[], mode).and_then(|mut iter| rest(&mut iter)) {
                Ok(entries) => assert!(entries.into_iter().eq(model.clone())),
                Err(_) => is_detected = true,
            }
        }
        is_detected
    }
}

#[test]
fn every_flipped_bit_is_detected() {
    let one = |kind: &[u8]| (kind.to_vec(), kind.repeat(3));
    let tiny = Model::from([one(b"f"), one(b"o"), one(b"p")]);
    // Of the larger table only some bits: a prime step reaches every bit position in every field.
    for (model, step) in [(tiny, 1), (small(), 37)] {
        flip_bits(&model, step);
    }
}

fn flip_bits(model: &Model, step: usize) {
    let damaged = Damaged::new(model);
    assert!(!damaged.is_detected(model));
    let mut bytes = damaged.original.clone();
    for bit in (0..bytes.len() * 8).step_by(step) {
        bytes[bit / 8] ^= 1 << (bit % 8);
        damaged.set(&bytes);
        assert!(damaged.is_detected(model), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_truncated_or_longer_file_is_rejected() {
    let model = small();
    let damaged = Damaged::new(&model);
    let lengths = (0..damaged.original.len()).step_by(509);
    let sectors = (0..damaged.original.len()).step_by(4096);
    for length in lengths.chain(sectors) {
        damaged.set(&damaged.original[..length]);
        assert!(damaged.open().is_err(), "{length} bytes");
    }
    damaged.set(&[&damaged.original[..], &[0; 4096]].concat());
    assert!(damaged.open().is_err());
    damaged.set(&[&damaged.original[..], &damaged.original].concat());
    assert!(damaged.open().is_err());
}

#[test]
fn a_file_that_shrinks_while_it_is_open_gives_errors() {
    let model = small();
    let damaged = Damaged::new(&model);
    let table = damaged.open().unwrap();
    damaged.set(&[]);
    let key = model.keys().next().unwrap();
    let got = get(&table, key, &BlockCache::new(0));
    assert!(matches!(got, Err(error) if error.is_io()));
    assert!(TableIter::new(&table, &[], ReadMode::Ahead(1 << 20)).is_err());
}

#[test]
fn swapped_blocks_are_detected() {
    let model = small();
    let damaged = Damaged::new(&model);
    let sectors = damaged.original.len() / 4096;
    for (one, two) in (0..sectors).flat_map(|one| (0..one).map(move |two| (one, two))) {
        let mut bytes = damaged.original.clone();
        let (head, tail) = bytes.split_at_mut(one * 4096);
        head[two * 4096..][..4096].swap_with_slice(&mut tail[..4096]);
        if bytes != damaged.original {
            damaged.set(&bytes);
            assert!(damaged.is_detected(&model), "{one} and {two}");
        }
    }
}

proptest! {
    #[test]
    fn garbage_is_no_table(
        bytes in prop::collection::vec(any::<u8>(), 0..20_000), keep: prop::sample::Index,
    ) {
        let damaged = Damaged::new(&Model::from([(b"p".to_vec(), vec![1])]));
        damaged.set(&bytes);
        prop_assert!(damaged.open().is_err());
        // A valid footer at the end of other bytes.
        let tail = damaged.original.len() - keep.index(damaged.original.len());
        let tail_bytes = &damaged.original[damaged.original.len() - tail..];
        let mut bytes = bytes;
        bytes.resize(damaged.original.len() - tail, 5);
        damaged.set(&[&bytes[..], tail_bytes].concat());
        if let Ok(table) = damaged.open() {
            let got = get(&table, b"p", &BlockCache::new(0));
            prop_assert!(got.is_err() || got.unwrap().as_deref() == Some(&[1][..]));
        }
    }
}

#[test]
fn regression_a_block_whose_keys_precede_the_block_before_ends_the_iteration() {
    let key = |n: u32| [&b"p"[..], b"namespace", &n.to_be_bytes()].concat();
    let model: Model = (0..600).map(|n| (key(n), n.to_le_bytes().repeat(8))).collect();
    let damaged = Damaged::new(&model);
    let mut bytes = damaged.original.clone();
    // Changes the kind of the second block's first key. Its three lengths take a byte each.
    let block = &mut bytes[4096..8192];
    assert_eq!(block[3], b'p');
    block[3] = b'a';
    let crc = BlockPlace { table: 1, sector: 1 }.crc(&[&block[..4092]]);
    block[4092..].copy_from_slice(&crc.to_le_bytes());
    damaged.set(&bytes);
    let table = damaged.open().unwrap();
    for mode in [
        ReadMode::Cached(BlockCache::new(1 << 20), Purpose::Scan, Deadline::Never),
        ReadMode::Ahead(65_536),
    ] {
        let walked = TableIter::new(&table, &[], mode).and_then(|mut iter| rest(&mut iter));
        assert!(matches!(walked, Err(TableError::Malformed(_))), "{walked:?}");
    }
}
