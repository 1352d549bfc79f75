//! Getting blocks, whole or by layer, in four phases: find, serve from DRAM, read, settle.
//!
//! 1. The index is asked first. DRAM serves the blocks that it holds, then the log is read. A block counts as a hit
//!    only after every slice was verified.
//! 2. A block with a bad slice is a miss. It is quarantined immediately, so no call reads it again. Its neighbours
//!    stay.
//! 3. A block that the device failed to read stays in the index, and is noted: a put writes it again.
//! 4. A block that DRAM admits is read into its place there, and copied to the caller as it arrives. No call waits for
//!    a read into a place that outlives it, so a deadline needs no staging buffer.
//! 5. The far tier is read while the log is, and then for what the log could not return if the call has time left.
//! 6. A block is looked up once, for DRAM and the log together. It is looked up again only if its segment was recycled
//!    between lookup and plan, or when it enters DRAM: then DRAM drops it if it was removed meanwhile.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, DramAdmission, Namespace};
use dalsegno_index::{Run, Scope};
use dalsegno_io::Call;

use crate::block_key::BlockKey;
use crate::blocks::finder::FoundBlocks;
use crate::far::tier::FarBlock;
use crate::read::blocks::GetBlock;
use crate::read::loader::LoadTiers;
use crate::read::plan::{copies_of_lost, plan_far, plan_log, positions_of};
use crate::read::prefetched::PrefetchedBlocks;
use crate::read::settle::{settle_far, settle_log};
use crate::read::tier_read::FarRead;
use crate::state::arena::ReservedPlace;
use crate::state::dram::Leaving;
use crate::state::held_block::HeldBlock;
use crate::state::recent_removals::RemovalMark;
use crate::state::speeds::BlockTier;

/// What a get asks for.
pub(super) struct GetCall<'a> {
    pub(super) tiers: &'a LoadTiers,
    pub(super) namespace: &'a Namespace,
    pub(super) chain: &'a [ChainHash],
    pub(super) layers: Range<u32>,
    pub(super) call: &'a Call,
    /// From before the blocks are looked up.
    pub(super) mark: RemovalMark,
}

impl<'a> GetCall<'a> {
    pub(super) fn new(
        tiers: &'a LoadTiers,
        namespace: &'a Namespace,
        chain: &'a [ChainHash],
        layers: Range<u32>,
        call: &'a Call,
    ) -> Self {
        Self { tiers, namespace, chain, layers, call, mark: tiers.recent.removals.mark() }
    }

    /// Gets one block for each hash of the chain, and returns how each ended.
    pub(super) fn run(
        &self,
        wanted: impl Iterator<Item = GetBlock>,
        scope: Scope,
    ) -> Vec<GetBlock> {
        let mut blocks: Vec<GetBlock> = wanted.collect();
        // DRAM holds only blocks that one of the indexes knows.
        let (finder, id) = (&self.tiers.finder, self.namespace.id());
        let mut found = finder.find_used(id, self.chain, scope, self.call.deadline);
        self.serve_from_dram(&found, &mut blocks);
        found.far.retain(|block| blocks[block.at].is_wanted());
        let prefetched = PrefetchedBlocks::take(self, &mut found.far);
        let mut far: Vec<FarRead<'_>> =
            plan_far(self, &found.far, &mut blocks).into_iter().collect();
        if let Some(log) = plan_log(self, &found.near, &mut blocks) {
            settle_log(self, log.finish(&mut far), &mut blocks);
        }
        far.extend(plan_far(self, &copies_of_lost(self, &blocks), &mut blocks));
        FarRead::finish_all(far).for_each(|read| settle_far(self, read, &mut blocks));
        prefetched.finish(self, &mut blocks);
        blocks
    }

    /// Serves the blocks that DRAM holds. Reserves places for blocks to be leased that it does not hold.
    fn serve_from_dram(&self, found: &FoundBlocks, blocks: &mut [GetBlock]) {
        let is_lease = blocks.iter().any(GetBlock::is_for_lease);
        let began = self.tiers.clock.now();
        self.serve_near(&found.near, blocks);
        self.serve_far(&found.far, blocks);
        if is_lease {
            let mut positions: Vec<usize> = found.near.iter().flat_map(positions_of).collect();
            positions.extend(found.far.iter().map(|block| block.at));
            positions.sort_unstable();
            self.reserve_leases(&positions, blocks);
        } else {
            let hits = blocks.iter().filter(|block| block.outcome().is_hit()).count();
            self.note_speed(BlockTier::Dram, hits, self.tiers.clock.now().since(began));
        }
    }

    /// Serves the blocks of the log that DRAM holds.
    fn serve_near(&self, runs: &[Run], blocks: &mut [GetBlock]) {
        if self.tiers.recent.dram.is_off() {
            return;
        }
        for run in runs {
            let hashes = &self.chain[positions_of(run)];
            let found = self.tiers.recent.dram.get(self.namespace.id(), hashes);
            for (at, block) in positions_of(run).zip(found) {
                if let Some(block) = block {
                    blocks[at].serve(block, self.first_byte());
                }
            }
        }
    }

    /// Serves the blocks of the far tier that DRAM holds.
    pub(super) fn serve_far(&self, found: &[FarBlock], blocks: &mut [GetBlock]) {
        if self.tiers.recent.dram.is_off() || found.is_empty() {
            return;
        }
        let hashes: Vec<ChainHash> = found.iter().map(|block| self.chain[block.at]).collect();
        let held = self.tiers.recent.dram.get(self.namespace.id(), &hashes);
        for (FarBlock { at, .. }, block) in found.iter().zip(held) {
            if let Some(block) = block {
                self.note_far_hit(*at, || HeldBlock::Placed(Arc::clone(&block)));
                blocks[*at].serve(block, self.first_byte());
            }
        }
    }

    /// Reserves places for blocks to be leased that are not in DRAM. Without a place, a block is not read, nor are
    /// those behind it: a lease ends there.
    fn reserve_leases(&self, positions: &[usize], blocks: &mut [GetBlock]) {
        let mut is_full = false;
        for at in positions {
            if blocks[*at].is_wanted() {
                let place = if is_full { None } else { self.place(Leaving::Any) };
                is_full = place.is_none();
                blocks[*at].reserve(place);
            }
        }
    }

    pub(super) fn key(&self, at: usize) -> BlockKey {
        (self.namespace.id(), self.chain[at])
    }

    /// Bytes of the wanted layers of a block.
    pub(super) fn block_bytes(&self) -> usize {
        self.layers.len() * self.namespace.layout().slice_bytes() as usize
    }

    /// Offset of the first wanted byte in a block.
    fn first_byte(&self) -> usize {
        self.layers.start as usize * self.namespace.layout().slice_bytes() as usize
    }

    /// Whether whole blocks are read.
    pub(super) fn is_whole(&self) -> bool {
        self.layers.end - self.layers.start == self.namespace.layout().layers()
    }

    /// Whether DRAM admits the blocks that are read.
    pub(super) fn admits(&self) -> bool {
        self.is_whole() && self.tiers.admission == DramAdmission::Get
    }

    /// A place in DRAM for a block that is read and that DRAM admits.
    pub(super) fn admitted_place(&self) -> Option<ReservedPlace> {
        if self.admits() { self.place(Leaving::Newcomers) } else { None }
    }

    /// A place in DRAM for one block, if there is one.
    fn place(&self, leaving: Leaving) -> Option<ReservedPlace> {
        let bytes = usize::try_from(self.namespace.layout().block_bytes()).ok()?;
        self.tiers.recent.dram.reserve(bytes, leaving)
    }

    pub(super) fn note_speed(&self, tier: BlockTier, blocks: usize, took: Duration) {
        let bytes = (blocks * self.block_bytes()) as u64;
        self.tiers.speeds.note(tier, bytes, took);
    }

    /// Notes a hit of a block that only the far tier has. The second one copies it to the log.
    pub(super) fn note_far_hit(&self, at: usize, block: impl FnOnce() -> HeldBlock) {
        if let Some(far) = &self.tiers.finder.far {
            far.note_hit(self.namespace.id(), &self.chain[..=at], self.mark, block);
            far.note_prefetch_use(&self.key(at));
        }
    }
}
