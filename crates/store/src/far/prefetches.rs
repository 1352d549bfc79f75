//! Which blocks of the far location are read into DRAM before a get requests them.
//!
//! 1. A lookup names the blocks of a chain that only the far location has. When a get then reads some of them there,
//!    the others are prefetched in their order.
//! 2. A block that a get reads itself is not prefetched, unless that has begun.
//! 3. Prefetched bytes that no get has used yet are bounded, and so are the blocks that are named. Bytes that are not
//!    used within [`UNUSED`] do not count any more.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use dalsegno_core::{ChainHash, NamespaceId, Nanos};
use parking_lot::{Condvar, Mutex};

use crate::block_key::BlockKey;

/// Bytes of blocks that were prefetched and not used, at most; also at most a quarter of DRAM.
const MOST_BYTES: u64 = 64 << 20;
/// Bytes of one batch.
const BATCH_BYTES: u64 = 8 << 20;
/// Chains that are named.
const MOST_CHAINS: usize = 64;
/// Blocks of all of them.
const MOST_BLOCKS: usize = 1 << 14;
/// When a prefetched block counts as unused.
const UNUSED: Duration = Duration::from_secs(10);

/// The blocks of a chain that are still to be prefetched, in order.
#[derive(Debug)]
struct NamedChain {
    number: u64,
    namespace: NamespaceId,
    blocks: VecDeque<ChainHash>,
    /// The last block, by which a repeated lookup is recognized.
    last: ChainHash,
    state: ChainState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChainState {
    /// A lookup found it.
    Named,
    /// A get read a part of it.
    Begun,
}

/// What is and what was prefetched.
#[derive(Debug)]
pub(crate) struct Prefetches {
    most_bytes: u64,
    progress: Mutex<PrefetchProgress>,
    /// A chain began, bytes were used, or a batch has ended.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PrefetchProgress {
    chains: VecDeque<NamedChain>,
    next_number: u64,
    named_blocks: usize,
    /// The blocks of the batch that is being read.
    reading: HashSet<BlockKey>,
    reading_bytes: u64,
    /// Blocks that were prefetched and not used, with their bytes and the time.
    unused: HashMap<BlockKey, (u64, Nanos)>,
    unused_bytes: u64,
    counts: PrefetchCounts,
}

/// What became of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefetchCounts {
    /// Blocks that were read into DRAM.
    pub(crate) fetched: u64,
    /// Those that a get used soon.
    pub(crate) used: u64,
    /// Blocks that were to be prefetched and were not.
    pub(crate) dropped: u64,
}

/// Blocks to be prefetched together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PrefetchBatch {
    chain: u64,
    pub(crate) namespace: NamespaceId,
    pub(crate) hashes: Vec<ChainHash>,
}

/// How a batch ended.
#[derive(Debug, Default)]
pub(crate) struct PrefetchResult {
    /// The blocks that are in DRAM now.
    pub(crate) fetched: Vec<ChainHash>,
    /// How many others were to be read.
    pub(crate) dropped: usize,
    /// Whether the rest of the chain is to be given up.
    pub(crate) is_over: bool,
}

impl PrefetchProgress {
    /// Removes chains without blocks.
    fn tidy(&mut self) {
        self.chains.retain(|chain| !chain.blocks.is_empty());
        self.named_blocks = self.chains.iter().map(|chain| chain.blocks.len()).sum();
    }

    /// The next blocks of the first chain that began, as far as the bounds allow.
    fn take_batch(
        &mut self,
        most_bytes: u64,
        block_bytes: &dyn Fn(NamespaceId) -> Option<u64>,
    ) -> Option<PrefetchBatch> {
        let chain = self.chains.iter_mut().find(|chain| chain.state == ChainState::Begun)?;
        let free = most_bytes.saturating_sub(self.unused_bytes + self.reading_bytes);
        let bytes = block_bytes(chain.namespace)?;
        // A block that is larger than a batch is a batch.
        let most = (free.min(BATCH_BYTES) / bytes).max(u64::from(bytes <= free));
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(chain.blocks.len());
        if most == 0 {
            return None;
        }
        let hashes: Vec<ChainHash> = chain.blocks.drain(..most).collect();
        let (chain, namespace) = (chain.number, chain.namespace);
        self.named_blocks -= most;
        self.reading.extend(hashes.iter().map(|hash| (namespace, *hash)));
        self.reading_bytes += bytes * most as u64;
        self.chains.retain(|chain| !chain.blocks.is_empty());
        Some(PrefetchBatch { chain, namespace, hashes })
    }

    fn forget_unused(&mut self, now: Nanos) {
        self.unused.retain(|_, (bytes, at)| {
            let is_recent = now.since(*at) < UNUSED;
            self.unused_bytes -= if is_recent { 0 } else { *bytes };
            is_recent
        });
    }
}

impl Prefetches {
    /// For a DRAM tier of so many bytes; nothing is prefetched without one.
    pub(crate) fn new(dram_bytes: u64) -> Self {
        let most_bytes = MOST_BYTES.min(dram_bytes / 4);
        Self { most_bytes, progress: Mutex::default(), changed: Condvar::new() }
    }

    /// Names the blocks of a chain that only the far location has.
    pub(crate) fn name(&self, namespace: NamespaceId, hashes: impl Iterator<Item = ChainHash>) {
        if self.most_bytes == 0 {
            return;
        }
        let mut named = HashSet::new();
        let blocks: VecDeque<ChainHash> =
            hashes.take(MOST_BLOCKS).filter(|hash| named.insert(*hash)).collect();
        let Some(last) = blocks.back().copied() else { return };
        let progress = &mut *self.progress.lock();
        let is_same = |chain: &NamedChain| chain.namespace == namespace && chain.last == last;
        if progress.chains.iter().any(is_same) {
            return;
        }
        progress.named_blocks += blocks.len();
        let number = progress.next_number;
        progress.next_number += 1;
        let state = ChainState::Named;
        progress.chains.push_back(NamedChain { number, namespace, blocks, last, state });
        while progress.chains.len() > MOST_CHAINS || progress.named_blocks > MOST_BLOCKS {
            let Some(oldest) = progress.chains.pop_front() else { break };
            progress.named_blocks -= oldest.blocks.len();
            if oldest.state == ChainState::Begun {
                progress.counts.dropped += oldest.blocks.len() as u64;
            }
        }
    }

    /// Takes over blocks that a get reads itself, and returns the numbers of the chains that continue behind them.
    pub(crate) fn take_over(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Vec<u64> {
        let Some(first) = hashes.first() else { return Vec::new() };
        let progress = &mut *self.progress.lock();
        let is_of =
            |chain: &&mut NamedChain| chain.namespace == namespace && chain.blocks.contains(first);
        let (mut taken, mut continued) = (HashSet::<ChainHash>::new(), Vec::new());
        for chain in progress.chains.iter_mut().filter(is_of) {
            if taken.is_empty() {
                taken.extend(hashes);
            }
            chain.blocks.retain(|hash| !taken.contains(hash));
            continued.push(chain.number);
        }
        if !continued.is_empty() {
            progress.tidy();
        }
        continued
    }

    /// Begins to prefetch chains.
    pub(crate) fn begin(&self, numbers: &[u64]) {
        if numbers.is_empty() {
            return;
        }
        let progress = &mut *self.progress.lock();
        let named = progress.chains.iter_mut().filter(|chain| numbers.contains(&chain.number));
        named.for_each(|chain| chain.state = ChainState::Begun);
        self.changed.notify_all();
    }

    /// Waits at most `timeout` for blocks to prefetch. `block_bytes` says how large the blocks of a namespace are.
    pub(crate) fn next(
        &self,
        now: Nanos,
        timeout: Duration,
        block_bytes: impl Fn(NamespaceId) -> Option<u64>,
    ) -> Option<PrefetchBatch> {
        let mut progress = self.progress.lock();
        progress.forget_unused(now);
        if let Some(batch) = progress.take_batch(self.most_bytes, &block_bytes) {
            return Some(batch);
        }
        self.changed.wait_for(&mut progress, timeout);
        progress.take_batch(self.most_bytes, &block_bytes)
    }

    /// Ends a batch of blocks of `block_bytes`.
    pub(crate) fn end(
        &self,
        batch: &PrefetchBatch,
        result: &PrefetchResult,
        now: Nanos,
        block_bytes: u64,
    ) {
        let PrefetchResult { fetched, dropped, is_over } = result;
        let progress = &mut *self.progress.lock();
        progress.reading.clear();
        progress.reading_bytes = 0;
        for hash in fetched {
            let earlier = progress.unused.insert((batch.namespace, *hash), (block_bytes, now));
            progress.unused_bytes += if earlier.is_none() { block_bytes } else { 0 };
        }
        progress.counts.fetched += fetched.len() as u64;
        progress.counts.dropped += *dropped as u64;
        if *is_over {
            for chain in progress.chains.iter_mut().filter(|chain| chain.number == batch.chain) {
                progress.counts.dropped += chain.blocks.len() as u64;
                chain.blocks.clear();
            }
            progress.tidy();
        }
        self.changed.notify_all();
    }

    /// Notes that a get was served with a block from DRAM.
    pub(crate) fn note_use(&self, key: &BlockKey) {
        let progress = &mut *self.progress.lock();
        if let Some((bytes, _)) = progress.unused.remove(key) {
            progress.unused_bytes -= bytes;
            progress.counts.used += 1;
            self.changed.notify_all();
        }
    }

    /// Whether a block is being prefetched.
    pub(crate) fn is_reading(&self, key: &BlockKey) -> bool {
        self.progress.lock().reading.contains(key)
    }

    /// Waits until none of these blocks is being prefetched, at most `timeout`.
    pub(crate) fn wait_for(&self, keys: &[BlockKey], timeout: Duration) {
        let mut progress = self.progress.lock();
        let is_reading =
            |progress: &mut PrefetchProgress| keys.iter().any(|key| progress.reading.contains(key));
        self.changed.wait_while_for(&mut progress, is_reading, timeout);
    }

    pub(crate) fn counts(&self) -> PrefetchCounts {
        self.progress.lock().counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: NamespaceId = NamespaceId([3; 16]);
    const MIB: u64 = 1 << 20;

    fn hashes(range: std::ops::Range<u8>) -> Vec<ChainHash> {
        range.map(|number| ChainHash([number; 32])).collect()
    }

    fn next(prefetches: &Prefetches, now: u64) -> Option<Vec<ChainHash>> {
        let batch = prefetches.next(Nanos(now), Duration::ZERO, |_| Some(MIB))?;
        let fetched = batch.hashes.clone();
        let result = PrefetchResult { fetched, ..PrefetchResult::default() };
        prefetches.end(&batch, &result, Nanos(now), MIB);
        Some(result.fetched)
    }

    #[test]
    fn a_chain_is_prefetched_in_order_after_a_get_has_read_its_beginning() {
        let prefetches = Prefetches::new(256 * MIB);
        prefetches.name(NAMESPACE, hashes(0..20).into_iter());
        prefetches.name(NAMESPACE, hashes(0..20).into_iter());
        assert_eq!(next(&prefetches, 0), None, "only named");
        assert!(prefetches.take_over(NamespaceId::default(), &hashes(0..4)).is_empty());
        let numbers = prefetches.take_over(NAMESPACE, &hashes(0..4));
        assert_eq!((numbers.len(), next(&prefetches, 0)), (1, None), "the get is under way");
        prefetches.begin(&numbers);
        assert_eq!(next(&prefetches, 0), Some(hashes(4..12)));
        prefetches.take_over(NAMESPACE, &hashes(12..15));
        assert_eq!(next(&prefetches, 0), Some(hashes(15..20)));
        assert_eq!(next(&prefetches, 0), None);
        assert_eq!(prefetches.counts(), PrefetchCounts { fetched: 13, used: 0, dropped: 0 });
    }

    #[test]
    fn unused_bytes_are_bounded_until_they_are_used_or_old() {
        let prefetches = Prefetches::new(40 * MIB);
        prefetches.name(NAMESPACE, hashes(0..40).into_iter());
        prefetches.begin(&prefetches.take_over(NAMESPACE, &hashes(0..1)));
        assert_eq!(next(&prefetches, 0), Some(hashes(1..9)));
        assert_eq!(next(&prefetches, 0), Some(hashes(9..11)), "a quarter of DRAM");
        assert_eq!(next(&prefetches, 0), None);
        prefetches.note_use(&(NAMESPACE, ChainHash([2; 32])));
        prefetches.note_use(&(NAMESPACE, ChainHash([2; 32])));
        assert_eq!(next(&prefetches, 1), Some(hashes(11..12)));
        assert_eq!(next(&prefetches, 1), None);
        let later = u64::try_from(UNUSED.as_nanos()).unwrap();
        assert_eq!(next(&prefetches, later), Some(hashes(12..20)));
        assert_eq!(prefetches.counts().used, 1);
    }

    #[test]
    fn what_is_named_is_bounded_and_what_finds_no_place_is_given_up() {
        let prefetches = Prefetches::new(256 * MIB);
        for name in 0..=MOST_CHAINS {
            let first = u8::try_from(name).unwrap();
            prefetches.name(NAMESPACE, hashes(first..first + 100).into_iter());
        }
        assert_eq!(prefetches.progress.lock().chains.len(), MOST_CHAINS);
        assert!(prefetches.take_over(NAMESPACE, &hashes(0..1)).is_empty(), "the oldest");
        let numbers = prefetches.take_over(NAMESPACE, &hashes(1..2));
        prefetches.begin(&numbers);
        let batch = prefetches.next(Nanos(0), Duration::ZERO, |_| Some(MIB)).unwrap();
        assert!(prefetches.is_reading(&(NAMESPACE, batch.hashes[0])));
        let fetched = batch.hashes[..3].to_vec();
        let result = PrefetchResult { fetched, dropped: 5, is_over: true };
        prefetches.end(&batch, &result, Nanos(0), MIB);
        assert!(!prefetches.is_reading(&(NAMESPACE, batch.hashes[0])));
        let counts = prefetches.counts();
        assert_eq!((counts.fetched, counts.dropped), (3, 96));
        let none = Prefetches::new(0);
        none.name(NAMESPACE, hashes(0..9).into_iter());
        assert!(none.take_over(NAMESPACE, &hashes(0..1)).is_empty());
    }
}
