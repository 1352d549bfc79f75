//! Blocks against a plain map.

use dalsegno_io::PageBuffer;
use proptest::prelude::*;

use super::{Model, key, model};
use crate::error::TableError;
use crate::lsm::format::varint;
use crate::lsm::table::block::{Block, BlockBuilder, BlockPlace, Cursor};

const PLACE: BlockPlace = BlockPlace { table: 2, sector: 9 };

fn built(model: &Model) -> Vec<u8> {
    let (mut builder, mut out) = (BlockBuilder::default(), PageBuffer::default());
    for (key, value) in model {
        builder.add(key, value);
    }
    let sectors = builder.finish(PLACE, &mut out);
    assert_eq!(out.len() as u64, sectors * 4096);
    out.to_vec()
}

fn parse(bytes: &[u8]) -> Result<Block, TableError> {
    Block::parse(Box::from(bytes), PLACE)
}

/// Sets the checksum of a block, so that only its contents can be wrong.
fn seal(bytes: &mut [u8]) {
    if let Some((body, crc)) = bytes.split_last_chunk_mut::<4>() {
        *crc = PLACE.crc(&[body]).to_le_bytes();
    }
}

/// Calls everything on a block, and returns its entries.
fn walk(block: &Block, keys: &[Vec<u8>]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    for key in keys {
        drop(block.get(key));
        let mut cursor = Cursor::default();
        drop(cursor.seek(block, key));
    }
    let mut cursor = Cursor::default();
    while let Ok(true) = cursor.next(block) {
        found.push((cursor.key().to_vec(), block.slice(cursor.value()).to_vec()));
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_block_behaves_like_a_map(model in model(), others in prop::collection::vec(key(), 20)) {
        let block = parse(&built(&model)).unwrap();
        let entries: Vec<_> = model.clone().into_iter().collect();
        prop_assert_eq!(walk(&block, &[]), entries);
        for key in model.keys().chain(&others) {
            prop_assert_eq!(block.get(key).unwrap(), model.get(key).map(|value| &value[..]));
            let mut cursor = Cursor::default();
            let next = model.range(key.clone()..).next();
            prop_assert_eq!(cursor.seek(&block, key).unwrap(), next.is_some());
            if let Some((key, value)) = next {
                prop_assert_eq!((cursor.key(), block.slice(cursor.value())), (&key[..], &value[..]));
            }
        }
    }

    #[test]
    fn garbage_with_a_valid_checksum_never_panics(
        mut bytes in prop::collection::vec(prop_oneof![0_u8..4, any::<u8>()], 0..300),
        restarts in 0_u8..8, entries in 0_u8..200, key in key(),
    ) {
        if bytes.len() > 12 {
            let at = bytes.len() - 12;
            bytes[at..].copy_from_slice(&[entries, 0, 0, 0, restarts, 0, 0, 0, 0, 0, 0, 0]);
        }
        seal(&mut bytes);
        if let Ok(block) = parse(&bytes) {
            walk(&block, &[key]);
        }
    }

    #[test]
    fn a_changed_byte_with_a_valid_checksum_never_panics_nor_breaks_the_order(
        model in prop::collection::btree_map(key(), prop::collection::vec(any::<u8>(), 0..9), 1..60),
        at: prop::sample::Index, byte: u8, others in prop::collection::vec(key(), 4),
    ) {
        let mut bytes = built(&model);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        seal(&mut bytes);
        if let Ok(block) = parse(&bytes) {
            let found = walk(&block, &others);
            prop_assert!(found.is_sorted_by(|one, two| one.0 < two.0));
        }
    }
}

#[test]
fn regression_an_entry_longer_than_any_memory_is_malformed() {
    let mut bytes = vec![0];
    varint::put(&mut bytes, u64::MAX);
    bytes.push(0);
    let entries_bytes = u32::try_from(bytes.len()).unwrap();
    bytes.extend([0; 4]);
    bytes.extend(entries_bytes.to_le_bytes().into_iter().chain(1_u32.to_le_bytes()).chain([0; 4]));
    seal(&mut bytes);
    let block = parse(&bytes).unwrap();
    assert!(matches!(Cursor::default().next(&block), Err(TableError::Malformed(_))));
}

#[test]
fn a_block_from_another_place_is_damaged() {
    let bytes = built(&Model::from([(b"key".to_vec(), b"value".to_vec())]));
    for place in [BlockPlace { table: 3, ..PLACE }, BlockPlace { sector: 8, ..PLACE }] {
        let parsed = Block::parse(Box::from(&bytes[..]), place);
        assert!(matches!(parsed, Err(TableError::Checksum)));
    }
}

#[test]
fn a_block_predicts_whether_an_entry_fits() {
    let mut builder = BlockBuilder::default();
    let key = |number: u32| [&b"pcommon"[..], &number.to_be_bytes()].concat();
    let numbers = (0..).take_while(|number| {
        let fits = builder.fits(&key(*number), &[0; 30], 4096);
        if fits {
            builder.add(&key(*number), &[0; 30]);
        }
        fits
    });
    assert!(numbers.count() > 90);
    assert!((4050..=4096).contains(&builder.bytes()), "{}", builder.bytes());
    assert_eq!(builder.finish(PLACE, &mut PageBuffer::default()), 1);
}
