//! Taking damaged blocks out of the index, so that they can be put again.

use dalsegno_core::{ChainHash, Deadline, Extent};
use dalsegno_extent::Cause;

use crate::counters::add;
use crate::engine::Engine;

/// Quarantines the damaged blocks of an extent, or all of its blocks if its header is bad. `damaged` holds positions in
/// the extent, and why.
pub(crate) fn quarantine(
    engine: &Engine,
    extent: &Extent,
    damaged: &[(u32, Cause)],
    deadline: Deadline,
) {
    let of_header = damaged.iter().find(|(_, cause)| cause.is_of_header());
    let Some((_, cause)) = of_header.or(damaged.first()) else { return };
    let blocks: Vec<u32> = if cause.is_of_header() {
        (0..extent.block_count()).collect()
    } else {
        damaged.iter().map(|(block, _)| *block).collect()
    };
    let removed = engine.index.remove_from_extent(extent, &blocks, deadline);
    engine.log.forget(extent.id);
    let hashes: Vec<ChainHash> =
        blocks.iter().map(|block| extent.hashes[*block as usize]).collect();
    engine.front.dram.remove(extent.namespace, &hashes);
    if removed.blocks > 0 {
        engine.front.removal_feed.note(extent.namespace, &hashes);
        add(&engine.counters.quarantined_blocks, removed.blocks);
        tracing::warn!(
            segment = extent.location.segment,
            offset = extent.location.offset,
            blocks = removed.blocks,
            cause = cause.name(),
            "damaged blocks quarantined; they are misses until they are stored again"
        );
    }
}
