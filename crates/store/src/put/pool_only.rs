//! Puts whose blocks are kept in DRAM only.
//!
//! 1. Nothing is written, so neither the log nor its device is asked for anything but the index.
//! 2. A block without a place is declined. A block that was removed since its bytes were given fails.
//! 3. A block that another put stores meanwhile does not stay pool-only.

use std::sync::Arc;

use dalsegno_core::Clock;
use dalsegno_index::Scope;
use dalsegno_io::{Call, Memory};

use crate::keep::Keep;
use crate::put::plan::{Plan, PlannedPut, PutPlanner};
use crate::put::report::{PutOutcome, PutReport};
use crate::state::arena::PlacedBlock;
use crate::state::dram::DramEntry;

/// The bytes of a pool-only put.
#[derive(Clone, Copy)]
pub(super) struct PooledBytes<'a> {
    pub(super) blocks: &'a [Vec<Memory>],
    /// The same blocks in their places in DRAM, as far as they have one; may be empty.
    pub(super) placed: &'a [Option<Arc<PlacedBlock>>],
}

/// Keeps the blocks of a put in DRAM.
pub(super) fn keep_in_pool(
    planner: &PutPlanner,
    put: PlannedPut<'_>,
    bytes: PooledBytes<'_>,
    call: &Call,
    clock: &dyn Clock,
) -> PutReport {
    let PlannedPut { namespace, hashes, since, .. } = put;
    let Plan { wanted, mut outcomes, claim: _claim } = planner.plan(put, call.deadline);
    let dram = &planner.dram;
    for (at, hash) in hashes.iter().enumerate().filter(|(at, _)| wanted[*at]) {
        if call.check(clock).is_err() {
            break;
        }
        let key = (namespace, *hash);
        let is_removed = || planner.removals.is_removed_since(since, &key);
        let entry = match bytes.placed.get(at).and_then(Option::as_ref) {
            Some(placed) => dram.keep(key, Arc::clone(placed), Keep::PoolOnly, is_removed),
            None => dram.insert(key, &bytes.blocks[at], Keep::PoolOnly, is_removed),
        };
        outcomes[at] = match entry {
            DramEntry::Held => PutOutcome::PoolOnly,
            DramEntry::NoPlace => PutOutcome::Declined,
            DramEntry::Removed => PutOutcome::Failed,
        };
    }
    // Another put may have inserted blocks there after the plan looked, and before they were pool-only.
    let stored = planner.stored.index.resolve(namespace, hashes, Scope::Each, call.deadline);
    for run in stored {
        dram.note_stored(namespace, &hashes[run.at..run.at + run.count as usize]);
    }
    PutReport { outcomes }
}
