//! Delivers the blocks of a load that DRAM has, layer by layer.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_extent::Cause;
use dalsegno_io::CopySource;

use crate::load::place_copies::{PlaceCopies, PlacedSource};
use crate::load::target::PageTarget;
use crate::read::blocks::GetBlock;
use crate::read::get_call::GetCall;
use crate::state::arena::PlacedBlock;

/// Blocks in places of this store.
pub(super) struct OwnPlaces {
    numbers: Vec<u32>,
    blocks: Vec<Arc<PlacedBlock>>,
}

impl PlacedSource for OwnPlaces {
    fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    fn source(&self, at: usize, offset: usize, bytes: usize) -> CopySource {
        CopySource::Memory(vec![self.blocks[at].part(offset, bytes)])
    }

    fn is_current(&self, _at: usize) -> bool {
        // The source holds it.
        true
    }
}

impl OwnPlaces {
    /// Starts to copy blocks with consecutive numbers.
    pub(super) fn copy_all(
        blocks: Vec<Arc<PlacedBlock>>,
        pages: &Arc<PageTarget>,
    ) -> Arc<PlaceCopies<Self>> {
        let count = u32::try_from(blocks.len()).expect("a load has fewer blocks");
        PlaceCopies::start(Self { numbers: (0..count).collect(), blocks }, pages)
    }
}

/// The blocks of a get that DRAM has served, while they are delivered.
#[derive(Default)]
pub(super) struct ServedBlocks {
    seen: BTreeSet<usize>,
    copies: Vec<ServedCopies>,
}

/// The copies of some blocks, by their positions in the get.
struct ServedCopies {
    positions: Vec<usize>,
    copies: Arc<PlaceCopies<OwnPlaces>>,
}

impl ServedBlocks {
    /// Starts to deliver the blocks that DRAM has served since the last time.
    pub(super) fn deliver(&mut self, get: &GetCall<'_>, blocks: &[GetBlock]) {
        let Some(delivery) = &get.delivery else { return };
        let is_new = |at: &usize| blocks[*at].is_served_from_dram() && self.seen.insert(*at);
        let positions: Vec<usize> = (0..blocks.len()).filter(is_new).collect();
        if positions.is_empty() {
            return;
        }
        let Some(pages) = &delivery.pages else {
            return delivery.progress.deliver_blocks(positions.len());
        };
        let number = |at: &usize| delivery.first + u32::try_from(*at).expect("a load has fewer");
        let numbers = positions.iter().map(number).collect();
        let placed =
            positions.iter().map(|at| blocks[*at].leased().expect("it stays in its place"));
        let source = OwnPlaces { numbers, blocks: placed.map(Arc::clone).collect() };
        self.copies.push(ServedCopies { positions, copies: PlaceCopies::start(source, pages) });
    }

    /// Delivers the rest, and waits for all of it. What the call had no time for is lost.
    pub(super) fn finish(mut self, get: &GetCall<'_>, blocks: &mut [GetBlock]) {
        self.deliver(get, blocks);
        let clock = get.tiers.clock.as_ref();
        for ServedCopies { positions, copies } in self.copies {
            let are_copied = copies.finish(get.call, clock);
            let cause = get.call.check(clock).err().map_or(Cause::Device, Cause::from);
            for (at, _) in positions.into_iter().zip(are_copied).filter(|(_, is_copied)| !is_copied)
            {
                blocks[at].lose_served(cause);
            }
        }
    }
}
