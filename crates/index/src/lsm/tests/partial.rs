//! An index that dropped points for lack of space: its records still show these blocks, but it does not return them.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Deadline, Extent, ExtentId};

use super::chains::{NAMESPACE, hash, index_in, put};
use super::files::MemoryFiles;
use crate::index::ScanPlace;
use crate::lsm::index::on_disk::LsmIndex;
use crate::{Index, Scope};

const BLOCKS: u64 = 10;

/// An index that dropped points of these extents.
fn partial() -> (Arc<LsmIndex>, Vec<Arc<Extent>>) {
    let index = index_in(&Arc::new(MemoryFiles::default()), 256 << 10);
    let mut count = 0;
    while index.lsm_stats().forgotten_tables == 0 {
        let blocks = count * BLOCKS..(count + 1) * BLOCKS;
        put(&index, count + 1, &blocks.map(hash).collect::<Vec<_>>(), 0, usize::MAX);
        count += 1;
        if count % 50 == 0 {
            index.freeze(Vec::new());
            while index.step() {}
        }
    }
    assert_eq!(index.losses(), index.lsm_stats().forgotten_tables);
    let mut extents = index.scan(ScanPlace::of(NAMESPACE), usize::MAX);
    extents.retain(|extent| forgotten(&index, extent).is_some());
    assert!(extents.len() > 1, "several extents lost points");
    (index, extents)
}

fn forgotten(index: &LsmIndex, extent: &Extent) -> Option<ChainHash> {
    extent
        .hashes
        .iter()
        .find(|hash| index.probe(NAMESPACE, &[**hash], Deadline::Never) == 0)
        .copied()
}

#[test]
fn a_block_that_is_put_again_outlives_the_extents_that_showed_it() {
    let (index, extents) = partial();
    for (number, old) in (10_000..).zip(&extents) {
        let block = forgotten(&index, old).unwrap();
        put(&index, number, &[block], 0, 1);
        let blocks: Vec<u32> = (0..old.block_count()).collect();
        match number % 3 {
            0 => drop(index.remove_extent(old, Deadline::Never)),
            1 => drop(index.remove_from_extent(old, &blocks, Deadline::Never)),
            _ => {
                let new = Extent { id: ExtentId(2 * number), ..Extent::clone(old) };
                index.replace(&[old], vec![new.clone()]).unwrap();
                index.remove_extent(&new, Deadline::Never);
            }
        }
        assert_eq!(index.probe(NAMESPACE, &[block], Deadline::Never), 1);
        let runs = index.resolve(NAMESPACE, &[block], Scope::Each, Deadline::Never);
        assert_eq!(runs[0].extent.id, ExtentId(number));
    }
}

#[test]
fn blocks_without_points_are_not_found() {
    let (index, extents) = partial();
    for extent in &extents {
        let alone = |hash: &ChainHash| index.probe(NAMESPACE, &[*hash], Deadline::Never) == 1;
        let found: Vec<bool> = extent.hashes.iter().map(alone).collect();
        assert_eq!(index.live_blocks(extent).unwrap(), found);
        let mut in_runs = vec![false; found.len()];
        for run in index.resolve(NAMESPACE, &extent.hashes, Scope::Each, Deadline::Never) {
            in_runs[run.at..run.at + run.count as usize].fill(true);
        }
        assert_eq!(in_runs, found);
    }
}
