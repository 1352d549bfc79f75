//! The engines: ours, and what others offer.

use std::path::Path;
use std::sync::Arc;

use dalsegno_core::{EngineChoice, StoreId};
use dalsegno_index::{Index, LsmIndex, LsmOptions, Scope};
use dalsegno_io::{BufferPool, DirectoryOptions, LocalDirectory, SystemClock};
use heed::types::Bytes;

use crate::workload::{CHAIN_BLOCKS, EXTENT_BLOCKS, NAMESPACE, extent, hash, hashes, key, value};

/// What a bench asks an index to do. Nothing is synced per put: the data is in a log that replays it.
pub trait Engine {
    /// Puts the blocks of one extent.
    fn put(&mut self, first: u64);
    /// Whether a block is there.
    fn has(&mut self, block: u64) -> bool;
    /// How many blocks of a whole chain are found, from its first on.
    fn scan(&mut self, chain: u64) -> u64;
    /// Waits until nothing is left to do behind the caller's back.
    fn settle(&mut self);
}

/// Opens the engine of this name in a directory.
pub fn open(name: &str, dir: &Path) -> Box<dyn Engine> {
    match name {
        "dalsegno" => Box::new(Dalsegno::open(dir)),
        "rocksdb" => Box::new(Rocks::open(dir, false)),
        "rocksdb_universal" => Box::new(Rocks::open(dir, true)),
        "lmdb" => Box::new(Lmdb::open(dir)),
        other => panic!("no engine is called {other}"),
    }
}

struct Dalsegno {
    index: Arc<LsmIndex>,
    worker: Option<std::thread::JoinHandle<()>>,
    calls: std::sync::mpsc::SyncSender<()>,
}

impl Dalsegno {
    fn open(dir: &Path) -> Self {
        let pool = BufferPool::new(16 << 20, 1 << 20).expect("memory");
        let options = DirectoryOptions {
            engine: EngineChoice::Psync,
            depth: 2,
            ..DirectoryOptions::default()
        };
        let device = LocalDirectory::open(dir, options, &pool, Arc::new(SystemClock::new()))
            .expect("a directory");
        let (index, _) = LsmIndex::open(
            Arc::new(device),
            StoreId([1; 16]),
            LsmOptions { cache_bytes: 8 << 20, ..LsmOptions::default() },
        )
        .expect("an index");
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
        Self { index, worker: Some(worker), calls }
    }
}

impl Engine for Dalsegno {
    fn put(&mut self, first: u64) {
        while self.index.is_stalled() {
            let _ = self.calls.try_send(());
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        assert_eq!(u64::from(self.index.insert(extent(first), &|_| true)), EXTENT_BLOCKS);
        if self.index.is_full() {
            self.index.freeze(Vec::new());
            let _ = self.calls.try_send(());
        }
    }

    fn has(&mut self, block: u64) -> bool {
        self.index.probe(NAMESPACE, &[hash(block)]) == 1
    }

    fn scan(&mut self, chain: u64) -> u64 {
        let first = chain * CHAIN_BLOCKS;
        let runs =
            self.index.resolve(NAMESPACE, &hashes(first..first + CHAIN_BLOCKS), Scope::Prefix);
        runs.iter().map(|run| u64::from(run.count)).sum()
    }

    fn settle(&mut self) {
        self.index.freeze(Vec::new());
        while self.index.step() {}
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

struct Rocks {
    db: rocksdb::DB,
    unsynced: rocksdb::WriteOptions,
}

impl Rocks {
    /// As the authors recommend for lookups: a full Bloom filter of ten bits, two background jobs, no compression.
    fn open(dir: &Path, universal: bool) -> Self {
        let mut table = rocksdb::BlockBasedOptions::default();
        table.set_bloom_filter(10.0, false);
        let mut options = rocksdb::Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        options.set_compression_type(rocksdb::DBCompressionType::None);
        options.increase_parallelism(2);
        if universal {
            options.set_compaction_style(rocksdb::DBCompactionStyle::Universal);
        }
        let mut unsynced = rocksdb::WriteOptions::default();
        unsynced.disable_wal(true);
        Self { db: rocksdb::DB::open(&options, dir).expect("RocksDB opens"), unsynced }
    }
}

impl Engine for Rocks {
    fn put(&mut self, first: u64) {
        let mut batch = rocksdb::WriteBatch::default();
        for block in first..first + EXTENT_BLOCKS {
            batch.put(key(block), value(block));
        }
        self.db.write_opt(batch, &self.unsynced).expect("RocksDB writes");
    }

    fn has(&mut self, block: u64) -> bool {
        self.db.get_pinned(key(block)).expect("RocksDB reads").is_some()
    }

    fn scan(&mut self, chain: u64) -> u64 {
        let mut iter = self.db.raw_iterator();
        iter.seek(&key(chain * CHAIN_BLOCKS)[..48]);
        let mut found = 0;
        while found < CHAIN_BLOCKS
            && iter.valid()
            && iter.value().is_some_and(|value| value.len() == 32)
        {
            found += 1;
            iter.next();
        }
        found
    }

    fn settle(&mut self) {
        self.db.flush().expect("RocksDB flushes");
        let running = || {
            let running = self.db.property_int_value("rocksdb.num-running-compactions");
            running.expect("a property").unwrap_or(0)
        };
        // Universal compaction may call one pending for ever that it never begins, so: none has run for a while.
        let mut quiet = 0;
        while quiet < 10 {
            quiet = if running() > 0 { 0 } else { quiet + 1 };
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

struct Lmdb {
    env: heed::Env,
    db: heed::Database<Bytes, Bytes>,
}

impl Lmdb {
    fn open(dir: &Path) -> Self {
        let mut options = heed::EnvOpenOptions::new();
        options.map_size(64 << 30);
        // SAFETY: nobody else opens this folder; unsynced, as the others are.
        let env = unsafe { options.flags(heed::EnvFlags::NO_SYNC).open(dir).expect("LMDB opens") };
        let mut write = env.write_txn().expect("LMDB writes");
        let db = env.create_database(&mut write, None).expect("LMDB makes a database");
        write.commit().expect("LMDB commits");
        Self { env, db }
    }
}

impl Engine for Lmdb {
    fn put(&mut self, first: u64) {
        let mut write = self.env.write_txn().expect("LMDB writes");
        for block in first..first + EXTENT_BLOCKS {
            self.db.put(&mut write, &key(block), &value(block)).expect("LMDB puts");
        }
        write.commit().expect("LMDB commits");
    }

    fn has(&mut self, block: u64) -> bool {
        let read = self.env.read_txn().expect("LMDB reads");
        self.db.get(&read, &key(block)).expect("LMDB gets").is_some()
    }

    fn scan(&mut self, chain: u64) -> u64 {
        let read = self.env.read_txn().expect("LMDB reads");
        let from = &key(chain * CHAIN_BLOCKS)[..48];
        let range = (std::ops::Bound::Included(from), std::ops::Bound::Unbounded);
        let range = self.db.range(&read, &range).expect("LMDB scans");
        range
            .take(512)
            .filter(|entry| entry.as_ref().is_ok_and(|(_, value)| value.len() == 32))
            .count() as u64
    }

    fn settle(&mut self) {
        self.env.force_sync().expect("LMDB syncs");
    }
}
