//! The blocks of a get that are read from the far location, while others are read from the log.

use std::time::Duration;

use dalsegno_core::ChainHash;
use dalsegno_extent::{BlockRead, BlocksRead, wait_for_all, wait_for_first};
use dalsegno_far::FarReading;
use dalsegno_io::Call;

use crate::block_key::BlockKey;
use crate::far::tier::FarBlock;
use crate::read::loader::LoadTiers;

/// How long a get waits for blocks that are being prefetched. Then it reads them itself.
const PREFETCH_WAIT: Duration = Duration::from_millis(100);

/// Blocks that are being read from the far location.
pub(super) struct FarPart<'a> {
    blocks: Vec<FarBlock>,
    reading: FarReading<'a>,
}

/// What a read returned, and the time from its first request to its last completion.
pub(super) struct TimedRead<T> {
    pub(super) blocks: Vec<T>,
    pub(super) took: Duration,
}

impl<'a> FarPart<'a> {
    /// Sends the first requests.
    pub(super) fn begin(blocks: Vec<FarBlock>, mut reading: FarReading<'a>) -> Self {
        reading.as_read().advance();
        Self { blocks, reading }
    }

    /// Waits for all blocks.
    pub(super) fn finish(mut self) -> TimedRead<(FarBlock, BlockRead)> {
        wait_for_first(&mut [self.reading.as_read()]);
        let took = self.reading.took();
        let blocks = self.blocks.into_iter().zip(self.reading.finish()).collect();
        TimedRead { blocks, took }
    }
}

/// Waits for blocks of the log, while others are read from the far location.
pub(super) fn finish_log<'a>(
    mut log: BlocksRead<'a>,
    far: &mut [FarPart<'a>],
) -> TimedRead<Vec<BlockRead>> {
    let mut reads = vec![&mut log];
    reads.extend(far.iter_mut().map(|part| part.reading.as_read()));
    wait_for_first(&mut reads);
    let took = log.took();
    TimedRead { blocks: log.finish(), took }
}

/// Waits for all blocks from the far location.
pub(super) fn finish_far(
    mut parts: Vec<FarPart<'_>>,
) -> impl Iterator<Item = TimedRead<(FarBlock, BlockRead)>> {
    wait_for_all(&mut parts.iter_mut().map(|part| part.reading.as_read()).collect::<Vec<_>>());
    parts.into_iter().map(FarPart::finish)
}

/// The blocks of a get that are being prefetched.
pub(super) struct PrefetchedPart {
    pub(super) blocks: Vec<FarBlock>,
    /// The chains whose other blocks are prefetched next.
    pub(super) chains: Vec<u64>,
}

impl PrefetchedPart {
    /// Takes those out of `blocks` that are being prefetched. The others are not prefetched any more, because the get
    /// reads them.
    pub(super) fn take(
        tiers: &LoadTiers,
        blocks: &mut Vec<FarBlock>,
        key: impl Fn(usize) -> BlockKey,
    ) -> Self {
        let (mut taken, mut chains) = (Vec::new(), Vec::new());
        if let (Some(far), Some(first)) = (&tiers.finder.far, blocks.first()) {
            let (namespace, _) = key(first.at);
            let hashes: Vec<ChainHash> = blocks.iter().map(|block| key(block.at).1).collect();
            chains = far.take_over(namespace, &hashes);
            taken.extend(blocks.extract_if(.., |block| far.is_prefetching(&key(block.at))));
        }
        Self { blocks: taken, chains }
    }
}

/// The copies at the far location of blocks that the log could not return, as long as the call has time left.
pub(super) fn far_copies(
    tiers: &LoadTiers,
    lost: impl Iterator<Item = usize>,
    key: impl Fn(usize) -> BlockKey,
    call: &Call,
) -> Vec<FarBlock> {
    let far = tiers.finder.responding_far();
    let Some(far) = far.filter(|_| call.timeout(tiers.clock.as_ref()).is_ok()) else {
        return Vec::new();
    };
    let found = |at: usize| {
        let (namespace, hash) = key(at);
        far.find(namespace, &hash).map(|place| FarBlock { at, place })
    };
    lost.filter_map(found).collect()
}

/// Waits until none of some blocks is being prefetched, but only for a while.
pub(super) fn wait_for_prefetch(tiers: &LoadTiers, keys: &[BlockKey], call: &Call) {
    let Ok(left) = call.timeout(tiers.clock.as_ref()) else { return };
    let timeout = left.unwrap_or(PREFETCH_WAIT).min(PREFETCH_WAIT);
    tiers.finder.far.iter().for_each(|far| far.wait_for_prefetch(keys, timeout));
}
