//! What a load from places costs before a byte is copied: two ends of a slice for each layer of each block.
//!
//! The parts are the store's own, but the copier copies nothing. So the time is that of planning and of settling, on
//! one thread. Prints one JSON object: for each number of blocks, microseconds for one layer of one block.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use dalsegno_core::Class;
use dalsegno_io::{
    Call, Claim, Copier, CopyBatch, CopyDone, CopyMark, CopySource, Filled, PagePart, PageShape,
    PagedMemory, Region, SystemClock, Touch,
};
use dalsegno_store::{LoadProgress, PageTarget, PlaceCopies, PlacedSource};

const LAYERS: u32 = 8;
const SLICE_BYTES: usize = 512;

#[derive(Parser)]
#[command(about = "Times how loads from places are planned")]
struct Args {
    /// Numbers of blocks.
    #[arg(long, value_delimiter = ',', default_value = "100,1000,10000")]
    blocks: Vec<usize>,
    /// Loads of each number; the middle one counts.
    #[arg(long, default_value_t = 31)]
    rounds: usize,
}

/// Blocks in places, as the store of a process has them.
struct Places {
    numbers: Vec<u32>,
    blocks: Vec<Arc<Filled>>,
}

impl PlacedSource for Places {
    fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    fn source(&self, at: usize, offset: usize, bytes: usize) -> CopySource {
        CopySource::Memory(vec![self.blocks[at].part(offset, bytes)])
    }

    fn is_current(&self, _at: usize) -> bool {
        true
    }
}

/// Copies nothing.
#[derive(Debug)]
struct Idle;

impl Copier for Idle {
    fn copy(&self, batch: CopyBatch, done: CopyDone) -> Option<CopyMark> {
        drop(batch);
        done(true);
        None
    }

    fn copied_bytes(&self) -> u64 {
        0
    }
}

/// Blocks in places, and pages of an engine for them.
struct Setting {
    blocks: Vec<Arc<Filled>>,
    memory: Arc<PagedMemory>,
}

impl Setting {
    fn new(count: usize) -> Self {
        let block_bytes = LAYERS as usize * SLICE_BYTES;
        let region = Region::anonymous(count * block_bytes, Touch::Now, "places");
        let region = Arc::new(region.expect("the system has the memory"));
        let fill = |at| Claim::of(&region, at * block_bytes, block_bytes, ()).fill().ok();
        let blocks = (0..count).filter_map(fill).map(Arc::new).collect();
        let parts = vec![PagePart { offset: 0, bytes: SLICE_BYTES }];
        let shape = PageShape { stride: SLICE_BYTES, parts, pages_per_block: 1 };
        let memory =
            PagedMemory::zeroed(LAYERS as usize, count * SLICE_BYTES, count, shape).expect("plain");
        Self { blocks, memory }
    }

    /// Seconds from the start of a load to its end.
    fn load(&self) -> f64 {
        let count = u32::try_from(self.blocks.len()).expect("few blocks");
        let pages = self.memory.blocks((0..count).collect()).expect("they are not in use");
        let started = Instant::now();
        let (progress, _end) = LoadProgress::begin(LAYERS, self.blocks.len());
        let target = PageTarget::new(pages, Arc::new(Idle), &progress);
        let places = Places { numbers: (0..count).collect(), blocks: self.blocks.clone() };
        let copies = PlaceCopies::start(places, &target);
        let are_copied = copies.finish(&Call::of(Class::Need), &SystemClock::new());
        assert!(target.close() && are_copied.iter().all(|is_copied| *is_copied));
        started.elapsed().as_secs_f64()
    }
}

#[allow(clippy::cast_precision_loss)]
fn main() {
    let args = Args::parse();
    let mut figures = BTreeMap::new();
    for count in args.blocks {
        let setting = Setting::new(count);
        let mut spent: Vec<f64> = (0..args.rounds).map(|_| setting.load()).collect();
        spent.sort_by(f64::total_cmp);
        let pieces = (count * LAYERS as usize) as f64;
        figures.insert(count, 1e6 * spent[spent.len() / 2] / pieces);
    }
    println!("{}", serde_json::to_string(&figures).expect("plain fields"));
}
