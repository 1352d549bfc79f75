//! The DRAM tier: whole blocks within a byte bound, in front of the log.
//!
//! 1. It holds only blocks that the index knows. A path that removes or evicts a block removes it from the index first,
//!    then from here. A path that inserts a block looks at the index afterwards.
//! 2. A block weighs the frames that it takes, so the tier never exceeds its capacity. A block that left keeps its
//!    frames until its last reader is done. A block that finds no free frames does not enter.
//! 3. No bytes are copied under the lock. A block has its place before its bytes are there, and is a miss until then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use dalsegno_core::{ChainHash, NamespaceId, SECTOR_BYTES, sector_up};
use dalsegno_io::{BlockFrames, FilledFrames, IoError, Memory};
use dalsegno_policy::S3Fifo;
use parking_lot::Mutex;

use crate::block_key::BlockKey;

/// Empty until its bytes are copied.
type Block = OnceLock<FilledFrames>;

#[derive(Debug)]
pub(crate) struct Dram {
    /// None if the tier is off.
    frames: Option<BlockFrames>,
    blocks: Mutex<S3Fifo<BlockKey, Arc<Block>>>,
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
    /// A tier of at most `capacity_bytes`; off if that is less than one frame.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the system cannot provide as much memory.
    pub(crate) fn new(capacity_bytes: u64) -> Result<Self, IoError> {
        let is_on = capacity_bytes >= SECTOR_BYTES;
        let frames = is_on.then(|| BlockFrames::new(capacity_bytes)).transpose()?;
        Ok(Self {
            blocks: Mutex::new(S3Fifo::new(frames.as_ref().map_or(0, BlockFrames::capacity_bytes))),
            frames,
            admitted: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
        })
    }

    pub(crate) fn is_off(&self) -> bool {
        self.frames.is_none()
    }

    /// Whether a block is here; this does not count as a use.
    pub(crate) fn holds(&self, key: &BlockKey) -> bool {
        !self.is_off() && self.blocks.lock().peek(key).is_some_and(|block| block.get().is_some())
    }

    /// Fills the pieces with the block's bytes from `offset` on and counts the use; false if it is not here.
    pub(crate) fn copy_to(&self, key: &BlockKey, offset: usize, pieces: &mut [Memory]) -> bool {
        if self.is_off() {
            return false;
        }
        let block = self.blocks.lock().get(key).map(Arc::clone);
        let Some(bytes) = block.as_ref().and_then(|block| block.get()) else { return false };
        bytes.copy_to(offset, pieces);
        true
    }

    /// Copies a block in, if the policy admits it.
    pub(crate) fn insert(&self, key: BlockKey, pieces: &[Memory]) {
        let Some(frames) = &self.frames else { return };
        let bytes: usize = pieces.iter().map(Memory::len).sum();
        let weight = sector_up(bytes as u64);
        if weight > frames.capacity_bytes() {
            return;
        }
        let (block, reserved) = {
            let mut blocks = self.blocks.lock();
            if blocks.peek(&key).is_some() {
                return;
            }
            let block = Arc::new(Block::new());
            let left = blocks.insert(key, Arc::clone(&block), weight);
            self.evicted.fetch_add(left.len() as u64, Ordering::Relaxed);
            // Before frames are reserved, and under the lock, so that no other block gets these frames.
            drop(left);
            let Some(reserved) = frames.reserve(bytes) else {
                blocks.remove(&key);
                self.throttled.fetch_add(1, Ordering::Relaxed);
                return;
            };
            (block, reserved)
        };
        block
            .set(reserved.fill(pieces))
            .expect("only the thread that reserved its frames fills it");
        self.admitted.fetch_add(1, Ordering::Relaxed);
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

    const SECTOR: usize = 4096;

    fn key(number: u8) -> BlockKey {
        (NamespaceId::default(), ChainHash([number; 32]))
    }

    fn memory(number: u8, bytes: usize) -> Memory {
        Memory::owned(vec![number; bytes], ())
    }

    fn insert(dram: &Dram, number: u8, bytes: usize) {
        dram.insert(key(number), &[memory(number, bytes)]);
    }

    /// Whether the block is there, all its bytes as they were put.
    fn has(dram: &Dram, number: u8, bytes: usize) -> bool {
        let mut out = vec![!number; bytes];
        let found = dalsegno_io::lend(|lender| {
            let (head, tail) = out.split_at_mut(bytes / 3);
            let mut pieces = [lender.exclusive(head), lender.exclusive(tail)];
            dram.copy_to(&key(number), 0, &mut pieces)
        });
        assert!(!found || out.iter().all(|byte| *byte == number), "bytes of another block");
        found
    }

    #[test]
    fn blocks_of_any_size_are_returned_whole() {
        let dram = Dram::new(1 << 20).unwrap();
        let sizes = [1, SECTOR - 1, SECTOR, SECTOR + 1, 100_000];
        for (number, bytes) in (1..).zip(sizes) {
            let mut rest = memory(number, bytes);
            let pieces = [rest.split_to(bytes / 2), rest];
            dram.insert(key(number), &pieces);
        }
        for (number, bytes) in (1..).zip(sizes) {
            assert!(has(&dram, number, bytes), "{bytes} bytes");
        }
        assert_eq!(dram.view().bytes, (1 + 1 + 1 + 2 + 25) * SECTOR_BYTES);
    }

    #[test]
    fn blocks_weigh_whole_frames_and_stay_within_the_capacity() {
        let dram = Dram::new(10 * SECTOR_BYTES + 17).unwrap();
        for number in 0..100 {
            insert(&dram, number, SECTOR + 1);
            let view = dram.view();
            assert!(view.bytes <= 10 * SECTOR_BYTES && view.blocks <= 5, "{}", view.bytes);
            assert!(has(&dram, number, SECTOR + 1));
        }
        let view = dram.view();
        assert_eq!((view.admitted, view.evicted, view.throttled), (100, 95, 0));
        insert(&dram, 200, 11 * SECTOR);
        assert!(!has(&dram, 200, 1), "larger than all there is");
    }

    #[test]
    fn frames_that_a_reader_holds_are_not_reused() {
        let dram = Dram::new(4 * SECTOR_BYTES).unwrap();
        insert(&dram, 1, 3 * SECTOR);
        let read = dram.blocks.lock().get(&key(1)).map(Arc::clone).unwrap();
        dram.remove(key(1).0, &[key(1).1]);
        insert(&dram, 2, 2 * SECTOR);
        assert!(!has(&dram, 2, 1));
        assert_eq!((dram.view().throttled, dram.view().blocks), (1, 0));
        insert(&dram, 3, SECTOR);
        assert!(has(&dram, 3, SECTOR), "one frame was free");
        assert!(read.get().unwrap().slices().flatten().all(|byte| *byte == 1));
        drop(read);
        insert(&dram, 2, 3 * SECTOR);
        assert!(has(&dram, 2, 3 * SECTOR) && has(&dram, 3, SECTOR));
    }

    #[test]
    fn a_block_without_its_bytes_is_a_miss() {
        let dram = Dram::new(4 * SECTOR_BYTES).unwrap();
        dram.blocks.lock().insert(key(1), Arc::default(), SECTOR_BYTES);
        assert!(!has(&dram, 1, 1));
        insert(&dram, 1, 1);
        assert_eq!(dram.view().admitted, 0, "another thread inserts it");
    }

    #[test]
    fn a_tier_smaller_than_a_frame_is_off() {
        for capacity_bytes in [0, SECTOR_BYTES - 1] {
            let dram = Dram::new(capacity_bytes).unwrap();
            insert(&dram, 1, 1);
            assert!(dram.is_off() && !has(&dram, 1, 1));
            dram.remove_namespace(NamespaceId::default());
        }
    }

    #[test]
    fn all_frames_are_free_when_everything_is_removed() {
        let dram = Dram::new(16 * SECTOR_BYTES).unwrap();
        for number in 0..9 {
            insert(&dram, number, 5 * SECTOR);
        }
        dram.remove_namespace(NamespaceId::default());
        assert_eq!((dram.view().blocks, dram.view().bytes), (0, 0));
        assert_eq!(dram.frames.as_ref().unwrap().free_bytes(), 16 * SECTOR_BYTES);
    }

    #[test]
    fn threads_that_read_and_evict_never_see_bytes_of_another_block() {
        let dram = Arc::new(Dram::new(40 * SECTOR_BYTES).unwrap());
        let bytes = |number: u8| usize::from(number) * 997 + 1;
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
        assert_eq!(dram.frames.as_ref().unwrap().free_bytes(), 40 * SECTOR_BYTES);
    }
}
