//! Getting blocks, whole or by layer.
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
//!    between lookup and read, or when it enters DRAM: then DRAM drops it if it was removed meanwhile.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, DramAdmission, Namespace};
use dalsegno_extent::{BlockRead, BlockTarget, Cause, ExtentRead};
use dalsegno_far::{FarShape, FarWanted};
use dalsegno_index::{Run, Scope};
use dalsegno_io::{Call, Operation};

use crate::block_key::BlockKey;
use crate::blocks::finder::FoundBlocks;
use crate::far::tier::FarBlock;
use crate::read::far_part::{
    FarPart, PrefetchedPart, TimedRead, far_copies, finish_far, finish_log, wait_for_prefetch,
};
use crate::read::loader::LoadTiers;
use crate::read::outcome::Outcome;
use crate::read::run_parts::{missing_parts, positions_of};
use crate::read::wanted::Wanted;
use crate::state::arena::{PlacedBlock, ReservedPlace};
use crate::state::dram::Leaving;
use crate::state::held_block::HeldBlock;
use crate::state::recent_removals::RemovalMark;
use crate::state::speeds::BlockTier;

/// A block that is read into a place in DRAM.
struct PlacedRead {
    place: ReservedPlace,
    /// Whether the caller leases the block. Otherwise it gets a copy while the block arrives.
    is_leased: bool,
}

/// A get under way.
pub(super) struct Get<'a> {
    tiers: &'a LoadTiers,
    namespace: &'a Namespace,
    chain: &'a [ChainHash],
    layers: Range<u32>,
    call: &'a Call,
    /// From before the blocks are looked up.
    mark: RemovalMark,
    /// Reads into places, by position in the chain.
    placed: HashMap<usize, PlacedRead>,
    pub(super) outcomes: Vec<Outcome>,
    /// The blocks that were to be leased and are hits, by position in the chain.
    pub(super) leased: Vec<Option<Arc<PlacedBlock>>>,
}

impl<'a> Get<'a> {
    pub(super) fn new(
        tiers: &'a LoadTiers,
        namespace: &'a Namespace,
        chain: &'a [ChainHash],
        layers: Range<u32>,
        call: &'a Call,
    ) -> Self {
        let outcomes = vec![Outcome::Absent; chain.len()];
        let (placed, leased, mark) = (HashMap::new(), Vec::new(), tiers.recent.removals.mark());
        Self { tiers, namespace, chain, layers, call, mark, placed, outcomes, leased }
    }

    pub(super) fn run(&mut self, wanted: impl Iterator<Item = Wanted>, scope: Scope) {
        let mut out: Vec<Option<Wanted>> = wanted.map(Some).collect();
        if out.iter().any(|wanted| matches!(wanted, Some(Wanted::Lease))) {
            self.leased.resize(out.len(), None);
        }
        // DRAM holds only blocks that one of the indexes knows.
        let (finder, deadline) = (&self.tiers.finder, self.call.deadline);
        let FoundBlocks { near, mut far } =
            finder.find_used(self.namespace.id(), self.chain, scope, deadline);
        let began = self.tiers.clock.now();
        self.take_dram(&near, &mut out);
        self.take_far_dram(&far, &mut out);
        if self.leased.is_empty() {
            let hits = self.outcomes.iter().filter(|one| one.is_hit()).count();
            self.note_speed(BlockTier::Dram, hits, self.tiers.clock.now().since(began));
        } else {
            let mut positions: Vec<usize> = near.iter().flat_map(positions_of).collect();
            positions.extend(far.iter().map(|block| block.at));
            positions.sort_unstable();
            self.reserve_leases(&positions, &mut out);
        }
        let rest = near.iter().flat_map(|run| missing_parts(run, &out)).collect();
        far.retain(|block| out[block.at].is_some());
        let key = |at: usize| (self.namespace.id(), self.chain[at]);
        let prefetched = PrefetchedPart::take(self.tiers, &mut far, key);
        let mut parts: Vec<FarPart<'a>> = self.begin_far(far, &mut out).into_iter().collect();
        self.take_log(rest, &mut out, &mut parts);
        let is_lost = |at: &usize| out[*at].is_some() && self.outcomes[*at].is_lost();
        let copies = far_copies(self.tiers, (0..out.len()).filter(is_lost), key, self.call);
        parts.extend(self.begin_far(copies, &mut out));
        for read in finish_far(parts) {
            self.settle_far(read);
        }
        self.take_prefetched(prefetched, &mut out);
    }

    /// Serves the blocks of the log that DRAM holds.
    fn take_dram(&mut self, runs: &[Run], out: &mut [Option<Wanted>]) {
        if self.tiers.recent.dram.is_off() {
            return;
        }
        for run in runs {
            let hashes = &self.chain[positions_of(run)];
            let found = self.tiers.recent.dram.get(self.namespace.id(), hashes);
            for (at, block) in positions_of(run).zip(found) {
                if let Some(block) = block {
                    self.serve(at, block, out);
                }
            }
        }
    }

    /// Serves the blocks of the far tier that DRAM holds.
    fn take_far_dram(&mut self, blocks: &[FarBlock], out: &mut [Option<Wanted>]) {
        if self.tiers.recent.dram.is_off() || blocks.is_empty() {
            return;
        }
        let hashes: Vec<ChainHash> = blocks.iter().map(|block| self.chain[block.at]).collect();
        let found = self.tiers.recent.dram.get(self.namespace.id(), &hashes);
        for (FarBlock { at, .. }, block) in blocks.iter().zip(found) {
            if let Some(block) = block {
                self.note_far(*at, || HeldBlock::Placed(Arc::clone(&block)));
                self.serve(*at, block, out);
            }
        }
    }

    /// Gives the caller a block that is in DRAM.
    fn serve(&mut self, at: usize, block: Arc<PlacedBlock>, out: &mut [Option<Wanted>]) {
        match out[at].take().expect("each block is requested once") {
            Wanted::Copy(mut pieces) => {
                let slice = self.namespace.layout().slice_bytes() as usize;
                block.copy_to(self.layers.start as usize * slice, &mut pieces);
            }
            Wanted::Lease => self.leased[at] = Some(block),
            Wanted::Again(_) => unreachable!("the log is read after DRAM"),
        }
        self.outcomes[at] = Outcome::Dram;
    }

    /// Reserves places for blocks to be leased that are not in DRAM. Without a place, a block is not read, nor are
    /// those behind it: a lease ends there.
    fn reserve_leases(&mut self, positions: &[usize], out: &mut [Option<Wanted>]) {
        let mut is_full = false;
        for at in positions {
            if !matches!(out[*at], Some(Wanted::Lease)) {
                continue;
            }
            let place = if is_full { None } else { self.place(Leaving::Any) };
            is_full = place.is_none();
            if let Some(place) = place {
                self.placed.insert(*at, PlacedRead { place, is_leased: true });
            } else {
                out[*at] = None;
                self.outcomes[*at] = Outcome::Lost(Cause::Throttled);
            }
        }
    }

    /// Starts to read blocks from the far tier.
    fn begin_far(
        &mut self,
        mut blocks: Vec<FarBlock>,
        out: &mut [Option<Wanted>],
    ) -> Option<FarPart<'a>> {
        blocks.retain(|block| out[block.at].is_some());
        let far = self.tiers.finder.far.as_ref().filter(|_| !blocks.is_empty())?;
        let mut wanted = Vec::with_capacity(blocks.len());
        for FarBlock { at, place } in &blocks {
            let memory = out[*at].take().expect("filtered above");
            let target = self.target(*at, u32::from(place.block), memory);
            wanted.push(FarWanted { place: *place, hash: self.chain[*at], target });
        }
        let (namespace, layout) = (self.namespace.id(), self.namespace.layout());
        let shape = FarShape { namespace, layout, layers: self.layers.clone() };
        let reading = far.begin_read(shape, wanted, self.call);
        Some(FarPart::begin(blocks, reading))
    }

    /// Applies the results of a read from the far tier.
    fn settle_far(&mut self, TimedRead { blocks, took }: TimedRead<(FarBlock, BlockRead)>) {
        let hits = blocks.iter().filter(|(_, read)| read.outcome.is_ok()).count();
        self.note_speed(BlockTier::Far, hits, took);
        for (FarBlock { at, .. }, block) in blocks {
            let was_lost = self.outcomes[at].is_lost();
            if let Err(cause) = block.outcome {
                // What the log lost keeps the first cause.
                if !was_lost {
                    self.outcomes[at] = Outcome::Lost(cause);
                }
                continue;
            }
            self.outcomes[at] = Outcome::Far;
            let key = (self.namespace.id(), self.chain[at]);
            if was_lost {
                self.tiers.finder.far.iter().for_each(|far| far.count_rescued());
            }
            if let Some(placed) = self.placed.remove(&at) {
                drop(block.memory);
                let block = self.settle_placed(at, key, placed);
                self.note_far(at, || HeldBlock::Placed(block));
            } else if self.is_whole() {
                if self.admits() {
                    let recent = &self.tiers.recent;
                    recent.copy_in(key, &block.memory, self.mark, self.call.deadline);
                }
                self.note_far(at, || HeldBlock::copy_of(&block.memory));
            }
        }
    }

    /// Serves blocks that were being prefetched, and reads what did not arrive. Then what follows is prefetched.
    fn take_prefetched(&mut self, prefetched: PrefetchedPart, out: &mut [Option<Wanted>]) {
        let PrefetchedPart { blocks, chains } = prefetched;
        if !blocks.is_empty() {
            let key = |block: &FarBlock| (self.namespace.id(), self.chain[block.at]);
            let keys: Vec<BlockKey> = blocks.iter().map(key).collect();
            wait_for_prefetch(self.tiers, &keys, self.call);
            self.take_far_dram(&blocks, out);
            // A lease has the place of the prefetched block.
            self.placed.retain(|at, _| out[*at].is_some());
            if let Some(part) = self.begin_far(blocks, out) {
                self.settle_far(part.finish());
            }
        }
        if self.outcomes.contains(&Outcome::Far) {
            self.tiers.finder.far.iter().for_each(|far| far.prefetch(&chains));
        }
    }

    /// Bytes of the wanted layers of a block.
    fn block_bytes(&self) -> usize {
        self.layers.len() * self.namespace.layout().slice_bytes() as usize
    }

    fn note_speed(&self, tier: BlockTier, blocks: usize, took: Duration) {
        let bytes = (blocks * self.block_bytes()) as u64;
        self.tiers.speeds.note(tier, bytes, took);
    }

    /// Reads blocks from the log; looks up once more those that were moved meanwhile.
    fn take_log(&mut self, runs: Vec<Run>, out: &mut [Option<Wanted>], far: &mut [FarPart<'a>]) {
        if self.tiers.device.refuses(Operation::Read, self.call) {
            let blocks: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
            self.tiers.stored.log.stats().count_miss(Cause::Suspended, blocks);
            return self.lose(runs.iter().flat_map(positions_of), Cause::Suspended);
        }
        let positions: Vec<usize> = (0..self.chain.len()).collect();
        let moved = self.read_runs(runs, &positions, (out, far));
        if moved.is_empty() {
            return;
        }
        let hashes: Vec<ChainHash> = moved.iter().map(|at| self.chain[*at]).collect();
        let (index, deadline) = (&self.tiers.stored.index, self.call.deadline);
        let runs = index.resolve(self.namespace.id(), &hashes, Scope::Each, deadline);
        let moved_again = self.read_runs(runs, &moved, (out, far));
        self.lose(moved_again, Cause::Recycled);
    }

    /// Notes a hit of a block that only the far tier has. The second one copies it to the log.
    fn note_far(&self, at: usize, block: impl FnOnce() -> HeldBlock) {
        if let Some(far) = &self.tiers.finder.far {
            far.note_hit(self.namespace.id(), &self.chain[..=at], self.mark, block);
            far.note_prefetch_use(&(self.namespace.id(), self.chain[at]));
        }
    }

    fn lose(&mut self, positions: impl IntoIterator<Item = usize>, cause: Cause) {
        for at in positions {
            self.outcomes[at] = Outcome::Lost(cause);
        }
    }

    /// Reads runs in parallel, while the far tier is read. `positions` holds the position in the chain of each hash
    /// that was looked up. Returns the positions of blocks whose segment was recycled meanwhile.
    fn read_runs(
        &mut self,
        runs: Vec<Run>,
        positions: &[usize],
        (out, far): (&mut [Option<Wanted>], &mut [FarPart<'a>]),
    ) -> Vec<usize> {
        let mut moved = Vec::new();
        let (mut reads, mut read_runs) = (Vec::new(), Vec::new());
        // Memory is handed over only for a segment that stays until it is read.
        let mut pins = Vec::new();
        for run in runs {
            if run.extent.layout != self.namespace.layout() {
                // Its checksum is right, but no put made it: its blocks do not fit the caller's memory.
                let damaged = [(run.first_block, Cause::WrongPlace)];
                self.tiers.dropper.quarantine(&run.extent, &damaged, self.call.deadline);
                self.lose(positions[positions_of(&run)].iter().copied(), Cause::WrongPlace);
                continue;
            }
            let Some(pin) = self.tiers.stored.log.pin(run.extent.location) else {
                moved.extend_from_slice(&positions[positions_of(&run)]);
                continue;
            };
            pins.push(pin);
            reads.push(self.extent_read(&run, positions, out));
            read_runs.push(run);
        }
        let read = self.tiers.stored.log.begin_read(reads, self.call);
        let TimedRead { blocks: results, took } = finish_log(read, far);
        drop(pins);
        let hits = results.iter().flatten().filter(|read| read.outcome.is_ok()).count();
        self.note_speed(BlockTier::Log, hits, took);
        for (run, blocks) in read_runs.iter().zip(results) {
            self.settle(run, positions, blocks, out);
        }
        moved
    }

    fn extent_read(
        &mut self,
        run: &Run,
        positions: &[usize],
        out: &mut [Option<Wanted>],
    ) -> ExtentRead {
        let mut targets = Vec::with_capacity(run.count as usize);
        for offset in 0..run.count {
            let at = positions[run.at + offset as usize];
            let wanted = out[at].take().expect("requested once");
            targets.push(self.target(at, run.first_block + offset, wanted));
        }
        ExtentRead { extent: Arc::clone(&run.extent), layers: self.layers.clone(), targets }
    }

    /// A block to read, and where to: into a place in DRAM if it is to be leased, or if DRAM admits it and has a place.
    /// The caller's memory then gets a copy while the block arrives.
    fn target(&mut self, at: usize, block: u32, wanted: Wanted) -> BlockTarget {
        let in_place = |place: &mut ReservedPlace, copy| {
            let memory = vec![place.memory()];
            BlockTarget { block, memory, outlives_call: true, copy }
        };
        match wanted {
            Wanted::Lease => {
                let placed = self.placed.get_mut(&at).expect("reserved before it is read");
                in_place(&mut placed.place, Vec::new())
            }
            Wanted::Again(target) => BlockTarget { block, ..target },
            Wanted::Copy(out) => {
                let place = if self.admits() { self.place(Leaving::Newcomers) } else { None };
                let Some(mut place) = place else {
                    return BlockTarget {
                        block,
                        memory: out,
                        outlives_call: false,
                        copy: Vec::new(),
                    };
                };
                let target = in_place(&mut place, out);
                self.placed.insert(at, PlacedRead { place, is_leased: false });
                target
            }
        }
    }

    /// Whether whole blocks are read.
    fn is_whole(&self) -> bool {
        self.layers.end - self.layers.start == self.namespace.layout().layers()
    }

    /// Whether DRAM admits the blocks that are read.
    fn admits(&self) -> bool {
        self.is_whole() && self.tiers.admission == DramAdmission::Get
    }

    /// A place in DRAM for one block of this get, if there is one.
    fn place(&self, leaving: Leaving) -> Option<ReservedPlace> {
        let bytes = usize::try_from(self.namespace.layout().block_bytes()).ok()?;
        self.tiers.recent.dram.reserve(bytes, leaving)
    }

    /// Applies the results of a run: outcomes, DRAM, quarantine.
    fn settle(
        &mut self,
        run: &Run,
        positions: &[usize],
        blocks: Vec<BlockRead>,
        out: &mut [Option<Wanted>],
    ) {
        let (mut damaged, mut failed, mut read) = (Vec::new(), Vec::new(), Vec::new());
        let admits = self.admits();
        for (offset, block) in (0_u32..).zip(blocks) {
            let at = positions[run.at + offset as usize];
            match block.outcome {
                Ok(()) => {
                    self.outcomes[at] = Outcome::Log;
                    read.push(self.chain[at]);
                    let key = (self.namespace.id(), self.chain[at]);
                    if let Some(placed) = self.placed.remove(&at) {
                        // All pieces of the place's memory: every slice arrived and was verified.
                        drop(block.memory);
                        drop(self.settle_placed(at, key, placed));
                    } else if admits {
                        let recent = &self.tiers.recent;
                        recent.copy_in(key, &block.memory, self.mark, self.call.deadline);
                    }
                }
                Err(cause) => {
                    self.outcomes[at] = Outcome::Lost(cause);
                    let outlives_call = self.placed.contains_key(&at);
                    out[at] = Wanted::again(block, self.block_bytes(), outlives_call);
                    if cause.is_damage() {
                        damaged.push((run.first_block + offset, cause));
                    } else if cause == Cause::Device {
                        failed.push(self.chain[at]);
                    }
                }
            }
        }
        self.tiers.dropper.quarantine(&run.extent, &damaged, self.call.deadline);
        self.tiers.failed_reads.note(self.namespace.id(), &failed);
        self.tiers.failed_reads.forget(self.namespace.id(), &read);
    }

    /// Gives a verified block to the caller, and keeps it in its place, unless it was removed or evicted while it was
    /// read.
    fn settle_placed(&mut self, at: usize, key: BlockKey, placed: PlacedRead) -> Arc<PlacedBlock> {
        let block = placed.place.complete().expect("a hit has all of its memory back");
        let block = Arc::new(block);
        if placed.is_leased {
            self.leased[at] = Some(Arc::clone(&block));
        }
        let deadline = self.call.deadline;
        self.tiers.recent.keep(key, Arc::clone(&block), self.mark, deadline);
        block
    }
}
