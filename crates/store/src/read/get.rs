//! Getting blocks in five phases: find, serve from DRAM, plan, read, settle.
//!
//! 1. The index is asked first, then DRAM for pool-only blocks. DRAM serves the blocks that it holds, then the log is
//!    read. A block counts as a hit only after every slice was verified.
//! 2. A block with a bad slice is a miss. It is quarantined immediately, so no call reads it again. Its neighbours
//!    stay.
//! 3. A block that the device failed to read stays in the index, and is noted: a put writes it again.
//! 4. A block that DRAM admits is read into its place there, and copied to the caller as it arrives. No call waits for
//!    a read into a place that outlives it, so a deadline needs no staging buffer.
//! 5. The far tier is read while the log is, and then for what the log could not return if the call has time left and
//!    no request has the block's memory.
//! 6. A block is looked up once, for DRAM and the log together. It is looked up again only if its segment was recycled
//!    between lookup and plan, or when it enters DRAM: then DRAM drops it if it was evicted meanwhile.
//! 7. A load delivers slices while the call runs: see `delivery.rs`.

use dalsegno_index::Scope;

use crate::read::blocks::GetBlock;
use crate::read::get_call::GetCall;
use crate::read::plan::{copies_of_lost, plan_far, plan_log};
use crate::read::prefetched::PrefetchedBlocks;
use crate::read::serve::serve_from_dram;
use crate::read::served_blocks::ServedBlocks;
use crate::read::settle::{settle_far, settle_log};
use crate::read::tier_read::FarRead;

/// Gets one block for each hash of the chain, and returns how each ended.
pub(super) fn run(
    get: &GetCall<'_>,
    wanted: impl Iterator<Item = GetBlock>,
    scope: Scope,
) -> Vec<GetBlock> {
    let mut blocks: Vec<GetBlock> = wanted.collect();
    // Pool-only blocks are found with the others. Of all else DRAM has copies of blocks that one of the indexes knows.
    let (finder, id) = (&get.tiers.finder, get.namespace.id());
    let mut found = finder.find_used(id, get.chain, scope, get.call.deadline);
    serve_from_dram(get, &found, &mut blocks);
    let mut served = ServedBlocks::default();
    served.deliver(get, &blocks);
    found.far.retain(|block| blocks[block.at].is_wanted());
    let prefetched = PrefetchedBlocks::take(get, &mut found.far);
    let mut far: Vec<FarRead<'_>> = plan_far(get, &found.far, &mut blocks).into_iter().collect();
    if let Some(log) = plan_log(get, &found.near, &mut blocks) {
        settle_log(get, log.finish(&mut far), &mut blocks);
    }
    far.extend(plan_far(get, &copies_of_lost(get, &blocks), &mut blocks));
    FarRead::finish_all(far).for_each(|read| settle_far(get, read, &mut blocks));
    prefetched.finish(get, &mut blocks);
    served.finish(get, &mut blocks);
    blocks
}
