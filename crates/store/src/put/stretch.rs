//! Stretches: the runs of blocks that a put writes as one extent each.

use dalsegno_core::{Limits, MAX_EXTENT_BLOCKS, MAX_EXTENT_SLICES, Namespace};

/// A run of neighbouring blocks to be written as one extent.
pub(crate) struct Stretch {
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// Splits the wanted blocks into runs that fit an extent.
pub(crate) fn stretches(wanted: &[bool], namespace: &Namespace, limits: &Limits) -> Vec<Stretch> {
    let layout = namespace.layout();
    let by_bytes = limits.extent_bytes / layout.block_bytes().max(1);
    let by_slices = u64::from(MAX_EXTENT_SLICES / layout.layers());
    let most = by_bytes.min(by_slices).min(u64::from(MAX_EXTENT_BLOCKS)).max(1);
    let most = usize::try_from(most).expect("at most MAX_EXTENT_BLOCKS");
    let mut stretches: Vec<Stretch> = Vec::new();
    for (at, _) in wanted.iter().enumerate().filter(|(_, wanted)| **wanted) {
        match stretches.last_mut() {
            Some(last) if last.first + last.count == at && last.count < most => last.count += 1,
            _ => stretches.push(Stretch { first: at, count: 1 }),
        }
    }
    stretches
}
