//! Random histories against the simplest possible model: a map of present blocks.

use std::collections::{BTreeMap, BTreeSet};

use dalsegno_core::{ChainHash, Deadline, Extent, ExtentId, KvLayout, Location, NamespaceId};
use dalsegno_index::{Index, MemoryIndex, ScanPlace, Scope};
use dalsegno_policy::recency::Use;
use proptest::prelude::*;

const NAMESPACE: NamespaceId = NamespaceId([1; 16]);

/// Chains form a tree: a node is its parent and a letter, so that prefixes are shared and forks happen.
fn chain(path: &[u8]) -> Vec<ChainHash> {
    let mut hash = [0_u8; 32];
    path.iter()
        .map(|letter| {
            let mut next = [0_u8; 32];
            for (index, byte) in next.iter_mut().enumerate() {
                *byte =
                    hash[(index + 7) % 32].wrapping_mul(31).wrapping_add(*letter).wrapping_add(1);
            }
            hash = next;
            ChainHash(next)
        })
        .collect()
}

fn extent(id: u64, path: &[u8], first: usize, index: &MemoryIndex) -> Extent {
    let hashes = chain(path);
    let parent = first.checked_sub(1).map(|before| hashes[before]);
    let number = u32::try_from(first).unwrap();
    let place = index.place(NAMESPACE, parent, hashes[first], number, Deadline::Never);
    Extent {
        id: ExtentId(id),
        born: id,
        namespace: NAMESPACE,
        lineage: place.lineage,
        first_block_index: place.first_block_index,
        parent: parent.unwrap_or_default(),
        layout: KvLayout::new(1, 4096).unwrap(),
        location: Location {
            segment: id % 5,
            epoch: 1,
            offset: 4096,
            header_bytes: 4096,
            compressed_bytes: 0,
        },
        hashes: hashes[first..].to_vec(),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, usize),
    Probe(Vec<u8>, usize),
    Remove(Vec<u8>, usize),
    DropExtent(usize),
    DropBlocks(usize, usize),
    Move(usize),
    Merge(usize, usize),
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0_u8..3, 1..12)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (path(), 0_usize..12).prop_map(|(p, first)| { let first = first % p.len(); Step::Put(p, first) }),
        4 => (path(), 0_usize..12).prop_map(|(p, first)| { let first = first % p.len(); Step::Probe(p, first) }),
        1 => (path(), 0_usize..12).prop_map(|(p, first)| { let first = first % p.len(); Step::Remove(p, first) }),
        1 => (0_usize..64).prop_map(Step::DropExtent),
        1 => (0_usize..64, 0_usize..12).prop_map(|(pick, first)| Step::DropBlocks(pick, first)),
        1 => (0_usize..64).prop_map(Step::Move),
        1 => (0_usize..64, 0_usize..64).prop_map(|(one, two)| Step::Merge(one, two)),
    ]
}

/// Which extent holds each present block.
type Model = BTreeMap<ChainHash, ExtentId>;

fn check(index: &MemoryIndex, model: &Model, hashes: &[ChainHash]) {
    let expected = hashes.iter().take_while(|hash| model.contains_key(hash)).count();
    assert_eq!(index.probe(NAMESPACE, hashes, Deadline::Never), expected);
    let runs = index.resolve(NAMESPACE, hashes, Scope::Each, Deadline::Never);
    let mut seen = BTreeSet::new();
    for run in &runs {
        for offset in 0..run.count as usize {
            let hash = hashes[run.at + offset];
            assert_eq!(run.extent.hashes[run.first_block as usize + offset], hash);
            assert_eq!(model.get(&hash), Some(&run.extent.id));
            assert!(seen.insert(run.at + offset));
        }
    }
    let present = hashes.iter().filter(|hash| model.contains_key(hash)).count();
    assert_eq!(seen.len(), present);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_index_agrees_with_a_plain_map(steps in prop::collection::vec(step(), 1..60)) {
        let index = MemoryIndex::default();
        let mut model = Model::new();
        let mut extents: BTreeMap<ExtentId, Extent> = BTreeMap::new();
        let mut next = 0;
        for step in steps {
            next += 1;
            match step {
                Step::Put(path, first) => {
                    let extent = extent(next, &path, first, &index);
                    for hash in &extent.hashes {
                        model.entry(*hash).or_insert(extent.id);
                    }
                    extents.insert(extent.id, extent.clone());
                    let used = Use::written(extent.id.0);
                    index.insert(extent, used, &|_| true, Deadline::Never);
                }
                Step::Probe(path, first) => check(&index, &model, &chain(&path)[first..]),
                Step::Remove(path, first) => {
                    let hashes = &chain(&path)[first..];
                    model.retain(|hash, _| !hashes.contains(hash));
                    index.remove_blocks(NAMESPACE, hashes);
                }
                Step::DropExtent(pick) => {
                    if let Some(id) = extents.keys().nth(pick).copied() {
                        model.retain(|_, holder| *holder != id);
                        index.remove_extent(&extents[&id], Deadline::Never);
                    }
                }
                Step::DropBlocks(pick, first) => {
                    if let Some(extent) = extents.values().nth(pick) {
                        let is_once = |hash: &ChainHash| extent.hashes.iter().filter(|h| *h == hash).count() == 1;
                        let blocks = (0_u32..).zip(&extent.hashes).skip(first).step_by(2);
                        let blocks: Vec<_> = blocks.filter(|(_, hash)| is_once(hash)).collect();
                        let held = |hash: &&ChainHash| model.get(hash) == Some(&extent.id);
                        let hashes = blocks.iter().map(|(_, hash)| *hash);
                        let gone: Vec<ChainHash> = hashes.filter(held).copied().collect();
                        model.retain(|hash, _| !gone.contains(hash));
                        let blocks: Vec<u32> = blocks.into_iter().map(|(block, _)| block).collect();
                        let removed = index.remove_from_extent(extent, &blocks, Deadline::Never);
                        prop_assert_eq!(removed.blocks, gone.len() as u64);
                    }
                }
                Step::Move(pick) => {
                    if let Some(old) = extents.values().nth(pick).cloned() {
                        let new = Extent { id: ExtentId(next), ..old.clone() };
                        for holder in model.values_mut().filter(|holder| **holder == old.id) {
                            *holder = new.id;
                        }
                        extents.insert(new.id, new.clone());
                        index.replace(&[&old], vec![new]).unwrap();
                    }
                }
                Step::Merge(one, two) => {
                    let pick = |at: usize| extents.values().nth(at).cloned();
                    if let (Some(one), Some(two)) = (pick(one), pick(two)) {
                        // Also extents that are no neighbours: the index does not check.
                        let hashes: Vec<_> = one.hashes.iter().chain(&two.hashes).copied().collect();
                        let new = Extent { id: ExtentId(next), hashes, ..one.clone() };
                        let old = [one.id, two.id];
                        for holder in model.values_mut().filter(|holder| old.contains(holder)) {
                            *holder = new.id;
                        }
                        extents.insert(new.id, new.clone());
                        index.replace(&[&one, &two], vec![new]).unwrap();
                    }
                }
            }
            let live: BTreeSet<_> = model.values().copied().collect();
            prop_assert_eq!(index.counts(), (live.len() as u64, model.len() as u64));
        }
        let all = index.scan(ScanPlace::default(), usize::MAX);
        let places: Vec<_> = all.iter().map(|e| (e.lineage, e.first_block_index)).collect();
        prop_assert!(places.is_sorted());
        prop_assert_eq!(all.len() as u64, index.counts().0);
    }
}

#[test]
fn a_continuation_joins_its_parents_lineage_and_a_fork_opens_its_own() {
    let index = MemoryIndex::default();
    let root = extent(1, &[0, 0], 0, &index);
    index.insert(root.clone(), Use::written(1), &|_| true, Deadline::Never);
    let next = extent(2, &[0, 0, 0], 2, &index);
    assert_eq!((next.lineage, next.first_block_index), (chain(&[0])[0], 2));
    index.insert(next, Use::written(2), &|_| true, Deadline::Never);
    let fork = extent(3, &[0, 0, 1], 2, &index);
    assert_eq!((fork.lineage, fork.first_block_index), (chain(&[0, 0, 1])[2], 2));
    index.insert(fork, Use::written(3), &|_| true, Deadline::Never);
    assert_eq!(index.orphan_descendants(&root, 1), 1);
    assert_eq!(index.orphan_descendants(&root, 10), 1, "the other one");
    assert_eq!(index.orphan_descendants(&root, 10), 0);
}
