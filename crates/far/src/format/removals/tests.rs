use dalsegno_core::StoreId;
use proptest::prelude::*;

use super::*;

fn writer(open: u64) -> WriterId {
    WriterId { store: StoreId([7; 16]), open }
}

fn removal(open: u64, number: u64, blocks: u8) -> Removal {
    Removal {
        id: RemovalId { by: writer(open), number },
        namespace: NamespaceId([1; 16]),
        hashes: (0..blocks).map(|block| ChainHash([block; 32])).collect(),
    }
}

fn sample() -> RemovalList {
    let removals = vec![removal(9, 1, 2), removal(3, 4, 0), removal(9, 2, 1)];
    RemovalList { writer: writer(9), number: 5, removals }
}

#[test]
fn a_list_round_trips() {
    let empty = RemovalList { removals: Vec::new(), ..sample() };
    for list in [sample(), empty] {
        assert_eq!(RemovalList::decode(&list.encode()), Ok(list));
    }
}

#[test]
fn the_bytes_are_those_of_the_page() {
    let bytes = sample().encode();
    assert_eq!(bytes.len(), 2 * SECTOR);
    assert_eq!(&bytes[..16], b"DSGNREMV\x01\0\0\0\0\x10\0\0");
    assert_eq!(&bytes[16..32], [7; 16]);
    assert_eq!(&bytes[32..56], [9_u64, 5, 4096].map(u64::to_le_bytes).concat());
    assert_eq!(&bytes[60..64], 3_u32.to_le_bytes());
    assert_eq!(&bytes[4096..4112], [7; 16]);
    assert_eq!(&bytes[4112..4128], [9_u64, 1].map(u64::to_le_bytes).concat());
    assert_eq!(&bytes[4128..4144], [1; 16]);
    assert_eq!(&bytes[4144..4152], [2_u32, 0].map(u32::to_le_bytes).concat());
    assert_eq!(&bytes[4152..4216], [[0; 32], [1; 32]].concat());
}

#[test]
fn the_largest_removal_fits_a_list_of_its_own() {
    let hashes = vec![ChainHash([1; 32]); MAX_LIST_HASHES];
    let list = RemovalList { removals: vec![Removal { hashes, ..removal(9, 1, 0) }], ..sample() };
    let bytes = list.encode();
    assert!(bytes.len() as u64 <= MAX_LIST_BYTES);
    assert!(RemovalList::decode(&bytes) == Ok(list));
}

#[test]
fn every_flipped_byte_and_every_truncation_is_noticed() {
    let bytes = sample().encode();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        assert!(RemovalList::decode(&flipped).is_err(), "byte {at}");
        assert!(RemovalList::decode(&bytes[..at]).is_err(), "{at} bytes");
    }
    assert!(RemovalList::decode(&[bytes, vec![0; SECTOR]].concat()).is_err());
}

#[test]
fn a_removal_without_number_is_refused_and_a_newer_version_differs_from_damage() {
    let list = RemovalList { removals: vec![removal(9, 0, 1)], ..sample() };
    assert_eq!(RemovalList::decode(&list.encode()), Err(FormatError::Field("number")));
    let mut bytes = sample().encode();
    bytes[8] = 2;
    seal(&mut bytes[..SECTOR]);
    assert_eq!(RemovalList::decode(&bytes), Err(FormatError::Newer(2)));
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
        if let Ok(list) = RemovalList::decode(&bytes) {
            prop_assert_eq!(list.encode(), bytes);
        }
    }
}
