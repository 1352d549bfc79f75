//! The blocks of a get that are being prefetched.

use std::time::Duration;

use dalsegno_core::ChainHash;

use crate::block_key::BlockKey;
use crate::far::tier::{FarBlock, FarTier};
use crate::read::blocks::GetBlock;
use crate::read::get_call::GetCall;
use crate::read::outcome::Outcome;
use crate::read::plan::plan_far;
use crate::read::serve::serve_far;
use crate::read::settle::settle_far;
use crate::read::tier_read::FarRead;

/// How long a get waits for blocks that are being prefetched. Then it reads them itself.
const WAIT: Duration = Duration::from_millis(100);

/// Blocks that are being prefetched.
#[derive(Default)]
pub(super) struct PrefetchedBlocks {
    blocks: Vec<FarBlock>,
    /// The chains whose other blocks are prefetched next.
    chains: Vec<u64>,
}

impl PrefetchedBlocks {
    /// Takes those out of `found` that are being prefetched. The others are not prefetched any more, because the get
    /// reads them.
    pub(super) fn take(get: &GetCall<'_>, found: &mut Vec<FarBlock>) -> Self {
        let Some(far) = get.tiers.finder.far.as_ref().filter(|_| !found.is_empty()) else {
            return Self::default();
        };
        let hashes: Vec<ChainHash> = found.iter().map(|block| get.chain[block.at]).collect();
        let chains = far.take_over(get.namespace.id(), &hashes);
        let taken = found.extract_if(.., |block| far.is_prefetching(&get.key(block.at)));
        Self { blocks: taken.collect(), chains }
    }

    /// Serves the blocks when they arrived, and reads the others. Then what follows is prefetched.
    pub(super) fn finish(self, get: &GetCall<'_>, blocks: &mut [GetBlock]) {
        let Some(far) = &get.tiers.finder.far else { return };
        if !self.blocks.is_empty() {
            self.wait(get, far);
            serve_far(get, &self.blocks, blocks);
            let rest = plan_far(get, &self.blocks, blocks).into_iter().collect();
            FarRead::finish_all(rest).for_each(|read| settle_far(get, read, blocks));
        }
        if blocks.iter().any(|block| block.outcome() == Outcome::Far) {
            far.prefetch(&self.chains);
        }
    }

    /// Waits until none of the blocks is being prefetched, but only for a while.
    fn wait(&self, get: &GetCall<'_>, far: &FarTier) {
        let Ok(left) = get.call.timeout(get.tiers.clock.as_ref()) else { return };
        let keys: Vec<BlockKey> = self.blocks.iter().map(|block| get.key(block.at)).collect();
        far.wait_for_prefetch(&keys, left.unwrap_or(WAIT).min(WAIT));
    }
}
