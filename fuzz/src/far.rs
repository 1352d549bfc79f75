//! The decoders of a far location: a catalog, and the list of applied ones.

use dalsegno_core::{ChainHash, Extent, ExtentId, KvLayout, Location, NamespaceId, StoreId};
use dalsegno_far::format::{AppliedCatalogs, Catalog, Entry};
use dalsegno_far::{KnownWriter, Tombstone, WriterId};

use crate::seal::{SECTOR, seal_sector, sectors};

/// Offset of the checksum of a catalog's body.
const CATALOG_CRC_AT: usize = 64;
/// Offset of the checksum of the entries of applied catalogs.
const APPLIED_CRC_AT: usize = 40;

/// Whole sectors with the right magic number, body size and checksums.
fn sealed(input: &[u8], magic: [u8; 8], crc_at: usize) -> Vec<u8> {
    let mut bytes = sectors(input);
    bytes[..8].copy_from_slice(&magic);
    let body_crc = crc32c::crc32c(&bytes[SECTOR..]);
    bytes[crc_at..][..4].copy_from_slice(&body_crc.to_le_bytes());
    if crc_at == CATALOG_CRC_AT {
        let body_bytes = (bytes.len() - SECTOR) as u64;
        bytes[56..64].copy_from_slice(&body_bytes.to_le_bytes());
    }
    seal_sector(&mut bytes);
    bytes
}

/// A catalog.
pub(crate) fn catalog(input: &[u8]) {
    let bytes = sealed(input, *b"DSGNCATL", CATALOG_CRC_AT);
    if let Ok(catalog) = Catalog::decode(&bytes) {
        assert!(catalog.encode() == bytes, "another catalog");
        let extents = catalog.extents().count() + catalog.tombstones().count();
        assert_eq!(extents, catalog.entries.len());
        let ends = catalog.extents().map(|one| one.location.offset + one.total_bytes());
        assert!(ends.max().unwrap_or(0) <= catalog.pack_bytes, "an extent outside of the pack");
    }
    let _ = Catalog::decode(input);
}

/// The list of applied catalogs.
pub(crate) fn applied(input: &[u8]) {
    let bytes = sealed(input, *b"DSGNFARM", APPLIED_CRC_AT);
    if let Ok(applied) = AppliedCatalogs::decode(&bytes) {
        assert!(applied.encode() == bytes, "another list");
    }
    let _ = AppliedCatalogs::decode(input);
}

fn writer(open: u64) -> WriterId {
    WriterId { store: StoreId([7; 16]), open }
}

fn extent(offset: u64, blocks: u8, compressed_bytes: u64) -> Extent {
    let location = Location { segment: 7, epoch: 9, offset, header_bytes: 4096, compressed_bytes };
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
    let pack = |entries, pack_bytes| Catalog {
        writer: writer(9),
        number: 7,
        pack_bytes,
        entries,
        known: Vec::new(),
    };
    let tombstone = |blocks: u8| {
        let hashes = (0..blocks).map(|number| ChainHash([number; 32])).collect();
        Entry::Tombstone(Tombstone { sequence: 6, namespace: NamespaceId([1; 16]), hashes })
    };
    let known = [3, 9].map(|open| KnownWriter { writer: writer(open), number: 6 }).to_vec();
    let removal = |blocks| Catalog { known: known.clone(), ..pack(vec![tombstone(blocks)], 0) };
    let two = vec![Entry::Extent(extent(0, 2, 0)), Entry::Extent(extent(12_288, 3, 5000))];
    vec![
        ("one-extent", pack(vec![Entry::Extent(extent(0, 2, 0))], 12_288).encode()),
        ("two-extents", pack(two, 1 << 20).encode()),
        ("removed-blocks", removal(3).encode()),
        ("removed-namespace", removal(0).encode()),
        ("empty", pack(Vec::new(), 0).encode()),
    ]
}

/// A list of applied catalogs.
#[must_use]
pub fn applied_seed() -> Vec<u8> {
    let mut applied = AppliedCatalogs::none(StoreId([7; 16]));
    (1..4).for_each(|number| applied.add(writer(number % 2), number));
    applied.encode()
}
