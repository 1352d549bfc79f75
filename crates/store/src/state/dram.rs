//! The DRAM tier: whole blocks within a byte bound, in front of the log.
//!
//! 1. It holds copies of blocks that the index or the far index knows, or that a put is about to insert there, and
//!    *pool-only* blocks, which a put keeps here and nowhere else. Lookups find a pool-only block without the index. A
//!    copy is found only if one of the indexes knows the block.
//! 2. A path that removes or evicts a block removes it from the index first, then from here. A get that keeps a copy
//!    looks at the index afterwards. A put whose blocks the index does not insert removes its copies from here.
//! 3. A pool-only block leaves by the policy of the tier or by a removal, and watches are notified. Whatever drops
//!    copies of blocks that the index has lost leaves it here. It is a copy as soon as the index has it.
//! 4. A block weighs the units of its place, so the tier never exceeds its capacity. A block that left keeps its place
//!    until its last reader is done. A block that finds no place does not enter.
//! 5. No bytes are copied under the lock. A block has its place before its bytes are there, and is a miss until then.
//! 6. A block evicts at most [`MOST_EVICTED`] others for a contiguous place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dalsegno_arena::UNIT_BYTES;
use dalsegno_core::{ChainHash, NamespaceId};
use dalsegno_index::Scope;
use dalsegno_io::{IoError, Memory, StopSignal};
use parking_lot::Mutex;

use super::arena::{Arena, ArenaBacking, PlacedBlock, ReservedPlace};
use super::byte_share::ByteShare;
use super::removal_feed::RemovalFeed;
use super::tier_blocks::{LeftBlocks, TierBlocks};

use crate::block_key::BlockKey;
use crate::keep::Keep;

/// Blocks that one block may evict, beyond its own weight, until a free range is large enough. The worst block of a mix
/// of nine sizes evicted 375; such a block is declined, so that no call pays for that many.
const MOST_EVICTED: usize = 64;

/// Leases may hold this part of the tier, as a divisor: the rest serves everybody else.
const LEASE_SHARE: u64 = 2;

/// Most bytes that the puts by layer of a store gather at a time outside of the tier.
pub(crate) const MOST_GATHERED_BYTES: u64 = 1 << 30;

/// Puts by layer may gather in this part of the tier, as a divisor.
const GATHER_SHARE: u64 = 4;

/// What may leave for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// Whatever the policy drops next.
    Any,
    /// Blocks that were not requested since they entered. A read takes its places before it is verified; one large
    /// prompt must not push out what is requested often.
    Newcomers,
}

/// How it ended that a block was to enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DramEntry {
    /// It is here.
    Held,
    /// There is no place for it.
    NoPlace,
    /// It was removed meanwhile.
    Removed,
}

#[derive(Debug)]
pub(crate) struct Dram {
    /// None if the tier is off.
    arena: Option<Arena>,
    blocks: Mutex<TierBlocks>,
    /// How many blocks are pool-only.
    pool_only: Arc<AtomicUsize>,
    /// What is notified of pool-only blocks that leave.
    feed: Arc<RemovalFeed>,
    /// Bytes of places that leases hold.
    leased_bytes: Arc<AtomicU64>,
    /// Bytes that puts by layer gather in other memory.
    gathered_bytes: Arc<AtomicU64>,
    /// Bytes of places in which puts by layer gather.
    gathering_bytes: Arc<AtomicU64>,
    admitted: AtomicU64,
    evicted: AtomicU64,
    throttled: AtomicU64,
}

/// The contents and counters of the tier.
pub(crate) struct DramView {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) admitted: u64,
    pub(crate) evicted: u64,
    pub(crate) throttled: u64,
}

impl Dram {
    /// A tier of at most `capacity_bytes`; off if that is less than a unit.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the system cannot provide as much memory.
    pub(crate) fn new(
        capacity_bytes: u64,
        backing: &ArenaBacking,
        stop: &StopSignal,
        feed: &Arc<RemovalFeed>,
    ) -> Result<Self, IoError> {
        let is_on = capacity_bytes >= UNIT_BYTES;
        let arena = is_on.then(|| Arena::new(capacity_bytes, backing, stop)).transpose()?;
        let most_bytes = arena.as_ref().map_or(0, Arena::capacity_bytes);
        let pool_only = Arc::default();
        Ok(Self {
            blocks: Mutex::new(TierBlocks::new(most_bytes, &pool_only)),
            arena,
            pool_only,
            feed: Arc::clone(feed),
            leased_bytes: Arc::default(),
            gathered_bytes: Arc::default(),
            gathering_bytes: Arc::default(),
            admitted: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
        })
    }

    pub(crate) fn is_off(&self) -> bool {
        self.arena.is_none()
    }

    /// Its memory; `None` if it is off.
    pub(crate) fn arena(&self) -> Option<&Arena> {
        self.arena.as_ref()
    }

    /// Bytes of places that leases hold.
    pub(crate) fn leased_bytes(&self) -> u64 {
        self.leased_bytes.load(Ordering::Relaxed)
    }

    /// Which of some blocks are here; this does not count as a use. Takes the lock once for all of them.
    pub(crate) fn holds_each(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Vec<bool> {
        if self.is_off() {
            return vec![false; hashes.len()];
        }
        self.blocks.lock().holds_each(hashes.iter().map(|hash| (namespace, *hash)))
    }

    /// Whether any block is pool-only. Takes no lock.
    pub(crate) fn has_pool_only(&self) -> bool {
        self.pool_only.load(Ordering::Acquire) > 0
    }

    /// Those of some blocks that are pool-only, with their positions: with [`Scope::Prefix`] up to the first one that
    /// is not. This does not count as a use.
    pub(crate) fn pool_only(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        scope: Scope,
    ) -> Vec<(usize, Arc<PlacedBlock>)> {
        if !self.has_pool_only() {
            return Vec::new();
        }
        let blocks = self.blocks.lock();
        let found = hashes.iter().map(|hash| blocks.pool_only(&(namespace, *hash))).enumerate();
        let found = found.map(|(at, block)| Some((at, block?)));
        match scope {
            Scope::Prefix => found.map_while(|one| one).collect(),
            Scope::Each => found.flatten().collect(),
        }
    }

    /// Those of some blocks that are here, and their uses counted.
    pub(crate) fn get(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
    ) -> Vec<Option<Arc<PlacedBlock>>> {
        if self.is_off() {
            return vec![None; hashes.len()];
        }
        let mut blocks = self.blocks.lock();
        blocks.get_each(hashes.iter().map(|hash| (namespace, *hash)))
    }

    /// A share of the memory that leases may hold, for as many blocks of `bytes` as it allows, at most `count`.
    pub(crate) fn lease_share(&self, bytes: usize, count: usize) -> ByteShare {
        ByteShare::take(&self.leased_bytes, self.most_leased(), Arena::place_bytes(bytes), count)
    }

    /// Most bytes of places that leases may hold.
    fn most_leased(&self) -> u64 {
        self.arena.as_ref().map_or(0, |arena| arena.capacity_bytes() / LEASE_SHARE)
    }

    /// As much for one load: at most half of it, so that two loads can run at a time.
    pub(crate) fn load_share(&self, bytes: usize, count: usize) -> ByteShare {
        let most = self.most_leased() / 2;
        let fitting = usize::try_from(most / Arena::place_bytes(bytes)).unwrap_or(usize::MAX);
        self.lease_share(bytes, count.min(fitting.max(1)))
    }

    /// A share of the places in which puts by layer gather blocks, for as many blocks of `bytes` as it allows, at most
    /// `count`.
    pub(crate) fn gather_places(&self, bytes: usize, count: usize) -> ByteShare {
        let most = self.arena.as_ref().map_or(0, |arena| arena.capacity_bytes() / GATHER_SHARE);
        ByteShare::take(&self.gathering_bytes, most, Arena::place_bytes(bytes), count)
    }

    /// A share of the other memory in which puts by layer gather blocks, likewise.
    pub(crate) fn gather_share(&self, bytes: u64, count: usize) -> ByteShare {
        ByteShare::take(&self.gathered_bytes, MOST_GATHERED_BYTES, bytes, count)
    }

    /// Reserves a place for a block of `bytes`, and evicts others if need be; `None` if none becomes free.
    pub(crate) fn reserve(&self, bytes: usize, leaving: Leaving) -> Option<ReservedPlace> {
        let arena = self.arena.as_ref()?;
        if Arena::place_bytes(bytes) > arena.capacity_bytes() {
            return None;
        }
        let mut reserved = arena.reserve(bytes);
        for _ in 0..MOST_EVICTED {
            if reserved.is_some() {
                return reserved;
            }
            let mut blocks = self.blocks.lock();
            let left = match leaving {
                Leaving::Any => blocks.evict(),
                Leaving::Newcomers => blocks.evict_newcomer(),
            };
            drop(blocks);
            let Some(left) = left else { break };
            // Its place is free then, unless somebody reads it.
            self.note_left(left);
            reserved = arena.reserve(bytes);
        }
        if reserved.is_none() && leaving == Leaving::Any {
            self.throttled.fetch_add(1, Ordering::Relaxed);
        }
        reserved
    }

    /// Keeps a block that is in its place, unless `is_removed` says that it was removed since its bytes were looked up
    /// or given. That is asked under the lock: a removal is noted first, and takes the block from here afterwards.
    pub(crate) fn keep(
        &self,
        key: BlockKey,
        block: Arc<PlacedBlock>,
        keep: Keep,
        is_removed: impl FnOnce() -> bool,
    ) -> DramEntry {
        let weight = Arena::place_bytes(block.len());
        let left = {
            let mut blocks = self.blocks.lock();
            if is_removed() {
                return DramEntry::Removed;
            }
            if blocks.holds(&key) {
                blocks.note_put(key, keep);
                return DramEntry::Held;
            }
            blocks.insert(key, block, weight, keep)
        };
        self.note_left(left);
        self.admitted.fetch_add(1, Ordering::Relaxed);
        DramEntry::Held
    }

    /// Copies a block in, if there is a place for it: see [`Self::keep`].
    pub(crate) fn insert(
        &self,
        key: BlockKey,
        pieces: &[Memory],
        keep: Keep,
        is_removed: impl FnOnce() -> bool,
    ) -> DramEntry {
        if self.is_off() {
            return DramEntry::NoPlace;
        }
        let mut blocks = self.blocks.lock();
        if blocks.holds(&key) {
            if is_removed() {
                return DramEntry::Removed;
            }
            blocks.note_put(key, keep);
            return DramEntry::Held;
        }
        drop(blocks);
        let bytes = pieces.iter().map(Memory::len).sum();
        match self.reserve(bytes, Leaving::Any) {
            Some(place) => self.keep(key, Arc::new(place.copy_from(pieces)), keep, is_removed),
            None => DramEntry::NoPlace,
        }
    }

    /// Notes that the index has these blocks: those that were pool-only are copies from here on.
    pub(crate) fn note_stored(&self, namespace: NamespaceId, hashes: &[ChainHash]) {
        if self.has_pool_only() {
            let mut blocks = self.blocks.lock();
            for hash in hashes {
                blocks.unmark(&(namespace, *hash));
            }
        }
    }

    /// Removes blocks that were removed. Returns how many of them were pool-only.
    pub(crate) fn remove(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> u64 {
        if self.is_off() {
            return 0;
        }
        let mut blocks = self.blocks.lock();
        hashes.iter().filter(|hash| blocks.remove(&(namespace, **hash))).count() as u64
    }

    /// Removes copies of blocks that the index has lost, or did not insert. Pool-only blocks stay.
    pub(crate) fn remove_copies(&self, namespace: NamespaceId, hashes: &[ChainHash]) {
        if !self.is_off() {
            let mut blocks = self.blocks.lock();
            for hash in hashes {
                blocks.remove_copy(&(namespace, *hash));
            }
        }
    }

    /// Removes all blocks of a namespace. Looks at every block, under the lock. Returns how many were pool-only.
    pub(crate) fn remove_namespace(&self, namespace: NamespaceId) -> u64 {
        if self.is_off() { 0 } else { self.blocks.lock().remove_namespace(namespace) as u64 }
    }

    /// Frees the places of blocks that left, and notifies watches.
    fn note_left(&self, LeftBlocks { blocks, pool_only }: LeftBlocks) {
        self.evicted.fetch_add(blocks.len() as u64, Ordering::Relaxed);
        drop(blocks);
        for (namespace, hash) in &pool_only {
            self.feed.note(*namespace, std::slice::from_ref(hash));
        }
    }

    pub(crate) fn view(&self) -> DramView {
        let (blocks, bytes) = self.blocks.lock().size();
        DramView {
            blocks,
            bytes,
            admitted: self.admitted.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
            throttled: self.throttled.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests;
