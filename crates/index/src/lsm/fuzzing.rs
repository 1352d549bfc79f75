//! Entry points for fuzzing to private decoders. Only `fuzz/` calls them, and linkers drop them from the extension.
//!
//! They have no feature: cargo would then compile each crate twice, for the tests and for the extension.

use std::sync::Arc;

use dalsegno_core::{Deadline, StoreId};
use dalsegno_io::Device;

use crate::lsm::files::device_files::DeviceFiles;
use crate::lsm::files::table_files::TableFiles;
use crate::lsm::format::keys::{ForkKey, OrderKey, Point, Record};
use crate::lsm::format::manifest::Manifest;
use crate::lsm::format::varint;
use crate::lsm::table::block::{Block, BlockPlace, Cursor};
use crate::lsm::table::block_cache::BlockCache;
use crate::lsm::table::filter::{Filter, KeyHash};
use crate::lsm::table::iter::{ReadMode, TableIter};
use crate::lsm::table::read_counts::Purpose;
use crate::lsm::table::reader::Table;
use crate::lsm::table::source::Source;

/// Decodes a number and encodes it again, followed by the rest of the bytes.
#[must_use]
pub fn recode_varint(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut rest = bytes;
    let number = varint::take(&mut rest)?;
    let mut out = Vec::new();
    varint::put(&mut out, number);
    assert_eq!(out.len(), varint::bytes_of(number));
    out.extend_from_slice(rest);
    Some(out)
}

/// Decodes the key of an extent and encodes it again.
#[must_use]
pub fn recode_order_key(key: &[u8]) -> Option<Vec<u8>> {
    OrderKey::decode(key).map(|key| key.encode().to_vec())
}

/// Decodes the key of a fork and encodes it again.
#[must_use]
pub fn recode_fork_key(key: &[u8]) -> Option<Vec<u8>> {
    ForkKey::decode(key).map(|key| key.encode().to_vec())
}

/// Decodes the value of a block and encodes it again.
#[must_use]
pub fn recode_point(value: &[u8]) -> Option<Vec<u8>> {
    let point = Point::decode(value)?;
    assert_eq!(Point::place(value), Some((point.segment, point.epoch)));
    let mut out = Vec::new();
    point.encode(&mut out);
    Some(out)
}

/// Decodes the value of an extent and encodes it again.
#[must_use]
pub fn recode_record(key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    let record = Record::decode(&OrderKey::decode(key)?, value)?;
    let location = record.extent.location;
    assert_eq!(Record::place(value), Some((location.segment, location.epoch)));
    let mut out = Vec::new();
    record.encode_to(&mut out);
    Some(out)
}

/// Decodes a manifest and encodes it again.
#[must_use]
pub fn recode_manifest(file: &[u8]) -> Option<Vec<u8>> {
    Manifest::decode(file).ok().map(|manifest| manifest.encode())
}

/// Queries a filter, if it is one.
#[must_use]
pub fn query_filter(bytes: &[u8], table: u64, sector: u64, key: &[u8]) -> Option<bool> {
    let filter = Filter::decode(bytes, BlockPlace { table, sector }).ok()?;
    Some(filter.may_contain(KeyHash::of(key)))
}

/// Iterates over a block, if it is one, and looks up a key in it. Returns the number of its entries, if all are sound.
///
/// # Panics
///
/// If the iteration and the lookup disagree.
#[must_use]
pub fn walk_block(bytes: &[u8], table: u64, sector: u64, wanted: &[u8]) -> Option<usize> {
    let block = Block::parse(bytes, BlockPlace { table, sector }).ok()?;
    let found = block.find(wanted);
    let mut cursor = Cursor::default();
    let mut count = 0;
    let mut previous: Vec<u8> = Vec::new();
    while cursor.next(&block).ok()? {
        assert!(previous.is_empty() || *previous < *cursor.key(), "the order of keys");
        cursor.key().clone_into(&mut previous);
        let _ = block.slice(cursor.value());
        count += 1;
    }
    let mut seeker = Cursor::default();
    if let (Ok(Some(range)), Ok(true)) = (found, seeker.seek(&block, wanted))
        && seeker.key() == wanted
    {
        assert_eq!(range, seeker.value());
    }
    Some(count)
}

/// Opens a table of a device, if it is one, iterates over it, and looks up every key.
pub fn walk_table(device: Arc<dyn Device>, store: StoreId, number: u64) -> Option<usize> {
    let files: Arc<dyn TableFiles> = Arc::new(DeviceFiles::closed(device));
    let table = Arc::new(Table::open(&files, store, number).ok()?);
    let cache = BlockCache::new(1 << 16);
    let mut count = 0;
    for reading in
        [ReadMode::Ahead(8192), ReadMode::Cached(cache.clone(), Purpose::Scan, Deadline::Never)]
    {
        let mut iter = TableIter::new(&table, &[], reading).ok()?;
        while let Some(key) = iter.key().map(<[u8]>::to_vec) {
            let _ = (
                iter.value(),
                table.get(&key, KeyHash::of(&key), &cache, Deadline::Never, <[u8]>::len),
            );
            count += 1;
            iter.advance().ok()?;
        }
    }
    Some(count)
}
