//! Long-lived memory for blocks of the DRAM tier: an arena divided into frames of one sector.
//!
//! 1. A frame is free, or it belongs to one [`ReservedFrames`] or one [`FilledFrames`]. The owner of the reservation
//!    writes it once. Afterwards it is only read, until the `FilledFrames` is dropped.
//! 2. The capacity is mapped once. A frame takes physical memory when it is first used, and keeps it. Used frames are
//!    reused before unused ones.
//! 3. An allocation succeeds or fails immediately. No caller waits for frames.
//! 4. A forked child has no arena. Dropping frames there returns nothing; every other use panics.

use std::fmt;
use std::sync::Arc;

use dalsegno_core::{SECTOR_BYTES, sector_down};
use parking_lot::Mutex;

use super::handle::Memory;
use super::mapping::{Mapping, Touch};
use crate::IoError;

const FRAME_BYTES: usize = 4096;
const _: () = assert!(FRAME_BYTES as u64 == SECTOR_BYTES, "a frame is a sector");

/// A bounded arena for blocks of any size, each in whole frames of [`SECTOR_BYTES`].
#[derive(Clone, Debug)]
pub struct BlockFrames {
    arena: Arc<FrameArena>,
}

#[derive(Debug)]
struct FrameArena {
    mapping: Mapping,
    free: Mutex<FreeFrames>,
}

/// Adjacent frames, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameRun {
    start: u32,
    count: u32,
}

impl FrameRun {
    /// The number after the last frame. It is at most the number of frames, so it fits a `u32`.
    fn end(self) -> u32 {
        self.start + self.count
    }
}

/// A stack of free runs. Frames that were never used are at the bottom, lowest first.
#[derive(Debug)]
struct FreeFrames {
    runs: Vec<FrameRun>,
    count: u32,
}

impl FreeFrames {
    /// Takes `wanted` frames in as few runs as possible, the most recently returned first.
    fn take(&mut self, wanted: u32) -> Option<Vec<FrameRun>> {
        self.count = self.count.checked_sub(wanted)?;
        let mut taken: Vec<FrameRun> = Vec::new();
        let mut missing = wanted;
        while missing > 0 {
            let top = self.runs.last_mut().expect("runs hold as many frames as are counted");
            let run = FrameRun { start: top.start, count: top.count.min(missing) };
            (top.start, top.count) = (top.start + run.count, top.count - run.count);
            if top.count == 0 {
                self.runs.pop();
            }
            missing -= run.count;
            match taken.last_mut() {
                Some(last) if last.end() == run.start => last.count += run.count,
                _ => taken.push(run),
            }
        }
        Some(taken)
    }

    /// Returns runs so that the next `take` hands them out in the same order.
    fn give_back(&mut self, runs: &[FrameRun]) {
        for run in runs.iter().rev() {
            self.count += run.count;
            match self.runs.last_mut() {
                Some(top) if run.end() == top.start => {
                    (top.start, top.count) = (run.start, top.count + run.count);
                }
                Some(top) if top.end() == run.start => top.count += run.count,
                _ => self.runs.push(*run),
            }
        }
    }
}

impl BlockFrames {
    /// Maps `capacity_bytes`, rounded down to whole frames but at least one. Takes no physical memory yet.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the system cannot provide that much, or the capacity exceeds 16 TiB (`u32` frame numbers).
    pub fn new(capacity_bytes: u64) -> Result<Self, IoError> {
        let purpose = "memory for blocks";
        let bytes = sector_down(capacity_bytes).max(SECTOR_BYTES);
        let Ok(count) = u32::try_from(bytes / SECTOR_BYTES) else {
            let file = format!("{bytes} bytes of {purpose}");
            return Err(IoError::os("allocation", file, std::io::ErrorKind::OutOfMemory));
        };
        let mapping = Mapping::map(count as usize * FRAME_BYTES, Touch::AtUse, purpose)?;
        let free = Mutex::new(FreeFrames { runs: vec![FrameRun { start: 0, count }], count });
        Ok(Self { arena: Arc::new(FrameArena { mapping, free }) })
    }

    /// Total bytes, in whole frames.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.arena.mapping.range().1 as u64
    }

    /// Bytes of free frames.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        u64::from(self.arena.free.lock().count) * SECTOR_BYTES
    }

    /// Reserves frames for `bytes`, which the caller can fill without a lock. Returns `None` if too few are free.
    #[must_use]
    pub fn reserve(&self, bytes: usize) -> Option<ReservedFrames> {
        self.arena.check_process();
        let wanted = u32::try_from(bytes.div_ceil(FRAME_BYTES)).ok()?;
        let runs = self.arena.free.lock().take(wanted)?.into_boxed_slice();
        Some(ReservedFrames(OwnedFrames { arena: Arc::clone(&self.arena), runs, bytes }))
    }

    /// Copies the bytes of all pieces, in order. Returns `None` if too few frames are free.
    #[must_use]
    pub fn keep(&self, pieces: &[Memory]) -> Option<FilledFrames> {
        let bytes = pieces.iter().map(Memory::len).sum();
        Some(self.reserve(bytes)?.fill(pieces))
    }
}

impl FrameArena {
    fn check_process(&self) {
        assert!(self.mapping.is_here(), "a forked child has no memory for blocks (invariant 4)");
    }
}

/// Frames of one owner. Dropping them returns them to the arena.
struct OwnedFrames {
    arena: Arc<FrameArena>,
    runs: Box<[FrameRun]>,
    /// Bytes in use. The last frame may be partly filled.
    bytes: usize,
}

impl OwnedFrames {
    /// Address and length of each run's bytes, in order.
    fn parts(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        self.arena.check_process();
        let mut left = self.bytes;
        self.runs.iter().map(move |run| {
            let len = left.min(run.count as usize * FRAME_BYTES);
            left -= len;
            let start = self.arena.mapping.part(run.start as usize * FRAME_BYTES, len);
            (start.as_ptr(), len)
        })
    }
}

impl Drop for OwnedFrames {
    fn drop(&mut self) {
        // In a forked child, a thread of the parent may hold the lock forever.
        if self.arena.mapping.is_here() {
            self.arena.free.lock().give_back(&self.runs);
        }
    }
}

/// Frames that are allocated but not yet filled.
pub struct ReservedFrames(OwnedFrames);

impl ReservedFrames {
    /// Copies the bytes of all pieces into the frames, in order.
    ///
    /// # Panics
    ///
    /// If the pieces do not have exactly the reserved number of bytes.
    #[must_use]
    pub fn fill(self, pieces: &[Memory]) -> FilledFrames {
        let given: usize = pieces.iter().map(Memory::len).sum();
        assert_eq!(given, self.0.bytes, "as many bytes as were reserved");
        let mut parts = self.0.parts();
        let mut to: &mut [u8] = &mut [];
        for piece in pieces {
            let mut from = piece.as_slice();
            while !from.is_empty() {
                if to.is_empty() {
                    let (start, len) = parts.next().expect("frames for all bytes");
                    // SAFETY: `part` is inside the arena, which `self` keeps mapped. It is zeroed or was written. Its
                    // frames are in no list and have no other owner (invariant 1), and each part is visited once.
                    // Nobody reads them before the `FilledFrames` is made below, when this borrow has ended.
                    to = unsafe { std::slice::from_raw_parts_mut(start, len) };
                }
                let count = from.len().min(to.len());
                let (now, later) = std::mem::take(&mut to).split_at_mut(count);
                now.copy_from_slice(&from[..count]);
                (to, from) = (later, &from[count..]);
            }
        }
        drop(parts);
        FilledFrames(self.0)
    }
}

impl fmt::Debug for ReservedFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReservedFrames({} bytes)", self.0.bytes)
    }
}

/// Bytes in frames, for reading. Dropping them returns the frames.
pub struct FilledFrames(OwnedFrames);

impl FilledFrames {
    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.bytes == 0
    }

    /// The bytes in order, one slice for each run of adjacent frames.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        // SAFETY: `part` is inside the arena, which `self` keeps mapped. All of it was written before `self` was made,
        // and nobody writes it while `self` lives (invariant 1).
        self.0.parts().map(|(start, len)| unsafe { std::slice::from_raw_parts(start, len) })
    }

    /// Fills all pieces, in order, with the bytes starting at `offset`.
    ///
    /// # Panics
    ///
    /// If there are fewer bytes.
    pub fn copy_to(&self, offset: usize, pieces: &mut [Memory]) {
        let wanted: usize = pieces.iter().map(Memory::len).sum();
        let fits = offset.checked_add(wanted).is_some_and(|end| end <= self.len());
        assert!(fits, "{wanted} bytes at {offset} of {}", self.len());
        let mut skip = offset;
        let mut slices = self.slices();
        let mut from: &[u8] = &[];
        for piece in pieces {
            let mut to = piece.as_mut_slice();
            while !to.is_empty() {
                while from.is_empty() {
                    let slice = slices.next().expect("frames for all bytes");
                    let passed = skip.min(slice.len());
                    (skip, from) = (skip - passed, &slice[passed..]);
                }
                let count = from.len().min(to.len());
                let (now, later) = to.split_at_mut(count);
                now.copy_from_slice(&from[..count]);
                (to, from) = (later, &from[count..]);
            }
        }
    }
}

impl fmt::Debug for FilledFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FilledFrames({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memory(number: u8, bytes: usize) -> Memory {
        Memory::owned(pattern(number, bytes), ())
    }

    /// Bytes that identify their block and their position in it.
    fn pattern(number: u8, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| at.wrapping_mul(0x9e37_79b9).to_le_bytes()[2] ^ number).collect()
    }

    fn bytes_of(block: &FilledFrames) -> Vec<u8> {
        block.slices().flatten().copied().collect()
    }

    fn address_of(block: &FilledFrames) -> usize {
        block.slices().next().unwrap().as_ptr() as usize
    }

    #[test]
    fn odd_sizes_in_odd_pieces_read_back_from_any_offset() {
        let frames = BlockFrames::new(64 * SECTOR_BYTES).unwrap();
        for bytes in [0, 1, 4095, 4096, 4097, 12_288, 100_001] {
            let mut rest = memory(7, bytes);
            let pieces =
                [rest.split_to(bytes / 3), rest.split_to(0), rest.split_to(bytes / 2), rest];
            let block = frames.keep(&pieces).unwrap();
            assert_eq!((block.len(), block.is_empty()), (bytes, bytes == 0));
            let whole = pattern(7, bytes);
            assert_eq!(bytes_of(&block), whole);
            for offset in [0, bytes / 2, bytes] {
                let mut out = vec![0; bytes - offset];
                crate::lend(|lender| {
                    let (head, tail) = out.split_at_mut((bytes - offset) / 5);
                    block.copy_to(offset, &mut [lender.exclusive(head), lender.exclusive(tail)]);
                });
                assert_eq!(out, whole[offset..]);
            }
        }
        assert_eq!(frames.free_bytes(), frames.capacity_bytes());
    }

    #[test]
    fn an_allocation_succeeds_immediately_or_fails() {
        let frames = BlockFrames::new(4 * SECTOR_BYTES + 4095).unwrap();
        assert_eq!(frames.capacity_bytes(), 4 * SECTOR_BYTES);
        let first = frames.keep(&[memory(1, 4097)]).unwrap();
        assert!(frames.keep(&[memory(2, 8193)]).is_none());
        assert!(frames.reserve(usize::MAX).is_none());
        assert_eq!(frames.free_bytes(), 2 * SECTOR_BYTES);
        let second = frames.keep(&[memory(2, 8192)]).unwrap();
        assert!(frames.keep(&[memory(3, 1)]).is_none());
        drop(first);
        assert_eq!(bytes_of(&second), pattern(2, 8192));
        assert!(frames.keep(&[memory(3, 1)]).is_some());
    }

    #[test]
    fn used_frames_are_reused_first_and_adjacent_frames_are_one_slice() {
        let frames = BlockFrames::new(1 << 30).unwrap();
        let first = frames.keep(&[memory(1, 1 << 20)]).unwrap();
        let second = frames.keep(&[memory(2, 1 << 20)]).unwrap();
        assert_eq!(address_of(&second), address_of(&first) + (1 << 20), "lowest first");
        assert_eq!(second.slices().count(), 1);
        let used = address_of(&first);
        drop(first);
        for _ in 0..3 {
            let next = frames.keep(&[memory(3, 1 << 20)]).unwrap();
            assert_eq!((address_of(&next), next.slices().count()), (used, 1));
        }
        let larger = frames.keep(&[memory(4, 2 << 20)]).unwrap();
        assert_eq!((address_of(&larger), larger.slices().count()), (used, 2));
        assert_eq!(bytes_of(&larger), pattern(4, 2 << 20));
    }

    #[test]
    fn filled_frames_outlive_the_handle_of_their_arena() {
        let frames = BlockFrames::new(1).unwrap();
        let block = frames.keep(&[memory(5, 4096)]).unwrap();
        drop(frames);
        assert_eq!(bytes_of(&block), pattern(5, 4096));
    }

    #[test]
    fn an_impossible_capacity_is_refused_by_name_and_size() {
        let error = BlockFrames::new(1 << 60).unwrap_err().to_string();
        assert!(error.contains("1152921504606846976 bytes of memory for blocks"), "{error}");
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095 of 4096")]
    fn reading_past_the_end_panics() {
        let block = BlockFrames::new(1).unwrap().keep(&[memory(1, 4096)]).unwrap();
        let mut out = [0; 2];
        crate::lend(|lender| block.copy_to(4095, &mut [lender.exclusive(&mut out)]));
    }

    #[test]
    #[should_panic(expected = "as many bytes as were reserved")]
    fn a_reservation_must_be_filled_completely() {
        let reserved = BlockFrames::new(1).unwrap().reserve(10).unwrap();
        let _ = reserved.fill(&[memory(1, 9)]);
    }

    #[test]
    fn concurrent_threads_never_share_frames() {
        let frames = BlockFrames::new(48 * SECTOR_BYTES).unwrap();
        let workers: Vec<_> = (0..4_u8)
            .map(|worker| {
                let frames = frames.clone();
                let work = move || {
                    let mut held = std::collections::VecDeque::new();
                    for turn in 0..2000_usize {
                        let bytes = (turn * 7919 + usize::from(worker)) % 20_000;
                        let number = turn.to_le_bytes()[0] ^ worker;
                        held.extend(frames.keep(&[memory(number, bytes)]).map(|f| (number, f)));
                        if held.len() > 3 || turn % 5 == 0 {
                            let Some((number, block)) = held.pop_front() else { continue };
                            assert_eq!(bytes_of(&block), pattern(number, block.len()));
                        }
                    }
                };
                crate::spawn("frames-test", work).unwrap()
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(frames.free_bytes(), frames.capacity_bytes());
    }

    proptest! {
        #[test]
        fn frames_keep_what_a_plain_map_keeps(
            steps in proptest::collection::vec((0_usize..30_000, any::<u8>(), 0_usize..8), 1..60)
        ) {
            let frames = BlockFrames::new(20 * SECTOR_BYTES).unwrap();
            let (mut held, mut free) = (Vec::<(u8, FilledFrames)>::new(), 20_usize);
            for (bytes, number, leaves) in steps {
                let kept = frames.keep(&[memory(number, bytes)]);
                prop_assert_eq!(kept.is_some(), bytes.div_ceil(4096) <= free);
                free -= kept.as_ref().map_or(0, |block| block.len().div_ceil(4096));
                held.extend(kept.map(|block| (number, block)));
                if leaves < held.len() {
                    let (number, block) = held.swap_remove(leaves);
                    prop_assert_eq!(bytes_of(&block), pattern(number, block.len()));
                    free += block.len().div_ceil(4096);
                }
                prop_assert_eq!(frames.free_bytes(), free as u64 * SECTOR_BYTES);
            }
            for (number, block) in &held {
                prop_assert_eq!(bytes_of(block), pattern(*number, block.len()));
            }
        }
    }
}
