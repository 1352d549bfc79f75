//! The store as callers hold it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dalsegno_core::{
    ChainHash, Clock, Error, ErrorKind, Limits, Namespace, NamespaceId, Result, StoreId,
};
use dalsegno_index::Index;
use dalsegno_io::{Device, DirectoryLock};
use dalsegno_log::{Log, LogError};
use dalsegno_policy::AdmissionFilter;
use parking_lot::{Mutex, RwLock};

use crate::dram::Dram;
use crate::pending::Pending;
use crate::stats::{Counters, Stats, add};
use crate::transfer::Workers;

/// How long closing waits for transfers that are under way.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// A store of KV-cache blocks. Clones share it; it is closed when [`Store::close`] is called or the last one is dropped.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
    pub(crate) workers: Arc<Workers>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) limits: Limits,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) log: Log,
    pub(crate) index: Arc<dyn Index>,
    pub(crate) dram: Dram,
    pub(crate) pending: Pending,
    pub(crate) admission: Mutex<AdmissionFilter>,
    pub(crate) namespaces: RwLock<HashMap<NamespaceId, Namespace>>,
    pub(crate) counters: Counters,
    /// Held by whoever makes room, so that one does it for all.
    pub(crate) reclaiming: Mutex<()>,
    pub(crate) closed: AtomicBool,
    pub(crate) lock: Mutex<Option<DirectoryLock>>,
}

impl Store {
    /// The store's random name.
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.inner.log.store()
    }

    /// The bounds it was opened with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// All counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        crate::stats::view(&self.inner)
    }

    /// Makes a namespace known, and notes on disk what it stands for.
    ///
    /// # Errors
    ///
    /// `Invalid` if its blocks do not fit into a segment or there are too many namespaces; `Closed`.
    pub fn register(&self, namespace: &Namespace) -> Result<()> {
        self.inner.check_open()?;
        let mut known = self.inner.namespaces.write();
        if known.contains_key(&namespace.id()) {
            return Ok(());
        }
        if known.len() >= self.inner.limits.namespace_count as usize {
            return Err(Error::invalid(format!(
                "the store has {} namespaces, the most its setting \"namespaces\" allows; raise it or remove some",
                known.len()
            )));
        }
        self.inner.check_block_fits(namespace)?;
        if let Err(error) = dalsegno_log::write_namespace(&self.inner.log, namespace) {
            tracing::warn!(
                "the description of namespace {} was not stored: {error}",
                namespace.id()
            );
        }
        known.insert(namespace.id(), namespace.clone());
        Ok(())
    }

    /// How many leading blocks of `chain` are present; it may start at any block of a prompt.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn probe(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Result<usize> {
        self.inner.check_open()?;
        let present = self.inner.index.probe(namespace, chain);
        let counters = &self.inner.counters;
        add(&counters.probe_calls, 1);
        add(&counters.probe_asked_blocks, chain.len() as u64);
        add(&counters.probe_present_blocks, present as u64);
        Ok(present)
    }

    /// Which of these blocks are present, each for itself.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn contains(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Result<Vec<bool>> {
        self.inner.check_open()?;
        let mut present = vec![false; hashes.len()];
        for run in self.inner.index.resolve(namespace, hashes, dalsegno_index::Scope::Each) {
            present[run.at..run.at + run.count as usize].fill(true);
        }
        Ok(present)
    }

    /// Removes blocks (all of the namespace if `hashes` is `None`) for good: they stay gone after the next open.
    /// Returns how many were there.
    ///
    /// # Errors
    ///
    /// `Poisoned`, `Unavailable` or `Full` if the removal could not be made durable; the blocks are gone until the
    /// store is closed all the same.
    pub fn remove(&self, namespace: NamespaceId, hashes: Option<&[ChainHash]>) -> Result<u64> {
        let inner = &self.inner;
        inner.check_open()?;
        let removed = match hashes {
            Some([]) => return Ok(0),
            Some(hashes) => {
                for hash in hashes {
                    inner.dram.remove(&(namespace, *hash));
                }
                inner.index.remove_blocks(namespace, hashes)
            }
            None => {
                inner.dram.clear();
                inner.index.remove_namespace(namespace)
            }
        };
        for id in &removed.extents {
            inner.log.forget(*id);
        }
        add(&inner.counters.removed_blocks, removed.blocks);
        inner.log.remove(namespace, hashes.unwrap_or_default()).map_err(to_error)?;
        Ok(removed.blocks)
    }

    /// Stops taking calls, waits for transfers under way, and lets go of the directory. Calling it again does nothing.
    pub fn close(&self) {
        if !self.inner.closed.swap(true, Ordering::AcqRel) {
            self.workers.stop(self.inner.clock.as_ref(), CLOSE_PATIENCE);
            self.inner.lock.lock().take();
        }
    }

    /// Whether the store was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner.closed.load(Ordering::Acquire)
    }
}

impl Inner {
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the store is closed; open it again"));
        }
        Ok(())
    }

    /// A namespace that was registered.
    pub(crate) fn namespace(&self, id: NamespaceId) -> Result<Namespace> {
        self.namespaces.read().get(&id).cloned().ok_or_else(|| {
            Error::invalid(format!(
                "namespace {id} is not registered with this store; register it first"
            ))
        })
    }

    fn check_block_fits(&self, namespace: &Namespace) -> Result<()> {
        let layout = namespace.layout();
        let bytes = layout.payload_bytes(1);
        let room = self.limits.segment_bytes - 2 * dalsegno_core::SECTOR_BYTES;
        // One block has at most MAX_LAYERS checksums, which fit into two sectors with the header's fields.
        if bytes + dalsegno_core::SECTOR_BYTES > room {
            return Err(Error::invalid(format!(
                "a block of {} does not fit into a segment of {}; give a larger \"segment\" (or capacity) when the store is created",
                dalsegno_core::format_bytes(bytes),
                dalsegno_core::format_bytes(self.limits.segment_bytes)
            )));
        }
        Ok(())
    }
}

/// What the caller can do about an error of the log.
pub(crate) fn to_error(error: LogError) -> Error {
    let (kind, message) = match &error {
        LogError::Full => (
            ErrorKind::Full,
            "the log has no room left and nothing could be given up; raise the capacity or free the disk",
        ),
        LogError::TooLarge { .. } => (ErrorKind::Invalid, "the extent does not fit into a segment"),
        LogError::Poisoned => {
            (ErrorKind::Poisoned, "writing has stopped; close the store and open it again")
        }
        LogError::Deadline | LogError::Cancelled => {
            (ErrorKind::Unavailable, "the call ended early")
        }
        LogError::Io(_) => (ErrorKind::Unavailable, "the device failed"),
        LogError::Format { source: dalsegno_log::format::FormatError::Newer(_), .. } => (
            ErrorKind::Incompatible,
            "a newer Dalsegno wrote this store; upgrade, or use another directory",
        ),
        LogError::Format { .. } => (ErrorKind::Corrupt, "the store's files are damaged"),
    };
    Error::new(kind, message).with_source(error)
}
