//! The two ends of a write in the index: the place of a new extent, and its publication.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Deadline, Extent, FarWrite, Namespace};
use dalsegno_extent::NewExtent;
use dalsegno_index::{Scope, raise_parent};
use dalsegno_io::Call;
use dalsegno_log::Appended;
use dalsegno_policy::recency::Use;

use crate::blocks::dropper::Dropper;
use crate::blocks::indexed_log::IndexedLog;
use crate::far::tier::FarTier;
use crate::state::failed_reads::FailedReads;
use crate::state::recent_removals::{RecentRemovals, RemovalMark};
use crate::upkeep::merger::Merger;

/// Makes extents visible.
#[derive(Debug)]
pub(crate) struct ExtentPublisher {
    pub(crate) stored: Arc<IndexedLog>,
    pub(crate) dropper: Arc<Dropper>,
    pub(crate) failed_reads: Arc<FailedReads>,
    /// What was removed lately.
    pub(crate) removals: Arc<RecentRemovals>,
    /// The tier that may get a copy.
    pub(crate) far: Option<Arc<FarTier>>,
    pub(crate) merger: Arc<Merger>,
}

impl ExtentPublisher {
    /// Gives an extent its place in the order of the index.
    pub(super) fn new_extent(
        &self,
        namespace: &Namespace,
        chain: &[ChainHash],
        first: usize,
        hashes: Vec<ChainHash>,
        deadline: Deadline,
    ) -> NewExtent {
        let parent = first.checked_sub(1).map(|before| chain[before]);
        let number = u32::try_from(first).unwrap_or(u32::MAX);
        let index = &self.stored.index;
        let place = index.place(namespace.id(), parent, chain[first], number, deadline);
        NewExtent {
            namespace: namespace.id(),
            lineage: place.lineage,
            first_block_index: place.first_block_index,
            parent: parent.unwrap_or_default(),
            layout: namespace.layout(),
            hashes,
            born: None,
        }
    }

    /// Makes the blocks of a written extent visible. `false` if the index did not insert them; then the caller removes
    /// from DRAM what it copied there. `mark` is from before the put.
    pub(super) fn publish(&self, appended: Appended, call: &Call, mark: RemovalMark) -> bool {
        let IndexedLog { log, index, care } = self.stored.as_ref();
        let Appended { extent, pin } = appended;
        let (id, namespace, born) = (extent.id, extent.namespace, extent.born);
        care.before_write(call);
        let failed = self.failed_reads.among(namespace, &extent.hashes);
        let deadline = call.deadline;
        self.take_over(&extent, &failed, deadline);
        let round = log.segments().round();
        raise_parent(index.as_ref(), &extent, round, deadline);
        let mut visible = index.insert(extent.clone(), Use::written(round), &|_| true, deadline);
        // None may be new because all are present: a block that a get failed to read earlier can be read now.
        let are_present = visible > 0
            || failed.is_empty()
                && index.probe(namespace, &extent.hashes, deadline) == extent.hashes.len();
        if visible > 0 {
            self.failed_reads.forget(namespace, &failed);
        }
        self.merger.note(&extent);
        // A removal is announced before it reads the index. So either it found these blocks there, or it is seen here.
        // Otherwise they would stay visible until the next open, and be gone then.
        let mut removed = log.removals().removed_since(namespace, born, &extent.hashes);
        removed.extend(self.removals.removed_since(mark, namespace, &extent.hashes));
        let gone: Vec<ChainHash> =
            extent.hashes.iter().filter(|hash| removed.contains(hash)).copied().collect();
        let hashes = extent.hashes.clone();
        if gone.is_empty() {
            self.far.iter().for_each(|far| far.offer(&extent, mark, FarWrite::Put));
        } else {
            index.remove_extent(&extent, deadline);
            let wanted = |hash: &ChainHash| !removed.contains(hash);
            visible = index.insert(extent, Use::written(round), &wanted, deadline);
            self.dropper.note_dropped(namespace, &gone);
        }
        if visible > 0 || gone.is_empty() && are_present {
            self.dropper.recent.dram.note_stored(namespace, &hashes);
        }
        if visible == 0 {
            log.forget(id);
        }
        drop(pin);
        care.after_write();
        are_present || !gone.is_empty()
    }

    /// Removes blocks that a get failed to read from the extents that hold them, so that the new extent holds them.
    fn take_over(&self, extent: &Extent, failed: &[ChainHash], deadline: Deadline) {
        let IndexedLog { index, care, .. } = self.stored.as_ref();
        if failed.is_empty() || care.is_stalled() {
            return;
        }
        for run in index.resolve(extent.namespace, failed, Scope::Each, deadline) {
            let hashes = &failed[run.at..run.at + run.count as usize];
            self.dropper.hand_over(&run, hashes, deadline);
        }
    }
}
