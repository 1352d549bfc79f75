//! What the results of reads change: outcomes, DRAM, the index, and what the far tier promotes.

use std::sync::Arc;

use dalsegno_extent::{BlockRead, Cause};
use dalsegno_index::Run;

use crate::far::tier::FarBlock;
use crate::read::blocks::{ArrivedBlock, GetBlock};
use crate::read::get_call::GetCall;
use crate::read::outcome::Outcome;
use crate::read::tier_read::TierResults;
use crate::state::held_block::HeldBlock;
use dalsegno_core::BlockTier;

/// Applies what the log returned. Damaged blocks leave the index; blocks that the device failed to read are noted.
pub(super) fn settle_log(
    get: &GetCall<'_>,
    read: TierResults<(Run, Vec<BlockRead>)>,
    blocks: &mut [GetBlock],
) {
    get.wait_for_copies();
    let (mut hits, mut failed) = (Vec::new(), Vec::new());
    for (run, reads) in read.parts {
        let mut damaged = Vec::new();
        for ((number, at), read) in (run.first_block..).zip(run.at..).zip(reads) {
            match read.outcome {
                Ok(()) => {
                    hits.push(get.chain[at]);
                    arrive(get, at, blocks[at].arrive(Outcome::Log, read.memory));
                }
                Err(cause) => {
                    blocks[at].take_back(read, cause, get.block_bytes(), get.delivery.is_some());
                    if cause.is_damage() {
                        damaged.push((number, cause));
                    } else if cause == Cause::Device {
                        failed.push(get.chain[at]);
                    }
                }
            }
        }
        get.tiers.dropper.quarantine(&run.extent, &damaged, get.call.deadline);
    }
    get.note_speed(BlockTier::Log, hits.len(), read.took);
    get.tiers.failed_reads.note(get.namespace.id(), &failed);
    get.tiers.failed_reads.forget(get.namespace.id(), &hits);
}

/// Applies what the far location returned.
pub(super) fn settle_far(
    get: &GetCall<'_>,
    read: TierResults<(FarBlock, BlockRead)>,
    blocks: &mut [GetBlock],
) {
    get.wait_for_copies();
    let hits = read.parts.iter().filter(|(_, read)| read.outcome.is_ok()).count();
    get.note_speed(BlockTier::Far, hits, read.took);
    for (FarBlock { at, .. }, read) in read.parts {
        if let Err(cause) = read.outcome {
            blocks[at].take_back(read, cause, get.block_bytes(), get.delivery.is_some());
            continue;
        }
        if blocks[at].is_lost() {
            get.tiers.finder.far.iter().for_each(|far| far.count_rescued());
        }
        match arrive(get, at, blocks[at].arrive(Outcome::Far, read.memory)) {
            ArrivedBlock::Placed(block) => get.note_far_hit(at, || HeldBlock::Placed(block)),
            // The caller of a load may use its memory already.
            ArrivedBlock::Copied(_) if get.delivers_in_place() => get.note_prefetch_use(at),
            ArrivedBlock::Copied(memory) => {
                get.note_far_hit(at, || HeldBlock::copy_of(&memory));
            }
        }
    }
}

/// Keeps a verified block in DRAM if DRAM admits it, unless it was removed or evicted while it was read.
fn arrive(get: &GetCall<'_>, at: usize, block: ArrivedBlock) -> ArrivedBlock {
    let (recent, key, deadline) = (&get.tiers.recent, get.key(at), get.call.deadline);
    match &block {
        ArrivedBlock::Placed(block) => {
            recent.keep(key, Arc::clone(block), get.mark, deadline);
        }
        ArrivedBlock::Copied(memory) if get.admits() && !get.delivers_in_place() => {
            recent.copy_in(key, memory, get.mark, deadline);
        }
        ArrivedBlock::Copied(_) => {}
    }
    block
}
