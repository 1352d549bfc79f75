//! Deciding which blocks of a put are written.
//!
//! 1. A block that is present, or that another put is writing, is not written again, unless a get failed to read it.
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
use crate::put::pending::{Claim, Pending};
use crate::put::report::PutOutcome;
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
    pub(crate) pending: Pending,
    pub(crate) admission: Mutex<AdmissionFilter>,
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
    /// Decides which blocks are written. Blocks that were removed since `since` are not, because the bytes are from
    /// before.
    pub(super) fn plan(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        since: RemovalMark,
        deadline: Deadline,
    ) -> Plan<'_> {
        let mut outcomes = vec![PutOutcome::Failed; hashes.len()];
        let mut claim = self.pending.claim();
        let mark = self.removals.mark();
        let present = self.stored.index.resolve(namespace, hashes, Scope::Each, deadline);
        self.stored.note_use(&present, deadline);
        for run in present {
            if let Some(far) = &self.far {
                far.outbox.offer(&run.extent, mark, FarWrite::SecondPut);
            }
            outcomes[run.at..run.at + run.count as usize].fill(PutOutcome::Present);
        }
        let failed = self.failed_reads.among(namespace, hashes);
        // Blocks that are written while nothing can be read only take the space of others.
        let is_useless = !failed.is_empty() && self.device.is_suspended();
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
                if !self.admission.lock().admit(namespace, hash) {
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

    /// How many leading blocks a put by layer skips: those that are present, up to one that a get failed to read.
    pub(super) fn leading_present(
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
