//! One run: the real index on real files, asked what a store asks it, its upkeep done in between.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use dalsegno_core::fluid::{IndexTuning, Shape};
use dalsegno_core::{
    ChainHash, EngineChoice, Extent, ExtentId, KvLayout, Location, NamespaceId, StoreId,
};
use dalsegno_index::{Index, LsmIndex, LsmOptions, Scope};
use dalsegno_io::{BufferPool, DirectoryOptions, LocalDirectory, SystemClock};
use dalsegno_store::Tuner;

use crate::workload::{HIT_RATES, Prompt, Workload, hash};

const NAMESPACE: NamespaceId = NamespaceId([7; 16]);
/// Bytes of a 4 KiB page.
pub const PAGE_BYTES: f64 = 4096.0;

/// How large everything is.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub page_tokens: u64,
    pub stage_prompts: u64,
    pub warm_prompts: u64,
    pub memtable_bytes: u64,
    pub cache_bytes: u64,
    pub extent_blocks: usize,
}

/// What was read and written, and how long it took, since the run began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    pub pages_read: f64,
    pub pages_written: f64,
    pub seconds: f64,
}

impl Spent {
    pub fn pages(&self) -> f64 {
        self.pages_read + self.pages_written
    }

    pub fn since(&self, before: &Self) -> Self {
        Self {
            pages_read: self.pages_read - before.pages_read,
            pages_written: self.pages_written - before.pages_written,
            seconds: self.seconds - before.seconds,
        }
    }
}

/// A run, prompt by prompt.
pub struct Trace {
    /// Before the first prompt of the first stage, and after each.
    pub spent: Vec<Spent>,
    /// Shapes and how many prompts of the stages had come when they were chosen; the first one at 0.
    pub shapes: Vec<(usize, Shape)>,
    /// Why, one line each.
    pub reasons: Vec<String>,
    pub entries: u64,
    pub table_bytes: u64,
    /// Operations by kind, for the curious.
    pub asked: dalsegno_index::LsmCounts,
}

struct Run {
    index: LsmIndex,
    tuner: Tuner,
    sizes: Sizes,
    extents: u64,
    reasons: Vec<String>,
    start: Instant,
}

/// Runs the warm-up and the ten stages in a new directory.
pub fn run(dir: &Path, sizes: Sizes, tuning: IndexTuning) -> Trace {
    let mut run = Run::open(dir, sizes, tuning);
    let mut workload = Workload::new(sizes.page_tokens);
    for _ in 0..sizes.warm_prompts {
        run.serve(&workload.next(0.0));
    }
    let first = run.index.lsm_stats();
    let mut shapes = vec![(0, run.shape())];
    run.reasons.clear();
    run.start = Instant::now();
    let mut spent = vec![run.spent()];
    for hit_rate in HIT_RATES {
        for _ in 0..sizes.stage_prompts {
            run.serve(&workload.next(hit_rate));
            spent.push(run.spent());
            if shapes.last().is_some_and(|(_, shape)| *shape != run.shape()) {
                shapes.push((spent.len() - 1, run.shape()));
            }
        }
    }
    let stats = run.index.lsm_stats();
    let asked = less(&stats.asked, &first.asked);
    let (entries, table_bytes) = (stats.entries, stats.table_bytes);
    Trace { spent, shapes, reasons: run.reasons, entries, table_bytes, asked }
}

fn less(
    now: &dalsegno_index::LsmCounts,
    before: &dalsegno_index::LsmCounts,
) -> dalsegno_index::LsmCounts {
    dalsegno_index::LsmCounts {
        written_entries: now.written_entries - before.written_entries,
        point_hits: now.point_hits - before.point_hits,
        point_misses: now.point_misses - before.point_misses,
        scans: now.scans - before.scans,
        scanned_entries: now.scanned_entries - before.scanned_entries,
        point_sectors: now.point_sectors - before.point_sectors,
        order_sectors: now.order_sectors - before.order_sectors,
        scan_sectors: now.scan_sectors - before.scan_sectors,
        vain_sectors: now.vain_sectors - before.vain_sectors,
    }
}

impl Run {
    fn open(dir: &Path, sizes: Sizes, tuning: IndexTuning) -> Self {
        std::fs::create_dir_all(dir).expect("a folder can be made");
        let pool = BufferPool::new(16 << 20, 1 << 20).expect("memory");
        let engine = DirectoryOptions {
            engine: EngineChoice::Psync,
            depth: 2,
            ..DirectoryOptions::default()
        };
        let device = LocalDirectory::open(dir, engine, &pool, Arc::new(SystemClock::new()))
            .expect("a directory");
        let shape = match tuning {
            IndexTuning::Pinned(shape) => shape,
            _ => Shape::default(),
        };
        let options = LsmOptions {
            memtable_bytes: sizes.memtable_bytes,
            cache_bytes: sizes.cache_bytes,
            shape: Some(shape),
            ..LsmOptions::default()
        };
        let (index, _) =
            LsmIndex::open(Arc::new(device), StoreId([1; 16]), options).expect("an index");
        let tuner = Tuner::new(tuning, shape, Vec::new());
        Self { index, tuner, sizes, extents: 0, reasons: Vec::new(), start: Instant::now() }
    }

    fn shape(&self) -> Shape {
        self.index.lsm_stats().shape.expect("an index has a shape")
    }

    fn spent(&self) -> Spent {
        let stats = self.index.lsm_stats();
        let asked = stats.asked;
        let read = asked.point_sectors + asked.order_sectors + asked.scan_sectors;
        Spent {
            pages_read: (read + stats.upkeep_sectors) as f64,
            pages_written: (stats.flushed_bytes + stats.merged_bytes) as f64 / PAGE_BYTES,
            seconds: self.start.elapsed().as_secs_f64(),
        }
    }

    /// As a store does: what of the prompt is there is looked for, the rest is put.
    fn serve(&mut self, prompt: &Prompt) {
        let hashes: Vec<ChainHash> = prompt.blocks.iter().map(|block| hash(*block)).collect();
        let runs = self.index.resolve(NAMESPACE, &hashes, Scope::Prefix);
        let found: usize = runs.iter().map(|run| run.count as usize).sum();
        assert_eq!(found, prompt.shared, "the index finds what was put");
        let absent = self.index.resolve(NAMESPACE, &hashes[found..], Scope::Each);
        assert!(absent.is_empty(), "the index finds nothing else");
        let mut at = found;
        while at < hashes.len() {
            let end = hashes.len().min(at + self.sizes.extent_blocks);
            self.put(&hashes, at..end);
            at = end;
        }
    }

    fn put(&mut self, hashes: &[ChainHash], blocks: std::ops::Range<usize>) {
        let parent = blocks.start.checked_sub(1).map(|parent| hashes[parent]);
        let number = u32::try_from(blocks.start).expect("a prompt is short");
        let place = self.index.place(NAMESPACE, parent, hashes[blocks.start], number);
        self.extents += 1;
        let extent = Extent {
            id: ExtentId(self.extents),
            born: self.extents,
            namespace: NAMESPACE,
            lineage: place.lineage,
            first_block_index: place.first_block_index,
            parent: parent.unwrap_or_default(),
            layout: KvLayout::new(32, 4096).expect("a valid layout"),
            location: Location {
                segment: self.extents / 1024,
                epoch: 1,
                offset: 4096 * self.extents,
                header_bytes: 12_288,
                coded_bytes: 0,
            },
            hashes: hashes[blocks.clone()].to_vec(),
        };
        let put = self.index.insert(extent, &|_| true);
        assert_eq!(put as usize, blocks.len(), "the index takes everything in");
        if self.index.is_full() {
            self.index.freeze(Vec::new());
            if let Some(decision) = self.tuner.turn(&self.index) {
                self.reasons.push(decision.reason);
            }
            while self.index.step() {}
        }
    }
}
