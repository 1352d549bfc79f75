//! What one get asks for, and what its phases have in common.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{BlockTier, ChainHash, DramAdmission, Namespace};
use dalsegno_extent::SliceSink;
use dalsegno_io::Call;

use crate::block_key::BlockKey;
use crate::read::delivery::Delivery;
use crate::read::loader::LoadTiers;
use crate::state::arena::ReservedPlace;
use crate::state::dram::Leaving;
use crate::state::held_block::HeldBlock;
use crate::state::recent_removals::RemovalMark;

/// What a get asks for.
pub(super) struct GetCall<'a> {
    pub(super) tiers: &'a LoadTiers,
    pub(super) namespace: &'a Namespace,
    /// The wanted blocks.
    pub(super) chain: &'a [ChainHash],
    /// The blocks before them.
    before: &'a [ChainHash],
    pub(super) call: &'a Call,
    /// Where slices go while the call runs; `None` if nobody waits for layers.
    pub(super) delivery: Option<Arc<Delivery>>,
    /// From before the blocks are looked up.
    pub(super) mark: RemovalMark,
}

impl<'a> GetCall<'a> {
    pub(super) fn new(
        tiers: &'a LoadTiers,
        namespace: &'a Namespace,
        chain: &'a [ChainHash],
        call: &'a Call,
        delivery: Option<Delivery>,
    ) -> Self {
        let (delivery, mark) = (delivery.map(Arc::new), tiers.recent.removals.mark());
        Self { tiers, namespace, chain, before: &[], call, delivery, mark }
    }

    /// The same for blocks that come behind others.
    pub(super) fn behind(self, before: &'a [ChainHash]) -> Self {
        Self { before, ..self }
    }

    pub(super) fn key(&self, at: usize) -> BlockKey {
        (self.namespace.id(), self.chain[at])
    }

    /// Bytes of a block.
    pub(super) fn block_bytes(&self) -> usize {
        usize::try_from(self.namespace.layout().block_bytes()).expect("64-bit addresses")
    }

    /// The layers of a block: all are read.
    pub(super) fn layers(&self) -> Range<u32> {
        0..self.namespace.layout().layers()
    }

    /// What receives verified slices.
    pub(super) fn sink(&self) -> Option<Arc<dyn SliceSink>> {
        self.delivery.as_ref().map(|delivery| Arc::clone(delivery) as _)
    }

    /// Whether slices are delivered where they were read: in memory of the caller.
    pub(super) fn delivers_in_place(&self) -> bool {
        self.delivery.as_ref().is_some_and(|delivery| delivery.is_in_place())
    }

    /// Waits until no copy uses a place that is being read into.
    pub(super) fn wait_for_copies(&self) {
        self.delivery.iter().for_each(|delivery| delivery.wait());
    }

    /// Whether DRAM admits the blocks that are read.
    pub(super) fn admits(&self) -> bool {
        self.tiers.admission == DramAdmission::Get
    }

    /// A place in DRAM for a block that is read and that DRAM admits.
    pub(super) fn admitted_place(&self) -> Option<ReservedPlace> {
        if self.admits() { self.place(Leaving::Newcomers) } else { None }
    }

    /// A place in DRAM for one block, if there is one.
    pub(super) fn place(&self, leaving: Leaving) -> Option<ReservedPlace> {
        self.tiers.recent.dram.reserve(self.block_bytes(), leaving)
    }

    pub(super) fn note_speed(&self, tier: BlockTier, blocks: usize, took: Duration) {
        let bytes = (blocks * self.block_bytes()) as u64;
        self.tiers.speeds.note(tier, bytes, took);
    }

    /// Notes a hit of a block that only the far tier has. The second one copies it to the log.
    pub(super) fn note_far_hit(&self, at: usize, block: impl FnOnce() -> HeldBlock) {
        if let Some(far) = &self.tiers.finder.far {
            let chain = [self.before, &self.chain[..=at]].concat();
            far.note_hit(self.namespace.id(), &chain, self.mark, block);
        }
        self.note_prefetch_use(at);
    }

    /// Notes that a block was used, if it was prefetched.
    pub(super) fn note_prefetch_use(&self, at: usize) {
        if let Some(far) = &self.tiers.finder.far {
            far.note_prefetch_use(&self.key(at));
        }
    }
}
