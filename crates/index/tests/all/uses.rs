//! Uses, ancestors and orphans: both indexes agree and follow the rules.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use dalsegno_core::{
    ChainHash, Clock, Deadline, EngineChoice, Extent, ExtentId, KvLayout, Location, NamespaceId,
    StoreId,
};
use dalsegno_index::{
    Index, LsmIndex, LsmOptions, MemoryIndex, ScanPlace, Scope, lift_ancestors, note_use,
    raise_parent,
};
use dalsegno_io::{BufferPool, DirectoryOptions, LocalDirectory, SystemClock};
use dalsegno_policy::recency::Use;
use proptest::prelude::*;

const NAMESPACE: NamespaceId = NamespaceId([1; 16]);

/// The hashes of a path through the prefix tree.
fn chain(path: &[u8]) -> Vec<ChainHash> {
    let mut state = 1_u64;
    let mut next = |letter: &u8| {
        state =
            (state ^ u64::from(*letter) << 7).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let words = [1, 2, 3, 4].map(|word| state.wrapping_mul(word * 2 + 1).to_be_bytes());
        ChainHash(words.concat().try_into().unwrap())
    };
    path.iter().map(&mut next).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, usize),
    Use(Vec<u8>, usize),
    /// An extent is evicted, after its dependents were marked as orphans.
    Evict(usize),
    /// An extent moves to another segment.
    Move(usize),
    Round,
    Flush,
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0_u8..2, 1..10)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (path(), 0_usize..10).prop_map(|(p, first)| { let first = first % p.len(); Step::Put(p, first) }),
        4 => (path(), 0_usize..10).prop_map(|(p, first)| { let first = first % p.len(); Step::Use(p, first) }),
        2 => (0_usize..64).prop_map(Step::Evict),
        1 => (0_usize..64).prop_map(Step::Move),
        2 => Just(Step::Round),
        1 => Just(Step::Flush),
    ]
}

/// An on-disk index.
fn on_disk(dir: &Path) -> LsmIndex {
    let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
    let options = DirectoryOptions { engine: EngineChoice::Psync, ..DirectoryOptions::default() };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let device = LocalDirectory::open(dir, options, &pool, Arc::clone(&clock)).unwrap();
    LsmIndex::open(Arc::new(device), clock, StoreId([1; 16]), LsmOptions::default()).unwrap().0
}

/// The extents of an index in its order.
fn all(index: &dyn Index) -> Vec<Arc<Extent>> {
    index.scan(ScanPlace::default(), usize::MAX)
}

struct World {
    indexes: [Arc<dyn Index>; 2],
    next: u64,
    round: u64,
    has_evicted: bool,
    /// The indexes know different orphans from here on.
    differs: bool,
}

impl World {
    fn new_extent(&mut self, hashes: &[ChainHash], first: usize, count: usize) -> Extent {
        self.next += 1;
        let parent = first.checked_sub(1).map(|before| hashes[before]);
        let number = u32::try_from(first).unwrap();
        let places = self
            .indexes
            .iter()
            .map(|i| i.place(NAMESPACE, parent, hashes[first], number, Deadline::Never));
        let places: Vec<_> = places.collect();
        assert_eq!(places[0], places[1]);
        Extent {
            id: ExtentId(self.next),
            born: self.next,
            namespace: NAMESPACE,
            lineage: places[0].lineage,
            first_block_index: places[0].first_block_index,
            parent: parent.unwrap_or_default(),
            layout: KvLayout::new(1, 4096).unwrap(),
            location: Location {
                segment: self.next % 5,
                epoch: 1,
                offset: 4096,
                header_bytes: 4096,
                compressed_bytes: 0,
            },
            hashes: hashes[first..first + count].to_vec(),
        }
    }

    fn pick(&self, number: usize) -> Option<Arc<Extent>> {
        let all = all(self.indexes[0].as_ref());
        all.get(number.checked_rem(all.len())?).cloned()
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::Round => self.round = self.next + 1,
            Step::Flush => {}
            Step::Put(path, first) => {
                let hashes = chain(path);
                let present = self.indexes[0].resolve(
                    NAMESPACE,
                    &hashes[*first..],
                    Scope::Each,
                    Deadline::Never,
                );
                let before = first.checked_sub(1).map(|before| hashes[before]);
                let has_parent = before.is_none_or(|hash| {
                    self.indexes[0].probe(NAMESPACE, &[hash], Deadline::Never) == 1
                });
                // An on-disk index does not know that blocks stored before their parent depend on it.
                if !present.is_empty() || !has_parent {
                    return;
                }
                let extent = self.new_extent(&hashes, *first, hashes.len() - first);
                for index in &self.indexes {
                    raise_parent(index.as_ref(), &extent, self.round, Deadline::Never);
                    index.insert(
                        extent.clone(),
                        Use::written(self.round),
                        &|_| true,
                        Deadline::Never,
                    );
                }
            }
            Step::Use(path, first) => {
                let hashes = &chain(path)[*first..];
                for index in &self.indexes {
                    let runs = index.resolve(NAMESPACE, hashes, Scope::Prefix, Deadline::Never);
                    note_use(index.as_ref(), &runs, self.round, Deadline::Never);
                    let raised = |run: &dalsegno_index::Run| index.use_of(&run.extent);
                    assert!(runs.iter().map(raised).all(|used| used.is_raised(self.round)));
                }
            }
            Step::Evict(number) => {
                let Some(extent) = self.pick(*number) else { return };
                let orphans = |index: &dyn Index| index.orphan_descendants(&extent, usize::MAX);
                let (one, two) = (&self.indexes[0], &self.indexes[1]);
                let (in_memory, on_disk) = (orphans(one.as_ref()), orphans(two.as_ref()));
                // An on-disk index does not find the dependents of an extent that was stored again in another place.
                assert!(
                    on_disk == in_memory || on_disk < in_memory && self.has_evicted,
                    "{extent:?}"
                );
                self.has_evicted = true;
                self.differs |= on_disk < in_memory;
                for index in &self.indexes {
                    let again = index.orphan_descendants(&extent, usize::MAX);
                    assert_eq!(again, 0, "each is marked once");
                    index.remove_extent(&extent, Deadline::Never);
                }
            }
            Step::Move(number) => {
                let Some(old) = self.pick(*number) else { return };
                self.next += 1;
                let mut new = Extent::clone(&old);
                (new.id, new.location.segment) = (ExtentId(self.next), self.next % 5);
                let before = self.indexes[0].use_of(&old);
                for index in &self.indexes {
                    index.replace(&[&old], vec![new.clone()]).unwrap();
                    assert_eq!(index.use_of(&new), before, "moving is no use");
                }
            }
        }
    }

    fn check(&self) {
        let (one, two) = (self.indexes[0].as_ref(), self.indexes[1].as_ref());
        let extents = all(one);
        let holder: BTreeMap<ChainHash, &Arc<Extent>> = extents
            .iter()
            .flat_map(|extent| extent.hashes.iter().map(move |hash| (*hash, extent)))
            .collect();
        for extent in &extents {
            let used = one.use_of(extent);
            assert_eq!(used, two.use_of(extent), "{extent:?}");
            let Some(parent) = holder.get(&extent.parent) else { continue };
            let of_parent = one.use_of(parent);
            assert!(of_parent.recency() >= used.recency(), "{parent:?} {of_parent:?} {used:?}");
        }
        for segment in 0..5 {
            let live = |index: &dyn Index| {
                let mut live = index.live_extents(segment);
                live.sort_by_key(|live| format!("{live:?}"));
                live
            };
            assert_eq!(live(one), live(two));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn both_indexes_raise_and_orphan_the_same_extents_and_no_ancestor_is_older(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let lsm = Arc::new(on_disk(dir.path()));
        let indexes: [Arc<dyn Index>; 2] = [Arc::<MemoryIndex>::default(), Arc::<LsmIndex>::clone(&lsm)];
        let mut world = World { indexes, next: 0, round: 1, has_evicted: false, differs: false };
        for step in &steps {
            world.act(step);
            if matches!(step, Step::Flush) {
                lsm.freeze(Vec::new());
                while lsm.step() {}
            }
            if world.differs {
                return Ok(());
            }
            world.check();
        }
    }

    #[test]
    fn after_an_open_ancestors_are_as_recent_as_their_dependents(
        paths in prop::collection::vec((path(), 0_usize..10), 1..30),
        page in 1_usize..9,
    ) {
        let index = MemoryIndex::default();
        let indexes: [Arc<dyn Index>; 2] = [Arc::<MemoryIndex>::default(), Arc::<MemoryIndex>::default()];
        let mut world = World { indexes, next: 0, round: 1, has_evicted: false, differs: false };
        for (path, first) in &paths {
            let first = first % path.len();
            world.act(&Step::Put(path.clone(), first));
        }
        // Like an index that is filled from a log, which knows only when extents were written.
        for extent in all(world.indexes[0].as_ref()) {
            index.insert(Extent::clone(&extent), Use::written(extent.id.0), &|_| true, Deadline::Never);
        }
        let extents = all(&index);
        for page in extents.chunks(page) {
            lift_ancestors(&index, page);
        }
        for extent in &extents {
            let used = index.use_of(extent);
            prop_assert!(used.last() >= extent.id.0);
            for run in index.resolve(NAMESPACE, &[extent.parent], Scope::Each, Deadline::Never) {
                prop_assert!(index.use_of(&run.extent).last() >= used.last());
                prop_assert!(!index.use_of(&run.extent).is_repeated(), "it was no use");
            }
        }
    }
}
