//! The phase of a get in which DRAM serves what it holds.

use std::sync::Arc;

use dalsegno_core::{BlockTier, ChainHash};
use dalsegno_index::Run;

use crate::blocks::finder::{FoundBlocks, PooledBlock};
use crate::far::tier::FarBlock;
use crate::read::blocks::GetBlock;
use crate::read::get_call::GetCall;
use crate::read::plan::positions_of;
use crate::state::dram::Leaving;
use crate::state::held_block::HeldBlock;

/// Serves the blocks that DRAM holds. Reserves places for blocks to be leased that it does not hold.
pub(super) fn serve_from_dram(get: &GetCall<'_>, found: &FoundBlocks, blocks: &mut [GetBlock]) {
    let is_lease = blocks.iter().any(GetBlock::is_for_lease);
    let began = get.tiers.clock.now();
    serve_near(get, &found.near, blocks);
    serve_pooled(get, &found.pooled, blocks);
    serve_far(get, &found.far, blocks);
    if is_lease {
        let mut positions: Vec<usize> = found.near.iter().flat_map(positions_of).collect();
        positions.extend(found.far.iter().map(|block| block.at));
        positions.sort_unstable();
        reserve_leases(get, &positions, blocks);
    } else {
        let hits = blocks.iter().filter(|block| block.outcome().is_hit()).count();
        get.note_speed(BlockTier::Dram, hits, get.tiers.clock.now().since(began));
    }
}

/// Serves the blocks of the log that DRAM holds.
fn serve_near(get: &GetCall<'_>, runs: &[Run], blocks: &mut [GetBlock]) {
    if get.tiers.recent.dram.is_off() {
        return;
    }
    for run in runs {
        let hashes = &get.chain[positions_of(run)];
        let found = get.tiers.recent.dram.get(get.namespace.id(), hashes);
        for (at, block) in positions_of(run).zip(found) {
            if let Some(block) = block {
                blocks[at].serve(block);
            }
        }
    }
}

/// Serves the pool-only blocks, also those that left since they were found.
fn serve_pooled(get: &GetCall<'_>, found: &[PooledBlock], blocks: &mut [GetBlock]) {
    if found.is_empty() {
        return;
    }
    // That counts their uses.
    let hashes: Vec<ChainHash> = found.iter().map(|block| get.chain[block.at]).collect();
    drop(get.tiers.recent.dram.get(get.namespace.id(), &hashes));
    for PooledBlock { at, block } in found {
        blocks[*at].serve(Arc::clone(block));
    }
}

/// Serves the blocks of the far tier that DRAM holds.
pub(super) fn serve_far(get: &GetCall<'_>, found: &[FarBlock], blocks: &mut [GetBlock]) {
    if get.tiers.recent.dram.is_off() || found.is_empty() {
        return;
    }
    let hashes: Vec<ChainHash> = found.iter().map(|block| get.chain[block.at]).collect();
    let held = get.tiers.recent.dram.get(get.namespace.id(), &hashes);
    for (FarBlock { at, .. }, block) in found.iter().zip(held) {
        if let Some(block) = block {
            get.note_far_hit(*at, || HeldBlock::Placed(Arc::clone(&block)));
            blocks[*at].serve(block);
        }
    }
}

/// Reserves places for blocks to be leased that are not in DRAM. Without a place, a block is not read, nor are
/// those behind it: a lease ends there.
fn reserve_leases(get: &GetCall<'_>, positions: &[usize], blocks: &mut [GetBlock]) {
    let mut is_full = false;
    for at in positions {
        if blocks[*at].is_wanted() {
            let place = if is_full { None } else { get.place(Leaving::Any) };
            is_full = place.is_none();
            blocks[*at].reserve(place);
        }
    }
}
