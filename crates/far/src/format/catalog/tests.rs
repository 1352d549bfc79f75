use dalsegno_core::StoreId;
use proptest::prelude::*;

use super::*;

fn writer(open: u64) -> WriterId {
    WriterId { store: StoreId([7; 16]), open }
}

/// The first pack of catalog 7.
const PACK: u64 = 7 * 16;

fn extent(offset: u64, blocks: u8) -> Extent {
    let layout = KvLayout::new(1, 4096).unwrap();
    Extent {
        id: ExtentId(5),
        born: 5,
        namespace: NamespaceId([1; 16]),
        lineage: ChainHash([2; 32]),
        first_block_index: 0,
        parent: ChainHash::default(),
        layout,
        location: Location {
            segment: PACK,
            epoch: 9,
            offset,
            header_bytes: 4096,
            compressed_bytes: 0,
        },
        hashes: (0..blocks).map(|number| ChainHash([number; 32])).collect(),
    }
}

fn catalog(extents: Vec<Extent>, applied: &[(u64, u64)]) -> Catalog {
    let ids = applied.iter().map(|(open, number)| RemovalId { by: writer(*open), number: *number });
    let pack = CatalogPack { number: PACK, bytes: 1 << 20, extents };
    Catalog { writer: writer(9), number: 7, packs: vec![pack], applied: ids.collect() }
}

fn sample() -> Catalog {
    let mut sample = catalog(vec![extent(0, 2), extent(12_288, 3)], &[(3, 6), (9, 1)]);
    let location = Location { segment: PACK + 15, ..extent(0, 1).location };
    let extents = vec![Extent { location, ..extent(0, 1) }];
    sample.packs.push(CatalogPack { number: PACK + 15, bytes: 8192, extents });
    sample
}

#[test]
fn a_catalog_round_trips() {
    for catalog in [sample(), catalog(Vec::new(), &[])] {
        assert_eq!(Catalog::decode(&catalog.encode()), Ok(catalog));
    }
}

#[test]
fn the_bytes_are_those_of_the_worked_example() {
    let mut catalog = catalog(vec![extent(0, 2)], &[(3, 2)]);
    catalog.packs[0].bytes = 12_288;
    let bytes = catalog.encode();
    assert_eq!(bytes.len(), 2 * SECTOR);
    assert_eq!(&bytes[..16], b"DSGNCATL\x03\0\0\0\0\x10\0\0");
    assert_eq!(&bytes[32..56], [9_u64, 7, 4096].map(u64::to_le_bytes).concat());
    assert_eq!(&bytes[60..68], [1_u32, 1].map(u32::to_le_bytes).concat());
    assert_eq!(&bytes[4096..4128], [PACK, 12_288, 1, 0].map(u64::to_le_bytes).concat());
    assert_eq!(&bytes[4128..4136], [1_u32, 4096].map(u32::to_le_bytes).concat());
    assert_eq!(&bytes[4136..4160], [0_u64, 5, 5].map(u64::to_le_bytes).concat());
    assert_eq!(&bytes[4240..4256], [0_u32, 2, 1, 4096].map(u32::to_le_bytes).concat());
    assert_eq!(&bytes[4272..4336], [[0; 32], [1; 32]].concat());
    assert_eq!(&bytes[4336..4352], [7; 16]);
    assert_eq!(&bytes[4352..4368], [3_u64, 2].map(u64::to_le_bytes).concat());
}

#[test]
fn every_flipped_byte_and_every_truncation_is_noticed() {
    let bytes = sample().encode();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        assert!(Catalog::decode(&flipped).is_err(), "byte {at}");
        assert!(Catalog::decode(&bytes[..at]).is_err(), "{at} bytes");
    }
    assert!(Catalog::decode(&[bytes, vec![0; SECTOR]].concat()).is_err());
}

#[test]
fn extents_outside_of_the_pack_or_over_each_other_are_refused() {
    for (offset, blocks) in [(8192, 1), ((1 << 20) - 4096, 1), (1 << 47, 1), (100, 1), (16_384, 0)]
    {
        let extents = vec![extent(0, 2), extent(offset, blocks)];
        assert!(Catalog::decode(&catalog(extents, &[]).encode()).is_err(), "{offset}");
    }
}

#[test]
fn packs_of_another_catalog_unsorted_ones_and_reserved_fields_are_refused() {
    let second =
        PACK_FIELD_BYTES + sample().packs[0].extents.iter().map(extent_bytes).sum::<usize>();
    let pack = FormatError::Field("pack");
    for number in [PACK - 1, PACK + 16] {
        let change = |body: &mut [u8]| body[..8].copy_from_slice(&number.to_le_bytes());
        assert_eq!(changed(change), Err(pack.clone()));
    }
    let twice = |body: &mut [u8]| body[second] = u8::try_from(PACK).unwrap();
    assert_eq!(changed(twice), Err(FormatError::Field("packs")));
    assert_eq!(changed(|body| body[24] = 1), Err(FormatError::Field("reserved")));
    assert_eq!(changed(|body| body[8] = 1), Err(FormatError::Field("pack_bytes")));
    let many = |body: &mut [u8]| body[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(changed(many).is_err(), "entries that are not there");
}

/// The bytes of the sample after `change` of its body.
fn changed(change: impl FnOnce(&mut [u8])) -> Result<Catalog, FormatError> {
    let mut bytes = sample().encode();
    change(&mut bytes[SECTOR..]);
    let body_crc = crc32c::crc32c(&bytes[SECTOR..]);
    bytes[56..60].copy_from_slice(&body_crc.to_le_bytes());
    seal(&mut bytes[..SECTOR]);
    Catalog::decode(&bytes)
}

#[test]
fn applied_writers_are_sorted_differ_and_have_a_number() {
    let packs = PACK_FIELD_BYTES * sample().packs.len();
    let at = packs + sample().extents().map(extent_bytes).sum::<usize>();
    assert_eq!(changed(|_| ()), Ok(sample()));
    let unsorted = FormatError::Field("applied_writers");
    assert_eq!(changed(|body| body[at + 16] = 9), Err(unsorted), "a writer twice");
    assert_eq!(changed(|body| body[at + 16] = 10), Err(unsorted));
    assert_eq!(changed(|body| body[at + 24] = 0), Err(FormatError::Field("number")));
}

#[test]
fn the_number_of_applied_writers_is_bounded() {
    let most = MAX_APPLIED_WRITERS as u64;
    let many: Vec<(u64, u64)> = (1..most + 10).map(|open| (open, 1)).collect();
    let bytes = catalog(vec![extent(0, 2)], &many).encode();
    let applied = Catalog::decode(&bytes).unwrap().applied;
    assert_eq!(applied.iter().len(), MAX_APPLIED_WRITERS);
    assert_eq!(applied.number(writer(most + 5)), 0);
}

#[test]
fn newer_and_older_versions_differ_from_damage() {
    for (version, error) in [(4, FormatError::Newer(4)), (2, FormatError::Older(2))] {
        let mut bytes = sample().encode();
        bytes[8] = version;
        seal(&mut bytes[..SECTOR]);
        assert_eq!(Catalog::decode(&bytes), Err(error));
    }
}

proptest! {
    #[test]
    fn bytes_with_right_checksums_never_panic(
        at in 0..4096_usize, value: u8, more in 0..400_usize, count: u32,
    ) {
        let mut bytes = sample().encode();
        bytes[SECTOR + at % 500] = value;
        bytes[SECTOR + more] ^= value;
        bytes[60..64].copy_from_slice(&(count % 20).to_le_bytes());
        let crc = crc32c::crc32c(&bytes[SECTOR..]);
        bytes[56..60].copy_from_slice(&crc.to_le_bytes());
        seal(&mut bytes[..SECTOR]);
        if let Ok(catalog) = Catalog::decode(&bytes) {
            prop_assert_eq!(catalog.encode(), bytes);
        }
    }
}
