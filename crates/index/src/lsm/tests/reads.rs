//! How many reads lookups and evictions cost.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dalsegno_core::{ChainHash, Deadline, Shape};

use super::chains::{NAMESPACE, empty_index, hash, index_in, put, put_fork};
use super::files::MemoryFiles;
use crate::index::ScanPlace;
use crate::lsm::index::on_disk::LsmIndex;
use crate::lsm::maintenance::steps::TreeBounds;
use crate::{Index, Scope};

const BLOCKS: u64 = 64;
const EXTENTS: u64 = 4;
const CHAINS: u64 = 40;
const RUNS: u64 = 2;

fn chain(chain: u64) -> Vec<ChainHash> {
    let first = chain * EXTENTS * BLOCKS;
    (first..first + EXTENTS * BLOCKS).map(hash).collect()
}

fn put_chain(index: &LsmIndex, number: u64) {
    let chain = chain(number);
    for at in 0..EXTENTS {
        let first = usize::try_from(at * BLOCKS).unwrap();
        put(index, number * EXTENTS + at + 1, &chain, first, usize::try_from(BLOCKS).unwrap());
    }
}

#[test]
fn resolving_a_chain_reads_each_order_block_once_and_no_other_run() {
    let bounds = TreeBounds {
        memtable_bytes: 16 << 20,
        table_bytes: 16 << 20,
        filter_bits: 10.0,
        disk_bytes: u64::MAX,
    };
    let files = Arc::new(MemoryFiles::default());
    let index = empty_index(&files, Shape::nearest(8, 4, 4), bounds);
    for run in 0..RUNS {
        (run * CHAINS..(run + 1) * CHAINS).for_each(|number| put_chain(&index, number));
        index.freeze(Vec::new());
        assert!(index.step(), "a flush, not yet a compaction");
    }
    let before = index.lsm_stats();
    assert_eq!(before.runs, [RUNS]);
    for number in 0..RUNS * CHAINS {
        let runs = index.resolve(NAMESPACE, &chain(number), Scope::Prefix, Deadline::Never);
        assert_eq!(runs.iter().map(|run| u64::from(run.count)).sum::<u64>(), EXTENTS * BLOCKS);
    }
    let asked = index.lsm_stats().asked;
    // Seven records are in a block of four sectors. Each chain starts in one, and enters each following block once.
    let blocks_of_a_run = (CHAINS * EXTENTS).div_ceil(7);
    let most = 4 * RUNS * (CHAINS + blocks_of_a_run - 1);
    let order_sectors = asked.order_sectors - before.asked.order_sectors;
    assert!(order_sectors <= most, "{order_sectors} sectors, not {most}");
}

#[test]
fn regression_evicting_an_extent_reads_no_forks_of_other_extents() {
    let reads = |forks: u64| {
        let files = Arc::new(MemoryFiles::default());
        let index = index_in(&files, u64::MAX);
        let root: Vec<ChainHash> = (0..2).map(hash).collect();
        put(&index, 1, &root, 0, 1);
        put(&index, 2, &root, 1, 1);
        (3..forks + 3).for_each(|number| put_fork(&index, number, &root, hash(number)));
        index.freeze(Vec::new());
        while index.step() {}
        let extents = index.scan(ScanPlace { namespace: NAMESPACE, lineage: root[0], first: 0 }, 1);
        assert_eq!(index.orphan_descendants(&extents[0], usize::MAX) as u64, forks + 1);
        // All are marked, as if the extents of a victim follow each other.
        let before = files.reads.load(Ordering::Relaxed);
        assert_eq!(index.orphan_descendants(&extents[0], usize::MAX), 0);
        files.reads.load(Ordering::Relaxed) - before
    };
    let few = reads(1);
    assert!(reads(4_000) <= few + 4, "{few} reads with one fork");
}
