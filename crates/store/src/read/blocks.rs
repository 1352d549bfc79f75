//! One block of a get, from the request to its outcome.
//!
//! 1. A block is wanted until a tier serves it. A read takes its memory, and gives it back if the block is lost. Then
//!    another tier may read it.
//! 2. A block whose memory did not come back is read by no other tier: a request may still use the memory.
//! 3. Of several causes of a loss, the first one counts.
//! 4. A block of which a load has delivered slices is read by no other tier.

use std::sync::Arc;

use dalsegno_extent::{BlockRead, BlockTarget, Cause};
use dalsegno_io::Memory;

use crate::read::outcome::{GetReport, Outcome};
use crate::state::arena::{PlacedBlock, ReservedPlace};

/// One block of a get.
pub(super) struct GetBlock {
    state: BlockState,
    /// Where in DRAM it is read. Boxed, as what is rare: most blocks that are leased were never read.
    place: Option<Box<TargetPlace>>,
    /// Why a tier that has it could not return it.
    lost: Option<Cause>,
}

/// How far a block is.
enum BlockState {
    Wanted(Wanted),
    /// A read has its memory.
    Reading,
    /// Served, with the block if it is leased.
    Served(Outcome, Option<Arc<PlacedBlock>>),
    /// Not read any more.
    GivenUp,
}

/// What is wanted of a block.
enum Wanted {
    /// Its bytes in the caller's memory.
    Copy(Vec<Memory>),
    /// The block in its place in DRAM.
    Lease,
    /// The block once more. A read lost it, and gave this memory back.
    Again(Box<BlockTarget>),
}

/// A place in DRAM that a block is read into.
struct TargetPlace {
    place: ReservedPlace,
    /// Whether the caller leases the block. Otherwise it gets a copy while the block arrives.
    is_leased: bool,
}

/// A hit, as it came from its read.
pub(super) enum ArrivedBlock {
    /// In a place in DRAM.
    Placed(Arc<PlacedBlock>),
    /// In the caller's memory only.
    Copied(Vec<Memory>),
}

impl GetBlock {
    /// A block to be copied to `memory`.
    pub(super) fn to_copy(memory: Vec<Memory>) -> Self {
        Self { state: BlockState::Wanted(Wanted::Copy(memory)), place: None, lost: None }
    }

    /// A block to be leased.
    pub(super) fn to_lease() -> Self {
        Self { state: BlockState::Wanted(Wanted::Lease), place: None, lost: None }
    }

    /// Whether no tier has served it, and one may read it.
    pub(super) fn is_wanted(&self) -> bool {
        matches!(self.state, BlockState::Wanted(_))
    }

    /// Whether it is wanted for a lease.
    pub(super) fn is_for_lease(&self) -> bool {
        matches!(self.state, BlockState::Wanted(Wanted::Lease))
    }

    /// Whether a tier that has it could not return it.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Whether DRAM has served it.
    pub(super) fn is_served_from_dram(&self) -> bool {
        matches!(self.state, BlockState::Served(Outcome::Dram, _))
    }

    /// Serves it from DRAM.
    pub(super) fn serve(&mut self, block: Arc<PlacedBlock>) {
        let leased = match self.take_wanted() {
            Wanted::Lease => Some(block),
            Wanted::Copy(mut memory) => {
                block.copy_to(0, &mut memory);
                None
            }
            Wanted::Again(_) => unreachable!("DRAM is asked before a block is read"),
        };
        self.place = None;
        self.state = BlockState::Served(Outcome::Dram, leased);
    }

    /// Reserves the place of a block to be leased. Without a place, it is given up.
    pub(super) fn reserve(&mut self, place: Option<ReservedPlace>) {
        if let Some(place) = place {
            self.place = Some(Box::new(TargetPlace { place, is_leased: true }));
        } else {
            self.lose(Cause::Throttled);
            self.state = BlockState::GivenUp;
        }
    }

    /// Notes that a tier cannot return it. Another tier may read it.
    pub(super) fn lose(&mut self, cause: Cause) {
        self.lost.get_or_insert(cause);
    }

    /// Loses a block that was served, because it did not get to the caller.
    pub(super) fn lose_served(&mut self, cause: Cause) {
        self.lose(cause);
        self.state = BlockState::GivenUp;
    }

    /// Begins to read it as block `block` of an extent. `number` is its position in the get. A block to be leased is
    /// read into its place, others into the place that DRAM `admits`: then the caller's memory gets a copy while the
    /// block arrives.
    pub(super) fn begin_read(
        &mut self,
        block: u32,
        number: usize,
        admits: impl FnOnce() -> Option<ReservedPlace>,
    ) -> BlockTarget {
        let number = u32::try_from(number).expect("a call has fewer blocks");
        let target = self.target(admits);
        BlockTarget { block, number, ..target }
    }

    fn target(&mut self, admits: impl FnOnce() -> Option<ReservedPlace>) -> BlockTarget {
        match self.take_wanted() {
            Wanted::Again(target) => *target,
            Wanted::Lease => self.in_place(Vec::new()),
            Wanted::Copy(memory) => {
                let place = admits();
                self.place = place.map(|place| Box::new(TargetPlace { place, is_leased: false }));
                if self.place.is_some() {
                    return self.in_place(memory);
                }
                BlockTarget { block: 0, number: 0, memory, outlives_call: false, copy: Vec::new() }
            }
        }
    }

    fn in_place(&mut self, copy: Vec<Memory>) -> BlockTarget {
        let target = self.place.as_mut().expect("reserved before it is read");
        let memory = vec![target.place.memory()];
        BlockTarget { block: 0, number: 0, memory, outlives_call: true, copy }
    }

    /// Ends a read that was a hit.
    ///
    /// # Panics
    ///
    /// If not all of the block's memory came back.
    pub(super) fn arrive(&mut self, outcome: Outcome, memory: Vec<Memory>) -> ArrivedBlock {
        assert!(matches!(self.state, BlockState::Reading), "it is being read");
        let Some(target) = self.place.take() else {
            self.state = BlockState::Served(outcome, None);
            return ArrivedBlock::Copied(memory);
        };
        let TargetPlace { place, is_leased } = *target;
        // All pieces of the place's memory: every slice arrived and was verified.
        drop(memory);
        let block = Arc::new(place.complete().expect("a hit has all of its memory back"));
        self.state = BlockState::Served(outcome, is_leased.then(|| Arc::clone(&block)));
        ArrivedBlock::Placed(block)
    }

    /// Ends a read that lost the block. It is wanted again if all `bytes` of its memory came back, and nobody
    /// uses slices of it already: `is_delivered` says whether verified slices are used while others are read.
    pub(super) fn take_back(
        &mut self,
        read: BlockRead,
        cause: Cause,
        bytes: usize,
        is_delivered: bool,
    ) {
        let BlockRead { memory, copy, verified_slices, .. } = read;
        self.lose(cause);
        let is_used = is_delivered && verified_slices > 0;
        let is_whole = memory.iter().map(Memory::len).sum::<usize>() == bytes;
        self.state = if is_whole && !is_used {
            let outlives_call = self.place.is_some();
            let target = BlockTarget { block: 0, number: 0, memory, outlives_call, copy };
            BlockState::Wanted(Wanted::Again(Box::new(target)))
        } else {
            BlockState::GivenUp
        };
    }

    /// How it ended, if nothing reads it any more.
    pub(super) fn outcome(&self) -> Outcome {
        match &self.state {
            BlockState::Served(outcome, _) => *outcome,
            _ => self.lost.map_or(Outcome::Absent, Outcome::Lost),
        }
    }

    /// The place of a block that is leased.
    pub(super) fn leased(&self) -> Option<&Arc<PlacedBlock>> {
        match &self.state {
            BlockState::Served(_, leased) => leased.as_ref(),
            _ => None,
        }
    }

    /// The block if it was leased.
    pub(super) fn into_leased(self) -> Option<Arc<PlacedBlock>> {
        match self.state {
            BlockState::Served(_, leased) => leased,
            _ => None,
        }
    }

    fn take_wanted(&mut self) -> Wanted {
        match std::mem::replace(&mut self.state, BlockState::Reading) {
            BlockState::Wanted(wanted) => wanted,
            _ => panic!("only a block that is wanted is served or read"),
        }
    }
}

/// How all of them ended.
pub(super) fn report_of(blocks: &[GetBlock]) -> GetReport {
    GetReport { outcomes: blocks.iter().map(GetBlock::outcome).collect() }
}
