use super::*;
use proptest::prelude::*;

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
            segment: 7,
            epoch: 9,
            offset,
            header_bytes: 4096,
            compressed_bytes: 0,
        },
        hashes: (0..blocks).map(|number| ChainHash([number; 32])).collect(),
    }
}

fn catalog(entries: Vec<Entry>, known: Vec<KnownWriter>) -> Catalog {
    Catalog { writer: writer(9), number: 7, pack_bytes: 1 << 20, entries, known }
}

fn sample() -> Catalog {
    let tombstone = Tombstone {
        sequence: 6,
        namespace: NamespaceId([1; 16]),
        hashes: vec![ChainHash([9; 32])],
    };
    let entries = vec![
        Entry::Extent(extent(0, 2)),
        Entry::Tombstone(tombstone),
        Entry::Extent(extent(12_288, 3)),
    ];
    let known = [3, 9].map(|open| KnownWriter { writer: writer(open), number: 6 });
    catalog(entries, known.to_vec())
}

#[test]
fn a_catalog_round_trips() {
    for catalog in [sample(), catalog(Vec::new(), Vec::new())] {
        assert_eq!(Catalog::decode(&catalog.encode()), Ok(catalog));
    }
}

#[test]
fn the_bytes_are_those_of_the_worked_example() {
    let bytes =
        Catalog { pack_bytes: 12_288, ..catalog(vec![Entry::Extent(extent(0, 2))], vec![]) }
            .encode();
    assert_eq!(bytes.len(), 2 * SECTOR);
    assert_eq!(&bytes[..16], b"DSGNCATL\x01\0\0\0\0\x10\0\0");
    assert_eq!(&bytes[32..64], [9_u64, 7, 12_288, 4096].map(u64::to_le_bytes).concat());
    assert_eq!(&bytes[68..76], [1_u32, 0].map(u32::to_le_bytes).concat());
    assert_eq!(&bytes[4096..4104], [1_u32, 4096].map(u32::to_le_bytes).concat());
    assert_eq!(&bytes[4104..4128], [0_u64, 5, 5].map(u64::to_le_bytes).concat());
    assert_eq!(&bytes[4208..4224], [0_u32, 2, 1, 4096].map(u32::to_le_bytes).concat());
    assert_eq!(&bytes[4240..4304], [[0; 32], [1; 32]].concat());
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
        let entries = vec![Entry::Extent(extent(0, 2)), Entry::Extent(extent(offset, blocks))];
        assert!(Catalog::decode(&catalog(entries, Vec::new()).encode()).is_err(), "{offset}");
    }
}

#[test]
fn known_writers_are_sorted_and_belong_to_a_tombstone() {
    let mut unsorted = sample();
    unsorted.known.reverse();
    let mut double = sample();
    double.known[1] = double.known[0];
    let mut alone = sample();
    alone.entries.remove(1);
    for catalog in [unsorted, double, alone] {
        assert!(Catalog::decode(&catalog.encode()).is_err());
    }
}

#[test]
fn a_newer_version_differs_from_damage() {
    let mut bytes = sample().encode();
    bytes[8] = 2;
    seal(&mut bytes[..SECTOR]);
    assert_eq!(Catalog::decode(&bytes), Err(FormatError::Newer(2)));
}

proptest! {
    #[test]
    fn bytes_with_right_checksums_never_panic(
        at in 0..4096_usize, value: u8, more in 0..400_usize, count: u32,
    ) {
        let mut bytes = sample().encode();
        bytes[SECTOR + at % 500] = value;
        bytes[SECTOR + more] ^= value;
        bytes[68..72].copy_from_slice(&(count % 20).to_le_bytes());
        let crc = crc32c::crc32c(&bytes[SECTOR..]);
        bytes[64..68].copy_from_slice(&crc.to_le_bytes());
        seal(&mut bytes[..SECTOR]);
        if let Ok(catalog) = Catalog::decode(&bytes) {
            prop_assert_eq!(catalog.encode(), bytes);
        }
    }
}
