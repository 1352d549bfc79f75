//! What one get asks for, and what its phases have in common.

use std::ops::Range;
use std::time::Duration;

use dalsegno_core::{ChainHash, DramAdmission, Namespace};
use dalsegno_io::Call;

use crate::block_key::BlockKey;
use crate::read::loader::LoadTiers;
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

    pub(super) fn key(&self, at: usize) -> BlockKey {
        (self.namespace.id(), self.chain[at])
    }

    /// Bytes of the wanted layers of a block.
    pub(super) fn block_bytes(&self) -> usize {
        self.layers.len() * self.namespace.layout().slice_bytes() as usize
    }

    /// Offset of the first wanted byte in a block.
    pub(super) fn first_byte(&self) -> usize {
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
    pub(super) fn place(&self, leaving: Leaving) -> Option<ReservedPlace> {
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
