//! The plan of a get: which blocks are read from which tier.

use std::ops::Range;
use std::sync::Arc;

use dalsegno_extent::{Cause, ExtentRead, PinnedFile};
use dalsegno_far::{FarShape, FarWanted};
use dalsegno_index::{Run, Scope};
use dalsegno_io::Operation;

use crate::far::tier::FarBlock;
use crate::read::blocks::GetBlock;
use crate::read::get_call::GetCall;
use crate::read::tier_read::{FarRead, LogRead};

/// The positions of a run's blocks in the hashes that were looked up.
pub(super) fn positions_of(run: &Run) -> Range<usize> {
    run.at..run.at + run.count as usize
}

/// Plans to read the blocks of some runs that are still wanted. Looks up once more those whose segment was recycled
/// since they were found.
pub(super) fn plan_log<'a>(
    get: &GetCall<'a>,
    found: &[Run],
    blocks: &mut [GetBlock],
) -> Option<LogRead<'a>> {
    let runs: Vec<Run> = found.iter().flat_map(|run| wanted_parts(run, blocks)).collect();
    if runs.is_empty() {
        return None;
    }
    let tiers = get.tiers;
    if tiers.device.refuses(Operation::Read, get.call) {
        let count: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
        tiers.stored.log.stats().count_miss(Cause::Suspended, count);
        lose(runs.iter().flat_map(positions_of), Cause::Suspended, blocks);
        return None;
    }
    let mut plan = LogPlan::default();
    let moved = plan.add(get, runs, blocks);
    let again = moved.iter().flat_map(|run| find_again(get, run)).collect();
    let gone = plan.add(get, again, blocks);
    lose(gone.iter().flat_map(positions_of), Cause::Recycled, blocks);
    let LogPlan { runs, reads } = plan;
    if reads.is_empty() {
        return None;
    }
    let mut reading = tiers.stored.log.begin_read(reads.into_iter(), get.call);
    if let Some(sink) = get.sink() {
        reading.report_to(&sink);
    }
    Some(LogRead::new(runs, reading))
}

/// Plans to read blocks from the far location, if there are any that are still wanted.
pub(super) fn plan_far<'a>(
    get: &GetCall<'a>,
    found: &[FarBlock],
    blocks: &mut [GetBlock],
) -> Option<FarRead<'a>> {
    let is_wanted = |block: &&FarBlock| blocks[block.at].is_wanted();
    let found: Vec<FarBlock> = found.iter().filter(is_wanted).copied().collect();
    let far = get.tiers.finder.far.as_ref().filter(|_| !found.is_empty())?;
    let wanted = |block: &FarBlock| FarWanted { place: block.place, hash: get.chain[block.at] };
    let wanted: Vec<FarWanted> = found.iter().map(wanted).collect();
    let target = |FarBlock { at, place }: &FarBlock| {
        blocks[*at].begin_read(u32::from(place.block), *at, || get.admitted_place())
    };
    let targets = found.iter().map(target).collect();
    let (namespace, layout) = (get.namespace.id(), get.namespace.layout());
    let shape = FarShape { namespace, layout, layers: get.layers() };
    let mut reading = far.begin_read(shape, &wanted, targets, get.call);
    if let Some(sink) = get.sink() {
        reading.report_to(&sink);
    }
    Some(FarRead::begin(found, reading))
}

/// The copies at the far location of blocks that the log could not return, as long as the call has time left.
pub(super) fn copies_of_lost(get: &GetCall<'_>, blocks: &[GetBlock]) -> Vec<FarBlock> {
    let mut lost = blocks
        .iter()
        .enumerate()
        .filter(|(_, block)| block.is_wanted() && block.is_lost())
        .peekable();
    if lost.peek().is_none() || get.call.timeout(get.tiers.clock.as_ref()).is_err() {
        return Vec::new();
    }
    let Some(far) = get.tiers.finder.responding_far() else { return Vec::new() };
    let found =
        |(at, _)| far.find(get.namespace.id(), &get.chain[at]).map(|place| FarBlock { at, place });
    lost.filter_map(found).collect()
}

/// The reads of extents whose segment stays until they are read.
#[derive(Default)]
struct LogPlan {
    runs: Vec<Run>,
    reads: Vec<(ExtentRead, PinnedFile)>,
}

impl LogPlan {
    /// Adds the reads of some runs, and returns the runs whose segment was recycled.
    fn add(&mut self, get: &GetCall<'_>, runs: Vec<Run>, blocks: &mut [GetBlock]) -> Vec<Run> {
        let mut moved = Vec::new();
        for run in runs {
            if run.extent.layout != get.namespace.layout() {
                // Its checksum is right, but no put made it: its blocks do not fit the caller's memory.
                let damaged = [(run.first_block, Cause::WrongPlace)];
                get.tiers.dropper.quarantine(&run.extent, &damaged, get.call.deadline);
                lose(positions_of(&run), Cause::WrongPlace, blocks);
            } else if let Some(pinned) = get.tiers.stored.log.pinned_file(run.extent.location) {
                self.reads.push((extent_read(get, &run, blocks), pinned));
                self.runs.push(run);
            } else {
                moved.push(run);
            }
        }
        moved
    }
}

fn extent_read(get: &GetCall<'_>, run: &Run, blocks: &mut [GetBlock]) -> ExtentRead {
    let targets = (run.first_block..).zip(positions_of(run));
    let targets = targets
        .map(|(block, at)| blocks[at].begin_read(block, at, || get.admitted_place()))
        .collect();
    ExtentRead { extent: Arc::clone(&run.extent), layers: get.layers(), targets }
}

/// Looks the blocks of a run up once more.
fn find_again(get: &GetCall<'_>, moved: &Run) -> Vec<Run> {
    let (index, positions) = (&get.tiers.stored.index, positions_of(moved));
    let (id, hashes) = (get.namespace.id(), &get.chain[positions.clone()]);
    let found = index.resolve(id, hashes, Scope::Each, get.call.deadline);
    found.into_iter().map(|run| Run { at: run.at + positions.start, ..run }).collect()
}

/// The parts of a run that are still wanted.
fn wanted_parts(run: &Run, blocks: &[GetBlock]) -> Vec<Run> {
    let mut parts: Vec<Run> = Vec::new();
    for (first_block, at) in (run.first_block..).zip(positions_of(run)) {
        if !blocks[at].is_wanted() {
            continue;
        }
        match parts.last_mut() {
            Some(part) if positions_of(part).end == at => part.count += 1,
            _ => parts.push(Run { at, extent: Arc::clone(&run.extent), first_block, count: 1 }),
        }
    }
    parts
}

fn lose(positions: impl IntoIterator<Item = usize>, cause: Cause, blocks: &mut [GetBlock]) {
    positions.into_iter().for_each(|at| blocks[at].lose(cause));
}
