use dalsegno_core::StoreId;
use proptest::prelude::*;

use super::*;

fn writer(open: u64) -> WriterId {
    WriterId { store: StoreId([7; 16]), open }
}

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
            segment: 112,
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
    let applied = ids.collect();
    let pack = CatalogPack { number: 112, bytes: 1 << 20, extents };
    Catalog { writer: writer(9), number: 7, packs: vec![pack], applied }
}

/// The same extents in a pack with another number.
fn pack(number: u64, mut extents: Vec<Extent>) -> CatalogPack {
    for extent in &mut extents {
        extent.location.segment = number;
    }
    CatalogPack { number, bytes: 1 << 20, extents }
}

fn sample() -> Catalog {
    catalog(vec![extent(0, 2), extent(12_288, 3)], &[(3, 6), (9, 1)])
}

#[test]
fn a_catalog_round_trips() {
    let first = sample().packs.remove(0);
    let packs = vec![first, pack(115, vec![extent(4096, 1)]), pack(127, Vec::new())];
    let several = Catalog { packs, ..sample() };
    let none = Catalog { packs: Vec::new(), ..sample() };
    for catalog in [sample(), catalog(Vec::new(), &[]), several, none] {
        assert_eq!(Catalog::decode(&catalog.encode()), Ok(catalog));
    }
}

#[test]
fn the_bytes_are_those_of_the_worked_example() {
    let pack = CatalogPack { number: 112, bytes: 12_288, extents: vec![extent(0, 2)] };
    let bytes = Catalog { packs: vec![pack], ..catalog(Vec::new(), &[(3, 2)]) }.encode();
    assert_eq!(bytes.len(), 2 * SECTOR);
    assert_eq!(&bytes[..16], b"DSGNCATL\x03\0\0\0\0\x10\0\0");
    assert_eq!(&bytes[32..56], [9_u64, 7, 4096].map(u64::to_le_bytes).concat());
    assert_eq!(&bytes[60..68], [1_u32, 1].map(u32::to_le_bytes).concat());
    assert_eq!(&bytes[4096..4128], [112_u64, 12_288, 1, 0].map(u64::to_le_bytes).concat());
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

/// The bytes of the sample after `change` of its body.
fn changed(change: impl FnOnce(&mut [u8])) -> Result<Catalog, FormatError> {
    let mut bytes = sample().encode();
    change(&mut bytes[SECTOR..]);
    let body_crc = dalsegno_core::crc32c(&bytes[SECTOR..]);
    bytes[56..60].copy_from_slice(&body_crc.to_le_bytes());
    seal(&mut bytes[..SECTOR]);
    Catalog::decode(&bytes)
}

#[test]
fn applied_writers_are_sorted_differ_and_have_a_number() {
    let at = PACK_FIELD_BYTES + sample().extents().map(extent_bytes).sum::<usize>();
    assert_eq!(changed(|_| ()), Ok(sample()));
    let unsorted = FormatError::Field("applied_writers");
    assert_eq!(changed(|body| body[at + 16] = 9), Err(unsorted), "a writer twice");
    assert_eq!(changed(|body| body[at + 16] = 10), Err(unsorted));
    assert_eq!(changed(|body| body[at + 24] = 0), Err(FormatError::Field("number")));
}

#[test]
fn packs_are_sorted_and_have_numbers_of_their_catalog() {
    let of = |packs| Catalog::decode(&Catalog { packs, ..sample() }.encode());
    let empty = |number| pack(number, Vec::new());
    for number in [0, 7, 111, 128, u64::MAX] {
        assert_eq!(of(vec![empty(number)]), Err(FormatError::Field("pack")), "{number}");
    }
    for numbers in [[113, 112], [113, 113]] {
        assert_eq!(of(numbers.map(empty).to_vec()), Err(FormatError::Field("packs")));
    }
    let many = (112..129).map(empty).collect();
    assert_eq!(of(many), Err(FormatError::Field("pack_count")));
    assert_eq!(changed(|body| body[24] = 1), Err(FormatError::Field("reserved")));
    assert_eq!(changed(|body| body[8] = 1), Err(FormatError::Field("pack_bytes")));
}

#[test]
fn the_number_of_a_pack_says_which_catalog_names_it() {
    for catalog in [0, 1, 7, (1 << 58) - 1] {
        assert_eq!(packs_of(catalog).count(), 16);
        assert!(packs_of(catalog).all(|pack| catalog_of(pack) == catalog));
    }
    assert!(packs_of(1 << 61).is_empty() && packs_of(u64::MAX).is_empty());
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
    for (version, error) in
        [(4, FormatError::Newer(4)), (2, FormatError::Older(2)), (1, FormatError::Older(1))]
    {
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
        let crc = dalsegno_core::crc32c(&bytes[SECTOR..]);
        bytes[56..60].copy_from_slice(&crc.to_le_bytes());
        seal(&mut bytes[..SECTOR]);
        if let Ok(catalog) = Catalog::decode(&bytes) {
            prop_assert_eq!(catalog.encode(), bytes);
        }
    }
}
