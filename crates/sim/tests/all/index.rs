//! The index over files against the one in memory: the same random histories, with reopening, outages after any
//! operation and changes of shape, must give the same answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::dose::dose;
use dalsegno_core::{
    ChainHash, Deadline, Extent, ExtentId, KvLayout, Location, ManualClock, NamespaceId, Shape,
    StoreId,
};
use dalsegno_index::{Index, LsmIndex, LsmOptions, MemoryIndex, ScanPlace, Scope};
use dalsegno_io::Device as _;
use dalsegno_policy::recency::Use;
use dalsegno_sim::{DeviceOptions, Label, Outage, Random, SECTOR, SimDevice};

/// In the small dose and the full one.
const HISTORIES: u64 = 100;
const FULL_HISTORIES: u64 = 10_000;
/// Tiny, so that short histories flush and merge.
const MEMTABLE_BYTES: u64 = 4 << 10;
const SEGMENTS: u64 = 6;

/// Chains form a tree: a node is its parent and a letter, so that prefixes are shared and forks happen.
fn chain(path: &[u8]) -> Vec<ChainHash> {
    let mut state = 0;
    path.iter()
        .map(|letter| {
            let mut random = Random::new(state ^ u64::from(*letter) << 32);
            state = random.bits();
            let mut hash = [0; 32];
            for part in hash.chunks_exact_mut(8) {
                part.copy_from_slice(&random.bits().to_le_bytes());
            }
            ChainHash(hash)
        })
        .collect()
}

/// What happened to an index: enough to do it again.
#[derive(Clone, Debug)]
enum Change {
    Insert(Extent),
    Replace(Vec<Extent>, Vec<Extent>),
    RemoveBlocks(NamespaceId, Vec<ChainHash>),
    RemoveNamespace(NamespaceId),
    RemoveExtent(Extent),
    RemoveFromExtent(Extent, Vec<u32>),
    DropSegment(u64, u64),
}

impl Change {
    /// Returns what the index says of it.
    fn apply(&self, index: &dyn Index) -> u64 {
        match self {
            Self::Insert(extent) => u64::from(index.insert(
                extent.clone(),
                Use::written(extent.id.0),
                &|_| true,
                Deadline::Never,
            )),
            Self::Replace(old, new) => {
                let old: Vec<&Extent> = old.iter().collect();
                u64::from(index.replace(&old, new.clone()).unwrap())
            }
            Self::RemoveBlocks(namespace, hashes) => index.remove_blocks(*namespace, hashes).blocks,
            Self::RemoveNamespace(namespace) => index.remove_namespace(*namespace).blocks,
            Self::RemoveExtent(extent) => index.remove_extent(extent, Deadline::Never).blocks,
            Self::RemoveFromExtent(extent, blocks) => {
                index.remove_from_extent(extent, blocks, Deadline::Never).blocks
            }
            Self::DropSegment(segment, epoch) => index.drop_segment(*segment, *epoch),
        }
    }
}

struct World {
    random: Random,
    device: SimDeviceHandle,
    index: Option<LsmIndex>,
    model: MemoryIndex,
    /// Everything that happened, as the log would know it.
    changes: Vec<Change>,
    extents: Vec<Extent>,
    epochs: BTreeMap<u64, u64>,
    next: u64,
    disk_bytes: u64,
}

type SimDeviceHandle = Arc<SimDevice>;

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let atom_bytes = *random.pick(&[SECTOR, 512]);
        let options = DeviceOptions { seed, atom_bytes, ..DeviceOptions::default() };
        let device = Arc::new(SimDevice::new(options, Arc::new(ManualClock::default())));
        Self {
            random,
            device,
            index: None,
            model: MemoryIndex::default(),
            changes: Vec::new(),
            extents: Vec::new(),
            epochs: (0..SEGMENTS).map(|segment| (segment, 1)).collect(),
            next: 1,
            disk_bytes: u64::MAX,
        }
    }

    fn lsm(&self) -> &LsmIndex {
        self.index.as_ref().unwrap()
    }

    /// Opens the index, and applies again what its checkpoint lacks. Returns `false` if the outage came meanwhile.
    fn open(&mut self) -> bool {
        self.index = None;
        let device = Arc::<SimDevice>::clone(&self.device);
        let clock = Arc::new(ManualClock::default());
        let options = LsmOptions {
            memtable_bytes: MEMTABLE_BYTES,
            cache_bytes: 8 << 10,
            disk_bytes: self.disk_bytes,
            ..LsmOptions::default()
        };
        let Ok((index, checkpoint)) = LsmIndex::open(device, clock, StoreId([3; 16]), options)
        else {
            assert!(self.device.is_down(), "an open failed without an outage");
            return false;
        };
        let covered =
            checkpoint.map_or(0, |checkpoint| u64::from_le_bytes(checkpoint.try_into().unwrap()));
        for change in &self.changes[usize::try_from(covered).unwrap()..] {
            change.apply(&index);
        }
        assert!(!index.is_damaged() || self.device.is_down());
        self.index = Some(index);
        true
    }

    fn path(&mut self) -> Vec<u8> {
        let blocks = 1 + self.random.below(10);
        (0..blocks).map(|_| u8::try_from(self.random.below(3)).unwrap()).collect()
    }

    fn namespace(&mut self) -> NamespaceId {
        NamespaceId([u8::try_from(self.random.below(2)).unwrap(); 16])
    }

    fn location(&mut self, id: u64) -> Location {
        let segment = self.random.below(usize::try_from(SEGMENTS).unwrap()) as u64;
        Location {
            segment,
            epoch: self.epochs[&segment],
            offset: 4096 * id,
            header_bytes: 4096,
            compressed_bytes: 0,
        }
    }

    fn new_extent(&mut self) -> Extent {
        let (path, namespace, id) = (self.path(), self.namespace(), self.next);
        self.next += 1;
        let hashes = chain(&path);
        let first = self.random.below(hashes.len());
        let parent = first.checked_sub(1).map(|before| hashes[before]);
        let number = u32::try_from(first).unwrap();
        let place = self.model.place(namespace, parent, hashes[first], number, Deadline::Never);
        assert_eq!(
            self.lsm().place(namespace, parent, hashes[first], number, Deadline::Never),
            place
        );
        Extent {
            id: ExtentId(id),
            born: id,
            namespace,
            lineage: place.lineage,
            first_block_index: place.first_block_index,
            parent: parent.unwrap_or_default(),
            layout: KvLayout::new(1, 4096).unwrap(),
            location: self.location(id),
            hashes: hashes[first..].to_vec(),
        }
    }

    /// An extent of random blocks.
    fn new_extent_anywhere(&mut self) -> Extent {
        let id = self.next;
        self.next += 1;
        let path: Vec<u8> =
            (0..12).map(|_| u8::try_from(self.random.below(250)).unwrap()).collect();
        let hashes = chain(&path);
        Extent {
            id: ExtentId(id),
            born: id,
            namespace: NamespaceId([0; 16]),
            lineage: hashes[0],
            first_block_index: 0,
            parent: ChainHash::default(),
            layout: KvLayout::new(1, 4096).unwrap(),
            location: self.location(id),
            hashes,
        }
    }

    /// An extent moved elsewhere, in one part or two.
    fn moved(&mut self, old: &Extent) -> Vec<Extent> {
        let cut = self.random.below(old.hashes.len());
        let parts = [0..cut, cut..old.hashes.len()];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        let parts: Vec<_> = parts.collect();
        parts
            .into_iter()
            .map(|part| {
                let id = self.next;
                self.next += 1;
                let parent = part.start.checked_sub(1).map_or(old.parent, |at| old.hashes[at]);
                let skipped = u32::try_from(part.start).unwrap();
                Extent {
                    id: ExtentId(id),
                    first_block_index: old.first_block_index + skipped,
                    parent,
                    location: self.location(id),
                    hashes: old.hashes[part].to_vec(),
                    ..old.clone()
                }
            })
            .collect()
    }

    fn change(&mut self) -> Change {
        let old = |world: &mut Self| -> Option<Extent> {
            let at = world.random.below(world.extents.len().max(1));
            world.extents.get(at).cloned()
        };
        match self.random.below(100) {
            0..70 => Change::Insert(self.new_extent()),
            70..80 => match old(self) {
                Some(old) => {
                    if self.random.percent(50) {
                        return self.merge(&old);
                    }
                    let new = self.moved(&old);
                    Change::Replace(vec![old], new)
                }
                None => Change::Insert(self.new_extent()),
            },
            80..88 => {
                let (path, namespace) = (self.path(), self.namespace());
                let first = self.random.below(path.len());
                Change::RemoveBlocks(namespace, chain(&path)[first..].to_vec())
            }
            88..90 => match old(self) {
                Some(old) => {
                    let first = self.random.below(old.hashes.len());
                    Change::RemoveFromExtent(
                        old.clone(),
                        (0..old.block_count()).skip(first).step_by(2).collect(),
                    )
                }
                None => Change::RemoveNamespace(self.namespace()),
            },
            90..93 => match old(self) {
                Some(old) => Change::RemoveExtent(old),
                None => Change::RemoveNamespace(self.namespace()),
            },
            93..94 => Change::RemoveNamespace(self.namespace()),
            _ => {
                let segment = self.random.below(usize::try_from(SEGMENTS).unwrap()) as u64;
                let epoch = self.epochs[&segment];
                self.epochs.insert(segment, epoch + 1);
                Change::DropSegment(segment, epoch)
            }
        }
    }

    /// Makes one extent of this one and what goes on behind it, as far as anything does.
    fn merge(&mut self, first: &Extent) -> Change {
        let mut old = vec![first.clone()];
        let mut hashes = first.hashes.clone();
        for next in &self.extents {
            let place = first.first_block_index + u32::try_from(hashes.len()).unwrap();
            let is_next = next.lineage == first.lineage && next.first_block_index == place;
            if is_next && next.namespace == first.namespace && Some(&next.parent) == hashes.last() {
                hashes.extend(&next.hashes);
                old.push(next.clone());
            }
        }
        let id = self.next;
        self.next += 1;
        let location = self.location(id);
        let new = Extent { id: ExtentId(id), location, hashes, ..first.clone() };
        Change::Replace(old, vec![new])
    }

    fn act(&mut self) {
        let change = self.change();
        match &change {
            Change::Insert(extent) => self.extents.push(extent.clone()),
            Change::Replace(_, new) => self.extents.extend(new.iter().cloned()),
            _ => {}
        }
        let expected = change.apply(&self.model);
        let got = change.apply(self.lsm());
        assert_eq!(got, expected, "{change:?}");
        self.changes.push(change);
    }

    fn maintain(&mut self) {
        let mut below = |most: usize| u32::try_from(self.random.below(most)).unwrap();
        let shape = Shape::nearest(2 + below(5), 1 + below(4), 1 + below(3));
        if self.random.percent(10) {
            self.lsm().set_shape(shape);
        }
        if self.lsm().is_full() || self.random.percent(10) {
            let checkpoint = (self.changes.len() as u64).to_le_bytes().to_vec();
            self.lsm().freeze(checkpoint);
        }
        while self.random.percent(60) && self.lsm().step() {}
        while self.lsm().is_stalled() && self.lsm().step() {}
    }

    fn check_chain(&mut self) {
        let (path, namespace) = (self.path(), self.namespace());
        let hashes = &chain(&path)[self.random.below(path.len())..];
        assert_eq!(
            self.lsm().probe(namespace, hashes, Deadline::Never),
            self.model.probe(namespace, hashes, Deadline::Never)
        );
        for scope in [Scope::Prefix, Scope::Each] {
            let runs = |index: &dyn Index| -> Vec<_> {
                let runs = index.resolve(namespace, hashes, scope, Deadline::Never).into_iter();
                runs.map(|run| (run.at, run.extent, run.first_block, run.count)).collect()
            };
            assert_eq!(runs(self.lsm()), runs(&self.model));
        }
    }

    fn check_all(&self) {
        let all = ScanPlace::default();
        let (ours, theirs) = (self.lsm().scan(all, usize::MAX), self.model.scan(all, usize::MAX));
        let ids = |all: &[Arc<Extent>]| all.iter().map(|e| e.id.0).collect::<Vec<_>>();
        assert_eq!(ids(&ours), ids(&theirs));
        assert!(ours == theirs);
        for extent in &ours {
            let live = |index: &dyn Index| index.live_blocks(extent).unwrap();
            assert_eq!(live(self.lsm()), live(&self.model));
        }
        assert_eq!(self.lsm().counts(), self.model.counts());
        for segment in 0..SEGMENTS {
            let bytes = self.model.live_bytes(segment);
            assert_eq!(self.lsm().live_bytes(segment), bytes, "segment {segment}");
            let sum = |index: &dyn Index| {
                index.live_extents(segment).iter().map(|live| live.bytes).sum::<u64>()
            };
            assert_eq!((sum(self.lsm()), sum(&self.model)), (bytes, bytes), "segment {segment}");
        }
    }
}

/// Runs a history. Returns the number of outages.
fn history(seed: u64) -> u64 {
    let _label = Label(format!("seed {seed}"));
    let mut world = World::new(seed);
    let mut outages = 0;
    world.open();
    for _ in 0..60 {
        if world.random.percent(8) {
            let ahead = 1 + world.random.below(12) as u64;
            world.device.fail_at(world.device.changes() + ahead);
        }
        world.act();
        world.maintain();
        if world.device.is_down() || world.random.percent(3) {
            let outage = if world.random.percent(50) { Outage::Power } else { Outage::Process };
            world.device = Arc::new(world.device.reboot(outage).0);
            outages += 1;
            while !world.open() {
                world.device = Arc::new(world.device.reboot(Outage::Power).0);
            }
        }
        world.check_chain();
    }
    world.device.fail_at(u64::MAX);
    world.check_all();
    while world.lsm().step() {}
    world.check_all();
    outages
}

#[test]
fn an_index_that_exceeds_its_space_forgets_but_returns_nothing_wrong() {
    const DISK_BYTES: u64 = 256 << 10;
    let mut world = World::new(1);
    world.disk_bytes = DISK_BYTES;
    world.open();
    for _ in 0..3000 {
        let extent = world.new_extent_anywhere();
        let used = Use::written(extent.id.0);
        world.model.insert(extent.clone(), used, &|_| true, Deadline::Never);
        world.lsm().insert(extent, used, &|_| true, Deadline::Never);
        world.maintain();
        while world.lsm().step() {}
        let files: u64 = world.device.list().unwrap().iter().map(|file| file.bytes).sum();
        assert!(files <= DISK_BYTES, "{files} bytes of files");
    }
    assert!(world.lsm().lsm_stats().forgotten_tables > 0);
    // What is found is right, and the newest is found.
    let all = ScanPlace::default();
    let mut extents = world.model.scan(all, usize::MAX);
    extents.sort_by_key(|extent| extent.id);
    let found = |extent: &Extent| {
        let runs =
            world.lsm().resolve(extent.namespace, &extent.hashes, Scope::Each, Deadline::Never);
        for run in &runs {
            let (at, count) = (run.first_block as usize, run.count as usize);
            assert_eq!(run.extent.hashes[at..at + count], extent.hashes[run.at..run.at + count]);
        }
        runs.iter().map(|run| run.count).sum::<u32>()
    };
    let counts: Vec<u32> = extents.iter().map(|extent| found(extent)).collect();
    assert!(counts[..100].iter().sum::<u32>() < 12 * 100, "the oldest blocks are forgotten");
    let newest: u32 = counts[counts.len() - 5..].iter().sum();
    assert!(newest >= 5 * 11, "{newest}");
    let all: u32 = counts.iter().sum();
    assert!(all > 12 * 20, "{all} blocks are left");
}

#[test]
fn both_indexes_agree_through_random_histories_and_outages() {
    let count = dose(HISTORIES, FULL_HISTORIES);
    let outages: u64 = (0..count).map(history).sum();
    assert!(outages > count, "{outages}");
}
