//! Writes and flushes while a compaction runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dalsegno_core::{
    ChainHash, Clock, Deadline, EngineChoice, Extent, ExtentId, KvLayout, Location, NamespaceId,
    StoreId,
};
use dalsegno_index::{Index, LsmIndex, LsmOptions, Pace};
use dalsegno_io::{BufferPool, DirectoryOptions, LocalDirectory, SystemClock};
use dalsegno_policy::recency::Use;

const NAMESPACE: NamespaceId = NamespaceId([4; 16]);
const BLOCKS: u64 = 16;

fn hash(block: u64) -> ChainHash {
    let mut bytes = [0; 32];
    for (word, part) in (1_u64..).zip(bytes.chunks_exact_mut(8)) {
        let mixed = (block * 4 + word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        part.copy_from_slice(&(mixed ^ mixed >> 29).to_le_bytes());
    }
    ChainHash(bytes)
}

/// The extent with this number. It shares no blocks, and is a lineage of its own.
fn extent(number: u64) -> Extent {
    let hashes: Vec<_> = (number * BLOCKS..(number + 1) * BLOCKS).map(hash).collect();
    Extent {
        id: ExtentId(number + 1),
        born: number + 1,
        namespace: NAMESPACE,
        lineage: hashes[0],
        first_block_index: 0,
        parent: ChainHash::default(),
        layout: KvLayout::new(2, 4096).unwrap(),
        location: Location {
            segment: number / 64,
            epoch: 1,
            offset: 4096,
            header_bytes: 4096,
            compressed_bytes: 0,
        },
        hashes,
    }
}

/// Puts and freezes between the writes of compactions, like a store under load.
#[derive(Debug)]
struct Writer {
    index: std::sync::Weak<LsmIndex>,
    next: Arc<AtomicU64>,
    waits: AtomicU64,
    has_ended: AtomicBool,
}

impl Pace for Writer {
    fn wait(&self, _bytes: u64) {
        let Some(index) = self.index.upgrade() else { return };
        self.waits.fetch_add(1, Ordering::Relaxed);
        if !self.has_ended.load(Ordering::Relaxed) {
            fill(&index, &self.next);
        }
    }
}

/// Puts until a memtable is full, and freezes it; nothing while the index is stalled.
fn fill(index: &LsmIndex, next: &AtomicU64) {
    while !index.is_stalled() && !index.is_full() {
        let number = next.fetch_add(1, Ordering::Relaxed);
        assert_eq!(
            u64::from(index.insert(
                extent(number),
                Use::written(number),
                &|_| true,
                Deadline::Never
            )),
            BLOCKS
        );
    }
    if !index.is_stalled() {
        index.freeze(Vec::new());
    }
}

#[test]
fn memtables_are_flushed_during_a_compaction_and_nothing_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let pool = BufferPool::new(4 << 20, 1 << 20).unwrap();
    let options =
        DirectoryOptions { engine: EngineChoice::Psync, depth: 1, ..DirectoryOptions::default() };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let device =
        LocalDirectory::open(directory.path(), options, &pool, Arc::clone(&clock)).unwrap();
    // The tables are small, so that a compaction writes several.
    let options = LsmOptions {
        memtable_bytes: 64 << 10,
        disk_bytes: 4 << 20,
        cache_bytes: 64 << 10,
        ..LsmOptions::default()
    };
    let (index, _) = LsmIndex::open(Arc::new(device), clock, StoreId([3; 16]), options).unwrap();
    let index = Arc::new(index);
    let next = Arc::new(AtomicU64::new(0));
    let pace = Arc::new(Writer {
        index: Arc::downgrade(&index),
        next: Arc::clone(&next),
        waits: AtomicU64::new(0),
        has_ended: AtomicBool::new(false),
    });
    index.set_pace(Arc::<Writer>::clone(&pace));
    let mut flushed_amid_compactions = 0;
    for _ in 0..60 {
        fill(&index, &next);
        let before = index.lsm_stats();
        assert!(index.step());
        let after = index.lsm_stats();
        if after.merges > before.merges {
            flushed_amid_compactions += after.flushes - before.flushes;
        }
        if after.table_bytes > 1 << 20 {
            break;
        }
    }
    pace.has_ended.store(true, Ordering::Relaxed);
    while index.step() {}
    assert!(pace.waits.load(Ordering::Relaxed) > 0, "no compaction wrote anything");
    assert!(flushed_amid_compactions > 0, "every memtable waited for the end of a compaction");
    let stats = index.lsm_stats();
    assert_eq!(stats.forgotten_tables, 0);
    let put = next.load(Ordering::Relaxed);
    for number in 0..put {
        let hashes = extent(number).hashes;
        assert_eq!(
            index.probe(NAMESPACE, &hashes, Deadline::Never),
            hashes.len(),
            "extent {number} of {put}"
        );
        assert_eq!(index.probe(NAMESPACE, &hashes[5..6], Deadline::Never), 1);
    }
    assert_eq!(index.counts(), (put, put * BLOCKS));
}
