//! Which blocks are at the far location, and where. Disposable: it is read from the catalogs again at each open.
//!
//! 1. A lookup reads memory of this process and never waits for the location.
//! 2. The number of blocks is bounded. Beyond the bound, the packs that were indexed first are forgotten. They stay at
//!    the location.
//! 3. A block that a removal covers is not found, in whatever order packs and removals become known.
//! 4. Of a block that several packs have, one copy is found. If it goes, the others are found again when their catalogs
//!    are [indexed again](FarIndex::to_index_again).
//! 5. An entry keeps 64 bits of a block's name. A read compares the whole name with the record's header, so a collision
//!    is a miss.

mod known;
mod packs;
mod place;
mod removed;

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{ChainHash, Extent, NamespaceId};
use dalsegno_io::FileId;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};

use crate::format::{Catalog, CatalogPack, catalog_of};
use crate::names::WriterId;
use crate::removal::{Applied, Removal};

pub(crate) use known::{KnownObjects, ListSpan, PresentRemovals, SeenList};
pub use packs::RecordAt;
use packs::{IndexedPack, Packs};
pub use place::FarPlace;
use place::name_of;
use removed::Covered;
pub(crate) use removed::Removed;

/// Parts of the table, so that growing or cleaning one part delays lookups only for a moment.
const SHARDS: usize = 256;
/// Memory of a block: 17 bytes of a table that is at least 7/16 and at most 7/8 full, rounded up.
const BLOCK_BYTES: u64 = 32;
/// Entries of forgotten packs are dropped when there are so many of them, and at least half as many as of others.
const MIN_DEAD: u64 = 1 << 16;
/// Removed blocks that are remembered, as a part of the memory of the index. Each takes about 100 bytes.
const REMOVED_SHARE: u64 = 1024;
/// Removed namespaces that are remembered.
const MOST_NAMESPACES: usize = 1 << 16;

/// The blocks at a far location.
#[derive(Debug)]
pub struct FarIndex {
    shards: Box<[RwLock<Shard>]>,
    packs: RwLock<Packs>,
    removed: RwLock<Removed>,
    known: Mutex<KnownObjects>,
    most_blocks: u64,
    /// Entries of packs that are indexed.
    blocks: AtomicU64,
    /// Entries of packs that were forgotten.
    dead: AtomicU64,
    forgotten: AtomicU64,
    /// How often blocks went that other packs may have.
    losses: AtomicU64,
}

type Shard = HashMap<u64, u64, BuildHasherDefault<NameHasher>>;

/// What a catalog added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexed {
    /// Blocks that are found now and were not before.
    pub new_blocks: u64,
    /// Files of packs that were forgotten to stay within the bound.
    pub forgotten: Vec<FileId>,
}

impl Indexed {
    fn add(&mut self, other: Self) {
        self.new_blocks += other.new_blocks;
        self.forgotten.extend(other.forgotten);
    }
}

/// How much the index holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FarIndexView {
    /// Packs.
    pub packs: u64,
    /// Bytes of these packs.
    pub pack_bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// Blocks of other packs that are indexed already.
    pub duplicate_blocks: u64,
    /// Blocks of packs that were forgotten to stay within the bound.
    pub forgotten_blocks: u64,
    /// Bytes of memory, about.
    pub memory_bytes: u64,
}

/// The blocks of an extent.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// Found through it from now on.
    new: u16,
    /// Found through another pack.
    hidden: u16,
}

/// A name is a hash already.
#[derive(Clone, Copy, Debug, Default)]
struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("names are numbers");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        // The low bits choose the shard.
        self.0.rotate_right(SHARDS.ilog2())
    }
}

impl FarIndex {
    /// An empty index that takes about `memory_bytes` when it is full.
    #[must_use]
    pub fn new(memory_bytes: u64) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            packs: RwLock::default(),
            removed: RwLock::new(Removed::new(
                usize::try_from(memory_bytes / REMOVED_SHARE).unwrap_or(usize::MAX),
                MOST_NAMESPACES,
            )),
            known: Mutex::default(),
            most_blocks: (memory_bytes / BLOCK_BYTES).max(1),
            blocks: AtomicU64::new(0),
            dead: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            losses: AtomicU64::new(0),
        }
    }

    fn shard(&self, name: u64) -> &RwLock<Shard> {
        let low = usize::try_from(name % SHARDS as u64).expect("a small number");
        &self.shards[low]
    }

    /// Adds the blocks of packs that are not found yet and that no removal covers. `file` gives a pack a name for
    /// requests. It is called for packs that are not indexed.
    pub fn insert(&self, catalog: &Catalog, file: impl Fn(u64) -> FileId) -> Indexed {
        let applied = self.known.lock().add_catalog(catalog);
        let mut all = Indexed::default();
        for one in catalog.packs.iter().filter(|pack| pack.bytes > 0) {
            let mut packs = self.packs.write();
            let indexed = packs.find(catalog.writer, one.number);
            let pack = indexed
                .unwrap_or_else(|| packs.add(catalog.writer, one, &applied, file(one.number)));
            all.add(self.insert_blocks(packs, pack, one, &catalog.applied));
        }
        all
    }

    /// Adds the blocks of packs that are not found any more through others, if the packs are indexed. Returns how many.
    pub(crate) fn insert_again(&self, catalog: &Catalog) -> Indexed {
        let mut all = Indexed::default();
        for one in &catalog.packs {
            let packs = self.packs.write();
            if let Some(pack) = packs.find(catalog.writer, one.number) {
                all.add(self.insert_blocks(packs, pack, one, &catalog.applied));
            }
        }
        all
    }

    fn insert_blocks(
        &self,
        mut packs: RwLockWriteGuard<'_, Packs>,
        pack: u32,
        of: &CatalogPack,
        applied: &Applied,
    ) -> Indexed {
        let mut added = Indexed::default();
        let losses = self.losses.load(Ordering::Relaxed);
        let mut hidden = 0;
        for (record, extent) in (0_u16..).zip(&of.extents) {
            let found = self.insert_extent(&packs, pack, record, extent, applied);
            packs.add_blocks(pack, record, found.new);
            added.new_blocks += u64::from(found.new);
            hidden += u64::from(found.hidden);
        }
        packs.set_hidden(pack, hidden, losses);
        let blocks = self.blocks.fetch_add(added.new_blocks, Ordering::Relaxed) + added.new_blocks;
        let mut excess = blocks.saturating_sub(self.most_blocks);
        while excess > 0 {
            // The new pack stays, even if it is larger than the bound.
            let Some(oldest) = packs.oldest().filter(|oldest| *oldest != pack) else { break };
            let forgotten = packs.remove(oldest).expect("it is indexed");
            self.bury(&forgotten);
            self.forgotten.fetch_add(forgotten.blocks, Ordering::Relaxed);
            excess = excess.saturating_sub(forgotten.blocks);
            added.forgotten.push(forgotten.file);
        }
        drop(packs);
        self.clean();
        added
    }

    fn insert_extent(
        &self,
        packs: &Packs,
        pack: u32,
        record: u16,
        extent: &Extent,
        applied: &Applied,
    ) -> Found {
        let removed = self.removed.read();
        let mut found = Found::default();
        if removed.covers_all(extent.namespace, applied) {
            return found;
        }
        for (block, hash) in (0_u16..).zip(&extent.hashes) {
            let name = name_of(extent.namespace, hash);
            if removed.covers(name, applied) {
                continue;
            }
            let place = FarPlace { pack, record, block }.encode();
            match self.shard(name).write().entry(name) {
                Slot::Vacant(slot) => {
                    slot.insert(place);
                    found.new += 1;
                }
                Slot::Occupied(slot) if packs.finds(FarPlace::decode(*slot.get())) => {
                    found.hidden += u16::from(FarPlace::decode(*slot.get()).pack != pack);
                }
                Slot::Occupied(mut slot) => {
                    slot.insert(place);
                    self.dead.fetch_sub(1, Ordering::Relaxed);
                    found.new += 1;
                }
            }
        }
        found
    }

    /// Stops finding what a removal covers, in the packs that are indexed and in those that will be.
    pub fn remove(&self, removal: &Removal) {
        let covered = self.removed.write().add(removal);
        let mut packs = self.packs.write();
        let namespace = match covered {
            Covered::Blocks => {
                self.remove_blocks(&mut packs, removal);
                return;
            }
            Covered::Namespace => Some(removal.namespace),
            Covered::Everything => None,
        };
        let buried = packs.remove_all(namespace, removal.id);
        self.count_lost(buried, buried);
    }

    /// As [`Self::remove`], for a removal that this store publishes. It is not forgotten while the store is open.
    pub fn remove_own(&self, removal: &Removal) {
        self.known().add_own(removal.id);
        self.remove(removal);
    }

    fn remove_blocks(&self, packs: &mut Packs, removal: &Removal) {
        for hash in &removal.hashes {
            let name = name_of(removal.namespace, hash);
            let mut shard = self.shard(name).write();
            let Some(place) = shard.get(&name).map(|place| FarPlace::decode(*place)) else {
                continue;
            };
            if !packs.finds(place) {
                shard.remove(&name);
                self.dead.fetch_sub(1, Ordering::Relaxed);
            } else if packs.is_covered(place.pack, removal.id) {
                shard.remove(&name);
                packs.forget_block(place);
                self.count_lost(1, 0);
            }
        }
    }

    /// Forgets all removals but these: the lists of the others have expired.
    pub(crate) fn retain_removals(&self, present: &PresentRemovals) {
        self.removed.write().retain(&|id| present.contain(id));
    }

    /// What is known of the lists and catalogs at the location.
    pub(crate) fn known(&self) -> MutexGuard<'_, KnownObjects> {
        self.known.lock()
    }

    /// Forgets a block that is damaged or removed; `false` if it was not found.
    pub fn forget(&self, namespace: NamespaceId, hash: &ChainHash) -> bool {
        let name = name_of(namespace, hash);
        let mut packs = self.packs.write();
        let mut shard = self.shard(name).write();
        let place = shard.get(&name).map(|place| FarPlace::decode(*place));
        let Some(place) = place.filter(|place| packs.finds(*place)) else { return false };
        shard.remove(&name);
        packs.forget_block(place);
        self.count_lost(1, 0);
        true
    }

    /// Forgets a pack that is gone. Returns its file. What is known of its catalog stays: as long as that is at the
    /// location, others find the pack.
    pub fn remove_pack(&self, writer: WriterId, number: u64) -> Option<FileId> {
        let mut packs = self.packs.write();
        let pack = packs.find(writer, number)?;
        let removed = packs.remove(pack)?;
        self.bury(&removed);
        drop(packs);
        self.clean();
        Some(removed.file)
    }

    /// Counts the entries of a pack that is not indexed any more.
    fn bury(&self, pack: &IndexedPack) {
        self.count_lost(pack.blocks, pack.blocks);
    }

    /// Counts blocks that are not found any more, and how many of their entries stay for now.
    fn count_lost(&self, blocks: u64, entries: u64) {
        self.blocks.fetch_sub(blocks, Ordering::Relaxed);
        self.dead.fetch_add(entries, Ordering::Relaxed);
        self.losses.fetch_add(u64::from(blocks > 0), Ordering::Relaxed);
    }

    /// The catalogs that are to be indexed again, because copies of their blocks in other packs have gone since
    /// they were indexed.
    #[must_use]
    pub fn to_index_again(&self) -> Vec<(WriterId, u64)> {
        let packs = self.packs.read().hiding(self.losses.load(Ordering::Relaxed));
        let mut catalogs: Vec<_> =
            packs.into_iter().map(|(writer, pack)| (writer, catalog_of(pack))).collect();
        catalogs.sort_unstable();
        catalogs.dedup();
        catalogs
    }

    /// Drops the entries of forgotten packs if there are many.
    fn clean(&self) {
        let dead = self.dead.load(Ordering::Relaxed);
        if dead < MIN_DEAD.max(self.blocks.load(Ordering::Relaxed) / 2) {
            return;
        }
        for shard in &self.shards {
            let packs = self.packs.read();
            let mut shard = shard.write();
            let before = shard.len();
            shard.retain(|_, place| packs.finds(FarPlace::decode(*place)));
            self.dead.fetch_sub((before - shard.len()) as u64, Ordering::Relaxed);
        }
    }

    /// Where a block is.
    #[must_use]
    pub fn find(&self, namespace: NamespaceId, hash: &ChainHash) -> Option<FarPlace> {
        let name = name_of(namespace, hash);
        let place = FarPlace::decode(*self.shard(name).read().get(&name)?);
        self.packs.read().finds(place).then_some(place)
    }

    /// Where the record of a block is; `None` if its pack was forgotten meanwhile.
    #[must_use]
    pub fn record(&self, place: FarPlace) -> Option<RecordAt> {
        self.packs.read().record(place)
    }

    /// The numbers of the indexed packs of a writer, sorted.
    #[must_use]
    pub fn numbers(&self, writer: WriterId) -> Vec<u64> {
        self.packs.read().numbers(writer)
    }

    /// How much it holds.
    #[must_use]
    pub fn view(&self) -> FarIndexView {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let packs = self.packs.read();
        let tables: u64 = self.shards.iter().map(|shard| shard.read().capacity() as u64).sum();
        FarIndexView {
            packs: packs.len() as u64,
            pack_bytes: packs.bytes(),
            blocks: get(&self.blocks),
            duplicate_blocks: packs.hidden(),
            forgotten_blocks: get(&self.forgotten),
            // A table has 8/7 buckets of its capacity.
            memory_bytes: tables * 17 * 8 / 7 + packs.memory_bytes(),
        }
    }
}

#[cfg(test)]
mod tests;
