//! Blocks that were hit twice at the far location, on their way to the log.
//!
//! 1. The bytes of blocks that wait are bounded, whether they are in their places in DRAM or copies.
//! 2. A block that finds no space is not copied now; a later hit offers it again.

use dalsegno_core::{Admission, ChainHash, NamespaceId};
use dalsegno_policy::AdmissionFilter;
use parking_lot::Mutex;

use crate::state::held_block::HeldBlock;
use crate::state::recent_removals::RemovalMark;

/// Memory of the filter that remembers blocks that were hit once.
const FILTER_BYTES: usize = 1 << 20;
/// Bytes of blocks that wait.
const MOST_BYTES: usize = 64 << 20;

/// Consecutive blocks: the last ones of a chain.
#[derive(Debug)]
pub(crate) struct Promotion {
    pub(crate) namespace: NamespaceId,
    pub(crate) chain: Vec<ChainHash>,
    pub(crate) blocks: Vec<HeldBlock>,
    /// From before the first of them was looked up.
    pub(crate) mark: RemovalMark,
}

/// The blocks that wait to be copied to the log.
#[derive(Debug)]
pub(crate) struct Promotions {
    hits: Mutex<AdmissionFilter>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    runs: Vec<Promotion>,
    bytes: usize,
}

impl Promotion {
    /// Whether the last block of `chain` comes behind these.
    fn continues(&self, namespace: NamespaceId, chain: &[ChainHash]) -> bool {
        self.namespace == namespace
            && chain.len() == self.chain.len() + 1
            && chain[..self.chain.len()] == self.chain[..]
    }
}

impl Default for Promotions {
    fn default() -> Self {
        let filter = AdmissionFilter::new(Admission::SecondPut, FILTER_BYTES);
        Self { hits: Mutex::new(filter), waiting: Mutex::default() }
    }
}

impl Promotions {
    /// Notes a hit of the last block of `chain`. If it was hit before, its bytes are queued. `mark` is from before it
    /// was looked up.
    pub(crate) fn note_hit(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
        mark: RemovalMark,
        block: impl FnOnce() -> HeldBlock,
    ) {
        let Some(hash) = chain.last() else { return };
        if !self.hits.lock().admit(namespace, hash) || self.waiting.lock().bytes >= MOST_BYTES {
            return;
        }
        let block = block();
        let mut waiting = self.waiting.lock();
        waiting.bytes += block.len();
        // Most blocks come one behind the other.
        let last = waiting.runs.last_mut().filter(|last| last.continues(namespace, chain));
        if let Some(last) = last {
            last.chain.push(*hash);
            last.blocks.push(block);
            last.mark = last.mark.min(mark);
        } else {
            let (chain, blocks) = (chain.to_vec(), vec![block]);
            waiting.runs.push(Promotion { namespace, chain, blocks, mark });
        }
    }

    /// Takes everything that waits.
    pub(crate) fn take(&self) -> Vec<Promotion> {
        std::mem::take(&mut *self.waiting.lock()).runs
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_io::Memory;

    use super::*;

    fn hash(number: u8) -> ChainHash {
        ChainHash([number; 32])
    }

    fn note(promotions: &Promotions, chain: &[ChainHash], bytes: usize) {
        let block = || HeldBlock::Elsewhere(Memory::owned(vec![7; bytes], ()));
        promotions.note_hit(NamespaceId::default(), chain, RemovalMark::default(), block);
    }

    #[test]
    fn the_second_hit_queues_blocks_and_neighbours_are_one_run() {
        let promotions = Promotions::default();
        let chain: Vec<ChainHash> = (1..6).map(hash).collect();
        for end in 3..=5 {
            note(&promotions, &chain[..end], 10);
        }
        assert!(promotions.take().is_empty());
        for end in 3..=5 {
            note(&promotions, &chain[..end], 10);
        }
        let runs = promotions.take();
        assert_eq!((runs.len(), runs[0].blocks.len(), runs[0].chain.len()), (1, 3, 5));
        assert!(promotions.take().is_empty());
    }

    #[test]
    fn the_bytes_that_wait_are_bounded() {
        let promotions = Promotions::default();
        for round in 0..2 {
            for number in 0..20 {
                note(&promotions, &[hash(number)], 16 << 20);
            }
            assert_eq!(promotions.take().len(), 4 * round);
        }
    }
}
