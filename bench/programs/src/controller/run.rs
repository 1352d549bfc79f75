//! One run: the real index on real files, asked what a store asks it, its upkeep done in between.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use dalsegno_core::{
    ChainHash, Clock, Deadline, EngineChoice, Extent, ExtentId, IndexTuning, KvLayout, Location,
    Shape, StoreId,
};
use dalsegno_index::{Index, LsmIndex, LsmOptions, LsmStats, Scope};
use dalsegno_io::{BufferPool, DirectoryOptions, LocalDirectory, SystemClock};
use dalsegno_policy::recency::Use;
use dalsegno_policy::tuning::{Constants, Facts, Shares, cost};
use dalsegno_store::testing::Tuner;

use dalsegno_bench_index::workload::{NAMESPACE, hash};

use crate::prompts::{HIT_RATES, Prompt, Workload};

/// Bytes of a 4 KiB page.
pub const PAGE_BYTES: f64 = 4096.0;

/// How large everything is.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub page_tokens: u64,
    pub stage_prompts: u64,
    pub memtable_bytes: u64,
    pub cache_bytes: u64,
    pub extent_blocks: usize,
    pub filter_bits: f64,
}

/// What was spent since the run began; pages are of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Pages that look-ups read.
    pub looked_up: f64,
    /// Pages of tables that memtables became.
    pub flushed: f64,
    /// Pages that merges read, and what else upkeep looked up.
    pub merge_read: f64,
    /// Pages that merges wrote.
    pub merge_written: f64,
    /// Pages that merges should write by the model because of what was flushed, at once or later.
    pub debt: f64,
    pub seconds: f64,
}

impl Spent {
    pub fn merges(&self) -> f64 {
        self.merge_read + self.merge_written
    }

    pub fn pages(&self) -> f64 {
        self.looked_up + self.flushed + self.merges()
    }

    pub fn written(&self) -> f64 {
        self.flushed + self.merge_written
    }

    pub fn since(&self, before: &Self) -> Self {
        Self {
            looked_up: self.looked_up - before.looked_up,
            flushed: self.flushed - before.flushed,
            merge_read: self.merge_read - before.merge_read,
            merge_written: self.merge_written - before.merge_written,
            debt: self.debt - before.debt,
            seconds: self.seconds - before.seconds,
        }
    }
}

/// A run, prompt by prompt.
pub struct Trace {
    /// Before the first prompt of the first stage, and after each.
    pub spent: Vec<Spent>,
    /// Pages that merges should have written by the model, in each shape.
    pub debts: Vec<(Shape, f64)>,
    /// Why the shape changed, one line each.
    pub reasons: Vec<String>,
    pub end: LsmStats,
    pub flushes: u64,
}

struct Run {
    index: LsmIndex,
    tuner: Tuner,
    sizes: Sizes,
    extents: u64,
    reasons: Vec<String>,
    debts: Vec<(Shape, f64)>,
    debt: f64,
    start: Instant,
}

/// Runs the warm-up and the ten stages in a new directory.
pub fn run(dir: &Path, sizes: Sizes, warm_prompts: u64, tuning: IndexTuning, seed: u64) -> Trace {
    let mut run = Run::open(dir, sizes, tuning);
    let mut workload = Workload::new(sizes.page_tokens, seed);
    for _ in 0..warm_prompts {
        run.serve(&workload.next(0.0));
    }
    let first = run.index.lsm_stats();
    run.reasons.clear();
    run.debts.clear();
    run.start = Instant::now();
    let mut spent = vec![run.spent()];
    for hit_rate in HIT_RATES {
        for _ in 0..sizes.stage_prompts {
            run.serve(&workload.next(hit_rate));
            spent.push(run.spent());
        }
    }
    let end = run.index.lsm_stats();
    let flushes = end.flushes - first.flushes;
    Trace { spent, debts: run.debts, reasons: run.reasons, end, flushes }
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
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let device =
            LocalDirectory::open(dir, engine, &pool, Arc::clone(&clock)).expect("a directory");
        let shape = match tuning {
            IndexTuning::Pinned(shape) => shape,
            _ => Shape::default(),
        };
        let options = LsmOptions {
            memtable_bytes: sizes.memtable_bytes,
            cache_bytes: sizes.cache_bytes,
            filter_bits: sizes.filter_bits,
            shape: Some(shape),
            ..LsmOptions::default()
        };
        let (index, _) =
            LsmIndex::open(Arc::new(device), clock, StoreId([1; 16]), options).expect("an index");
        let tuner = Tuner::new(tuning, shape, Vec::new());
        Self {
            index,
            tuner,
            sizes,
            extents: 0,
            reasons: Vec::new(),
            debts: Vec::new(),
            debt: 0.0,
            start: Instant::now(),
        }
    }

    fn spent(&self) -> Spent {
        let stats = self.index.lsm_stats();
        let asked = stats.asked;
        let read = asked.point_sectors + asked.order_sectors + asked.scan_sectors;
        let pages = |bytes: u64| bytes as f64 / PAGE_BYTES;
        Spent {
            looked_up: read as f64,
            flushed: pages(stats.flushed_bytes),
            merge_read: pages(stats.merge_read_bytes) + stats.upkeep_sectors as f64,
            merge_written: pages(stats.merged_bytes),
            debt: self.debt,
            seconds: self.start.elapsed().as_secs_f64(),
        }
    }

    /// As an engine does with a store: what of the prompt is there is looked for, then got, and the rest is put.
    fn serve(&mut self, prompt: &Prompt) {
        let hashes: Vec<ChainHash> = prompt.blocks.iter().map(|block| hash(*block)).collect();
        let runs = self.index.resolve(NAMESPACE, &hashes, Scope::Prefix, Deadline::Never);
        let found: usize = runs.iter().map(|run| run.count as usize).sum();
        assert_eq!(found, prompt.shared, "the index finds what was put");
        let got = self.index.resolve(NAMESPACE, &hashes[..found], Scope::Prefix, Deadline::Never);
        assert_eq!(got.len(), runs.len(), "it finds it again");
        let absent = self.index.resolve(NAMESPACE, &hashes[found..], Scope::Each, Deadline::Never);
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
        let place =
            self.index.place(NAMESPACE, parent, hashes[blocks.start], number, Deadline::Never);
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
                compressed_bytes: 0,
            },
            hashes: hashes[blocks.clone()].to_vec(),
        };
        let used = Use::written(extent.id.0);
        let put = self.index.insert(extent, used, &|_| true, Deadline::Never);
        assert_eq!(put as usize, blocks.len(), "the index takes everything in");
        if self.index.is_full() {
            self.index.freeze(Vec::new());
            if let Some(decision) = self.tuner.turn(&self.index) {
                self.reasons.push(decision.reason);
            }
            let before = self.index.lsm_stats();
            while self.index.step() {}
            self.owe(before.flushed_bytes);
        }
    }

    /// Notes what merges will write because of what was just flushed.
    fn owe(&mut self, flushed_before: u64) {
        let stats = self.index.lsm_stats();
        let shape = self.index.shape();
        let pages = (stats.flushed_bytes - flushed_before) as f64 / PAGE_BYTES;
        let debt = pages * merges_per_flush(shape, &stats);
        self.debt += debt;
        match self.debts.iter_mut().find(|(other, _)| *other == shape) {
            Some((_, sum)) => *sum += debt,
            None => self.debts.push((shape, debt)),
        }
    }
}

/// How often merges write an entry in a tree of that shape, by the model.
fn merges_per_flush(shape: Shape, stats: &LsmStats) -> f64 {
    let entries = stats.entries.max(1);
    let entry_bytes = (stats.table_bytes / entries).max(1);
    let facts = Facts {
        levels: Vec::new(),
        entries,
        entry_bytes,
        // An entry is a page, so that a write costs as many pages as it is written times.
        page_bytes: entry_bytes,
        memtable_bytes: stats.buffer_bytes,
        filter_bits_per_entry: 0.0,
        constants: Constants::io(),
    };
    cost(shape, &facts, &Shares::default()).write - 1.0
}
