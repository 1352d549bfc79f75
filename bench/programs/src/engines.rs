//! The engines: ours, and what others offer.

use std::path::Path;

use heed::types::Bytes;

use crate::engine::Engine;
use crate::ours::Dalsegno;
use crate::workload::{CHAIN_BLOCKS, EXTENT_BLOCKS, key, value};

/// What RocksDB keeps of blocks by default; so ours does too.
const CACHE_BYTES: u64 = 8 << 20;

/// Opens the engine of this name in a directory.
pub fn open(name: &str, dir: &Path) -> Box<dyn Engine> {
    match name {
        "dalsegno" => Box::new(Dalsegno::open(dir, CACHE_BYTES)),
        "rocksdb" => Box::new(Rocks::open(dir, false)),
        "rocksdb_universal" => Box::new(Rocks::open(dir, true)),
        "lmdb" => Box::new(Lmdb::open(dir)),
        other => panic!("no engine is called {other}"),
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
        // Universal compaction may report one as pending that it never begins, so wait until none has run for a while.
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
