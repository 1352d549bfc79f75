//! The decoders of a far location: a catalog, a list of removals, and a store's record of removals.

use dalsegno_core::{ChainHash, Extent, ExtentId, KvLayout, Location, NamespaceId, StoreId};
use dalsegno_far::format::{Catalog, CatalogPack, RemovalList, RemovalRecord};
use dalsegno_far::{Removal, RemovalId, WriterId};

use crate::seal::{SECTOR, seal_sector, sectors};

/// Offset of the checksum of a catalog's body.
const CATALOG_CRC_AT: usize = 56;
/// Offset of the checksum of the body of a list of removals, and of a record of removals.
const REMOVALS_CRC_AT: usize = 56;

/// Whole sectors with the right magic number, body size and checksums.
fn sealed(input: &[u8], magic: [u8; 8], crc_at: usize) -> Vec<u8> {
    let mut bytes = sectors(input);
    bytes[..8].copy_from_slice(&magic);
    let body_crc = dalsegno_core::crc32c(&bytes[SECTOR..]);
    bytes[crc_at..][..4].copy_from_slice(&body_crc.to_le_bytes());
    // The size of the body is the field before its checksum.
    let body_bytes = (bytes.len() - SECTOR) as u64;
    bytes[crc_at - 8..crc_at].copy_from_slice(&body_bytes.to_le_bytes());
    seal_sector(&mut bytes);
    bytes
}

/// A catalog.
pub(crate) fn catalog(input: &[u8]) {
    let bytes = sealed(input, *b"DSGNCATL", CATALOG_CRC_AT);
    if let Ok(catalog) = Catalog::decode(&bytes) {
        assert!(catalog.encode() == bytes, "another catalog");
        for pack in &catalog.packs {
            let ends = pack.extents.iter().map(|one| one.location.offset + one.total_bytes());
            assert!(ends.max().unwrap_or(0) <= pack.bytes, "an extent outside of the pack");
        }
    }
    let _ = Catalog::decode(input);
}

/// A list of removals.
pub(crate) fn removals(input: &[u8]) {
    let bytes = sealed(input, *b"DSGNREMV", REMOVALS_CRC_AT);
    if let Ok(list) = RemovalList::decode(&bytes) {
        assert!(list.encode() == bytes, "another list");
        assert!(list.removals.iter().all(|removal| removal.id.number > 0));
    }
    let _ = RemovalList::decode(input);
}

/// How far a store is with removals.
pub(crate) fn applied(input: &[u8]) {
    let bytes = sealed(input, *b"DSGNFARM", REMOVALS_CRC_AT);
    if let Ok(record) = RemovalRecord::decode(&bytes) {
        assert!(record.encode() == bytes, "another record");
    }
    let _ = RemovalRecord::decode(input);
}

fn writer(open: u64) -> WriterId {
    WriterId { store: StoreId([7; 16]), open }
}

fn extent(offset: u64, blocks: u8, compressed_bytes: u64) -> Extent {
    let location =
        Location { segment: 112, epoch: 9, offset, header_bytes: 4096, compressed_bytes };
    Extent {
        id: ExtentId(5),
        born: 5,
        namespace: NamespaceId([1; 16]),
        lineage: ChainHash([2; 32]),
        first_block_index: 0,
        parent: ChainHash::default(),
        layout: KvLayout::new(1, 4096).expect("a layout"),
        location,
        hashes: (0..blocks).map(|number| ChainHash([number; 32])).collect(),
    }
}

/// Catalogs of each kind, by name.
#[must_use]
pub fn catalog_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let of_packs = |packs| Catalog {
        writer: writer(9),
        number: 7,
        packs,
        applied: [3, 9].map(|open| RemovalId { by: writer(open), number: 6 }).into_iter().collect(),
    };
    let pack = |extents, bytes| of_packs(vec![CatalogPack { number: 112, bytes, extents }]);
    let several =
        (112..128).map(|number| CatalogPack { number, bytes: 4096, extents: Vec::new() }).collect();
    let two = vec![extent(0, 2, 0), extent(12_288, 3, 5000)];
    vec![
        ("one-extent", pack(vec![extent(0, 2, 0)], 12_288).encode()),
        ("two-extents", pack(two, 1 << 20).encode()),
        ("several-packs", of_packs(several).encode()),
        ("empty", of_packs(Vec::new()).encode()),
    ]
}

/// Lists of removals, by name.
#[must_use]
pub fn removal_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let list = |removals| RemovalList { writer: writer(9), number: 7, removals }.encode();
    vec![
        ("removed-blocks", list(vec![removal(1, 3)])),
        ("removed-namespace", list(vec![removal(1, 0)])),
        ("both", list(vec![removal(1, 2), removal(2, 0), removal(3, 1)])),
        ("empty", list(Vec::new())),
    ]
}

/// A record of removals: some are applied, and some are pending.
#[must_use]
pub fn applied_seed() -> Vec<u8> {
    let mut record = RemovalRecord::new(StoreId([7; 16]));
    record.polled_at_ms = Some(5);
    record.applied = (1..4).map(|number| RemovalId { by: writer(number % 2), number }).collect();
    record.pending = vec![removal(4, 2), removal(5, 0)];
    record.encode()
}

/// A removal of so many blocks.
fn removal(number: u64, blocks: u8) -> Removal {
    Removal {
        id: RemovalId { by: writer(9), number },
        namespace: NamespaceId([1; 16]),
        hashes: (0..blocks).map(|number| ChainHash([number; 32])).collect(),
    }
}
