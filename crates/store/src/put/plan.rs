//! Deciding which blocks of a put are written.
//!
//! 1. A block that is present, or that another put is writing, is not written again, unless a get failed to read it.
//!    To a put that stores its blocks, pool-only blocks are not present.
//! 2. A block whose removal still waits for the device is not written, and does not count as present: the removal takes
//!    it from an on-disk index by its name.

use std::sync::Arc;

use dalsegno_core::{Admission, ChainHash, Deadline, FarWrite, NamespaceId};
use dalsegno_index::Scope;
use dalsegno_policy::AdmissionFilter;
use parking_lot::Mutex;

use crate::blocks::indexed_log::IndexedLog;
use crate::device::Watched;
use crate::far::tier::FarTier;
use crate::keep::Keep;
use crate::put::pending::{Claim, Pending};
use crate::put::report::PutOutcome;
use crate::state::dram::Dram;
use crate::state::failed_reads::FailedReads;
use crate::state::hidden_blocks::HiddenBlocks;
use crate::state::recent_removals::{RecentRemovals, RemovalMark};

/// Memory of the filter that remembers blocks put once, with admission `second-put`.
const ADMISSION_BYTES: usize = 8 << 20;

/// Plans puts.
#[derive(Debug)]
pub(crate) struct PutPlanner {
    pub(crate) stored: Arc<IndexedLog>,
    pub(crate) failed_reads: Arc<FailedReads>,
    /// What was removed lately.
    pub(crate) removals: Arc<RecentRemovals>,
    /// The tier that may get a copy of what is put again.
    pub(crate) far: Option<Arc<FarTier>>,
    pub(crate) device: Arc<Watched>,
    /// What is being removed, and that an on-disk index still has.
    pub(crate) hidden: Arc<HiddenBlocks>,
    /// Has the pool-only blocks.
    pub(crate) dram: Arc<Dram>,
    pub(crate) pending: Pending,
    pub(crate) admission: Mutex<AdmissionFilter>,
}

/// The put that is planned.
#[derive(Clone, Copy)]
pub(super) struct PlannedPut<'a> {
    pub(super) namespace: NamespaceId,
    pub(super) hashes: &'a [ChainHash],
    pub(super) keep: Keep,
    /// From before its bytes were given.
    pub(super) since: RemovalMark,
}

/// Which blocks of a put are written, and how the others ended.
pub(super) struct Plan<'a> {
    pub(super) wanted: Vec<bool>,
    pub(super) outcomes: Vec<PutOutcome>,
    /// Keeps other puts from writing the wanted blocks.
    pub(super) claim: Claim<'a>,
}

/// What decides about blocks that are not present.
pub(crate) fn admission_filter(admission: Admission) -> Mutex<AdmissionFilter> {
    Mutex::new(AdmissionFilter::new(admission, ADMISSION_BYTES))
}

impl PutPlanner {
    /// Decides which blocks are written, or kept in the pool. Blocks that were removed since the put began are not,
    /// because the bytes are from before.
    pub(super) fn plan(&self, put: PlannedPut<'_>, deadline: Deadline) -> Plan<'_> {
        let PlannedPut { namespace, hashes, keep, since } = put;
        let mut claim = self.pending.claim();
        let mut outcomes = self.present(put, deadline);
        let failed = self.failed_reads.among(namespace, hashes);
        // Blocks that are written while nothing can be read only take the space of others.
        let is_written = keep == Keep::Stored;
        let is_useless = is_written && !failed.is_empty() && self.device.is_suspended();
        let mut failed = failed.iter().peekable();
        let removed = self.removals.removed_since(since, namespace, hashes);
        let is_hidden = self.hidden.are_hidden(namespace, hashes);
        let mut wanted = vec![false; hashes.len()];
        for (at, hash) in hashes.iter().enumerate() {
            let has_failed = failed.next_if_eq(&hash).is_some();
            if is_hidden[at] {
                outcomes[at] = PutOutcome::Failed;
                continue;
            }
            if outcomes[at] != PutOutcome::Present {
                if removed.contains(hash) {
                    continue;
                }
                // Admission protects the disk.
                if is_written && !self.admission.lock().admit(namespace, hash) {
                    outcomes[at] = PutOutcome::Declined;
                    continue;
                }
            } else if has_failed {
                outcomes[at] = PutOutcome::Failed;
                if is_useless || removed.contains(hash) {
                    continue;
                }
            } else {
                continue;
            }
            if claim.take((namespace, *hash)) {
                wanted[at] = true;
            } else {
                outcomes[at] = PutOutcome::Pending;
            }
        }
        Plan { wanted, outcomes, claim }
    }

    /// The blocks that are present. All others count as failed.
    fn present(&self, put: PlannedPut<'_>, deadline: Deadline) -> Vec<PutOutcome> {
        let PlannedPut { namespace, hashes, keep, .. } = put;
        let mut outcomes = vec![PutOutcome::Failed; hashes.len()];
        let mark = self.removals.mark();
        let present = self.stored.index.resolve(namespace, hashes, Scope::Each, deadline);
        self.stored.note_use(&present, deadline);
        for run in present {
            if let Some(far) = self.far.as_ref().filter(|_| keep == Keep::Stored) {
                far.offer(&run.extent, mark, FarWrite::SecondPut);
            }
            outcomes[run.at..run.at + run.count as usize].fill(PutOutcome::Present);
        }
        if keep == Keep::PoolOnly {
            for (at, _) in self.dram.pool_only(namespace, hashes, Scope::Each) {
                outcomes[at] = PutOutcome::Present;
            }
        }
        outcomes
    }

    /// How many leading blocks a put by layer skips: those that are present, up to one that a get failed to read.
    pub(crate) fn leading_present(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        deadline: Deadline,
    ) -> usize {
        let shown = self.hidden.shown(namespace, hashes).into_iter().next();
        let shown = shown.filter(|part| part.start == 0).unwrap_or_default();
        let hashes = &hashes[shown];
        let present = &hashes[..self.stored.index.probe(namespace, hashes, deadline)];
        let failed = self.failed_reads.among(namespace, present);
        present.iter().take_while(|hash| failed.first() != Some(hash)).count()
    }
}
