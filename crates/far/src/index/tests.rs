use dalsegno_core::{ExtentId, KvLayout, Location, StoreId};
use proptest::prelude::*;

use super::*;
use crate::format::Entry;

fn writer(open: u64) -> WriterId {
    WriterId { store: StoreId([7; 16]), open }
}

fn hash(number: u32) -> ChainHash {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&number.to_le_bytes());
    ChainHash(hash)
}

const NAMESPACE: NamespaceId = NamespaceId([1; 16]);

/// A catalog of extents of these blocks, one after the other.
fn catalog(open: u64, number: u64, extents: &[&[u32]]) -> Catalog {
    let mut offset = 0;
    let mut entries = Vec::new();
    for blocks in extents {
        let location = Location {
            segment: number,
            epoch: open,
            offset,
            header_bytes: 4096,
            compressed_bytes: 0,
        };
        let extent = Extent {
            id: ExtentId(number),
            born: number,
            namespace: NAMESPACE,
            lineage: ChainHash::default(),
            first_block_index: 0,
            parent: ChainHash::default(),
            layout: KvLayout::new(1, 4096).unwrap(),
            location,
            hashes: blocks.iter().map(|number| hash(*number)).collect(),
        };
        offset += extent.total_bytes();
        entries.push(Entry::Extent(extent));
    }
    Catalog { writer: writer(open), number, pack_bytes: offset, entries, known: Vec::new() }
}

/// A catalog of one tombstone; `known` are pairs of writer and number.
fn removal(number: u64, blocks: &[u32], known: &[(u64, u64)]) -> Catalog {
    let tombstone = Tombstone {
        sequence: number,
        namespace: NAMESPACE,
        hashes: blocks.iter().map(|number| hash(*number)).collect(),
    };
    let known = known.iter().map(|(open, number)| (writer(*open), *number));
    Catalog {
        pack_bytes: 0,
        entries: vec![Entry::Tombstone(tombstone)],
        known: known.map(|(writer, number)| KnownWriter { writer, number }).collect(),
        ..catalog(1, number, &[])
    }
}

fn insert(index: &FarIndex, catalog: &Catalog) -> Indexed {
    index.insert(catalog, || FileId(100 * catalog.writer.open + catalog.number))
}

fn found(index: &FarIndex, blocks: impl IntoIterator<Item = u32>) -> Vec<u32> {
    blocks.into_iter().filter(|number| index.find(NAMESPACE, &hash(*number)).is_some()).collect()
}

#[test]
fn blocks_are_found_with_the_place_of_their_record() {
    let index = FarIndex::new(1 << 20);
    assert_eq!(insert(&index, &catalog(1, 5, &[&[1, 2], &[3]])).new_blocks, 3);
    assert_eq!(insert(&index, &catalog(1, 5, &[&[1, 2], &[3]])).new_blocks, 0, "indexed already");
    let place = index.find(NAMESPACE, &hash(3)).unwrap();
    assert_eq!((place.record, place.block), (1, 0));
    let record = index.record(place).unwrap();
    let expected = RecordAt {
        writer: writer(1),
        number: 5,
        file: FileId(105),
        offset: 12_288,
        header_bytes: 4096,
    };
    assert_eq!(record, expected);
    assert_eq!(index.find(NamespaceId([2; 16]), &hash(3)), None);
    assert_eq!((index.view().blocks, index.view().packs), (3, 1));
}

#[test]
fn a_block_of_two_packs_is_counted_and_the_first_copy_is_preferred() {
    let index = FarIndex::new(1 << 20);
    insert(&index, &catalog(1, 1, &[&[1, 2]]));
    assert_eq!(insert(&index, &catalog(2, 1, &[&[2, 3]])).new_blocks, 1);
    assert_eq!(index.view().duplicate_blocks, 1);
    let file = |number| index.record(index.find(NAMESPACE, &hash(number)).unwrap()).unwrap().file;
    assert_eq!((file(2), file(3)), (FileId(101), FileId(201)));
    assert!(index.to_index_again().is_empty());
    index.remove_pack(writer(1), 1);
    assert_eq!(index.to_index_again(), [(writer(2), 1)]);
    assert_eq!(insert(&index, &catalog(2, 1, &[&[2, 3]])).new_blocks, 1);
    assert_eq!((found(&index, 1..4), index.view().duplicate_blocks), (vec![2, 3], 0));
}

#[test]
fn a_pack_that_is_gone_is_not_found_and_its_blocks_can_be_indexed_again() {
    let index = FarIndex::new(1 << 20);
    insert(&index, &catalog(1, 1, &[&[1, 2]]));
    assert_eq!(index.remove_pack(writer(1), 1), Some(FileId(101)));
    assert_eq!(index.remove_pack(writer(1), 1), None);
    assert!(found(&index, 1..3).is_empty());
    assert_eq!(index.view().blocks, 0);
    assert_eq!(insert(&index, &catalog(2, 1, &[&[2]])).new_blocks, 1);
    assert_eq!(found(&index, 1..3), [2]);
    assert_eq!(index.dead.load(Ordering::Relaxed), 1);
}

#[test]
fn beyond_the_bound_the_packs_indexed_first_are_forgotten() {
    let index = FarIndex::new(10 * BLOCK_BYTES);
    for number in 0..10_u32 {
        let blocks: Vec<u32> = (4 * number..4 * number + 4).collect();
        let added = insert(&index, &catalog(1, u64::from(number), &[&blocks]));
        assert_eq!(added.new_blocks, 4);
        assert!(index.view().blocks <= 10, "{:?}", index.view());
    }
    assert_eq!(found(&index, 0..40), (32..40).collect::<Vec<_>>());
    assert_eq!(index.view().forgotten_blocks, 32);
    assert_eq!(index.numbers(writer(1)), [8, 9]);
}

#[test]
fn entries_of_forgotten_packs_are_dropped_when_there_are_many() {
    let index = FarIndex::new(1 << 30);
    let blocks: Vec<u32> = (0..4096).collect();
    let mut number = 0;
    for round in 0..20_u32 {
        let blocks: Vec<u32> = blocks.iter().map(|block| block + round * 4096).collect();
        number += 1;
        insert(&index, &catalog(1, number, &[&blocks]));
        index.remove_pack(writer(1), number);
    }
    let entries: usize = index.shards.iter().map(|shard| shard.read().len()).sum();
    let dead = index.dead.load(Ordering::Relaxed);
    assert!(dead < MIN_DEAD && entries as u64 == dead, "{entries} entries, {dead} dead");
}

#[test]
fn a_tombstone_removes_what_its_writer_knew_in_either_order() {
    let packs = [
        catalog(1, 1, &[&[1, 2]]),
        catalog(2, 3, &[&[3]]),
        catalog(2, 4, &[&[4]]),
        catalog(3, 1, &[&[5]]),
    ];
    let removal = removal(9, &[1, 3, 4, 5], &[(1, 8), (2, 3)]);
    let expected = [2, 4, 5];
    let before = FarIndex::new(1 << 20);
    insert(&before, &removal);
    for pack in &packs {
        insert(&before, pack);
    }
    let after = FarIndex::new(1 << 20);
    for pack in &packs {
        insert(&after, pack);
    }
    insert(&after, &removal);
    for index in [before, after] {
        assert_eq!(found(&index, 1..6), expected);
        assert_eq!(index.view().blocks, 3);
        insert(&index, &catalog(1, 10, &[&[1]]));
        assert_eq!(found(&index, 1..2), [1], "put again");
    }
}

#[test]
fn a_tombstone_without_blocks_removes_the_namespace() {
    let index = FarIndex::new(1 << 20);
    insert(&index, &catalog(1, 1, &[&[1, 2]]));
    insert(&index, &catalog(2, 7, &[&[3]]));
    insert(&index, &removal(9, &[], &[(1, 8), (2, 3)]));
    assert_eq!(found(&index, 1..4), [3]);
    assert_eq!(index.view().blocks, 1);
    insert(&index, &catalog(2, 2, &[&[4]]));
    assert!(found(&index, 4..5).is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Publish(u64, Vec<u32>),
    Remove(Vec<u32>),
    Drop(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let blocks = || prop::collection::vec(0..12_u32, 1..4);
    let step = prop_oneof![
        4 => (1..4_u64, blocks()).prop_map(|(open, blocks)| Step::Publish(open, blocks)),
        2 => blocks().prop_map(Step::Remove),
        1 => any::<usize>().prop_map(Step::Drop),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    /// An index finds a block if and only if a pack has it that no tombstone of the block knew, in whatever order it
    /// learned of packs and tombstones.
    #[test]
    fn the_order_of_catalogs_does_not_matter(steps in steps(), swap: u64) {
        let following = FarIndex::new(1 << 20);
        let (mut packs, mut removals): (Vec<Catalog>, Vec<Catalog>) = (Vec::new(), Vec::new());
        for (number, step) in (1..).zip(steps) {
            match step {
                Step::Publish(open, mut blocks) => {
                    blocks.sort_unstable();
                    blocks.dedup();
                    packs.push(catalog(open, number, &[&blocks]));
                    insert(&following, packs.last().unwrap());
                }
                Step::Remove(blocks) => {
                    let known: Vec<(u64, u64)> = (1..4).map(|open| (open, number - 1)).collect();
                    removals.push(removal(number, &blocks, &known));
                    insert(&following, removals.last().unwrap());
                }
                Step::Drop(at) if !packs.is_empty() => {
                    let gone = packs.remove(at % packs.len());
                    following.remove_pack(gone.writer, gone.number);
                }
                Step::Drop(_) => {}
            }
        }
        let is_live = |block: u32, pack: &Catalog| {
            let has = pack.extents().any(|extent| extent.hashes.contains(&hash(block)));
            let removed = |removal: &Catalog| {
                removal.tombstones().any(|tombstone| tombstone.hashes.contains(&hash(block)))
                    && removal.number > pack.number
            };
            has && !removals.iter().any(removed)
        };
        let expected: Vec<u32> =
            (0..12).filter(|block| packs.iter().any(|pack| is_live(*block, pack))).collect();
        let mut all: Vec<&Catalog> = packs.iter().chain(&removals).collect();
        all.sort_by_key(|catalog| catalog.number.wrapping_mul(swap | 1) % 97);
        let fresh = FarIndex::new(1 << 20);
        for catalog in all {
            insert(&fresh, catalog);
        }
        for index in [&fresh, &following] {
            for (writer, number) in index.to_index_again() {
                let pack = packs.iter().find(|pack| (pack.writer, pack.number) == (writer, number));
                insert(index, pack.unwrap());
            }
            prop_assert_eq!(found(index, 0..12), expected.clone());
            prop_assert_eq!(index.view().blocks, expected.len() as u64);
        }
    }
}
