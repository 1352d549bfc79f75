//! The DRAM tier: whole blocks within a byte bound, in front of the log.
//!
//! 1. It holds only blocks that the index knows: whoever removes or evicts a block takes it out of the index first,
//!    then out of here; whoever brings one in looks at the index afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{ChainHash, NamespaceId};
use dalsegno_io::Memory;
use dalsegno_policy::S3Fifo;
use parking_lot::Mutex;

type Key = (NamespaceId, ChainHash);

#[derive(Debug)]
pub(crate) struct Dram {
    blocks: Mutex<S3Fifo<Key, Arc<[u8]>>>,
    capacity_bytes: u64,
    admitted: AtomicU64,
    evicted: AtomicU64,
}

/// What the tier holds and did.
pub(crate) struct DramView {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) admitted: u64,
    pub(crate) evicted: u64,
}

impl Dram {
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        Self {
            blocks: Mutex::new(S3Fifo::new(capacity_bytes)),
            capacity_bytes,
            admitted: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.capacity_bytes == 0
    }

    /// The block's bytes; counts the use.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<[u8]>> {
        if self.is_off() {
            return None;
        }
        self.blocks.lock().get(key).map(Arc::clone)
    }

    /// Copies a block in, if the policy has room for it.
    pub(crate) fn insert(&self, key: Key, pieces: &[Memory]) {
        let bytes: usize = pieces.iter().map(Memory::len).sum();
        if bytes as u64 > self.capacity_bytes || self.blocks.lock().peek(&key).is_some() {
            return;
        }
        let mut block = Vec::with_capacity(bytes);
        for piece in pieces {
            block.extend_from_slice(piece.as_slice());
        }
        let left = self.blocks.lock().insert(key, Arc::from(block), bytes as u64);
        self.admitted.fetch_add(1, Ordering::Relaxed);
        self.evicted.fetch_add(left.len() as u64, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, namespace: NamespaceId, hashes: &[ChainHash]) {
        if !self.is_off() {
            let mut blocks = self.blocks.lock();
            for hash in hashes {
                blocks.remove(&(namespace, *hash));
            }
        }
    }

    /// Drops everything: a removed namespace may have blocks anywhere.
    pub(crate) fn clear(&self) {
        *self.blocks.lock() = S3Fifo::new(self.capacity_bytes);
    }

    pub(crate) fn view(&self) -> DramView {
        let blocks = self.blocks.lock();
        DramView {
            blocks: blocks.len() as u64,
            bytes: blocks.bytes(),
            admitted: self.admitted.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }
}
