//! The index's decoders: keys, blocks, filters, manifests, tables.

use std::sync::Arc;

use dalsegno_core::StoreId;
use dalsegno_index::fuzzing;

use crate::device::MemoryDevice;
use crate::seal::{SECTOR, seal_block, seal_filter, seal_manifest, seal_table, sectors};

/// The place that a block or filter names.
const TABLE: u64 = 7;
const PLACE: u64 = 3;
/// The length of the key of an extent.
const ORDER_KEY_BYTES: usize = 45;

/// Numbers, keys and values.
pub(crate) fn key(input: &[u8]) {
    let recoders = [
        fuzzing::recode_varint,
        fuzzing::recode_order_key,
        fuzzing::recode_fork_key,
        fuzzing::recode_point,
    ];
    for recode in recoders {
        let again = recode(input);
        assert!(again.is_none_or(|again| again == input), "it has two forms");
    }
    if let Some((key, value)) = input.split_at_checked(ORDER_KEY_BYTES) {
        let mut key = key.to_vec();
        key[0] = b'o';
        let again = fuzzing::recode_record(&key, value);
        assert!(again.is_none_or(|again| again == value), "it has two forms");
    }
}

/// A block of a table: one byte for the length of the wanted key, the key, then the block. The last 64 bytes of the
/// input are the end of the block, whatever its length.
pub(crate) fn block(input: &[u8]) {
    let Some((length, rest)) = input.split_first() else { return };
    let (wanted, entries) = rest.split_at(usize::from(*length % 65).min(rest.len()));
    let (entries, trailer) = entries.split_at(entries.len().saturating_sub(64));
    let mut bytes = entries.to_vec();
    let whole = (entries.len() + trailer.len() + 4).next_multiple_of(SECTOR);
    bytes.resize(whole - trailer.len() - 4, 0);
    bytes.extend_from_slice(trailer);
    bytes.resize(whole, 0);
    seal_block(&mut bytes, TABLE, PLACE);
    let _ = fuzzing::walk_block(&bytes, TABLE, PLACE, wanted);
    // The input as it is, too: such a block has another length.
    let mut short = rest.to_vec();
    seal_block(&mut short, TABLE, PLACE);
    let _ = fuzzing::walk_block(&short, TABLE, PLACE, wanted);
}

/// The filter of a table.
pub(crate) fn filter(input: &[u8]) {
    let mut bytes = b"DSGNFILT".to_vec();
    bytes.extend_from_slice(input);
    let mut bytes = sectors(&bytes);
    seal_filter(&mut bytes, TABLE, PLACE);
    let _ = fuzzing::query_filter(&bytes, TABLE, PLACE, input);
}

/// A manifest.
pub(crate) fn manifest(input: &[u8]) {
    let mut bytes = sectors(input);
    bytes[..8].copy_from_slice(b"DSGNMANI");
    let length = (bytes.len() as u64).to_le_bytes();
    // Half of the inputs get the right length.
    if input.len().is_multiple_of(2) {
        bytes[40..48].copy_from_slice(&length);
    }
    seal_manifest(&mut bytes);
    if let Some(again) = fuzzing::recode_manifest(&bytes) {
        assert!(fuzzing::recode_manifest(&again).as_deref() == Some(&again[..]));
    }
}

/// A whole table of blocks of one sector, cut from the input. Its footer is made to name this place.
pub(crate) fn table(input: &[u8]) {
    let mut bytes = sectors(input);
    let store = StoreId([5; 16]);
    let (file_bytes, footer_at) = (bytes.len() as u64, bytes.len() - SECTOR);
    let footer = &mut bytes[footer_at..];
    footer[..8].copy_from_slice(b"DSGNTABL");
    footer[16..32].copy_from_slice(&store.0);
    footer[32..40].copy_from_slice(&TABLE.to_le_bytes());
    footer[40..48].copy_from_slice(&file_bytes.to_le_bytes());
    let block_sectors = vec![1; bytes.len() / SECTOR];
    seal_table(&mut bytes, TABLE, &block_sectors);
    let device = MemoryDevice::default();
    device.plant("index-0000000000000007.table", bytes);
    let _ = fuzzing::walk_table(Arc::new(device), store, TABLE);
}
