//! Our index, with a thread that looks after it as a store's does.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dalsegno_core::{Clock, Deadline, EngineChoice, StoreId};
use dalsegno_index::{Index, LsmIndex, LsmOptions, Scope};
use dalsegno_io::{BufferPool, DirectoryOptions, LocalDirectory, SystemClock};
use dalsegno_policy::recency::Use;

use crate::engine::Engine;
use crate::workload::{CHAIN_BLOCKS, EXTENT_BLOCKS, NAMESPACE, extent, hash, hashes};

/// Our index.
pub struct Dalsegno {
    opened_s: f64,
    covered: u64,
    put_blocks: u64,
    index: Arc<LsmIndex>,
    worker: Option<std::thread::JoinHandle<()>>,
    calls: std::sync::mpsc::SyncSender<()>,
}

impl Dalsegno {
    /// Opens it with so many bytes of cache for blocks.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn open(dir: &Path, cache_bytes: u64) -> Self {
        let pool = BufferPool::new(16 << 20, 1 << 20).expect("memory");
        let options = DirectoryOptions {
            engine: EngineChoice::Psync,
            depth: 2,
            ..DirectoryOptions::default()
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let device =
            LocalDirectory::open(dir, options, &pool, Arc::clone(&clock)).expect("a directory");
        let options = LsmOptions { cache_bytes, ..LsmOptions::default() };
        let before = Instant::now();
        let (index, cover) =
            LsmIndex::open(Arc::new(device), clock, StoreId([1; 16]), options).expect("an index");
        let opened_s = before.elapsed().as_secs_f64();
        let covered = cover.and_then(|cover| Some(u64::from_le_bytes(*cover.first_chunk()?)));
        let covered = covered.unwrap_or(0);
        let index = Arc::new(index);
        let (calls, called) = std::sync::mpsc::sync_channel(1);
        let body = Arc::clone(&index);
        let worker = std::thread::Builder::new()
            .name("upkeep".into())
            .spawn(move || {
                while called.recv().is_ok() {
                    while body.step() {}
                }
            })
            .expect("a thread");
        Self { opened_s, covered, put_blocks: covered, index, worker: Some(worker), calls }
    }
}

impl Engine for Dalsegno {
    fn put(&mut self, first: u64) {
        while self.index.is_stalled() {
            let _ = self.calls.try_send(());
            std::thread::sleep(Duration::from_micros(200));
        }
        let used = Use::written(first);
        assert_eq!(
            u64::from(self.index.insert(extent(first), used, &|_| true, Deadline::Never)),
            EXTENT_BLOCKS
        );
        self.put_blocks = first + EXTENT_BLOCKS;
        if self.index.is_full() {
            // As a store's cover says how far the log was taken in.
            self.index.freeze(self.put_blocks.to_le_bytes().to_vec());
            let _ = self.calls.try_send(());
        }
    }

    fn has(&mut self, block: u64) -> bool {
        self.index.probe(NAMESPACE, &[hash(block)], Deadline::Never) == 1
    }

    fn scan(&mut self, chain: u64) -> u64 {
        let first = chain * CHAIN_BLOCKS;
        let runs = self.index.resolve(
            NAMESPACE,
            &hashes(first..first + CHAIN_BLOCKS),
            Scope::Prefix,
            Deadline::Never,
        );
        runs.iter().map(|run| u64::from(run.count)).sum()
    }

    fn settle(&mut self) {
        self.index.freeze(self.put_blocks.to_le_bytes().to_vec());
        while self.index.step() {}
    }

    fn opened(&self) -> (f64, u64) {
        (self.opened_s, self.covered)
    }
}

impl Drop for Dalsegno {
    fn drop(&mut self) {
        let (calls, _) = std::sync::mpsc::sync_channel(1);
        self.calls = calls;
        if let Some(worker) = self.worker.take() {
            worker.join().expect("the worker ends");
        }
    }
}
