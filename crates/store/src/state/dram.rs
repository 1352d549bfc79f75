//! The DRAM tier: whole blocks within a byte bound, in front of the log.
//!
//! 1. It holds only blocks that the index knows, or that a put is about to insert there. A path that removes or evicts
//!    a block removes it from the index first, then from here. A get that keeps a block looks at the index afterwards.
//!    A put whose blocks the index does not insert removes them from here.
//! 2. A block weighs the units of its place, so the tier never exceeds its capacity. A block that left keeps its place
//!    until its last reader is done. A block that finds no place does not enter.
//! 3. No bytes are copied under the lock. A block has its place before its bytes are there, and is a miss until then.
//! 4. A block evicts at most [`MOST_EVICTED`] others for a contiguous place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_arena::UNIT_BYTES;
use dalsegno_core::{ChainHash, NamespaceId};
use dalsegno_io::{IoError, Memory, StopSignal};
use dalsegno_policy::S3Fifo;
use parking_lot::Mutex;

use super::arena::{Arena, ArenaBacking, PlacedBlock, ReservedPlace};
use super::byte_share::ByteShare;

use crate::block_key::BlockKey;

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

#[derive(Debug)]
pub(crate) struct Dram {
    /// None if the tier is off.
    arena: Option<Arena>,
    blocks: Mutex<S3Fifo<BlockKey, Arc<PlacedBlock>>>,
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
    ) -> Result<Self, IoError> {
        let is_on = capacity_bytes >= UNIT_BYTES;
        let arena = is_on.then(|| Arena::new(capacity_bytes, backing, stop)).transpose()?;
        Ok(Self {
            blocks: Mutex::new(S3Fifo::new(arena.as_ref().map_or(0, Arena::capacity_bytes))),
            arena,
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

    /// Whether a block is here; this does not count as a use.
    pub(crate) fn holds(&self, key: &BlockKey) -> bool {
        !self.is_off() && self.blocks.lock().peek(key).is_some()
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
            if left.is_none() {
                break;
            }
            // Its place is free now, unless somebody reads it.
            drop(left);
            self.evicted.fetch_add(1, Ordering::Relaxed);
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
        is_removed: impl FnOnce() -> bool,
    ) {
        let weight = Arena::place_bytes(block.len());
        let left = {
            let mut blocks = self.blocks.lock();
            if blocks.peek(&key).is_some() || is_removed() {
                return;
            }
            blocks.insert(key, block, weight)
        };
        self.evicted.fetch_add(left.len() as u64, Ordering::Relaxed);
        self.admitted.fetch_add(1, Ordering::Relaxed);
    }

    /// Copies a block in, if there is a place for it: see [`Self::keep`].
    pub(crate) fn insert(
        &self,
        key: BlockKey,
        pieces: &[Memory],
        is_removed: impl FnOnce() -> bool,
    ) {
        if self.is_off() || self.holds(&key) {
            return;
        }
        let bytes = pieces.iter().map(Memory::len).sum();
        if let Some(reserved) = self.reserve(bytes, Leaving::Any) {
            self.keep(key, Arc::new(reserved.copy_from(pieces)), is_removed);
        }
    }

    pub(crate) fn remove(&self, namespace: NamespaceId, hashes: &[ChainHash]) {
        if !self.is_off() {
            let mut blocks = self.blocks.lock();
            for hash in hashes {
                blocks.remove(&(namespace, *hash));
            }
        }
    }

    /// Removes all blocks of a namespace. Looks at every block, under the lock.
    pub(crate) fn remove_namespace(&self, namespace: NamespaceId) {
        if !self.is_off() {
            self.blocks.lock().remove_all(|(of, _)| *of == namespace);
        }
    }

    pub(crate) fn view(&self) -> DramView {
        let blocks = self.blocks.lock();
        DramView {
            blocks: blocks.len() as u64,
            bytes: blocks.bytes(),
            admitted: self.admitted.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
            throttled: self.throttled.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = 64 << 10;

    fn dram_of(capacity_bytes: u64) -> Dram {
        Dram::new(capacity_bytes, &ArenaBacking::Private, &StopSignal::default()).unwrap()
    }

    fn key(number: u8) -> BlockKey {
        (NamespaceId::default(), ChainHash([number; 32]))
    }

    fn memory(number: u8, bytes: usize) -> Memory {
        Memory::owned(vec![number; bytes], ())
    }

    fn insert(dram: &Dram, number: u8, bytes: usize) {
        dram.insert(key(number), &[memory(number, bytes)], || false);
    }

    fn free_bytes(dram: &Dram) -> u64 {
        dram.arena.as_ref().unwrap().free_bytes()
    }

    /// Whether the block is there, all its bytes as they were put.
    fn has(dram: &Dram, number: u8, bytes: usize) -> bool {
        let mut out = vec![!number; bytes];
        let found = dalsegno_io::lend(|lender| {
            let (head, tail) = out.split_at_mut(bytes / 3);
            let mut pieces = [lender.exclusive(head), lender.exclusive(tail)];
            let block = dram.get(key(number).0, &[key(number).1]).pop().flatten();
            block.map(|block| block.copy_to(0, &mut pieces)).is_some()
        });
        assert!(!found || out.iter().all(|byte| *byte == number), "bytes of another block");
        found
    }

    #[test]
    fn blocks_of_any_size_are_returned_whole() {
        let dram = dram_of(16 * UNIT_BYTES);
        let sizes = [1, UNIT - 1, UNIT, UNIT + 1, 300_000];
        for (number, bytes) in (1..).zip(sizes) {
            let mut rest = memory(number, bytes);
            let pieces = [rest.split_to(bytes / 2), rest];
            dram.insert(key(number), &pieces, || false);
        }
        for (number, bytes) in (1..).zip(sizes) {
            assert!(has(&dram, number, bytes), "{bytes} bytes");
        }
        assert_eq!(dram.view().bytes, (1 + 1 + 1 + 2 + 5) * UNIT_BYTES);
    }

    #[test]
    fn blocks_weigh_whole_units_and_stay_within_the_capacity() {
        let dram = dram_of(10 * UNIT_BYTES + 17);
        for number in 0..100 {
            insert(&dram, number, UNIT + 1);
            let view = dram.view();
            assert!(view.bytes <= 10 * UNIT_BYTES && view.blocks <= 5, "{}", view.bytes);
            assert!(has(&dram, number, UNIT + 1));
        }
        let view = dram.view();
        assert_eq!((view.admitted, view.evicted, view.throttled), (100, 95, 0));
        insert(&dram, 200, 11 * UNIT);
        assert!(!has(&dram, 200, 1), "larger than all there is");
    }

    #[test]
    fn a_place_that_a_reader_holds_is_not_reused() {
        let dram = dram_of(4 * UNIT_BYTES);
        insert(&dram, 1, 3 * UNIT);
        let read = dram.blocks.lock().get(&key(1)).map(Arc::clone).unwrap();
        dram.remove(key(1).0, &[key(1).1]);
        insert(&dram, 2, 2 * UNIT);
        assert!(!has(&dram, 2, 1));
        assert_eq!((dram.view().throttled, dram.view().blocks), (1, 0));
        insert(&dram, 3, UNIT);
        assert!(has(&dram, 3, UNIT), "one unit was free");
        assert!(read.as_slice().iter().all(|byte| *byte == 1));
        drop(read);
        insert(&dram, 2, 3 * UNIT);
        assert!(has(&dram, 2, 3 * UNIT) && has(&dram, 3, UNIT));
    }

    #[test]
    fn a_large_block_evicts_its_neighbours_but_not_too_many() {
        let dram = dram_of(100 * UNIT_BYTES);
        for number in 0..100 {
            insert(&dram, number, UNIT);
        }
        insert(&dram, 200, 8 * UNIT);
        assert!(has(&dram, 200, 8 * UNIT));
        assert_eq!(dram.view().evicted, 8, "the oldest are neighbours");
        insert(&dram, 201, 80 * UNIT);
        let view = dram.view();
        assert!(!has(&dram, 201, 1) && view.throttled == 1);
        assert_eq!(view.evicted, 8 + MOST_EVICTED as u64);
    }

    #[test]
    fn a_place_for_a_read_pushes_out_nothing_that_was_requested_again() {
        let dram = dram_of(4 * UNIT_BYTES);
        for number in 0..4 {
            insert(&dram, number, UNIT);
        }
        assert!(has(&dram, 1, UNIT) && has(&dram, 2, UNIT));
        let taken = [(); 2].map(|()| dram.reserve(UNIT, Leaving::Newcomers).unwrap());
        assert!(dram.reserve(UNIT, Leaving::Newcomers).is_none());
        assert!(has(&dram, 1, UNIT) && has(&dram, 2, UNIT) && dram.view().throttled == 0);
        drop(taken);
        assert_eq!(free_bytes(&dram), 2 * UNIT_BYTES);
    }

    #[test]
    fn a_tier_smaller_than_a_unit_is_off() {
        for capacity_bytes in [0, UNIT_BYTES - 1] {
            let dram = dram_of(capacity_bytes);
            insert(&dram, 1, 1);
            assert!(dram.is_off() && !has(&dram, 1, 1));
            dram.remove_namespace(NamespaceId::default());
        }
    }

    #[test]
    fn all_units_are_free_when_everything_is_removed() {
        let dram = dram_of(16 * UNIT_BYTES);
        for number in 0..9 {
            insert(&dram, number, 5 * UNIT);
        }
        dram.remove_namespace(NamespaceId::default());
        assert_eq!((dram.view().blocks, dram.view().bytes), (0, 0));
        assert_eq!(free_bytes(&dram), 16 * UNIT_BYTES);
    }

    #[test]
    fn threads_that_read_and_evict_never_see_bytes_of_another_block() {
        let dram = Arc::new(dram_of(20 * UNIT_BYTES));
        let bytes = |number: u8| usize::from(number) * 9973 + 1;
        let workers: Vec<_> = (0..4_u8)
            .map(|worker| {
                let dram = Arc::clone(&dram);
                let work = move || {
                    for turn in 0..3000_u32 {
                        let number = u8::try_from((turn * 7 + u32::from(worker) * 3) % 23).unwrap();
                        if !has(&dram, number, bytes(number)) {
                            insert(&dram, number, bytes(number));
                        }
                        if turn % 97 == 0 {
                            dram.remove(key(number).0, &[key(number).1]);
                        }
                    }
                };
                dalsegno_io::spawn("dram-test", work).unwrap()
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        dram.remove_namespace(NamespaceId::default());
        let view = dram.view();
        assert!(view.admitted > 0 && view.evicted > 0);
        assert_eq!(free_bytes(&dram), 20 * UNIT_BYTES);
    }

    #[test]
    fn regression_a_block_that_was_removed_meanwhile_does_not_enter_for_a_moment() {
        let dram = dram_of(1 << 20);
        for is_removed in [true, false] {
            // A removal that begins now takes the block out afterwards, because it waits for the lock.
            let asked = || {
                assert!(dram.blocks.try_lock().is_none(), "asked under the lock");
                is_removed
            };
            dram.insert(key(1), &[memory(1, 4096)], asked);
            assert_eq!(dram.holds(&key(1)), !is_removed);
        }
    }
}
