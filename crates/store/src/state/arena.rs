//! The arena of the DRAM tier: one region, in which each block has one contiguous place.
//!
//! 1. A place belongs to one [`ReservedPlace`], and then to one [`PlacedBlock`]. Its range is free again when both are
//!    gone and no device writes to it any more: a request that outlives its call keeps the range.
//! 2. A place is complete, for readers of other processes, exactly while a [`PlacedBlock`] has it.
//! 3. An allocation succeeds or fails immediately. No caller waits for a place.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_arena::{ArenaHeader, Generations, Place, Places, Stamp, UNIT_BYTES};
use dalsegno_io::{
    Backing, Claim, Counters, Filled, IoError, Memory, Region, StopSignal, Touch, copy_pieces,
    random_bytes,
};
use parking_lot::Mutex;

const PURPOSE: &str = "memory for blocks";

/// Memory for blocks. Cheap to clone: clones share one arena.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    shared: Arc<Shared>,
}

/// Who can map the memory of an arena.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ArenaBacking {
    /// This process alone.
    #[default]
    Private,
    /// Other processes, for reading.
    Shared(Backing),
}

#[derive(Debug)]
struct Shared {
    region: Arc<Region>,
    /// Where the units start in the region.
    units_offset: usize,
    places: Mutex<Places>,
    generations: Generations<Numbers>,
    /// What other processes need to map it.
    outside: Option<Outside>,
}

/// An arena as other processes see it.
#[derive(Debug)]
struct Outside {
    header: ArenaHeader,
    heartbeat: Counters,
}

/// The generations of all units.
#[derive(Debug)]
enum Numbers {
    Own(Vec<AtomicU64>),
    Shared(Counters),
}

impl AsRef<[AtomicU64]> for Numbers {
    fn as_ref(&self) -> &[AtomicU64] {
        match self {
            Self::Own(numbers) => numbers,
            Self::Shared(numbers) => numbers.as_ref(),
        }
    }
}

/// Returns a place to its arena when the last holder drops it.
struct OwnedPlace {
    arena: Arc<Shared>,
    /// `None` only while it is dropped.
    place: Option<Place>,
}

impl OwnedPlace {
    fn place(&self) -> &Place {
        self.place.as_ref().expect("it has its place until it is dropped")
    }
}

impl Drop for OwnedPlace {
    fn drop(&mut self) {
        // In a forked child, a thread of the parent may hold the lock forever.
        if let Some(place) = self.place.take()
            && self.arena.region.is_here()
        {
            // Before the range can be allocated again: invariant 2 of the generations.
            self.arena.generations.end(&place);
            self.arena.places.lock().free(place);
        }
    }
}

impl Arena {
    /// Maps `capacity_bytes`, rounded down to whole units but at least one. Private memory is provided page by page,
    /// when it is first used.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the system cannot provide that much.
    pub(crate) fn new(
        capacity_bytes: u64,
        backing: &ArenaBacking,
        stop: &StopSignal,
    ) -> Result<Self, IoError> {
        let units = u32::try_from((capacity_bytes / UNIT_BYTES).max(1)).unwrap_or(u32::MAX);
        let shared = match backing {
            ArenaBacking::Private => {
                let bytes = usize::try_from(u64::from(units) * UNIT_BYTES);
                let bytes = bytes.expect("64-bit addresses");
                let table = (0..units).map(|_| AtomicU64::new(0)).collect();
                Shared {
                    region: Arc::new(Region::anonymous(bytes, Touch::AtUse, PURPOSE)?),
                    units_offset: 0,
                    places: Mutex::new(Places::new(units)),
                    generations: Generations::new(Numbers::Own(table)),
                    outside: None,
                }
            }
            ArenaBacking::Shared(backing) => Self::outside(units, backing, stop)?,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// An arena that other processes can map: docs/formats/arena.md.
    fn outside(unit_count: u32, backing: &Backing, stop: &StopSignal) -> Result<Shared, IoError> {
        let epoch = u64::from_le_bytes(random_bytes::<8>()?);
        let header = ArenaHeader { unit_count, epoch };
        let region = Arc::new(Region::shared_unless(backing, header.arena_bytes(), PURPOSE, stop)?);
        let written = header.encode();
        let mut claim = Claim::of(&region, 0, written.len(), ());
        claim.memory().as_mut_slice().copy_from_slice(&written);
        drop(claim);
        let heartbeat = Counters::of(&region, ArenaHeader::HEARTBEAT_OFFSET, 1);
        let units = unit_count as usize;
        let table = Counters::of(&region, ArenaHeader::GENERATIONS_OFFSET, units);
        Ok(Shared {
            region,
            units_offset: header.units_offset(),
            places: Mutex::new(Places::new(unit_count)),
            generations: Generations::new(Numbers::Shared(table)),
            outside: Some(Outside { header, heartbeat }),
        })
    }

    /// Its memory.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.shared.region
    }

    /// Total bytes, in whole units.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        u64::from(self.shared.places.lock().unit_count()) * UNIT_BYTES
    }

    /// The header that other processes find; `None` if they cannot map it.
    pub(crate) fn header(&self) -> Option<ArenaHeader> {
        Some(self.shared.outside.as_ref()?.header)
    }

    /// A descriptor through which other processes can read it; `None` if they cannot map it.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the system refuses it.
    pub(crate) fn reader_file(&self) -> Option<Result<OwnedFd, IoError>> {
        self.shared.outside.as_ref().map(|_| self.shared.region.reader_file())
    }

    /// Shows other processes that this one runs.
    pub(crate) fn beat(&self) {
        if let Some(outside) = &self.shared.outside {
            outside.heartbeat.as_ref()[0].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Bytes of units in no place.
    pub(crate) fn free_bytes(&self) -> u64 {
        u64::from(self.shared.places.lock().free_units()) * UNIT_BYTES
    }

    /// Bytes of the place that a block of `bytes` takes.
    pub(crate) fn place_bytes(bytes: usize) -> u64 {
        Places::units_of(bytes as u64).map_or(u64::MAX, |units| u64::from(units) * UNIT_BYTES)
    }

    /// Reserves a place for `bytes`, which the caller can fill without a lock. Returns `None` if no free range is large
    /// enough.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<ReservedPlace> {
        let units = Places::units_of(bytes as u64)?;
        let place = self.shared.places.lock().allocate(units)?;
        let offset = usize::try_from(place.offset()).expect("within the region");
        let offset = self.shared.units_offset + offset;
        let owned = Arc::new(OwnedPlace { arena: Arc::clone(&self.shared), place: Some(place) });
        let claim = Claim::of(&self.shared.region, offset, bytes, Arc::clone(&owned));
        Some(ReservedPlace { claim, owned })
    }
}

/// A place whose bytes are not complete.
pub(crate) struct ReservedPlace {
    claim: Claim,
    owned: Arc<OwnedPlace>,
}

impl ReservedPlace {
    /// All bytes, for writing. They may be written until the memory is dropped, even after `self` is.
    pub(crate) fn memory(&mut self) -> Memory {
        self.claim.memory()
    }

    /// Some of the bytes, for writing: see [`Self::memory`].
    ///
    /// # Panics
    ///
    /// If there are fewer bytes, or memory of the place exists.
    pub(crate) fn part(&mut self, offset: usize, bytes: usize) -> Memory {
        let mut rest = self.claim.memory();
        drop(rest.split_to(offset));
        rest.split_to(bytes)
    }

    /// Says that all bytes were written. Returns `None`, and gives the place up, if its memory still exists.
    pub(crate) fn complete(self) -> Option<PlacedBlock> {
        let filled = self.claim.fill().ok()?;
        let place = self.owned.place();
        let (start, stamp) = (place.start(), self.owned.arena.generations.complete(place));
        Some(PlacedBlock { filled, start, stamp, _owned: self.owned })
    }

    /// Copies the bytes of all pieces into the place, in order.
    ///
    /// # Panics
    ///
    /// If the pieces do not have exactly the reserved number of bytes.
    pub(crate) fn copy_from(mut self, pieces: &[Memory]) -> PlacedBlock {
        let given: usize = pieces.iter().map(Memory::len).sum();
        assert_eq!(given, self.claim.len(), "as many bytes as were reserved");
        copy_pieces(pieces, self.memory().as_mut_slice());
        self.complete().expect("no memory of it exists")
    }
}

/// A block in its place, for reading. Dropping it ends the place.
pub(crate) struct PlacedBlock {
    // Dropped first: the claim ends before the place.
    filled: Filled,
    /// The first unit of the place.
    start: u32,
    stamp: Stamp,
    _owned: Arc<OwnedPlace>,
}

impl PlacedBlock {
    /// Some of the bytes once more, for a copy. The place lasts until this memory is dropped, too.
    ///
    /// # Panics
    ///
    /// If there are fewer bytes.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Memory {
        self.filled.part(offset, bytes)
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.filled.len()
    }

    /// Fills all pieces, in order, with the bytes starting at `offset`.
    ///
    /// # Panics
    ///
    /// If there are fewer bytes.
    pub(crate) fn copy_to(&self, offset: usize, pieces: &mut [Memory]) {
        self.filled.copy_to(offset, pieces);
    }

    /// The bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.filled.as_slice()
    }

    /// The bytes, for a device. They keep the place.
    pub(crate) fn memory(&self) -> Memory {
        self.filled.memory()
    }

    /// The first unit of its place, and the stamp by which a reader finds out whether the place ended.
    pub(crate) fn at(&self) -> (u32, Stamp) {
        (self.start, self.stamp)
    }
}

impl fmt::Debug for PlacedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.filled.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = 64 << 10;

    fn arena(bytes: u64) -> Arena {
        Arena::new(bytes, &ArenaBacking::Private, &StopSignal::default()).unwrap()
    }

    fn memory(number: u8, bytes: usize) -> Memory {
        Memory::owned(vec![number; bytes], ())
    }

    fn block(arena: &Arena, number: u8, bytes: usize) -> Option<PlacedBlock> {
        Some(arena.reserve(bytes)?.copy_from(&[memory(number, bytes)]))
    }

    #[test]
    fn blocks_of_any_size_in_any_pieces_are_contiguous() {
        let arena = arena(16 * UNIT_BYTES);
        for bytes in [1, 4097, UNIT, UNIT + 1, 300_000] {
            let pieces = [memory(1, bytes / 3), memory(2, bytes - bytes / 3)];
            let block = arena.reserve(bytes).unwrap().copy_from(&pieces);
            let (head, tail) = block.as_slice().split_at(bytes / 3);
            assert!(head.iter().all(|byte| *byte == 1) && tail.iter().all(|byte| *byte == 2));
        }
        assert_eq!(arena.free_bytes(), arena.capacity_bytes());
    }

    #[test]
    fn an_allocation_succeeds_immediately_or_fails() {
        let arena = arena(4 * UNIT_BYTES + 4095);
        assert_eq!(arena.capacity_bytes(), 4 * UNIT_BYTES);
        let first = block(&arena, 1, UNIT + 1).unwrap();
        assert!(block(&arena, 2, 2 * UNIT + 1).is_none() && arena.reserve(usize::MAX).is_none());
        let second = block(&arena, 2, 2 * UNIT).unwrap();
        drop(first);
        assert!(second.as_slice().iter().all(|byte| *byte == 2));
        assert!(block(&arena, 3, 2 * UNIT).is_some());
    }

    #[test]
    fn memory_that_a_device_still_writes_keeps_its_place() {
        let arena = arena(2 * UNIT_BYTES);
        let mut reserved = arena.reserve(UNIT).unwrap();
        let late = reserved.memory();
        assert!(reserved.complete().is_none());
        assert_eq!(arena.free_bytes(), UNIT_BYTES);
        drop(late);
        assert_eq!(arena.free_bytes(), 2 * UNIT_BYTES);
    }

    #[test]
    fn used_memory_is_used_again_first() {
        let arena = arena(1 << 30);
        let address = |block: &PlacedBlock| block.as_slice().as_ptr() as usize;
        let first = block(&arena, 1, 1 << 20).unwrap();
        let _second = block(&arena, 2, 1 << 20).unwrap();
        let used = address(&first);
        drop(first);
        for _ in 0..3 {
            assert_eq!(address(&block(&arena, 3, 1 << 20).unwrap()), used);
        }
    }

    #[test]
    #[should_panic(expected = "as many bytes as were reserved")]
    fn a_reservation_must_be_filled_completely() {
        let _ = arena(1).reserve(10).unwrap().copy_from(&[memory(1, 9)]);
    }

    #[test]
    fn concurrent_threads_never_share_a_place() {
        let arena = arena(24 * UNIT_BYTES);
        let workers: Vec<_> = (0..4_u8)
            .map(|worker| {
                let arena = arena.clone();
                let work = move || {
                    let mut held = std::collections::VecDeque::new();
                    for turn in 0..500_usize {
                        let bytes = (turn * 7919 + usize::from(worker)) % (5 * UNIT);
                        let number = turn.to_le_bytes()[0] ^ worker;
                        held.extend(block(&arena, number, bytes).map(|block| (number, block)));
                        if held.len() > 3 || turn % 5 == 0 {
                            let Some((number, block)) = held.pop_front() else { continue };
                            assert!(block.as_slice().iter().all(|byte| *byte == number));
                        }
                    }
                };
                dalsegno_io::spawn("arena-test", work).unwrap()
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(arena.free_bytes(), arena.capacity_bytes());
    }
}
