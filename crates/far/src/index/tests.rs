use dalsegno_core::{Extent, ExtentId, KvLayout, Location, StoreId};
use proptest::prelude::*;

use super::*;
use crate::removal::Applied;
use crate::removal::RemovalId;

fn writer(open: u64) -> WriterId {
    WriterId { store: StoreId([7; 16]), open }
}

fn hash(number: u32) -> ChainHash {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&number.to_le_bytes());
    ChainHash(hash)
}

const NAMESPACE: NamespaceId = NamespaceId([1; 16]);

/// The number of the first pack that a catalog may name.
fn first_pack(catalog: u64) -> u64 {
    16 * catalog
}

/// A catalog of one pack, of extents of these blocks, one after the other.
fn catalog(open: u64, number: u64, extents: &[&[u32]]) -> Catalog {
    let mut offset = 0;
    let mut all = Vec::new();
    for blocks in extents {
        let location = Location {
            segment: first_pack(number),
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
        all.push(extent);
    }
    let applied = Applied::default();
    let pack = CatalogPack { number: first_pack(number), bytes: offset, extents: all };
    Catalog { writer: writer(open), number, packs: vec![pack], applied }
}

/// A catalog of these blocks whose writer had applied removals of writer 9 up to this one.
fn catalog_after(applied: u64, open: u64, number: u64, blocks: &[u32]) -> Catalog {
    let id = RemovalId { by: writer(9), number: applied };
    Catalog { applied: [id].into_iter().collect(), ..catalog(open, number, &[blocks]) }
}

/// A removal by writer 9.
fn removal(number: u64, blocks: &[u32]) -> Removal {
    let hashes = blocks.iter().map(|number| hash(*number)).collect();
    Removal { id: RemovalId { by: writer(9), number }, namespace: NAMESPACE, hashes }
}

fn insert(index: &FarIndex, catalog: &Catalog) -> Indexed {
    index.insert(catalog, |pack| FileId(100 * catalog.writer.open + catalog_of(pack)))
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
        number: first_pack(5),
        file: FileId(105),
        offset: 12_288,
        header_bytes: 4096,
        plain_blocks: Some(1),
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
    index.remove_pack(writer(1), first_pack(1));
    assert_eq!(index.to_index_again(), [(writer(2), 1)]);
    assert_eq!(index.to_index_again(), [(writer(2), 1)], "until that is done");
    assert_eq!(insert(&index, &catalog(2, 1, &[&[2, 3]])).new_blocks, 1);
    assert_eq!((found(&index, 1..4), index.view().duplicate_blocks), (vec![2, 3], 0));
    assert!(index.to_index_again().is_empty());
}

#[test]
fn a_pack_that_is_gone_is_not_found_and_its_blocks_can_be_indexed_again() {
    let index = FarIndex::new(1 << 20);
    insert(&index, &catalog(1, 1, &[&[1, 2]]));
    assert_eq!(index.remove_pack(writer(1), first_pack(1)), Some(FileId(101)));
    assert_eq!(index.remove_pack(writer(1), first_pack(1)), None);
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
    assert_eq!(index.numbers(writer(1)), [8, 9].map(first_pack));
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
        index.remove_pack(writer(1), first_pack(number));
    }
    let entries: usize = index.shards.iter().map(|shard| shard.read().len()).sum();
    let dead = index.dead.load(Ordering::Relaxed);
    assert!(dead < MIN_DEAD && entries as u64 == dead, "{entries} entries, {dead} dead");
}

#[test]
fn a_removal_covers_the_packs_of_writers_that_had_not_applied_it_in_either_order() {
    let packs = [
        catalog(1, 1, &[&[1, 2]]),
        catalog_after(4, 2, 3, &[3]),
        catalog_after(5, 2, 4, &[4]),
        catalog_after(6, 9, 1, &[5]),
    ];
    let removal = removal(5, &[1, 3, 4, 5]);
    let before = FarIndex::new(1 << 20);
    before.remove(&removal);
    for pack in &packs {
        insert(&before, pack);
    }
    let after = FarIndex::new(1 << 20);
    for pack in &packs {
        insert(&after, pack);
    }
    after.remove(&removal);
    for index in [before, after] {
        assert_eq!(found(&index, 1..6), [2, 4, 5]);
        assert_eq!(index.view().blocks, 3);
        insert(&index, &catalog(1, 10, &[&[1]]));
        assert!(found(&index, 1..2).is_empty(), "its writer had not applied the removal");
        insert(&index, &catalog_after(5, 1, 11, &[1]));
        assert_eq!(found(&index, 1..2), [1], "put again");
    }
}

#[test]
fn a_removal_without_blocks_covers_the_namespace() {
    let index = FarIndex::new(1 << 20);
    insert(&index, &catalog(1, 1, &[&[1, 2]]));
    insert(&index, &catalog_after(7, 2, 7, &[3]));
    let of_other = Removal { namespace: NamespaceId([2; 16]), ..removal(8, &[]) };
    index.remove(&of_other);
    assert_eq!(found(&index, 1..4), [1, 2, 3]);
    index.remove(&removal(7, &[]));
    assert_eq!(found(&index, 1..4), [3]);
    assert_eq!(index.view().blocks, 1);
    insert(&index, &catalog_after(6, 2, 8, &[4]));
    assert!(found(&index, 4..5).is_empty());
}

#[test]
fn beyond_the_bounds_a_removal_covers_the_namespace_and_then_everything() {
    // Eight removed blocks are remembered.
    let index = FarIndex::new(8 * REMOVED_SHARE);
    insert(&index, &catalog(1, 1, &[&[1, 2]]));
    insert(&index, &catalog_after(2, 1, 2, &[3]));
    index.remove(&removal(1, &[10, 11, 12, 13, 14, 15, 16, 17]));
    assert_eq!(found(&index, 1..4), [1, 2, 3]);
    index.remove(&removal(2, &[18]));
    assert_eq!(found(&index, 1..4), [3], "the pack whose writer had not applied it is lost");
    let mut removed = Removed::new(0, 1);
    let other = Removal { namespace: NamespaceId([2; 16]), ..removal(3, &[]) };
    assert_eq!(removed.add(&removal(2, &[1])), Covered::Namespace);
    assert_eq!(removed.add(&removal(1, &[2])), Covered::Namespace, "it is remembered already");
    assert_eq!(removed.add(&other), Covered::Everything);
    let applied = |number| [removal(number, &[]).id].into_iter().collect::<Applied>();
    let third = NamespaceId([3; 16]);
    assert!(removed.covers_all(third, &applied(2)) && !removed.covers_all(third, &applied(3)));
}

#[test]
fn removals_are_forgotten_when_no_list_has_them_and_those_of_this_open_are_kept() {
    let index = FarIndex::new(1 << 20);
    for number in 1..=3 {
        index.remove(&removal(number, &[u32::try_from(number).unwrap()]));
    }
    index.known().add_own(removal(1, &[]).id);
    let name = writer(9).object(crate::names::Object::Removals(7));
    index.known().lists.insert(name, SeenList::of(&[removal(3, &[3])]));
    let present = index.known().present(&[]);
    index.retain_removals(&present);
    insert(&index, &catalog(1, 1, &[&[1, 2, 3]]));
    assert_eq!(found(&index, 1..4), [2]);
}

#[test]
fn a_list_is_needed_as_long_as_a_writer_of_a_catalog_had_not_applied_all_of_it() {
    let index = FarIndex::new(1 << 20);
    let ids = [removal(2, &[]).id, RemovalId { by: writer(4), number: 1 }];
    let is_needed = |index: &FarIndex| index.known().needs(&ids);
    assert!(!is_needed(&index), "there are no packs");
    insert(&index, &catalog_after(2, 1, 1, &[1]));
    assert!(is_needed(&index), "one of two was applied");
    let both: Applied = ids.into_iter().collect();
    index.remove_pack(writer(1), first_pack(1));
    assert!(is_needed(&index), "its catalog may be there, and others read it");
    index.known().remove_catalog(writer(1), 1);
    insert(&index, &Catalog { applied: both, ..catalog(1, 2, &[&[1]]) });
    assert!(!is_needed(&index));
    index.known().add_unread(writer(3), 1);
    assert!(is_needed(&index), "a catalog cannot be read");
    index.known().remove_catalog(writer(3), 1);
    index.known().unlisted.insert(writer(3));
    assert!(is_needed(&index), "a folder cannot be listed");
}

#[test]
fn packs_of_a_writer_share_what_it_had_applied() {
    let index = FarIndex::new(1 << 20);
    for number in [1, 3, 2] {
        insert(&index, &catalog_after(5, 1, number, &[1]));
    }
    let shared = index.known().add_catalog(&catalog_after(5, 1, 4, &[1]));
    // The packs 1 to 3, what is known of their catalogs and of the fourth one, and this.
    assert_eq!(std::sync::Arc::strong_count(&shared), 3 + 4 + 1);
}

#[derive(Clone, Debug)]
enum Step {
    /// A writer has applied all removals up to now.
    Apply(u64),
    Publish(u64, Vec<u32>),
    Remove(Vec<u32>),
    Drop(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let blocks = || prop::collection::vec(0..12_u32, 1..4);
    let step = prop_oneof![
        2 => (1..4_u64).prop_map(Step::Apply),
        4 => (1..4_u64, blocks()).prop_map(|(open, blocks)| Step::Publish(open, blocks)),
        2 => blocks().prop_map(Step::Remove),
        1 => any::<usize>().prop_map(Step::Drop),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    /// An index finds a block if and only if a pack has it that no removal of the block covers, in whatever order it
    /// learned of packs and removals.
    #[test]
    fn the_order_of_catalogs_and_lists_does_not_matter(steps in steps(), swap: u64) {
        let following = FarIndex::new(1 << 20);
        let (mut packs, mut removals): (Vec<Catalog>, Vec<Removal>) = (Vec::new(), Vec::new());
        let mut applied = [0_u64; 4];
        for (number, step) in (1..).zip(steps) {
            match step {
                Step::Apply(open) => {
                    applied[usize::try_from(open).unwrap()] = removals.len() as u64;
                }
                Step::Publish(open, mut blocks) => {
                    blocks.sort_unstable();
                    blocks.dedup();
                    let applied = applied[usize::try_from(open).unwrap()];
                    packs.push(catalog_after(applied, open, number, &blocks));
                    insert(&following, packs.last().unwrap());
                }
                Step::Remove(blocks) => {
                    removals.push(removal(removals.len() as u64 + 1, &blocks));
                    following.remove(removals.last().unwrap());
                }
                Step::Drop(at) if !packs.is_empty() => {
                    let gone = packs.remove(at % packs.len());
                    following.remove_pack(gone.writer, first_pack(gone.number));
                }
                Step::Drop(_) => {}
            }
        }
        let is_live = |block: u32, pack: &Catalog| {
            let has = pack.extents().any(|extent| extent.hashes.contains(&hash(block)));
            let covers = |removal: &Removal| {
                removal.hashes.contains(&hash(block)) && !pack.applied.contains(removal.id)
            };
            has && !removals.iter().any(covers)
        };
        let expected: Vec<u32> =
            (0..12).filter(|block| packs.iter().any(|pack| is_live(*block, pack))).collect();
        let mixed = |number: u64| number.wrapping_mul(swap | 1) % 97;
        let mut all: Vec<(u64, Option<&Catalog>, Option<&Removal>)> =
            packs.iter().map(|pack| (mixed(pack.number), Some(pack), None)).collect();
        all.extend(removals.iter().map(|one| (mixed(one.id.number + 50), None, Some(one))));
        all.sort_by_key(|(at, ..)| *at);
        let fresh = FarIndex::new(1 << 20);
        for (_, pack, removal) in all {
            if let Some(pack) = pack {
                insert(&fresh, pack);
            }
            if let Some(removal) = removal {
                fresh.remove(removal);
            }
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
