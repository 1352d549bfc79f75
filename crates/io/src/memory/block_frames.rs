//! Memory for blocks that stay: an arena in frames of one sector.
//!
//! 1. A frame is free, or belongs to one [`ReservedFrames`] or one [`FilledFrames`]. Whoever reserves it writes it, once; as part
//!    of a `FilledFrames` it is only read, until that is dropped.
//! 2. The capacity is mapped once and nothing else is ever allocated for bytes. Memory is taken from the system when a
//!    frame is used first, and kept: frames that were used are used again before others.
//! 3. BlockFrames are had at once or not at all; nobody waits for any.
//! 4. A forked child has no arena: what it drops gives nothing back, and anything else stops it.

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

/// Neighbouring frames, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameRun {
    start: u32,
    count: u32,
}

impl FrameRun {
    /// The first frame behind it: no more than the number of frames, so a `u32`.
    fn end(self) -> u32 {
        self.start + self.count
    }
}

/// A stack of runs that are free. At its bottom lie the frames that were never used, lowest first.
#[derive(Debug)]
struct FreeFrames {
    runs: Vec<FrameRun>,
    count: u32,
}

impl FreeFrames {
    /// Takes `wanted` frames, those given back last first, in as few runs as they make.
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

    /// Takes runs back so that they would be taken again in the same order.
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
    /// Maps `capacity_bytes`, rounded down to whole frames but at least one. Takes no memory yet.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the system would never give as much, or it is more than frames can be numbered (16 TiB).
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

    /// All bytes there are, whole frames.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.arena.mapping.range().1 as u64
    }

    /// Bytes of free frames.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        u64::from(self.arena.free.lock().count) * SECTOR_BYTES
    }

    /// Sets frames for `bytes` aside, to be filled without any lock; none if not enough are free.
    #[must_use]
    pub fn reserve(&self, bytes: usize) -> Option<ReservedFrames> {
        self.arena.check_process();
        let wanted = u32::try_from(bytes.div_ceil(FRAME_BYTES)).ok()?;
        let runs = self.arena.free.lock().take(wanted)?.into_boxed_slice();
        Some(ReservedFrames(OwnedFrames { arena: Arc::clone(&self.arena), runs, bytes }))
    }

    /// Copies the bytes of all pieces, in order; none if not enough frames are free.
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

/// BlockFrames of one owner; gives them back when it is dropped.
struct OwnedFrames {
    arena: Arc<FrameArena>,
    runs: Box<[FrameRun]>,
    /// How many bytes count: the last frame need not be full.
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
        // In a forked child the lock may be held for ever by a thread that is not there.
        if self.arena.mapping.is_here() {
            self.arena.free.lock().give_back(&self.runs);
        }
    }
}

/// BlockFrames that nobody has filled yet.
pub struct ReservedFrames(OwnedFrames);

impl ReservedFrames {
    /// Copies the bytes of all pieces in, in order.
    ///
    /// # Panics
    ///
    /// If the pieces have more or fewer bytes than were reserved.
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
                    // SAFETY: `part` lies inside of the arena, which `self` holds; it is zeroed or was written; its
                    // frames are in no list and no other owner's (invariant 1), each part comes once, and nobody
                    // reads them before the `FilledFrames` is made below, when this borrow is over.
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

/// Bytes in frames, for reading; gives the frames back when it is dropped.
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

    /// The bytes in order, a slice for each run of neighbouring frames.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        // SAFETY: `part` lies inside of the arena, which `self` holds; all of it was written when `self` was made, and
        // nobody writes it while `self` lives (invariant 1).
        self.0.parts().map(|(start, len)| unsafe { std::slice::from_raw_parts(start, len) })
    }

    /// Fills all pieces, in order, with the bytes from `offset` on.
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

    /// Bytes that tell whose they are, and where in it.
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
    fn odd_sizes_in_odd_pieces_come_back_from_any_place() {
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
    fn frames_are_had_at_once_or_not_at_all() {
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
    fn memory_that_was_used_is_used_again_and_neighbours_are_one_slice() {
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
    fn bytes_outlive_the_arenas_name() {
        let frames = BlockFrames::new(1).unwrap();
        let block = frames.keep(&[memory(5, 4096)]).unwrap();
        drop(frames);
        assert_eq!(bytes_of(&block), pattern(5, 4096));
    }

    #[test]
    fn too_much_is_refused_by_name_and_size() {
        let error = BlockFrames::new(1 << 60).unwrap_err().to_string();
        assert!(error.contains("1152921504606846976 bytes of memory for blocks"), "{error}");
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095 of 4096")]
    fn bytes_behind_the_end_are_not_read() {
        let block = BlockFrames::new(1).unwrap().keep(&[memory(1, 4096)]).unwrap();
        let mut out = [0; 2];
        crate::lend(|lender| block.copy_to(4095, &mut [lender.exclusive(&mut out)]));
    }

    #[test]
    #[should_panic(expected = "as many bytes as were reserved")]
    fn a_reservation_is_filled_whole() {
        let reserved = BlockFrames::new(1).unwrap().reserve(10).unwrap();
        let _ = reserved.fill(&[memory(1, 9)]);
    }

    #[test]
    fn threads_that_keep_and_read_do_not_meet() {
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
        fn what_is_kept_is_what_a_plain_map_keeps(
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
