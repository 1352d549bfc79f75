//! The store as callers hold it.
//!
//! 1. It serves the process that opened it. In a forked child every call is refused before it touches a lock, and what
//!    is dropped is left as it is: nothing reaches the files, the rings or the directory's lock, which the parent uses.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use dalsegno_core::{
    ChainHash, Clock, Coding, Deadline, Error, ErrorKind, Limits, Namespace, NamespaceId, Result,
    StoreId,
};
use dalsegno_index::Index;
use dalsegno_io::{Device, DirectoryLock, IoError, Process};
use dalsegno_log::{Call, Log, LogError};
use dalsegno_policy::AdmissionFilter;
use parking_lot::{Mutex, RwLock};

use crate::dram::Dram;
use crate::merge::Merger;
use crate::pending::Pending;
use crate::room::RoomMaker;
use crate::stats::{Counters, Stats, add};
use crate::terms::Terms;
use crate::transfer::Workers;
use crate::upkeep::Upkeep;

/// How long closing waits for transfers that are under way.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
const CLOSE_POLL: Duration = Duration::from_millis(1);

/// A store of KV-cache blocks. Clones share it; it is closed when [`Store::close`] is called or the last one is
/// dropped.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) door: Arc<Door>,
    pub(crate) workers: Arc<Workers>,
}

/// What every clone of a store shares. A call goes in through [`Store::enter`] and holds what it got until it ends, so
/// files, threads and the lock go only when nobody uses them any more.
#[derive(Debug)]
pub(crate) struct Door {
    inner: RwLock<Option<Arc<Inner>>>,
    /// What was counted, once the store is closed.
    last: Mutex<Option<Stats>>,
    id: StoreId,
    limits: Limits,
    pub(crate) process: Process,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) limits: Limits,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) log: Log,
    pub(crate) index: Arc<dyn Index>,
    pub(crate) upkeep: Upkeep,
    pub(crate) dram: Dram,
    pub(crate) pending: Pending,
    pub(crate) admission: Mutex<AdmissionFilter>,
    /// Who may share bytes, and how new extents of theirs are stored.
    pub(crate) namespaces: RwLock<HashMap<NamespaceId, (Arc<Namespace>, Coding)>>,
    pub(crate) counters: Counters,
    pub(crate) room: RoomMaker,
    pub(crate) merger: Merger,
    /// Gets under way: background work stands back for them.
    pub(crate) reads: AtomicU32,
    /// The last field, so that the directory is let go when everything else has gone.
    pub(crate) _lock: Option<DirectoryLock>,
}

impl Store {
    pub(crate) fn new(inner: Inner, workers: Workers) -> Self {
        let (id, limits) = (inner.log.store(), inner.limits.clone());
        let inner = RwLock::new(Some(Arc::new(inner)));
        let door = Door { inner, last: Mutex::default(), id, limits, process: Process::this() };
        Self { door: Arc::new(door), workers: Arc::new(workers) }
    }

    /// What a call works with, until it ends.
    pub(crate) fn enter(&self) -> Result<Arc<Inner>> {
        self.check_process()?;
        let closed = || Error::new(ErrorKind::Closed, "the store is closed; open it again");
        self.door.inner.read().as_ref().map(Arc::clone).ok_or_else(closed)
    }

    /// Fails in a forked child, as every call does. Never waits, so that whoever must lock something before a call can
    /// ask first: in a child a lock may stay taken for ever.
    ///
    /// # Errors
    ///
    /// `Unavailable`.
    pub fn check_process(&self) -> Result<()> {
        let process = self.door.process;
        if process.is_this() { Ok(()) } else { Err(forked(process)) }
    }

    /// The store's random name.
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.door.id
    }

    /// The bounds it was opened with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.door.limits
    }

    /// All counters and gauges; of a closed store, as they were in the end.
    ///
    /// # Panics
    ///
    /// In a forked child: see [`Store::check_process`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        match self.enter() {
            Ok(inner) => crate::stats::view(&inner),
            Err(error) => {
                assert!(error.kind() == ErrorKind::Closed, "{error}");
                self.door.last.lock().clone().expect("noted before the store closed")
            }
        }
    }

    /// Makes a namespace known, and notes on disk what it stands for. It is stored as it was until now, plain if it is
    /// new.
    ///
    /// # Errors
    ///
    /// `Invalid` if its blocks do not fit into a segment or there are too many namespaces; `Closed`.
    pub fn register(&self, namespace: &Namespace) -> Result<()> {
        self.register_as(namespace, None)
    }

    /// As [`Store::register`]; from now on new extents of the namespace are stored like this, also those that merging
    /// and making room write. It is remembered as long as the namespace has blocks.
    ///
    /// # Errors
    ///
    /// As [`Store::register`]; `Unavailable` if the store could not be marked as one that may hold coded extents.
    pub fn register_coded(&self, namespace: &Namespace, coding: Coding) -> Result<()> {
        self.register_as(namespace, Some(coding))
    }

    fn register_as(&self, namespace: &Namespace, coding: Option<Coding>) -> Result<()> {
        let inner = self.enter()?;
        let mut known = inner.namespaces.write();
        let found = known.get(&namespace.id()).map(|(_, coding)| *coding);
        let coding = coding.or(found).unwrap_or_default();
        if found == Some(coding) {
            return Ok(());
        }
        if found.is_none() && known.len() >= inner.limits.namespace_count as usize {
            return Err(Error::invalid(format!(
                "the store has {} namespaces, the most its setting \"namespaces\" allows; raise it, or open the store \
                 again, which forgets those without blocks",
                known.len()
            )));
        }
        inner.check_block_fits(namespace)?;
        if !coding.is_plain() {
            dalsegno_log::allow_coding(&inner.log).map_err(to_error)?;
        }
        if let Err(error) = dalsegno_log::write_namespace(&inner.log, namespace, coding) {
            tracing::warn!(
                "the description of namespace {} was not stored: {error}",
                namespace.id()
            );
        }
        known.insert(namespace.id(), (Arc::new(namespace.clone()), coding));
        Ok(())
    }

    /// The namespaces that are known, by id: those with blocks when the store was opened, and those registered since.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn namespaces(&self) -> Result<Vec<Namespace>> {
        let inner = self.enter()?;
        let mut known: Vec<Namespace> =
            inner.namespaces.read().values().map(|(namespace, _)| (**namespace).clone()).collect();
        known.sort_by_key(Namespace::id);
        Ok(known)
    }

    /// How many leading blocks of `chain` are present; it may start at any block of a prompt.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn probe(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Result<usize> {
        let inner = self.enter()?;
        let present = inner.index.probe(namespace, chain);
        let counters = &inner.counters;
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
        let inner = self.enter()?;
        let mut present = vec![false; hashes.len()];
        for run in inner.index.resolve(namespace, hashes, dalsegno_index::Scope::Each) {
            present[run.at..run.at + run.count as usize].fill(true);
        }
        Ok(present)
    }

    /// Removes blocks (all of the namespace if `hashes` is `None`) for good: they stay gone after the next open.
    /// Returns how many were there.
    ///
    /// # Errors
    ///
    /// `Poisoned`, `Unavailable` or `Full` if the removal could not be made durable, or was not in time; the blocks are
    /// gone until the store is closed all the same. What was begun when time was up may still become durable.
    pub fn remove(
        &self,
        namespace: NamespaceId,
        hashes: Option<&[ChainHash]>,
        terms: &Terms,
    ) -> Result<u64> {
        let inner = self.enter()?;
        let call = terms.call(inner.clock.as_ref());
        match hashes {
            None => inner.remove_part(namespace, &[], &call),
            Some(hashes) => {
                let parts = hashes.chunks(dalsegno_core::MAX_EXTENT_BLOCKS as usize);
                // All parts, also behind one that could not be made durable.
                let removed: Vec<_> =
                    parts.map(|part| inner.remove_part(namespace, part, &call)).collect();
                removed.into_iter().sum()
            }
        }
    }

    /// Carries out what was begun, lets go of the directory and of everything else. Calling it again does nothing, nor
    /// does calling it in a forked child.
    ///
    /// If a call does not end within ten seconds, because the device hangs, it is left behind, and the directory with
    /// it.
    pub fn close(&self) {
        let Ok(inner) = self.enter() else { return };
        let deadline = Deadline::At(inner.clock.now().after(CLOSE_PATIENCE));
        self.workers.stop(CLOSE_PATIENCE);
        inner.merger.close(deadline.remaining(inner.clock.now()).unwrap_or_default());
        *self.door.last.lock() = Some(crate::stats::view(&inner));
        self.door.inner.write().take();
        while Arc::strong_count(&inner) > 1 {
            if deadline.expired(inner.clock.now()) {
                tracing::warn!("a call did not end in time; the directory is let go when it does");
                break;
            }
            std::thread::sleep(CLOSE_POLL);
        }
        inner.room.close(deadline.remaining(inner.clock.now()).unwrap_or_default());
        inner.upkeep.close();
        inner.log.close();
        *self.door.last.lock() = Some(crate::stats::view(&inner));
    }

    /// Whether the store was closed. In a forked child it always is.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        !self.door.process.is_this() || self.door.inner.read().is_none()
    }
}

impl Drop for Door {
    /// In a forked child nothing is dropped: a thread that is not there may have been changing any part of it.
    fn drop(&mut self) {
        if !self.process.is_this() {
            std::mem::forget(self.inner.get_mut().take());
            std::mem::forget(self.last.get_mut().take());
        } else if let Some(inner) = self.inner.get_mut() {
            // While it merges it holds the store, and with it the directory.
            inner.merger.close(CLOSE_PATIENCE);
        }
    }
}

impl Inner {
    /// Removes blocks that fit one record, or the whole namespace if there are none.
    ///
    /// Announced first, so that a put under way does not publish them afterwards; then the index, then DRAM, so that a
    /// get under way does not bring them back.
    fn remove_part(
        self: &Arc<Self>,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        call: &Call,
    ) -> Result<u64> {
        let number = self.log.begin_removal(namespace, hashes);
        let announced = Announced { log: self.log.clone(), number };
        let removed = if hashes.is_empty() {
            let removed = self.index.remove_namespace(namespace);
            self.dram.clear();
            removed
        } else {
            let removed = self.index.remove_blocks(namespace, hashes);
            self.dram.remove(namespace, hashes);
            removed
        };
        for id in &removed.extents {
            self.log.forget(*id);
        }
        add(&self.counters.removed_blocks, removed.blocks);
        let bytes = Log::removal_bytes(hashes.len());
        let finish = move |inner: &Self, call: &Call| {
            // Tried also if no room could be made: a removal may use the reserve.
            if let Err(error) = inner.make_room(bytes, call) {
                tracing::debug!("no room could be made for a removal: {error}");
            }
            announced.log.finish_removal(announced.number)
        };
        self.have_done(call, finish).map_err(to_error)?;
        Ok(removed.blocks)
    }

    /// A namespace that was registered.
    pub(crate) fn namespace(&self, id: NamespaceId) -> Result<Arc<Namespace>> {
        let found = self.namespaces.read().get(&id).map(|(namespace, _)| Arc::clone(namespace));
        found.ok_or_else(|| {
            Error::invalid(format!(
                "namespace {id} is not registered with this store; register it first"
            ))
        })
    }

    /// How new extents of a namespace are stored.
    pub(crate) fn coding(&self, id: NamespaceId) -> Coding {
        self.namespaces.read().get(&id).map(|(_, coding)| *coding).unwrap_or_default()
    }

    fn check_block_fits(&self, namespace: &Namespace) -> Result<()> {
        let layout = namespace.layout();
        let bytes = layout.payload_bytes(1);
        let room = self.limits.segment_bytes - 2 * dalsegno_core::SECTOR_BYTES;
        // One block has at most MAX_LAYERS checksums, which fit into two sectors with the header's fields.
        if bytes + dalsegno_core::SECTOR_BYTES > room {
            return Err(Error::invalid(format!(
                "a block of {} does not fit into a segment of {}; give a larger \"segment\" (or capacity) when \
                 the store is created",
                dalsegno_core::format_bytes(bytes),
                dalsegno_core::format_bytes(self.limits.segment_bytes)
            )));
        }
        Ok(())
    }
}

/// A removal that was announced, until it is finished or called off.
struct Announced {
    log: Log,
    number: u64,
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.log.abandon_removal(self.number);
    }
}

/// What a forked child is told of a store that its parent opened.
pub(crate) fn forked(process: Process) -> Error {
    let message = format!(
        "this store was opened by process {} and does not work in a forked child: fork before you open it, or start \
         the child anew (with multiprocessing, the start method \"spawn\")",
        process.id()
    );
    Error::new(ErrorKind::Unavailable, message)
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
        LogError::Io(IoError::Deadline) => (ErrorKind::Unavailable, "the call ended early"),
        LogError::Io(_) => (ErrorKind::Unavailable, "the device failed"),
        LogError::Format { source: dalsegno_log::format::FormatError::Newer(_), .. } => (
            ErrorKind::Incompatible,
            "a newer Dalsegno wrote this store; upgrade, or use another directory",
        ),
        LogError::Format { .. } => (ErrorKind::Corrupt, "the store's files are damaged"),
    };
    Error::new(kind, message).with_source(error)
}
