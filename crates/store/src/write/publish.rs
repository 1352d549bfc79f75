//! The two ends of a write in the index: the place of a new extent, and its publication.

use dalsegno_core::{ChainHash, Deadline, Extent, FarWrite, Namespace};
use dalsegno_extent::NewExtent;
use dalsegno_index::{Scope, raise_parent};
use dalsegno_io::Call;
use dalsegno_log::Appended;
use dalsegno_policy::recency::Use;

use crate::engine::Engine;
use crate::state::recent_removals::RemovalMark;
use crate::upkeep::merger::Merger;

/// Gives an extent its place in the order of the index.
pub(crate) fn new_extent(
    engine: &Engine,
    namespace: &Namespace,
    chain: &[ChainHash],
    first: usize,
    hashes: Vec<ChainHash>,
    deadline: Deadline,
) -> NewExtent {
    let parent = first.checked_sub(1).map(|before| chain[before]);
    let number = u32::try_from(first).unwrap_or(u32::MAX);
    let place = engine.index.place(namespace.id(), parent, chain[first], number, deadline);
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

/// Makes the blocks of a written extent visible. `false` if the index did not insert them; then the caller removes from
/// DRAM what it copied there. `mark` is from before the put.
pub(crate) fn publish(
    engine: &Engine,
    merger: &Merger,
    appended: Appended,
    (call, mark): (&Call, RemovalMark),
) -> bool {
    let Appended { extent, pin } = appended;
    let (id, namespace, born) = (extent.id, extent.namespace, extent.born);
    let front = &engine.front;
    engine.stored.care.before_write(call);
    let failed = front.failed_reads.among(namespace, &extent.hashes);
    let deadline = call.deadline;
    take_over(engine, &extent, &failed, deadline);
    let round = engine.log.segments().round();
    raise_parent(engine.index.as_ref(), &extent, round, deadline);
    let mut visible = engine.index.insert(extent.clone(), Use::written(round), &|_| true, deadline);
    // None may be new because all are present: a block that a get failed to read earlier can be read now.
    let are_present = visible > 0
        || failed.is_empty()
            && engine.index.probe(namespace, &extent.hashes, deadline) == extent.hashes.len();
    if visible > 0 {
        front.failed_reads.forget(namespace, &failed);
    }
    merger.note(&extent);
    // A removal is announced before it reads the index. So either it found these blocks there, or it is seen here.
    // Otherwise they would stay visible until the next open, and be gone then.
    let mut removed = engine.log.removals().removed_since(namespace, born, &extent.hashes);
    removed.extend(front.removals.removed_since(mark, namespace, &extent.hashes));
    let gone: Vec<ChainHash> =
        extent.hashes.iter().filter(|hash| removed.contains(hash)).copied().collect();
    if gone.is_empty() {
        engine.far.iter().for_each(|far| far.offer(&extent, mark, FarWrite::Put));
    } else {
        engine.index.remove_extent(&extent, deadline);
        let wanted = |hash: &ChainHash| !removed.contains(hash);
        visible = engine.index.insert(extent, Use::written(round), &wanted, deadline);
        front.dropper.note_dropped(namespace, &gone);
    }
    if visible == 0 {
        engine.log.forget(id);
    }
    drop(pin);
    engine.stored.care.after_write();
    are_present || !gone.is_empty()
}

/// Removes blocks that a get failed to read from the extents that hold them, so that the new extent holds them.
fn take_over(engine: &Engine, extent: &Extent, failed: &[ChainHash], deadline: Deadline) {
    if failed.is_empty() || engine.stored.care.is_stalled() {
        return;
    }
    for run in engine.index.resolve(extent.namespace, failed, Scope::Each, deadline) {
        let hashes = &failed[run.at..run.at + run.count as usize];
        engine.front.dropper.hand_over(&run, hashes, deadline);
    }
}
